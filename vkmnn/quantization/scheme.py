"""Validated options of quantisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError

WeightType = Literal["int4", "int8"]
ActivationType = Literal["int8", "uint8"]
Method = Literal["minmax", "entropy", "percentile"]

_BLOCKS = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Scheme:
    """Storage of weights and activations; see `vkmnn.quantize`."""

    weights: WeightType = "int8"
    block: int = 32
    symmetric: bool = True
    activations: ActivationType | None = None
    method: Method = "minmax"
    per_channel: bool = True
    exclude: Sequence[str] = ()

    @property
    def bits(self) -> int:
        """Bits of a weight."""
        return 4 if self.weights == "int4" else 8

    def check(self) -> None:
        """Raise InvalidInputError for an invalid value of an option."""
        for what, value, known in (
            ("weights", self.weights, get_args(WeightType)),
            ("activations", self.activations, (None, *get_args(ActivationType))),
            ("method", self.method, get_args(Method)),
            ("block", self.block, _BLOCKS),
        ):
            if value not in known:
                names = ", ".join(str(one) for one in known if one is not None)
                raise InvalidInputError(f"{what} cannot be {value!r}", hint=f"use one of: {names}")
