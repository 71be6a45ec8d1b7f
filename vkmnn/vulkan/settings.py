"""All options of a Vulkan backend, in one object that siblings share."""

from __future__ import annotations

from collections.abc import Callable

from vkmnn.base.elements import Arithmetic, FloatElement
from vkmnn.base.records import dataclass
from vkmnn.core.overflow import OverflowWatch


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """Settings of a `VulkanBackend`.

    Profiles, trials of the tuner and rebuilt sessions run on siblings of a session's backend, which
    `VulkanBackend.sibling` creates with `dataclasses.replace`: an option added here reaches them
    all.

    Attributes:
        progress: called with (done, total) while pipelines are built.
        timestamps: record GPU time per dispatch, for profiles.
        apart: let no two dispatches overlap, so that a time is that of one alone.
        element: how floats are stored where the op has a kernel for it and the range allows it; the
            device must support it.
        arithmetic: in which products of floats stored like that may be computed; "limbs" of
            float32 ones.
        narrow_inputs: convert the host's inputs immediately, so that no op runs in float32 merely
            because its operands come from the host; for testing kernels.
        full: names of ops, and of tensors whose readers, keep float32 regardless.
        overflows: handles float16 overflow; None to ignore it.
        tuning: what `VKMNN_TUNE` requests of this backend; None reads the variable.
        storage: what `VKMNN_STORAGE` requests of this backend; None reads the variable.
        spacious: kernels may take several times the memory if that makes them faster.
        stored_bytes: see `plan_memory`; benchmarks compare two.
        replays: command buffers are recorded once; otherwise every run records them anew.
        eager: memory is placed on first use, not once all tensors are known.
        flags: dispatches wait for each other by flags; None: only if `VKMNN_FLAGS` forces it.
    """

    progress: Callable[[int, int], None] | None = None
    timestamps: bool = False
    apart: bool = False
    element: FloatElement = "f32"
    arithmetic: Arithmetic = "f32"
    narrow_inputs: bool = False
    full: frozenset[str] = frozenset()
    overflows: OverflowWatch | None = None
    tuning: str | None = None
    storage: str | None = None
    spacious: bool = False
    stored_bytes: int | None = None
    replays: bool = True
    eager: bool = False
    flags: bool | None = None
