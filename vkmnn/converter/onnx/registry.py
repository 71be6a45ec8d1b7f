"""The table of ONNX operator converters, filled by the `converter` decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from vkmnn.converter.onnx.domains import normal_domain
from vkmnn.registry import Registry

if TYPE_CHECKING:
    from vkmnn.converter.onnx.node import NodeContext

Converter = Callable[["NodeContext"], None]

# One table per (domain, operator): converters by the opset from which they hold.
_CONVERTERS: dict[tuple[str, str], Registry[int, Converter]] = {}


def converter(op: str, *, since: int = 1, domain: str = "") -> Callable[[Converter], Converter]:
    """Register a function that converts nodes of type `op`, from opset `since` on.

    The entry with the greatest `since` that is not above the node's opset converts the node.

    Raises:
        PluginError: the same operator, domain and version is registered already.
    """
    key = normal_domain(domain), op
    if key not in _CONVERTERS:
        _CONVERTERS[key] = Registry(f"converter of {domain or 'ai.onnx'}::{op} since opset")
    return _CONVERTERS[key].register(since)


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
