"""Options of a run of the fuzzer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_GRAPHS = 300
PRECISION_TURNS = ("high", "normal", "low")
SEED_VARIABLE = "VKMNN_FUZZ_SEED"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line, and of the tests that run the same code.

    Attributes:
        seed: the seed of the run; the same seed results in the same models.
        graphs: how many models, 0 for no limit.
        minutes: how long, 0 for no limit.
        device: selector of the device that vkmnn runs on.
        driver: Vulkan binding, None for the default.
        precision: "high", "normal" or "low"; "mixed" for all three in turn.
        ops: only models that contain one of these operators; empty for all.
        timeout_s: seconds that one model may take before it counts as hanging.
        folder: where failing models are written.
        large: share of the models with large tensors.
        jobs: processes of the malformed mode, 0 for one per processor.
        starts: files of other formats that the malformed mode damages instead of ONNX models.
    """

    seed: int = 0
    graphs: int = DEFAULT_GRAPHS
    minutes: float = 0.0
    device: str = "auto"
    driver: str | None = None
    precision: str = "high"
    ops: tuple[str, ...] = ()
    timeout_s: float = 60.0
    folder: Path = Path("fuzz-failures")
    large: float = 0.03
    jobs: int = 0
    starts: tuple[Path, ...] = ()


def precision_of(options: Options, number: int) -> str:
    """Return the precision that a model runs with."""
    if options.precision != "mixed":
        return options.precision
    return PRECISION_TURNS[number % len(PRECISION_TURNS)]


def default_seed() -> int:
    """Return the seed from the environment, else 0."""
    return int(os.environ.get(SEED_VARIABLE, "0"))
