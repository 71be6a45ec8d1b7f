"""Writes `kernels.py`: one typed function and one parameter dataclass per template.

The text is laid out so that `ruff format` leaves it as it is (every list has a trailing comma).
"""

from __future__ import annotations

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
    lines = [f"{name}: TypeAlias = Literal["]
    lines += [f"    {_quote(value)}," for value in values]
    return "\n".join([*lines, "]"])


def _quote(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _params_class(name: str, params: list[dict[str, Any]]) -> str:
    size = sum(4 * (param["count"] or 1) for param in params)
    codes = "".join(f"{param['count'] or ''}{_STRUCT_CODES[param['type']]}" for param in params)
    lines = [
        f'_{name.upper()} = struct.Struct("<{codes}")',
        "",
        "",
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
    doc = entry["doc"] or f"Variant of `{name}`."
    if not axes:
        body = f'    return find_shader("{name}", {{}})'
        return "\n".join([f"def {name}() -> Shader:", *_docstring(doc), body])
    lines = [f"def {name}(", "    *,"]
    lines += [f"    {axis}: {camel(name)}{camel(axis)}," for axis in axes]
    lines += [") -> Shader:", *_docstring(doc), "    return find_shader("]
    lines += [f'        "{name}",', "        {"]
    lines += [f'            "{axis}": {axis},' for axis in axes]
    lines += ["        },", "    )"]
    return "\n".join(lines)


def _docstring(doc: str) -> list[str]:
    """Wrap a comment into a docstring of at most 100 columns."""
    words = doc.replace("\\", "/").replace('"""', "'''").split()
    text = " ".join(words)
    text = text if text.endswith((".", "!", "?", ":")) else text + "."
    if len(text) <= 90 and not text.endswith('"'):
        return [f'    """{text}"""']
    summary, dot, rest = text.partition(". ")
    summary += "." if dot else ""
    blocks = [summary, *([rest] if rest else [])]
    lines: list[str] = []
    for number, block in enumerate(blocks):
        line = '    """' if number == 0 else "   "
        if number == 1:
            lines.append("")
        first = True
        for word in block.split():
            glue = "" if number == 0 and first else " "
            if len(line) + len(glue) + len(word) > 98 and not first:
                lines.append(line)
                line, glue = "   ", " "
            line += glue + word
            first = False
        lines.append(line)
    return [*lines, '    """']


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
    parts: list[str] = []
    for name, members in sorted(manifest["enums"].items()):
        lines = [
            f"class {name}(IntEnum):",
            f'    """The numbers `{name.upper()}_…` of GLSL."""',
            "",
        ]
        lines += [f"    {member} = {value}" for value, member in enumerate(members)]
        parts.append("\n\n" + "\n".join(lines))
    for name, entry in templates:
        block = [
            _literal(values, f"{camel(name)}{camel(axis)}")
            for axis, values in entry["axes"].items()
        ]
        if entry["params"]:
            parts.append("\n" + "\n".join([*block, _params_class(name, entry["params"])]))
        elif block:
            parts.append("\n" + "\n".join(block))
        parts.append("\n\n" + _function(name, entry))
    return head + "\n".join(parts) + "\n"
