"""Plans of one part of a network, cached by input shapes and shape-deciding contents."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from vkmnn.base.budget import Meter
from vkmnn.base.records import dataclass
from vkmnn.core.backend import Backend, Tuning
from vkmnn.core.device_tensor import as_array
from vkmnn.core.plan import Plan
from vkmnn.core.resolve import content_inputs, fold_constants
from vkmnn.core.static import StaticShapes
from vkmnn.errors import IntegerRangeError, InvalidInputError, PlacementError, plural
from vkmnn.ir import Array, Graph
from vkmnn.shape.folding import Evaluator

_log = logging.getLogger(__name__)

PlanKey = tuple[object, ...]
Shapes = Mapping[str, tuple[int, ...]]
Progress = Callable[[int, int], object] | None

TUNING_RUNS = 5
"""Runs per candidate when `VKMNN_TUNE=on` tunes a plan."""

MIN_PLANS, MAX_PLANS = 8, 128
PLANS_BYTES = 256 << 20
"""Default limits of kept plans: their numbers, and their device memory."""

TUNING_SECONDS = 20.0
"""Seconds of tuning in that case: the user did not ask to wait."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Creates plans from backends within limits.

    `require_main` refuses plans that put an op on the backup; `max_plans` are kept, or, if that is
    None, as many as fit in `PLANS_BYTES`.
    """

    main: Backend
    backup: Backend
    evaluate: Evaluator
    meter: Callable[[], Meter]
    max_plans: int | None
    require_main: bool


class Plans:
    """The plans of one graph; the least recently used is dropped if there are too many.

    Args:
        graph: a network, or a part of one that needs no step in between.
        planner: creates plans; replaced together with the device.
        meter: the limit for folding constants.
        static: state shared by plans of a network of fixed shapes; None to share nothing.

    Attributes:
        graph: with its constants folded.
        planner: as above.
        content: the inputs whose content determines a shape.
        current: the most recently used plan.
        made: number of plans created.
        forgotten: no further plan can be created: the constants are gone.
    """

    def __init__(
        self, graph: Graph, planner: Planner, meter: Meter, static: StaticShapes | None = None
    ) -> None:
        self._static = static
        self.graph = fold_constants(graph, planner.evaluate, meter)
        self.planner = planner
        self.content = content_inputs(graph)
        self.current: Plan | None = None
        self.made = 0
        self.forgotten = False
        self._bytes: dict[PlanKey, int] = {}
        self._plans: OrderedDict[PlanKey, Plan] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of plans kept."""
        return len(self._plans)

    def has(self, shapes: Shapes) -> bool:
        """Return whether a plan for these input shapes is kept, for some content."""
        planned = tuple(shapes[info.name] for info in self.graph.inputs)
        return any(key[: len(planned)] == planned for key in self._plans)

    def resize(self, shapes: Shapes, feeds: Mapping[str, Array]) -> Plan:
        """Return the plan for these input shapes, creating it if necessary.

        Args:
            shapes: the shape of every input.
            feeds: at least the inputs in `content`.

        Raises:
            ShapeError: the shapes do not fit the network.
            PlacementError: the backup would have to run an op, but `require_main` is set.
            InvalidInputError: the content of an input is missing.
        """
        key = self._key(shapes, feeds)
        if key in self._plans:  # every run comes here
            return self._used(key)

        def make() -> Plan:
            if self.planner.main.tunes_new_plans:
                self.tune(shapes, feeds, TUNING_RUNS, None, TUNING_SECONDS)
            return self.make(shapes, feeds, self.planner.main)

        return self._kept(key, make)

    def execute(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run once on the plan for the input shapes.

        A run with integers that do not fit in the 32 bits of the device goes to the backup.
        """
        shapes = {name: array.shape for name, array in feeds.items()}
        plan = self.resize(shapes, feeds)
        try:
            return plan.execute(feeds)
        except IntegerRangeError as error:
            if self.planner.require_main:
                raise
            backup = self.planner.backup
            _log.warning("%s: this run is computed on %s", error.message, backup.type)
        plan = self._kept(
            ("exact", *self._key(shapes, feeds)), lambda: self.make(shapes, feeds, backup)
        )
        return plan.execute(feeds)

    def _kept(self, key: PlanKey, make: Callable[[], Plan]) -> Plan:
        """Return the plan of a key and make it current."""
        if key in self._plans:
            return self._used(key)
        plan = self._plans[key] = make()
        self._bytes[key] = _own_bytes(plan)
        while self._too_many():
            oldest_key, oldest = self._plans.popitem(last=False)
            del self._bytes[oldest_key]
            oldest.close()
        self.current = plan
        return plan

    def _used(self, key: PlanKey) -> Plan:
        """Return a kept plan and make it current."""
        plan = self.current = self._plans[key]
        self._plans.move_to_end(key)
        return plan

    def _too_many(self) -> bool:
        count, most = len(self._plans), self.planner.max_plans
        if most is not None:
            return count > most
        over = sum(self._bytes.values()) > PLANS_BYTES or count > MAX_PLANS
        return over and count > MIN_PLANS

    def _key(self, shapes: Shapes, feeds: Mapping[str, Array]) -> PlanKey:
        planned = tuple([shapes[info.name] for info in self.graph.inputs])
        if not self.content:
            return planned
        content = (
            as_array(feeds[name]).tobytes() for name in sorted(self.content) if name in feeds
        )
        return (*planned, *content)

    def make(self, shapes: Shapes, feeds: Mapping[str, Array], main: Backend) -> Plan:
        """Return a new plan on a backend; arguments and errors are those of `resize`."""
        if self.forgotten:
            raise InvalidInputError(
                "the session has released its model, and has no plan for these inputs",
                hint="plan all that is needed before the model is released",
            )
        missing = [name for name in sorted(self.content) if name not in feeds]
        if missing:
            raise InvalidInputError(
                f"shapes of this network depend on the content of {', '.join(missing)}",
                hint="give their arrays before the session is resized",
            )
        planner = self.planner
        infos = {info.name: replace(info, shape=shapes[info.name]) for info in self.graph.inputs}
        known = {name: as_array(feeds[name]).copy() for name in self.content}
        self.made += 1
        plan = Plan(
            *(self.graph, infos, known, main, planner.backup, planner.evaluate, planner.meter()),
            self._static,
        )
        if planner.require_main and plan.placement().off_device:
            away = plan.placement().off_device
            plan.close()
            listed = "\n".join(f"  {op.type} '{op.name}': {op.reason}" for op in away)
            raise PlacementError(
                f"{plural(len(away), 'op')} would run off the device:\n{listed}",
                hint="create the session without require_device to let them run on the CPU backend",
            )
        return plan

    def tune(
        self,
        shapes: Shapes,
        feeds: Mapping[str, Array],
        runs: int,
        progress: Progress,
        limit_s: float = math.inf,
    ) -> Tuning:
        """Measure the kernels that the plan for these shapes could use; see `Backend.tune`."""
        # A plan may be made before there is data; the speed of kernels hardly depends on it.
        arrays = {
            info.name: as_array(feeds[info.name])
            if info.name in feeds
            else np.zeros(shapes[info.name], info.dtype.numpy)
            for info in self.graph.inputs
        }
        return self.planner.main.tune(
            lambda backend: self.make(shapes, feeds, backend), arrays, runs, progress, limit_s
        )

    def forget_arrays(self) -> None:
        """Release constants in host memory: no plan can be created any more."""
        self.forgotten = True
        self._static = None
        self.graph = without_constants(self.graph)
        for plan in self._plans.values():
            plan.forget_arrays()

    def trim(self) -> None:
        """Close all plans except the most recently used."""
        for key, plan in list(self._plans.items()):
            if plan is not self.current:
                del self._plans[key], self._bytes[key]
                plan.close()

    def drop(self) -> None:
        """Close all plans."""
        self.current = None
        self._bytes.clear()
        while self._plans:
            self._plans.popitem()[1].close()


def without_constants(graph: Graph) -> Graph:
    """Return the graph with only those constants that are outputs."""
    outputs = graph.output_names()
    kept = {name: array for name, array in graph.constants.items() if name in outputs}
    return replace(graph, constants=kept)


def _own_bytes(plan: Plan) -> int:
    """Return the device memory that only this plan uses."""
    use = plan.memory()
    return use.activations + use.io
