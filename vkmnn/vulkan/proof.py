"""Proof at first use: matrices, dot products and images are used only where right and fast.

Drivers list features that they emulate, or compute wrongly. Before a feature's first use on a GPU
and driver version, one product is therefore computed with and without it. The verdict is kept
beside the pipeline cache; a device that fails gets plans without the feature. Flags, which no
driver lists, are proved in the same way, by chains of dispatches.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any, Literal, NamedTuple, Protocol, get_args

from vkmnn.base.records import dataclass
from vkmnn.errors import VkmnnError
from vkmnn.runtime import environment
from vkmnn.runtime.device import Device
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.measurements import PROOFS, Measurements
from vkmnn.runtime.pipeline_cache import device_key
from vkmnn.vulkan.device_rules import (
    STAGED_MATRICES,
    has_fast_dots,
    has_mixed_dots,
    is_gpu,
    loads_matrices,
    may_wait_by_flags,
)
from vkmnn.vulkan.gemm.coop_tiles import byte_matrix_of, limb_matrix_of, matrix_of
from vkmnn.vulkan.images.place import image_size

_log = logging.getLogger(__name__)

SIZE = 1024
"""Columns and length of the products."""
ROWS = (64, SIZE)
"""Rows of the products: a few, which bound the time on a slow device, then all."""
ROUNDS = 3
BUDGET_US = 20_000.0
"""Device time after which no further product is started."""
MARGIN = 1.05
"""Noise: the feature may take this much longer."""


@dataclass(frozen=True, slots=True)
class Capability:
    """A feature that kernels may do without.

    Args:
        name: its name in files and reports.
        product: the kind of product that it computes; "chain": levels of dispatches.
        present: whether the rules use it on a device.
        without: returns the device without it.
        alone: returns the device with it and without what the rules prefer to it.
        tolerance: largest difference from numpy, relative to the largest result.
        sizes: rows of the products, or levels of the chains.
        rounds: how often each is computed, with and without.
        budget_us: device time after which nothing more is computed.
    """

    name: str
    product: Literal["half", "limbs", "bytes", "codes", "image", "chain"]
    present: Callable[[DeviceInfo], bool]
    without: Callable[[DeviceInfo], DeviceInfo]
    alone: Callable[[DeviceInfo], DeviceInfo] = lambda info: info
    tolerance: float = 1e-4
    sizes: tuple[int, ...] = ROWS
    rounds: int = ROUNDS
    budget_us: float = BUDGET_US


def _without_matrices(info: DeviceInfo, element: str) -> DeviceInfo:
    kept = tuple(shape for shape in info.cooperative_matrices if shape.a != element)
    return replace(info, cooperative_matrices=kept)


def _without_features(info: DeviceInfo, *names: str) -> DeviceInfo:
    return replace(info, features=info.features - {*names})


def _without_bytes(info: DeviceInfo) -> DeviceInfo:
    return _without_matrices(info, "i8")


def _without_dots(info: DeviceInfo) -> DeviceInfo:
    return _without_features(
        info, "integer_dot", "integer_dot_accelerated", "integer_dot_mixed_accelerated"
    )


MATRICES = Capability(
    "matrices",
    "half",
    lambda info: matrix_of(info) is not None,
    lambda info: _without_matrices(info, "f16"),
    tolerance=2e-3,
)
FRAGMENTS = Capability(
    "matrices-from-memory",
    "half",
    lambda info: matrix_of(info) is not None and loads_matrices(info),
    lambda info: replace(info, features=info.features | {STAGED_MATRICES}),
    tolerance=2e-3,
    sizes=(64, 128),  # with more rows, an H200 stages both operands
)
LIMBS = Capability(
    "float32-by-matrices",
    "limbs",
    lambda info: limb_matrix_of(info) is not None,
    lambda info: info,  # an arithmetic of sessions: they ask for the verdict
    tolerance=1e-5,
)
BYTE_MATRICES = Capability(
    "byte-matrices", "bytes", lambda info: byte_matrix_of(info) is not None, _without_bytes
)
DOTS = Capability("dot-products", "bytes", has_fast_dots, _without_dots, _without_bytes)
MIXED_DOTS = Capability(
    "mixed-dot-products",
    "codes",
    lambda info: has_mixed_dots(info) and not has_fast_dots(info),
    lambda info: _without_features(info, "integer_dot_mixed_accelerated"),
)
IMAGES = Capability(
    "images",
    "image",
    lambda info: image_size(info, "auto") > 0,
    lambda info: _without_features(info, "images"),
)
FLAGS = Capability(
    "flags",
    "chain",
    may_wait_by_flags,
    lambda info: info,  # backends use them only where they are told to
    tolerance=0.0,
    sizes=(20, 1000),
    rounds=40,
    budget_us=400_000.0,
)
CAPABILITIES = (MATRICES, FRAGMENTS, LIMBS, BYTE_MATRICES, DOTS, MIXED_DOTS, IMAGES, FLAGS)
BY_ARITHMETIC: dict[tuple[str, str], tuple[Capability, ...]] = {
    ("f16", "f32"): (MATRICES, FRAGMENTS),
    ("f16", "f16"): (MATRICES, FRAGMENTS),
    ("f32", "limbs"): (LIMBS,),
}
"""What products use, by storage and arithmetic of floats."""
_OF_CODES = (BYTE_MATRICES, DOTS, MIXED_DOTS)


class Outcome(NamedTuple):
    """A product's device time in microseconds, and its difference from numpy."""

    us: float
    difference: float


class Trial(Protocol):
    """Computes a product of `rows` rows with or without a capability."""

    def __call__(self, capability: Capability, used: bool, rows: int) -> Outcome: ...


Kind = Literal["fast", "slow", "wrong", "failed"]


# Keys of a file beside those of the verdict.
_NAMES = ("device", "capability")
_LEVELS = "levels"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a proof.

    Args:
        kind: "fast" allows the capability; all others exclude it.
        rows: rows of the last product.
        with_us: its microseconds with the capability.
        without_us: its microseconds without.
        difference: from numpy, relative to the largest result.
        reason: the error, if the capability failed.
        unit: what `rows` counts, if not rows.
    """

    kind: Kind
    rows: int = 0
    with_us: float = 0.0
    without_us: float = 0.0
    difference: float = 0.0
    reason: str = ""
    unit: str = ""

    @property
    def kept(self) -> bool:
        """Whether plans may use the capability."""
        return self.kind == "fast"

    @property
    def text(self) -> str:
        """The verdict with its figures, for people."""
        if self.kind == "failed":
            return f"failed: {self.reason}"
        if self.kind == "wrong":
            return f"wrong results: off by {self.difference:.1e} of the range"
        size = f"{self.rows} {self.unit}" if self.unit else f"{self.rows}x{SIZE}x{SIZE}"
        return (
            f"{size} in {self.with_us:.0f} µs, without in {self.without_us:.0f} µs; "
            f"differs from numpy by {self.difference:.0e}"
        )

    @classmethod
    def parse(cls, data: Any) -> Verdict | None:
        """Return the verdict in a file; None if it is not one."""
        try:
            made = cls(**{name: value for name, value in data.items() if name not in _NAMES})
        except TypeError:
            return None
        numbers = (made.rows, made.with_us, made.without_us, made.difference)
        fits = all(isinstance(one, int | float) for one in numbers) and all(
            isinstance(one, str) for one in (made.reason, made.unit)
        )
        return made if fits and made.kind in get_args(Kind) else None


def judge(trial: Trial, capability: Capability) -> Verdict | None:
    """Compute products with and without a capability, within the budget.

    Returns:
        The verdict; None if the device cannot compute the product without the capability either.
    """
    spent = 0.0
    verdict = None
    unit = _LEVELS if capability.product == "chain" else ""
    for rows in capability.sizes:
        if verdict:
            ahead = capability.rounds * (verdict.with_us + verdict.without_us) * rows / verdict.rows
            if spent + ahead > capability.budget_us:
                break
        best = {False: math.inf, True: math.inf}
        worst = 0.0
        for _ in range(capability.rounds):
            for used in (False, True):
                try:
                    made = trial(capability, used, rows)
                except VkmnnError as error:
                    return (
                        Verdict("failed", rows, reason=error.message, unit=unit) if used else None
                    )
                spent += made.us
                best[used] = min(best[used], made.us)
                if used and not made.difference <= capability.tolerance:  # also NaN
                    off = min(made.difference, math.inf) if made.difference >= 0 else math.inf
                    return Verdict("wrong", rows, best[True], best[False], off, unit=unit)
                worst = max(worst, made.difference) if used else worst
            if spent > capability.budget_us:
                break
        kind: Kind = "fast" if best[True] <= MARGIN * best[False] else "slow"
        verdict = Verdict(kind, rows, best[True], best[False], worst, unit=unit)
    return verdict


def concerns(info: DeviceInfo) -> bool:
    """Return whether anything is proved on a device: on GPUs, unless `VKMNN_PROOF` says more."""
    mode = environment.proof()
    # The times of an emulated device are those of the device beneath.
    return mode == "on" or (mode == "auto" and is_gpu(info) and not info.device_profile)


class Prover:
    """Settles whether a device's plans use a capability: by memory, file or trial.

    Args:
        open_trial: opens a trial on a device.
    """

    def __init__(self, open_trial: Callable[[Device], AbstractContextManager[Trial]]) -> None:
        self._open_trial = open_trial
        self._lock = threading.Lock()
        self._known: dict[str, Verdict | None] = {}

    def settle(self, device: Device, capability: Capability) -> Verdict | None:
        """Remove the capability from `device.info` unless it is right and fast.

        Returns:
            The verdict; None if nothing was to be proved, or nothing could be.
        """
        if not concerns(device.info) or not capability.present(capability.alone(device.info)):
            return None
        key = verdict_key(device.info, capability)
        with self._lock:
            if key not in self._known:
                self._known[key] = self._find(device, capability, key)
            verdict = self._known[key]
        if verdict is not None and not verdict.kept:
            device.info = capability.without(device.info)
        return verdict

    def settle_codes(self, device: Device, op_type: str) -> bool:
        """Settle what ops of quantised values use, at the first one; return whether it was one."""
        if "Quantize" not in op_type and "NBits" not in op_type:
            return False
        for capability in _OF_CODES:
            self.settle(device, capability)
        return True

    def _find(self, device: Device, capability: Capability, key: str) -> Verdict | None:
        files = Measurements(PROOFS)
        data = files.get(key) if environment.proof() == "auto" else None
        verdict = None if data is None else Verdict.parse(data)
        if verdict is None:
            verdict = self._judge(device, capability)
            if verdict is not None:
                names = dict(zip(_NAMES, (device.info.name, capability.name), strict=True))
                files.put(key, {**names, **asdict(verdict)})
        if verdict is not None and not verdict.kept:
            _log.warning(
                "%s: plans do without %s, %s",
                *(device.info.name, capability.name.replace("-", " "), verdict.text),
            )
        return verdict

    def _judge(self, device: Device, capability: Capability) -> Verdict | None:
        try:
            with self._open_trial(device) as trial:
                return judge(trial, capability)
        except VkmnnError as error:
            _log.warning("%s: %s are not proved: %s", device.info.name, capability.name, error)
            return None


def verdict_key(info: DeviceInfo, capability: Capability) -> str:
    """Return the name of a verdict's file: device, driver version, vkmnn's version, capability."""
    return f"{device_key(info).hex()[:32]}-{capability.name}"


def stored_refusals() -> list[str]:
    """Return what devices proved not to be used for, as stored, or to wait by; a sentence each."""
    files = Measurements(PROOFS)
    found = []
    for key in files.stored():
        data = files.get(key) or {}
        verdict = Verdict.parse(data)
        if verdict is not None and not verdict.kept:
            what = str(data.get("capability", "")).replace("-", " ")
            found.append(f"{data.get('device')} does without {what}: {verdict.text}")
        elif verdict is not None and verdict.unit and environment.flags() == "on":
            found.append(f"{data.get('device')} waits by flags: {verdict.text}")
    return list(dict.fromkeys(found))
