"""What all steps share: the plan, the setting, and the times of kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType

from benchmarks.gpu.chain import Measured, Shortlist, kernels
from benchmarks.gpu.problems import Problem
from benchmarks.gpu.report import Section
from benchmarks.networks import Network
from vkmnn.bench.compare import Place
from vkmnn.runtime.device import Device
from vkmnn.runtime.device_info import DeviceType

GAIN = 1.05
"""A kernel is reported if the rules' one takes this many times as long."""

PLAN = {
    "device": 0.6,
    "codes": 4.2,
    "caches": 1.2,
    "llm": 5.7,
    "flags": 0.9,
    "right": 2.4,
    "fragments": 1.8,
    "costs": 0.6,
    "attention": 1.2,
    "windows": 1.2,
    "products": 1.8,
    "networks": 2.4,
    "torch": 1.5,
    "convolutions": 0.9,
    "float32": 1.0,
    "vectors": 0.6,
    "passes": 0.6,
    "copies": 0.4,
    "tuner": 0.5,
    "start": 0.5,
}
"""Minutes of thirty by step, what decides most first: a machine may be lost at any time."""


@dataclass(slots=True)
class Setting:
    """Where the steps run, on which networks, and how long they may take.

    Args:
        device: opened without the validation layer.
        where: the same, as the engines of the benchmarks need it.
        models: networks, those of the benchmark or the user's.
        fp16: measure fp16 as well.
        end: end of the current step, by `time.monotonic()`.
        say: prints progress.
        measured: products and convolutions of all steps so far.
    """

    device: Device
    where: Place
    models: list[Network]
    fp16: bool
    end: float = 0.0
    say: Callable[[str], None] = lambda _: None
    measured: list[Measured] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether the time of the step is spent."""
        return time.monotonic() > self.end

    @property
    def is_rehearsal(self) -> bool:
        """Whether the device only emulates a GPU, so that problems have to be small."""
        info = self.device.info
        return bool(info.device_profile) or info.type is DeviceType.CPU

    @property
    def stored(self) -> tuple[bool, ...]:
        """Whether floats are fp16: each way to measure, the faster first."""
        return (True, False) if self.fp16 else (False,)


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its name for `--step`, its minutes of thirty, and its function."""

    name: str
    title: str
    decides: str
    minutes: float
    run: Callable[[Setting, Section], None]


_STEPS: dict[str, Step] = {}


def step(name: str, title: str, decides: str) -> Callable[..., None]:
    """Register a function as a step of `PLAN`."""

    def register(run: Callable[[Setting, Section], None]) -> None:
        _STEPS[name] = Step(name, title, decides, PLAN[name], run)

    return register


def steps_in_order(*_: ModuleType) -> list[Step]:
    """Return the steps that modules have registered, in the order of `PLAN`."""
    return [_STEPS[name] for name in PLAN]


def within(setting: Setting, section: Section, items: Iterable[Problem]) -> Iterator[Problem]:
    """Yield problems while there is time, and note the first for which there was none."""
    for problem in items:
        if setting.is_over:
            section.notes.append(f"no time for {problem.what} and later problems")
            return
        setting.say(problem.what)
        yield problem


def time_all(
    setting: Setting,
    section: Section,
    items: Iterable[Problem],
    *,
    sweep_bytes: int = 0,
    rotated_bytes: int = 0,
    most: int = 0,
    shortlist: Shortlist | None = None,
) -> None:
    """Time every kernel of every problem; ends at the first wrong result.

    Args:
        setting: the device, and the end of the step.
        section: gets the times.
        items: the problems, which are created one at a time.
        sweep_bytes: see `kernels`.
        rotated_bytes: likewise.
        most: likewise.
        shortlist: likewise.
    """
    for problem in within(setting, section, items):
        best: Measured | None = None
        rule: Measured | None = None
        for each in kernels(
            problem.case,
            problem.what,
            problem.kind,
            setting.device,
            sweep_bytes=sweep_bytes,
            rotated_bytes=rotated_bytes,
            most=most,
            shortlist=shortlist,
        ):
            section.keep(each)
            if section.wrong:
                return
            rule = each if each.rule else rule
            best = each if best is None or each.us < best.us else best
            if setting.is_over:
                break
        if best and rule and rule.us > GAIN * best.us:
            section.notes.append(
                f"{problem.what}: {best.kernel} takes {best.us:.2f} µs, "
                f"{rule.kernel}, which the rules take, {rule.us:.2f}"
            )
