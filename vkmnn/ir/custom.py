"""The generic op: its type is a string, and its attributes are bytes by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.base.records import dataclass
from vkmnn.base.registry import Registry
from vkmnn.errors import ModelError
from vkmnn.ir.op_type import Flops, OpAttrs, Shape

CUSTOM = "Custom"

CUSTOM_FLOPS: Registry[str, Flops] = Registry("FLOP counter of Custom op")


@dataclass(frozen=True, slots=True)
class CustomAttrs(OpAttrs):
    """Name of a custom op and its attributes as bytes, which only its kernels interpret.

    Integers and floats in them are little-endian: int64 and float32, as ONNX stores attributes.
    """

    type: str
    attributes: tuple[tuple[str, bytes], ...] = ()

    def kernel_of(self, op_type: str) -> str:
        """Return the registry key of kernels: `Custom:` and the type."""
        return f"{op_type}:{self.type}"

    def get(self, name: str, default: bytes | None = None) -> bytes:
        """Return an attribute's bytes; without a default it is required."""
        found = dict(self.attributes).get(name, default)
        if found is None:
            names = ", ".join(name for name, _ in self.attributes)
            raise ModelError(
                f"Custom op {self.type} has no attribute '{name}'",
                hint=f"it has {names}" if names else "it has none",
            )
        return found

    def text(self, name: str, default: str | None = None) -> str:
        """Return an attribute as UTF-8 text; raises as `get`, and if it is not UTF-8."""
        data = self.get(name, None if default is None else default.encode())
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._unfit(name, "text in UTF-8") from error

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return an attribute as int64s; raises as `array`."""
        given = None if default is None else np.array(default, "<i8").tobytes()
        return tuple(self.array(name, "<i8", given).tolist())

    def floats(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return an attribute as float32s; raises as `array`."""
        given = None if default is None else np.array(default, "<f4").tobytes()
        return tuple(self.array(name, "<f4", given).tolist())

    def array(
        self, name: str, dtype: npt.DTypeLike, default: bytes | None = None
    ) -> npt.NDArray[Any]:
        """Return an attribute as a 1-D array; raises as `get`, and for a partial element."""
        data, kind = self.get(name, default), np.dtype(dtype)
        if len(data) % kind.itemsize:
            raise self._unfit(name, f"a multiple of {kind.itemsize} bytes")
        return np.frombuffer(data, kind)

    def _unfit(self, name: str, what: str) -> ModelError:
        size = len(self.get(name))
        return ModelError(
            f"attribute '{name}' of Custom op {self.type} is not {what}: it has {size} bytes",
            hint="read it as what the model's author wrote",
        )


def custom_flops(attrs: CustomAttrs, inputs: Sequence[Shape | None], output: Shape) -> int:
    """Return the op author's count of operations; by default one per output element."""
    counter = CUSTOM_FLOPS.get(attrs.type)
    return (
        int(np.prod(output, dtype=np.int64)) if counter is None else counter(attrs, inputs, output)
    )
