"""The table of ONNX operator converters, filled by the `converter` decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from vkmnn.base.registry import Registry
from vkmnn.converter.onnx.domains import normal_domain
from vkmnn.errors import PluginError

if TYPE_CHECKING:
    from vkmnn.converter.onnx.node import NodeContext

Converter = Callable[["NodeContext"], None]

# One table per (domain, operator): converters by their first opset.
_CONVERTERS: dict[tuple[str, str], Registry[int, Converter]] = {}


def converter(*ops: str, since: int = 1, domain: str = "") -> Callable[[Converter], Converter]:
    """Register a function that converts nodes of the types `ops`, from opset `since` on.

    The entry with the greatest `since` that does not exceed the node's opset converts the node. An
    operator may also be written with its domain and opset, "ai.onnx::11::Gelu", which override
    `domain` and `since`; so one function can serve several versions and domains.

    Raises:
        PluginError: the same operator, domain and version is registered already, or none is given.
    """
    origins = [_origin(op, domain, since) for op in ops] or [_origin("", domain, since)]

    def add(function: Converter) -> Converter:
        for (key, version), shown in origins:
            if key not in _CONVERTERS:
                _CONVERTERS[key] = Registry(f"converter of {shown} since opset")
            _CONVERTERS[key].register(version)(function)
        return function

    return add


def _origin(op: object, domain: str, since: int) -> tuple[tuple[tuple[str, str], int], str]:
    """Return domain, name and version of an operator, and how messages call it."""
    parts = op.split("::") if isinstance(op, str) else []
    if len(parts) == 3 and parts[1].isdecimal():
        domain, since, op = parts[0], int(parts[1]), parts[2]
    if not isinstance(op, str) or not op or "::" in op:
        raise PluginError(
            f"a converter needs an operator's name: {op!r} is not an operator",
            hint='write @converter("Gelu", domain="acme", since=1) or "acme::1::Gelu"',
        )
    return ((normal_domain(domain), op), since), f"{domain or 'ai.onnx'}::{op}"


def find_converter(op: str, domain: str, opset: int) -> Converter | None:
    """Return the converter for a node of this type at this opset, or None."""
    versions = _CONVERTERS.get((normal_domain(domain), op))
    fitting = [since for since in versions or () if since <= opset]
    return versions[fitting[-1]] if versions and fitting else None


def registered() -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield (domain, op, versions) of every entry, sorted."""
    for (domain, op), versions in sorted(_CONVERTERS.items(), key=lambda item: item[0]):
        if versions:
            yield domain, op, tuple(versions)
