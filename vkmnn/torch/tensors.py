"""Tensors of PyTorch's as arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array, DType


def as_array(torch: Any, value: Any) -> Any:
    """Return a tensor as an array, in the same memory if that is the host's.

    Args:
        torch: the package.
        value: a tensor on any device, or what numpy takes.

    Raises:
        InvalidInputError: elements that neither numpy nor ml_dtypes has.
    """
    if not hasattr(value, "detach"):
        return np.asarray(value)
    try:
        return value.numpy(force=True)
    except TypeError:  # bfloat16, and the types of 8 bits
        pass
    try:
        dtype = DType(str(value.dtype).removeprefix("torch.")).numpy
        bits = torch.int16 if value.element_size() == 2 else torch.uint8
        return value.detach().cpu().view(bits).numpy().view(dtype)
    except (ValueError, RuntimeError) as error:
        raise InvalidInputError(
            f"tensors of {value.dtype} cannot be passed to a session", hint="convert the tensor"
        ) from error


def as_tensor(torch: Any, array: Array) -> Any:
    """Return an array as a contiguous tensor, in the same memory if possible."""
    if not (array.flags.writeable and array.flags.c_contiguous):
        array = array.copy(order="C")
    if array.dtype.kind != "V":
        return torch.from_numpy(array)
    bits = np.int16 if array.dtype.itemsize == 2 else np.uint8
    return torch.from_numpy(array.view(bits)).view(getattr(torch, array.dtype.name))
