"""Writes `kernels.py`: one typed function and one parameter class per template.

The text is laid out so that `ruff format` leaves it as it is (every list has a trailing comma).
"""

from __future__ import annotations

import textwrap
from typing import Any

from vkmnn.codegen.manifest import HEADER, Manifest

_PYTHON_TYPES = {"uint": "int", "int": "int", "float": "float"}
_STRUCT_CODES = {"uint": "I", "int": "i", "float": "f"}

_HEAD = '''"""Typed access to the shaders of this folder: {header}.

`name(axis=...)` returns a variant{params}.
"""

from __future__ import annotations

{imports}
_find = ShaderLibrary.beside(__file__).find
'''
_PARAMS_DOC = ", `NameParams(...).pack()` its push constants"


def _imports(templates: list[dict[str, Any]], has_enums: bool) -> str:
    """Return only the imports that are used, in the order that ruff wants."""
    params = [param for template in templates for param in template["params"]]
    has_axes = any(template["axes"] for template in templates)
    typing = ["Final"] * bool(params) + ["Literal", "TypeAlias"] * has_axes
    arrays = ["array"] * any(param["count"] for param in params)
    lines = ["import struct"] * bool(params)
    lines += ["from enum import IntEnum"] * has_enums
    lines += [f"from typing import {', '.join(typing)}"] * bool(typing)
    lines += [""] * bool(lines)
    lines += ["from vkmnn.runtime.shader import Shader"]
    lines += ["from vkmnn.shaders.library import ShaderLibrary"]
    if params:
        names = ", ".join(["PACK_ERRORS", "Params", *arrays, "params_error"])
        lines += [f"from vkmnn.shaders.params import {names}"]
    return "\n".join(lines) + "\n"


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
    """A class with slots: a dataclass would take a thousand times longer to define."""
    struct_name = f"_{name.upper()}"
    size = sum(4 * (param["count"] or 1) for param in params)
    arrays = ", ".join(f"{p['count']} in {p['name']}" for p in params if p["count"])
    doc = f"Push constants of `{name}`: {size} bytes."
    lines = [f"class {camel(name)}Params(Params):"]
    if arrays:
        wrapped = textwrap.wrap(
            f"Values: {arrays}.", width=98, initial_indent="    ", subsequent_indent="    "
        )
        lines += [f'    """{doc}', "", *wrapped, '    """']
    else:
        lines += [f'    """{doc}"""']
    lines += ["", f"    __slots__ = {_slots([param['name'] for param in params])}"]
    lines += ["", "    def __init__(", "        self,", "        *,"]
    for param in params:
        python = _PYTHON_TYPES[param["type"]]
        kind = f"tuple[{python}, ...]" if param["count"] else python
        default = "" if param["default"] is None else f" = {param['default']!r}"
        lines.append(f"        {param['name']}: {kind}{default},")
    lines += ["    ) -> None:"]
    lines += [f"        self.{param['name']}: Final = {param['name']}" for param in params]
    lines += ["", "    def pack(self) -> bytes:", "        try:"]
    lines += [f"            return {struct_name}.pack("]
    for param in params:
        value = f"self.{param['name']}"
        value = f"*array({value}, {param['count']})" if param["count"] else value
        lines.append(f"                {value},")
    lines += ["            )", "        except PACK_ERRORS as error:"]
    lines += [f"            raise params_error(self, {struct_name}, error) from None"]
    return "\n".join(lines)


def _slots(names: list[str]) -> str:
    if len(names) == 1:
        return f'("{names[0]}",)'
    return "\n".join(["(", *(f'        "{name}",' for name in names), "    )"])


def _function(name: str, entry: dict[str, Any]) -> str:
    axes = entry["axes"]
    doc = entry["doc"]
    if not axes:
        body = f'    return _find("{name}", {{}})'
        return "\n".join([f"def {name}() -> Shader:", *_docstring(name, doc), body])
    lines = [f"def {name}(", "    *,"]
    lines += [f"    {axis}: {camel(name)}{camel(axis)}," for axis in axes]
    lines += [") -> Shader:", *_docstring(name, doc), "    return _find("]
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
    described = [entry for _, entry in templates]
    head = _HEAD.format(
        header=HEADER,
        imports=_imports(described, bool(manifest["enums"])),
        params=_PARAMS_DOC if any(entry["params"] for entry in described) else "",
    )
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
