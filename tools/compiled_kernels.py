"""Compile every kernel that a device supports, and collect the compiler's statistics.

    python -m tools.compiled_kernels OUTPUT [PATTERN]

It runs with the driver that the environment names and RADV_DEBUG=shaderstats: the driver then
writes statistics to standard error, where they are read. The result is written to OUTPUT as JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vkmnn.errors import VkmnnError
from vkmnn.runtime.device import open_device
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.shader import Shader
from vkmnn.shaders.library import BUILTIN
from vkmnn.vulkan.gemm.coop_tiles import BYTE_TILES_OF, LARGE_TILES, TILES_OF

FIGURES = {
    "registers": "VGPRs",
    "spilled": "Spilled VGPRs",
    "scratch": "Scratch size",
    "shared": "LDS size",
    "waves": "Subgroups per SIMD",
    "instructions": "Instructions",
    "cycles": "Inverse Throughput",
}
"""The statistics to keep, with RADV's names."""

_LINE = re.compile(r"^(?P<name>[A-Z][^:]*): (?P<value>\d+)", re.MULTILINE)


@dataclass
class Compiled:
    """The report of a driver's compiler on the kernels.

    Attributes:
        device: its name.
        driver: name and version.
        kernels: figures by variant, as in `FIGURES`.
        lacking: the features that a variant needs and the device lacks, by variant.
        refused: variants that the engine's rules exclude on this device.
        failed: the reason for each variant that does not compile.
    """

    device: str
    driver: str
    kernels: dict[str, dict[str, int]] = field(default_factory=dict)
    lacking: dict[str, list[str]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


@contextmanager
def _standard_error() -> Iterator[Path]:
    """Redirect the standard error of this process to a file."""
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield Path(file.name)
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def figures(text: str) -> dict[str, int] | None:
    """Return the figures in RADV's statistics of one shader; None if there are none."""
    found = {match["name"]: int(match["value"]) for match in _LINE.finditer(text)}
    if FIGURES["registers"] not in found:
        return None
    return {name: found.get(title, 0) for name, title in FIGURES.items()}


def _lacking(shader: Shader, info: DeviceInfo) -> list[str]:
    """Return the features that a kernel needs and a device lacks."""
    smallest, largest = info.limits.subgroup_size_range
    size = shader.subgroup_size
    other_size = [f"subgroups of {size}"] if size and not smallest <= size <= largest else []
    return sorted(shader.requires - info.features) + other_size


def _refused_tiles(info: DeviceInfo) -> set[str]:
    """Return the cooperative-matrix tiles that the rules exclude on a device."""
    tables: list[Mapping[Any, Any]] = [TILES_OF, BYTE_TILES_OF]
    tiles = [tile for table in tables for rows in table.values() for row in rows for tile in row]
    tiles += LARGE_TILES
    return {tile.name for tile in tiles if not tile.fits(info)}


def compile_all(pattern: str = ".*") -> Compiled:
    """Compile the kernels whose names match a pattern as a whole."""
    device = open_device(0)
    info = device.info
    result = Compiled(info.name, f"{info.driver_name} {info.driver_version}")
    tiles = _refused_tiles(info)
    for shader in sorted(BUILTIN.all(), key=lambda shader: shader.name):
        if not re.fullmatch(pattern, shader.name):
            continue
        if lacks := _lacking(shader, info):
            result.lacking[shader.name] = lacks
            continue
        if any(f"_{tile}_" in f"{shader.name}_" for tile in tiles):
            result.refused.append(shader.name)
            continue
        with _standard_error() as said:
            try:
                pipeline = device.pipeline(shader)
                _ = pipeline.driver_pipeline
            except VkmnnError as error:
                result.failed[shader.name] = error.message
                continue
            found = figures(said.read_text("utf-8", "replace"))
        if found is None:
            result.failed[shader.name] = "the driver gives no statistics"
        else:
            result.kernels[shader.name] = found
    return result


if __name__ == "__main__":
    compiled = compile_all(*sys.argv[2:3])
    Path(sys.argv[1]).write_text(json.dumps(asdict(compiled)), "utf-8")
