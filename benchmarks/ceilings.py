"""The limits of a device, measured: multiply-adds, and copies of many sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.shaders import kernels
from vkmnn.runtime.device import Device
from vkmnn.runtime.device_info import CooperativeMatrixShape, DeviceInfo
from vkmnn.runtime.memory import BufferRange, MemoryKind
from vkmnn.runtime.recorder import CommandBuffer, linear_groups
from vkmnn.runtime.shader import Shader
from vkmnn.vulkan.encoder import Load, loads_of

INVOCATIONS = 1 << 18
MAX_ROUNDS = 1 << 15  # lavapipe ends loops at 65,535
MIN_MS = 20.0
SIZES = tuple(1 << power for power in range(12, 30, 2))
COPIES = 16
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Ceilings:
    """FLOP/s by element type, and bytes a second of copies by the bytes that they move.

    A copy of few bytes is slow because it must be started: so is every other step of that size.
    """

    flops: dict[str, float]
    bandwidth: dict[int, float]

    def bandwidth_at(self, nbytes: float) -> float:
        """Return the bytes a second that a copy of this many bytes reaches."""
        sizes = list(self.bandwidth)
        index = min(bisect_left(sizes, nbytes), len(sizes) - 1)
        if index == 0:  # takes as long as the smallest
            return self.bandwidth[sizes[0]] * nbytes / sizes[0]
        if nbytes >= sizes[-1]:
            return self.bandwidth[sizes[-1]]
        low, high = sizes[index - 1], sizes[index]
        part = (nbytes - low) / (high - low)
        # Times, not rates, are linear between two sizes.
        seconds = (1 - part) * low / self.bandwidth[low] + part * high / self.bandwidth[high]
        return nbytes / seconds

    def min_seconds(self, flops: float, nbytes: float, dtype: str = "f32") -> float:
        """Return the minimum time of a step that computes and moves this much."""
        return max(flops / self.flops[dtype], nbytes / self.bandwidth_at(nbytes) if nbytes else 0.0)


def measure(device: Device, largest: int = SIZES[-1]) -> Ceilings:
    """Measure a device that has timestamps; copies move up to `largest` bytes."""
    flops = {"f32": _flops(device, _multiply_adds("f32"))}
    if "float16" in device.info.features:
        flops["f16"] = _flops(device, _multiply_adds("f16"))
    shape = coopmat_shape(device.info)
    if shape is not None:
        flops[f"f16 matrices {shape.m}×{shape.n}×{shape.k}"] = _flops(device, _mma_chain(shape))
    sizes = [size for size in SIZES if size <= largest]
    load = loads_of(device.info)[0]
    return Ceilings(flops, {size: _bandwidth(device, load, size) for size in sizes})


def coopmat_shape(info: DeviceInfo) -> CooperativeMatrixShape | None:
    """Return the largest product of float16 matrices into float32 that a subgroup can compute."""
    shader = kernels.mma()
    if not info.features.issuperset(shader.requires):
        return None
    kinds = ("f16", "f16", "f32", "f32", "subgroup")
    found = [s for s in info.cooperative_matrices if (s.a, s.b, s.c, s.result, s.scope) == kinds]
    return max(found, key=lambda shape: shape.m * shape.n * shape.k, default=None)


@dataclass(frozen=True, slots=True)
class _Work:
    """A shader of arithmetic: its push constants by rounds, and the work of a thread in a round.

    `team` is how many invocations share the work of one, 0 for a subgroup.
    """

    shader: Shader
    spec: dict[str, int]
    params: Callable[[int], bytes]
    flops: int
    team: int


def _multiply_adds(dtype: Literal["f32", "f16"]) -> _Work:
    # 8 chains, 4 steps unrolled, 4 components, a multiplication and an addition.
    return _Work(
        kernels.fma(dtype=dtype),
        {},
        lambda rounds: kernels.FmaParams(rounds=rounds).pack(),
        8 * 4 * 4 * 2,
        1,
    )


def _mma_chain(shape: CooperativeMatrixShape) -> _Work:
    # 8 chains.
    return _Work(
        kernels.mma(),
        {"M": shape.m, "N": shape.n, "K": shape.k},
        lambda rounds: kernels.MmaParams(rounds=rounds).pack(),
        8 * 2 * shape.m * shape.n * shape.k,
        0,
    )


def _flops(device: Device, work: _Work) -> float:
    pipeline = device.pipeline(work.shader, work.spec)
    groups = (INVOCATIONS // work.shader.local_size[0], 1, 1)
    team = work.team or device.info.limits.subgroup_size_range[1]
    with device.allocate(4096, MemoryKind.DEVICE) as buffer:
        rounds = 64
        while True:
            recorder = device.recorder(timestamps=True)
            target = [BufferRange(buffer, 0, 4096)]
            recorder.dispatch(pipeline, target, work.params(rounds), groups)
            with recorder.finish() as commands:
                spent = _best_ms(commands)
            if spent >= MIN_MS or rounds >= MAX_ROUNDS:
                return INVOCATIONS // team * rounds * work.flops / spent * 1e3
            rounds *= 4


def _bandwidth(device: Device, load: Load, moved: int) -> float:
    """Return the rate of a copy that reads and writes `moved` bytes in all."""
    shader = kernels.copy(load=load)
    pipeline = device.pipeline(shader)
    size = moved // 2
    params = kernels.CopyParams(n4=size // 16).pack()
    groups = linear_groups(size // 16, shader.local_size[0], device.info.limits)
    with device.allocate(moved, MemoryKind.DEVICE) as buffer:
        halves = [BufferRange(buffer, 0, size), BufferRange(buffer, size, size)]
        recorder = device.recorder(timestamps=True)
        for number in range(COPIES):
            # Each reads the result of the one before, like the steps of a network.
            pair = halves if number % 2 == 0 else halves[::-1]
            recorder.dispatch(pipeline, pair, params, groups)
        with recorder.finish() as commands:
            return COPIES * moved / _best_ms(commands) * 1e3


def _best_ms(commands: CommandBuffer) -> float:
    spent = []
    for _ in range(REPEATS):
        commands.run()
        spent.append(sum(microseconds for _, microseconds in commands.timings()) / 1e3)
    return min(spent)
