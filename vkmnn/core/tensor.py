"""Tensors of a planned network: static description plus where the data lies."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from vkmnn.ir import Array, DType, Layout, TensorInfo


class Usage(enum.Enum):
    """What a tensor is in the plan (MNN's tensor usage)."""

    NORMAL = "normal"
    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor of one plan: static shape, layout, usage, and its value when that is constant.

    `half` says that its floats take 16 bits on the device.
    """

    info: TensorInfo
    usage: Usage = Usage.NORMAL
    layout: Layout = Layout.NCHW
    value: Array | None = None
    half: bool = False

    @property
    def name(self) -> str:
        """The tensor's name, unique in the plan."""
        return self.info.name

    @property
    def dtype(self) -> DType:
        """The element type that ONNX gives the tensor; a backend may store it wider or narrower."""
        return self.info.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The static shape."""
        return self.info.dims
