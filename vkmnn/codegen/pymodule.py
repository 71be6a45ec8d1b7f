"""Writes `kernels.py`: one typed function and one parameter dataclass per template.

The text is laid out so that `ruff format` leaves it as it is (every list has a trailing comma).
"""

from __future__ import annotations

import textwrap
from typing import Any

from vkmnn.codegen.manifest import HEADER, Manifest

_PYTHON_TYPES = {"uint": "int", "int": "int", "float": "float"}
_STRUCT_CODES = {"uint": "I", "int": "i", "float": "f"}

_HEAD = '''"""Typed access to the built-in shaders: {header}.

`name(axis=...)` returns a variant, `NameParams(...).pack()` its push constants.
"""

from __future__ import annotations

import struct
{imports}from typing import Literal, TypeAlias

from vkmnn.runtime.shader import Shader
from vkmnn.shaders.library import find_shader, pack_params
'''


def camel(name: str) -> str:
    """Return `conv_im2col` as `ConvIm2col`."""
    return "".join(part.capitalize() for part in name.split("_"))


def _literal(values: list[str | int], name: str) -> str:
    if len(values) == 1:  # with a trailing comma it would be a tuple
        return f"{name}: TypeAlias = Literal[{_quote(values[0])}]"
    lines = [f"{name}: TypeAlias = Literal["]
    lines += [f"    {_quote(value)}," for value in values]
    return "\n".join([*lines, "]"])


def _quote(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _enum(name: str, members: list[str]) -> str:
    lines = [f"class {name}(IntEnum):", f'    """The numbers `{name.upper()}_…` of GLSL."""', ""]
    return "\n".join([*lines, *(f"    {member} = {i}" for i, member in enumerate(members))])


def _struct(name: str, params: list[dict[str, Any]]) -> str:
    codes = "".join(f"{param['count'] or ''}{_STRUCT_CODES[param['type']]}" for param in params)
    return f'_{name.upper()} = struct.Struct("<{codes}")'


def _params_class(name: str, params: list[dict[str, Any]]) -> str:
    size = sum(4 * (param["count"] or 1) for param in params)
    lines = [
        "@dataclass(frozen=True, slots=True, kw_only=True)",
        f"class {camel(name)}Params:",
        f'    """Push constants of `{name}`: {size} bytes."""',
        "",
    ]
    for param in params:
        python = _PYTHON_TYPES[param["type"]]
        kind = f"tuple[{python}, ...]" if param["count"] else python
        default = "" if param["default"] is None else f" = {param['default']!r}"
        lines.append(f"    {param['name']}: {kind}{default}")
        if param["count"]:
            lines.append(f'    """{param["count"]} values."""')
    fields = ", ".join(f'("{p["name"]}", self.{p["name"]}, {p["count"]})' for p in params)
    call = f'        return pack_params("{camel(name)}Params", _{name.upper()}, ({fields},))'
    lines += [
        "",
        "    def pack(self) -> bytes:",
        '        """Return the block as the shader reads it (std430, little endian)."""',
    ]
    if len(call) <= 100 and len(params) == 1:
        lines.append(call)
    else:
        lines += [
            "        return pack_params(",
            f'            "{camel(name)}Params",',
            f"            _{name.upper()},",
            "            (",
            *(f'                ("{p["name"]}", self.{p["name"]}, {p["count"]}),' for p in params),
            "            ),",
            "        )",
        ]
    return "\n".join(lines)


def _function(name: str, entry: dict[str, Any]) -> str:
    axes = entry["axes"]
    doc = entry["doc"]
    if not axes:
        body = f'    return find_shader("{name}", {{}})'
        return "\n".join([f"def {name}() -> Shader:", *_docstring(name, doc), body])
    lines = [f"def {name}(", "    *,"]
    lines += [f"    {axis}: {camel(name)}{camel(axis)}," for axis in axes]
    lines += [") -> Shader:", *_docstring(name, doc), "    return find_shader("]
    lines += [f'        "{name}",', "        {"]
    lines += [f'            "{axis}": {axis},' for axis in axes]
    lines += ["        },", "    )"]
    return "\n".join(lines)


def _docstring(name: str, doc: str) -> list[str]:
    """A fixed summary line, then the template's comment, wrapped."""
    summary = f'    """Return a variant of `{name}`.'
    if not doc:
        return [summary + '"""']
    plain = doc.replace("\\", "/").replace('"""', "'''")
    body = textwrap.wrap(
        plain,
        width=98,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [summary, "", *body, '    """']


def kernels_source(manifest: Manifest) -> str:
    """Return the text of `kernels.py`."""
    templates = sorted(manifest["templates"].items())
    has_params = any(entry["params"] for _, entry in templates)
    imports = "from dataclasses import dataclass\n" if has_params else ""
    imports += "from enum import IntEnum\n" if manifest["enums"] else ""
    head = _HEAD.format(header=HEADER, imports=imports)
    if not has_params:
        head = head.replace("import struct\n", "").replace(", pack_params", "")
    if not any(entry["axes"] for _, entry in templates):
        head = head.replace("from typing import Literal, TypeAlias\n", "")
    # Definitions stand between two blank lines, as ruff wants it; the first plain block after one.
    text = head
    after_definition = False

    def add(block: str, is_definition: bool) -> None:
        nonlocal text, after_definition
        text += "\n" * (2 if is_definition or after_definition else 1) + block + "\n"
        after_definition = is_definition

    for name, members in sorted(manifest["enums"].items()):
        add(_enum(name, members), True)
    for name, entry in templates:
        aliases = [
            _literal(values, f"{camel(name)}{camel(axis)}")
            for axis, values in entry["axes"].items()
        ]
        if entry["params"]:
            aliases.append(_struct(name, entry["params"]))
        if aliases:
            add("\n".join(aliases), False)
        if entry["params"]:
            add(_params_class(name, entry["params"]), True)
        add(_function(name, entry), True)
    return text
