"""Speech that a network makes."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.results.result import Result


class Speech(Result[float]):
    """A spoken text.

    Args:
        samples: float32 [samples] from -1 to 1.
        rate: samples per second.
        seed: of the random numbers.
    """

    columns = ("seconds", "rate")
    suffix = ".wav"

    def __init__(self, samples: Array, rate: int, seed: int) -> None:
        super().__init__([len(samples) / rate])
        self.samples, self.rate, self.seed = samples, rate, seed

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.items[0]

    def rows(self) -> list[tuple[str, ...]]:
        """Return the duration and the rate."""
        return [(f"{self.seconds:.2f}", str(self.rate))]

    def to_dict(self) -> dict[str, Any]:
        """Return the rate, the number of samples, the duration and the seed."""
        return {"sampling_rate": self.rate, "samples": len(self.samples),
                "seconds": round(self.seconds, 4), "seed": self.seed}  # fmt: skip

    def arrays(self) -> dict[str, Array]:
        """Return `samples` and `rate`."""
        return {"samples": self.samples, "rate": np.array(self.rate)}

    def sound(self) -> tuple[Array, int]:
        """Return the samples and their rate."""
        return self.samples, self.rate
