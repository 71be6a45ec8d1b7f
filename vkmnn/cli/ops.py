"""`vkmnn ops`: the ONNX operators that vkmnn knows, and where they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import CodeType, FunctionType
from typing import Any

from rich.text import Text

from vkmnn.cli.console import document, heading, out, show, show_facts, table
from vkmnn.cli.declared import Aspect, aspects, fuzzing
from vkmnn.converter import front_ends as _front_ends  # noqa: F401 - they register lists
from vkmnn.converter.nodes import FORMATS
from vkmnn.converter.onnx import OpSupport, supported_ops
from vkmnn.converter.onnx.model_file import MIN_OPSET
from vkmnn.converter.onnx.registry import find_converter
from vkmnn.converter.onnx.support import alternative, body_operators, standard_name
from vkmnn.discovery import left_out, load_plugins, priorities
from vkmnn.errors import InvalidInputError, nearest, plural
from vkmnn.geometry import has_geometry
from vkmnn.ir import OP_TYPES
from vkmnn.vulkan.execution import EXECUTIONS
from vkmnn.vulkan.executions import load_all

_LEGEND = {
    "Vulkan": "by shaders",
    "geometry": "as copies of regions and simpler operators, or for free",
    "host": "while shapes are computed, before the network runs",
    "numpy": "on the CPU backend, with copies; brackets name what runs there if not all of it",
}
_NEWEST = 1 << 30
_CONVERTERS = "vkmnn.converter.onnx"


def list_ops(name: str | None) -> None:
    """Print the operators whose name contains `name`.

    An operator of ONNX without a kernel is said to run on the host; one whose name is given in full
    stands alone, with what the op types that it becomes declare. So does an op type of vkmnn's own.

    Raises:
        InvalidInputError: the operator does not exist.
    """
    load_all()
    load_plugins()
    everything = supported_ops()
    found = [op for op in everything if name is None or name.lower() in op.name.lower()]
    exact = [op for op in found if name and op.name.lower() == name.lower()]
    elsewhere = None
    if name and not exact:
        elsewhere = standard_name(name)
        if elsewhere is not None:
            out.print(Text(f"{elsewhere} runs on the host: {_why(elsewhere)}"))
        elif name in OP_TYPES:
            _show_declared([], {f"op type {name}": aspects(name)})
            return
        elif not found:
            names = [op.name for op in everything]
            raise InvalidInputError(
                f"no operator of ONNX is called '{name}'",
                hint=nearest(name, names, "operators")
                + "; `python -m vkmnn.codegen new-op` adds an operator of your own",
            )
        found = [] if elsewhere else found
    listed = [_as_dict(op) for op in exact or found]
    if elsewhere is not None:
        listed.append({"name": elsewhere, "domain": "ai.onnx", "runs_on": "onnx"})
        document("ops", {"operators": listed})
        return
    columns = ("operator", "domain", "opset", "converted", "runs on")
    rows = table(*columns, "as") if name else table(*columns)
    for op in exact or found:
        becomes = vocabulary(op)
        versions = sorted({max(MIN_OPSET, version) for version in op.versions})
        opset = ", ".join(f"{version}+" for version in versions) if not op.domain else ""
        cells = (op.name, op.domain or "ai.onnx", opset, op.how, places(becomes))
        rows.add_row(*cells, ", ".join(becomes)) if name else rows.add_row(*cells)
    show(rows, indent=0)
    if name is None:
        heading(plural(len(found), "operator"))
    _show_declared(listed, _all_declared(exact))
    show_facts(_LEGEND, indent=0)
    out.print(Text("Attributes and element types may still move a node to the host:"))
    out.print(Text("session.placement() and `vkmnn run` show the result."))


def _full_name(op: OpSupport) -> str:
    return f"{op.domain}::{op.name}" if op.domain else op.name


def _all_declared(operators: Iterable[OpSupport]) -> dict[str, list[Aspect]]:
    """Return what operators, and the op types that they become, declare."""
    types = sorted({op_type for op in operators for op_type in vocabulary(op)})
    fuzzed = {f"operator {name}": fuzzing(name) for name in map(_full_name, operators)}
    return {**fuzzed, **{f"op type {op_type}": aspects(op_type) for op_type in types}}


def _show_declared(
    operators: list[dict[str, Any]], declared: Mapping[str, Sequence[Aspect]]
) -> None:
    """Print the declarations; missing ones are marked with an exclamation mark."""
    as_dicts = {title: list(map(asdict, found)) for title, found in declared.items()}
    document("ops", {"operators": operators, "declared": as_dicts})
    for title, found in declared.items():
        if found:
            heading(title)
            show_facts({f"{'!' if one.left else ' '} {one.name}": one.text for one in found})
            out.print()


def _why(name: str) -> str:
    """Return why an operator of ONNX has no kernel, or an alternative."""
    return alternative(name, "", _NEWEST)


def _as_dict(op: OpSupport) -> dict[str, Any]:
    types = vocabulary(op)
    return {
        "name": op.name,
        "domain": op.domain or "ai.onnx",
        "versions": sorted({max(MIN_OPSET, version) for version in op.versions}),
        "converted": op.how,
        "runs_on": places(types),
        "as": list(types),
    }


def list_format_ops(format: str, name: str | None) -> None:
    """Print a format's operators whose name contains `name`, and which of them are supported.

    Raises:
        InvalidInputError: there is no such format, or no such operator.
    """
    load_plugins()
    listed = FORMATS.get(format)
    if listed is None:
        raise InvalidInputError(
            f"no format is called '{format}'", hint=nearest(format, list(FORMATS), "formats")
        )
    read = listed()
    found = {op: how for op, how in sorted(read.items()) if (name or "").lower() in op.lower()}
    if not found:
        hint = nearest(name or "", read, "ops")
        raise InvalidInputError(f".{format} files have no op '{name}'", hint=hint)
    document("ops", {"ops": [{"name": op, "read": is_read} for op, is_read in found.items()]})
    rows = table("op", "read")
    for op, is_read in found.items():
        rows.add_row(op, "yes" if is_read else "no")
    show(rows, indent=0)
    if name is None:
        heading(f"{sum(found.values())} of {plural(len(found), 'op')}")


def list_plugins() -> None:
    """Print the loaded plug-ins and their operators."""
    rows = table("plug-in", "package", "module", "registers")
    plugins = load_plugins()
    for plugin in plugins:
        others = [text for text in plugin.registered if not text.startswith("kernel ")]
        lines = "\n".join([*others, *priorities(plugin.registered)])
        rows.add_row(plugin.name, plugin.distribution, plugin.module, lines)
    for absent in left_out():
        rows.add_row(absent.name, absent.where, "left out", absent.error.message)
    show(rows, indent=0)
    document(
        "ops",
        {
            "plugins": [
                {
                    "name": plugin.name,
                    "package": plugin.distribution,
                    "module": plugin.module,
                    "registers": list(plugin.registered),
                }
                for plugin in plugins
            ],
            "left_out": [
                {"name": absent.name, "where": absent.where, "error": absent.error.message}
                for absent in left_out()
            ],
        },
    )


def vocabulary(op: OpSupport) -> tuple[str, ...]:
    """Return the op types of vkmnn's vocabulary that an ONNX operator may become.

    They are read from the code of its converter and of the functions that this calls: any name in
    it may be emitted.
    """
    return tuple(sorted(_op_types(op.name, op.domain, frozenset())))


def places(types: Iterable[str]) -> str:
    """Describe where ops of these types run, by the registries of the backends."""
    kinds = {_place(op_type) for op_type in types}
    away = sorted(t for t in types if _place(t) == "numpy")
    if away:
        return f"numpy ({', '.join(away)})" if len(kinds) > 1 else "numpy"
    return next((kind for kind in ("Vulkan", "geometry") if kind in kinds), "host")


def _place(op_type: str) -> str:
    declared = OP_TYPES.get(op_type)
    if declared is not None and declared.shape_only:
        return "host"
    if op_type in EXECUTIONS:
        return "Vulkan"
    return "geometry" if has_geometry(op_type) else "numpy"


def _op_types(name: str, domain: str, callers: frozenset[str]) -> set[str]:
    converter = find_converter(name, domain, _NEWEST)
    if converter is not None:
        found = {text for text in _strings(converter) if text in OP_TYPES}
        return found or {name} & set(OP_TYPES)  # a converter of many ops asks for its node's name
    return {
        op_type
        for inner, inner_domain in body_operators(name)
        if inner not in callers
        for op_type in _op_types(inner, inner_domain, callers | {name})
    }


def _strings(function: Callable[..., object]) -> set[str]:
    """Return the strings in a function's code, its closure and the converters' functions in it."""
    found: set[str] = set()
    seen: set[FunctionType] = set()
    pending: list[object] = [function]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            found.add(item)
        elif isinstance(item, FunctionType) and item not in seen:
            seen.add(item)
            pending += [cell.cell_contents for cell in item.__closure__ or ()]
            for code in _codes(item.__code__):
                pending += [text for text in code.co_consts if isinstance(text, str)]
                used = (item.__globals__.get(global_name) for global_name in code.co_names)
                pending += [
                    value
                    for value in used
                    if isinstance(value, FunctionType)
                    and value.__module__.startswith((_CONVERTERS, function.__module__))
                ]
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those of the functions inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
