"""The nodes that stay in float so that a quantised model meets its targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vkmnn.base.records import dataclass
from vkmnn.quantization.accuracy import Reference, measure
from vkmnn.quantization.candidates import Candidate, Quantiser
from vkmnn.quantization.report import LayerError, Measured, Progress
from vkmnn.quantization.targets import METRICS, Target, TargetMissedError, values_of

_PUT_BACK = 8
"""Nodes, at most, for which quantising them after all is tried."""
REASON = "quantising it would miss the target"

Check = Callable[[Candidate], Measured]
"""Measures a candidate in the way that counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A quantised model that meets the targets.

    Attributes:
        candidate: the model.
        left: the nodes in float, the most sensitive first.
        measured: its accuracy.
        full: the values of the targets' measures if every node were quantised.
    """

    candidate: Candidate
    left: tuple[LayerError, ...]
    measured: Measured
    full: Mapping[str, float]


class Search:
    """Search for the fewest nodes to leave in float, the most sensitive ones first.

    Args:
        quantiser: creates the models.
        targets: what to meet.
        reference: the float model's outputs on held-out samples.
        folder: a folder for models.
        progress: called after each candidate.
    """

    def __init__(
        self,
        quantiser: Quantiser,
        targets: Sequence[Target],
        reference: Reference,
        folder: Path,
        progress: Progress,
    ) -> None:
        self._quantiser, self._targets, self._reference = quantiser, targets, reference
        self._folder, self._progress = folder, progress
        self._best: dict[str, float] = {}
        self._tried = 0

    def run(
        self, full: Candidate, ranked: Callable[[], Sequence[LayerError]], check: Check | None
    ) -> Found:
        """Return the model.

        Args:
            full: the model with all nodes quantised.
            ranked: returns the nodes, the most sensitive first; called if `full` misses a target.
            check: measures a model that meets the targets once more, on the device; None to skip.

        Raises:
            TargetMissedError: no model with a quantised node meets them.
        """
        if not full.quantized:
            raise TargetMissedError(
                "nothing in the model can be quantised, see the nodes in float without a target",
                {},
                "run the float model",
            )
        measured = self._measured(full)
        values = values_of(self._targets, measured)
        if self._is_met(measured):
            measured = check(full) if check else measured
            if self._is_met(measured):
                return Found(full, (), measured, values)
        order = list(ranked())
        count = self._fewest(order)
        while count < len(order):
            left = self._without(order[:count]) if count > 1 else order[:count]
            candidate = self._made(left)
            measured = check(candidate) if check else self._measured(candidate)
            if self._is_met(measured):
                return Found(candidate, tuple(left), measured, values)
            count = count + max(1, count // 4)
        raise self._missed()

    def _fewest(self, order: Sequence[LayerError]) -> int:
        """Return how many of the first nodes have to stay in float; all if none is too few."""
        low, high = 0, 1
        while high < len(order) and not self._meets(order[:high]):
            low, high = high, 2 * high
        high = min(high, len(order))
        while high - low > 1:
            middle = (low + high) // 2
            if self._meets(order[:middle]):
                high = middle
            else:
                low = middle
        return high

    def _without(self, left: Sequence[LayerError]) -> list[LayerError]:
        """Return the nodes without those that can be quantised after all, large ones first."""
        kept = list(left)
        for one in sorted(left[:-1], key=lambda one: -one.nbytes)[:_PUT_BACK]:
            fewer = [other for other in kept if other is not one]
            if self._meets(fewer):
                kept = fewer
        return kept

    def _made(self, left: Sequence[LayerError]) -> Candidate:
        self._tried += 1
        self._progress("meeting the target", self._tried, self._tried + 1)
        return self._quantiser.make({one.name: REASON for one in left}, lambda *_: None)

    def _measured(self, candidate: Candidate) -> Measured:
        return measure(candidate.proto, self._reference, self._folder)

    def _meets(self, left: Sequence[LayerError]) -> bool:
        return self._is_met(self._measured(self._made(left)))

    def _is_met(self, measured: Measured) -> bool:
        values = values_of(self._targets, measured)
        for name, value in values.items():
            better = max if METRICS[name].rises else min
            self._best[name] = better(value, self._best.get(name, value))
        return all(one.is_met(values[one.name]) for one in self._targets)

    def _missed(self) -> TargetMissedError:
        reached = ", ".join(f"{one.name} {one.text(self._best[one.name])}"
                            for one in self._targets)  # fmt: skip
        wanted = ", ".join(map(str, self._targets))
        return TargetMissedError(
            f"no model with a quantised node meets {wanted} on {len(self._reference)} held-out "
            f"samples; the best has {reached}; nothing was written",
            self._best,
            "lower the target, give more samples, or quantise less: 8 bits instead of 4, or "
            "weights without activations",
        )
