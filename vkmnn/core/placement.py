"""Placement of a plan's ops, with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from vkmnn.base.records import dataclass
from vkmnn.errors import plural


@dataclass(frozen=True, slots=True)
class PlacedOp:
    """An op of the plan, its node in the model, its backend, and why it is not the main one.

    `provider` is the plug-in that registered its kernel, or "vkmnn". `passed_over` says why kernels
    with a higher priority rejected it. `flops` are its floating-point operations, 0 if unknown.
    """

    name: str
    type: str
    source: str
    backend: str
    reason: str
    provider: str = "vkmnn"
    passed_over: tuple[str, ...] = ()
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of a whole plan; `str()` formats it as a table.

    `copies` counts tensors that cross between backends in every run, except graph inputs and
    outputs; `copied_bytes` are the bytes between the device and host steps in the last run. `note`
    is a remark on the whole: with device="fastest", the measurements.
    """

    ops: tuple[PlacedOp, ...]
    main: str
    copies: int
    copied_bytes: int = 0
    note: str = ""

    @property
    def off_device(self) -> tuple[PlacedOp, ...]:
        """The ops that do not run on the main backend."""
        return tuple(op for op in self.ops if op.backend != self.main)

    @property
    def away_share(self) -> float | None:
        """The share of the floating-point operations that do not run on the main backend.

        None where it is not known: a stage of the host does not count its operations.
        """
        total = sum(op.flops for op in self.ops)
        away = self.off_device
        if not total or any(not op.flops and op.backend != "CPU" for op in away):
            return None
        return sum(op.flops for op in away) / total

    @property
    def counts(self) -> dict[str, int]:
        """Number of ops by backend."""
        return dict(Counter(op.backend for op in self.ops))

    def __repr__(self) -> str:
        """Return the number of ops by backend; `str()` lists them."""
        return f"<vkmnn.Placement: {self._summary()}>"

    def _summary(self) -> str:
        counts = ", ".join(
            f"{count} on {backend}" for backend, count in sorted(self.counts.items())
        )
        return f"{plural(len(self.ops), 'op')}: {counts or 'none'}"

    def __iter__(self) -> Iterator[PlacedOp]:
        """Iterate over the ops in running order."""
        return iter(self.ops)

    def __str__(self) -> str:
        """Return a table: summary first, then one line per op."""
        bytes_ = f" ({self.copied_bytes:,} bytes)" if self.copied_bytes else ""
        copies = f"{plural(self.copies, 'copy', 'copies')} between backends{bytes_}"
        share = self.away_share if self.off_device else None
        work = "" if share is None else f"; {100 * share:.1f} % of the operations off the device"
        lines = [f"{self._summary()}; {copies}{work}"]
        if self.note:
            lines.append(self.note)
        width = max((len(op.type) for op in self.ops), default=0)
        places = max(7, *(len(op.backend) for op in self.ops)) if self.ops else 7
        for op in self.ops:
            provider = f"  [{op.provider}]" if op.provider != "vkmnn" else ""
            reasons = "; ".join(filter(None, (op.reason, *op.passed_over)))
            reason = f"  ({reasons})" if reasons else ""
            lines.append(
                f"  {op.backend:<{places}} {op.type:<{width}}  {op.name}{provider}{reason}"
            )
        return "\n".join(lines)
