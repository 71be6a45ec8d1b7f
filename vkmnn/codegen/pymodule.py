"""Writes `kernels.pyi`: the types of one function and one parameter class per template.

The names are created at run time (`vkmnn.shaders.loader`), so `kernels.py` is the same everywhere.
The text is formatted so that `ruff format` leaves it unchanged.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from vkmnn.codegen.manifest import HEADER, Manifest
from vkmnn.shader_files.lock import PARAM, camel

KERNELS_SOURCE = '''"""Typed access to the shaders of this folder; `kernels.pyi` lists the names.

`name(axis=...)` returns a variant, `NameParams(...).pack()` its push constants.
"""

from __future__ import annotations

from vkmnn.shaders.loader import bind

__getattr__, __dir__ = bind(globals())
'''

_WIDTH = 100
_PYTHON_TYPES = {"uint": "int", "int": "int", "float": "float"}


def _imports(templates: list[dict[str, Any]], has_enums: bool) -> str:
    """Return only the used imports, in ruff's order."""
    has_params = any(template["params"] for template in templates)
    has_axes = any(template["axes"] for template in templates)
    typing = ["Final"] * has_params + ["Literal", "TypeAlias"] * has_axes
    lines = ["from enum import IntEnum"] * has_enums
    lines += [f"from typing import {', '.join(typing)}"] * bool(typing)
    lines += [""] * bool(lines)
    lines += ["from vkmnn.runtime.shader import Shader"]
    lines += ["from vkmnn.shaders.params import Params"] * has_params
    return "\n".join(lines)


def _listed(head: str, items: list[str], tail: str, indent: str = "") -> str:
    """Return items in one line if they fit, else one per line."""
    line = f"{indent}{head}{', '.join(items)}{tail}"
    if len(line) <= _WIDTH:
        return line
    inner = "".join(f"{indent}    {item},\n" for item in items)
    return f"{indent}{head}\n{inner}{indent}{tail}"


def _alias(name: str, values: list[str | int]) -> str:
    quoted = [f'"{value}"' if isinstance(value, str) else repr(value) for value in values]
    return _listed(f"{name}: TypeAlias = Literal[", quoted, "]")


def _enum(name: str, members: list[str]) -> str:
    lines = [f"class {name}(IntEnum):"]
    return "\n".join([*lines, *(f"    {member} = {i}" for i, member in enumerate(members))])


def _params_class(name: str, declared: list[str]) -> str:
    fields, arguments = [], ["self", "*"]
    for text in declared:
        match = PARAM.fullmatch(text)
        assert match is not None, text
        field, kind, count, default = match.groups()
        python = _PYTHON_TYPES[kind]
        type_ = f"tuple[{python}, ...]" if count else python
        length = f"  # {count} of them" if count else ""
        fields.append(f"    {field}: Final[{type_}]{length}")
        arguments.append(f"{field}: {type_}{f' = {default}' if default else ''}")
    made = _listed("def __init__(", arguments, ") -> None: ...", "    ")
    return "\n".join([f"class {camel(name)}Params(Params):", *fields, made])


def _function(name: str, axes: Mapping[str, Any], doc: str) -> str:
    arguments = [f"{axis}: {camel(name)}{camel(axis)}" for axis in axes]
    head = _listed(f"def {name}(", ["*", *arguments] if arguments else [], ") -> Shader:")
    if not doc:
        return f"{head} ..."
    plain = doc.replace("\\", "/").replace('"""', "'''")
    if plain.endswith('"'):
        plain += " "
    body = textwrap.wrap(
        plain,
        width=_WIDTH - 2,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join([head, '    """', *body, '    """'])


def stub_source(content: Manifest) -> str:
    """Return the text of `kernels.pyi`; `content` is the lock's."""
    templates = sorted(content["templates"].items())
    blocks = [_enum(name, members) for name, members in sorted(content["enums"].items())]
    for name, entry in templates:
        blocks += [
            _alias(f"{camel(name)}{camel(axis)}", values) for axis, values in entry["axes"].items()
        ]
        if entry["params"]:
            blocks.append(_params_class(name, entry["params"]))
        blocks.append(_function(name, entry["axes"], entry["doc"]))
    head = [f"# {HEADER[0].upper()}{HEADER[1:]}.", ""]
    imports = _imports([entry for _, entry in templates], bool(content["enums"]))
    text = "\n".join([*head, imports, ""])
    after = ""
    for block in blocks:
        definition = block.startswith(("class", "def"))
        text += "\n" * bool(definition or after == "definition" or not after) + block + "\n"
        after = "definition" if definition else "alias"
    return text
