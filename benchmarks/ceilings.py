"""What a device can do at most, measured on itself: multiply-adds, and copies of many sizes."""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

from vkmnn.codegen import compile_folder
from vkmnn.runtime.device import Device
from vkmnn.runtime.encoder import CommandBuffer, linear_groups
from vkmnn.runtime.memory import BufferRange, MemoryKind
from vkmnn.runtime.shader import Shader
from vkmnn.shaders import shaders_from_build
from vkmnn.vulkan.encoder import load_storages

SHADERS = Path(__file__).parent / "shaders"
INVOCATIONS = 1 << 18
# Of one round of the shader: chains, unrolled steps, components, a multiplication and an addition.
FLOPS_A_ROUND = 8 * 4 * 4 * 2
MOST_ROUNDS = 1 << 15  # lavapipe ends loops at 65,535
LEAST_MS = 20.0
SIZES = tuple(1 << power for power in range(12, 30, 2))
COPIES = 16
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Ceilings:
    """FLOP/s by element type, and bytes a second of copies by the bytes that they move.

    A copy of few bytes is slow because it has to be started: so is every other step of that size.
    """

    flops: dict[str, float]
    bandwidth: dict[int, float]

    def bandwidth_at(self, nbytes: float) -> float:
        """Return the bytes a second that a copy that moves so many bytes reaches."""
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

    def least_seconds(self, flops: float, nbytes: float, dtype: str = "f32") -> float:
        """Return what a step must take that computes and moves so much."""
        return max(flops / self.flops[dtype], nbytes / self.bandwidth_at(nbytes) if nbytes else 0.0)


def measure(device: Device, largest: int = SIZES[-1]) -> Ceilings:
    """Measure a device that has timestamps; copies move up to `largest` bytes."""
    shaders = shaders_from_build(compile_folder(SHADERS))
    dtypes = ["f32", *(["f16"] if "float16" in device.info.features else [])]
    storage = load_storages(device.info)[0]
    sizes = [size for size in SIZES if size <= largest]
    return Ceilings(
        {dtype: _flops(device, shaders[f"fma_{dtype}"]) for dtype in dtypes},
        {size: _bandwidth(device, shaders[f"copy_{storage}"], size) for size in sizes},
    )


def _flops(device: Device, shader: Shader) -> float:
    pipeline = device.pipeline(shader)
    groups = (INVOCATIONS // shader.local_size[0], 1, 1)
    with device.allocate(4096, MemoryKind.DEVICE) as buffer:
        rounds = 64
        while True:
            params = struct.pack("<Iff", rounds, 0.999, 0.001)
            encoder = device.encoder(timestamps=True)
            encoder.dispatch(pipeline, [BufferRange(buffer, 0, 4096)], params, groups)
            with encoder.finish() as commands:
                spent = _best_ms(commands)
            if spent >= LEAST_MS or rounds >= MOST_ROUNDS:
                return INVOCATIONS * rounds * FLOPS_A_ROUND / spent * 1e3
            rounds *= 4


def _bandwidth(device: Device, shader: Shader, moved: int) -> float:
    """Return the rate of a copy that reads and writes `moved` bytes in all."""
    pipeline = device.pipeline(shader)
    size = moved // 2
    params = struct.pack("<I", size // 16)
    groups = linear_groups(size // 16, shader.local_size[0], device.info.limits)
    with device.allocate(moved, MemoryKind.DEVICE) as buffer:
        halves = [BufferRange(buffer, 0, size), BufferRange(buffer, size, size)]
        encoder = device.encoder(timestamps=True)
        for number in range(COPIES):
            # Each reads what the one before wrote, as the steps of a network do.
            pair = halves if number % 2 == 0 else halves[::-1]
            encoder.dispatch(pipeline, pair, params, groups)
        with encoder.finish() as commands:
            return COPIES * moved / _best_ms(commands) * 1e3


def _best_ms(commands: CommandBuffer) -> float:
    spent = []
    for _ in range(REPEATS):
        commands.run()
        spent.append(sum(microseconds for _, microseconds in commands.timings()) / 1e3)
    return min(spent)
