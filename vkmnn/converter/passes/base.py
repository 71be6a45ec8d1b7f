"""The interface of passes: a pass rewrites a graph in place and counts its rewrites."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Graph, Op
from vkmnn.ir.ops import BinaryAttrs

log = logging.getLogger(__name__)


class Pass(Protocol):
    """A rewriter of graphs."""

    @property
    def name(self) -> str:
        """The pass's name, for logs."""
        ...

    def run(self, graph: Graph) -> int:
        """Rewrite the graph in place; return the number of rewrites."""
        ...


class IndexedPass(ABC):
    """A pass that works on a `GraphIndex`; passes in a row can share one."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, index: GraphIndex) -> int:
        """Rewrite the indexed graph; return the number of rewrites. The caller commits them."""

    def run(self, graph: Graph) -> int:
        """Rewrite the graph in place; return the number of rewrites."""
        index = GraphIndex(graph)
        rewrites = self.apply(index)
        index.commit()
        return rewrites


@dataclass(frozen=True, slots=True)
class NoMatch:
    """Why a pattern does not apply to an op."""

    reason: str


M = TypeVar("M")


class PatternPass(IndexedPass, Generic[M]):
    """A pass that looks at one op at a time: `match` decides and explains, `rewrite` acts.

    The op that is looked at is the pattern's *last* op, so that everything that the pattern reads
    is produced before it. Ops are visited in topological order.
    """

    roots: ClassVar[frozenset[str]]
    """The types of the ops that the pattern may end with."""

    @abstractmethod
    def match(self, op: Op[Any], index: GraphIndex) -> M | NoMatch:
        """Return the arguments of `rewrite`, or the reason why the pattern does not match."""

    @abstractmethod
    def rewrite(self, op: Op[Any], match: M, index: GraphIndex) -> None:
        """Replace the matched ops."""

    def apply(self, index: GraphIndex) -> int:
        """Rewrite every match; return how many there were."""
        mismatches: Counter[str] = Counter()
        rewrites = 0
        for op in index.ops(self.roots):
            match = self.match(op, index)
            if isinstance(match, NoMatch):
                mismatches[match.reason] += 1
            else:
                self.rewrite(op, match, index)
                rewrites += 1
        if mismatches and log.isEnabledFor(logging.DEBUG):
            reasons = "; ".join(f"{count}x {reason}" for reason, count in mismatches.most_common())
            log.debug("%s left ops alone: %s", self.name, reasons)
        return rewrites


MAX_SOURCES = 64
"""Sources that are listed for one op: a merged chain may have any number of them."""

_MORE = "…"


def merged_source(ops: Sequence[Op]) -> str:
    """Return the `source` of an op that replaces several: theirs, each once, the first 64."""
    parts = dict.fromkeys(part for op in ops for part in (op.source or op.name).split(" + "))
    if len(parts) > MAX_SOURCES or _MORE in parts:
        listed = [part for part in parts if part != _MORE]
        return " + ".join((*listed[:MAX_SOURCES], _MORE))
    return " + ".join(parts)


def binary_parts(op: Op | None, *kinds: str) -> tuple[str, str] | None:
    """Return the operands of a BinaryOp of one of these kinds without an activation, else None."""
    if op is None or not isinstance(op.attrs, BinaryAttrs) or op.attrs.activation.kind != "NONE":
        return None
    return (op.inputs[0], op.inputs[1]) if op.attrs.kind in kinds else None
