"""Narrow floats on numpy: how they are stored, and products computed in float16."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.base.elements import FLOATS, FloatElement
from vkmnn.base.records import dataclass
from vkmnn.core.execution import Command
from vkmnn.core.float_range import (
    BINARY_KINDS,
    FULL_UNARY_KINDS,
    STEP_KINDS,
    divides,
    exceeds,
    fits,
    to_element,
)
from vkmnn.core.overflow import Overflowed, overflow_of
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array, DType

AnyArray = npt.NDArray[Any]

TERMS = 16
"""Products that are added up in float16 at a time, in products of float16 matrices."""

_TAKES = frozenset(
    {"Convolution", "Deconvolution", "MatMul", "NormedMatMul", "Attention", "StridedAttention"}
)
"""Ops that are fed narrow floats whatever their inputs are."""
_MASK = 3
"""The operand that may be a mask; attention reads it, and those after it, unconverted."""

_FOLLOWS = frozenset(
    {
        "BinaryOp", "UnaryOp", "Elementwise", "Scale", "Select", "Pooling", "Softmax", "LayerNorm",
        "GroupNorm", "LRN", "Gather", "GatherElements", "GatherND", "Interp", "Raster", "Reshape",
        "Transpose", "Concat", "Slice", "Split", "Pad", "Expand", "Tile", "Squeeze", "Unsqueeze",
        "Flatten", "Identity", "JoinPast", "DepthToSpace", "SpaceToDepth", "Reverse",
    }
)  # fmt: skip
"""Ops with narrow results if all computed operands are narrow and the constants fit."""

_COMPUTES = frozenset(
    {"BinaryOp", "Elementwise", "Scale", "Convolution", "Deconvolution", "MatMul"}
)
"""Ops that are computed in float16 at "low": sums of thousands of terms would suffer."""


class _Arithmetic(threading.local):
    half = False


_arithmetic = _Arithmetic()


def computes_fp16() -> bool:
    """Whether this thread computes float16 values in float16."""
    return _arithmetic.half


@contextmanager
def arithmetic(half: bool) -> Iterator[None]:
    """Compute in float16, or as usual, within the block."""
    before, _arithmetic.half = _arithmetic.half, half
    try:
        yield
    finally:
        _arithmetic.half = before


def fp16_product(a: AnyArray, b: AnyArray) -> AnyArray:
    """Return a @ b in float32: sums of `TERMS` products are float16, and added up in float32."""
    if b.ndim == 1:
        return fp16_product(a, b[:, None])[..., 0]
    a, b = a.astype(np.float32), b.astype(np.float32)
    terms = a.shape[-1]
    result = _rounded(np.matmul(a[..., :TERMS], b[..., :TERMS, :]))
    for first in range(TERMS, terms, TERMS):
        part = slice(first, first + TERMS)
        result += _rounded(np.matmul(a[..., part], b[..., part, :]))
    return result


def _rounded(x: AnyArray) -> AnyArray:
    return x.astype(np.float16).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Form:
    """How a command handles floats that its network declares as float32.

    Attributes:
        takes: whether each input is fed narrow; the others are float32.
        makes: whether results are narrow.
        computes: whether it is computed in float16.
    """

    takes: tuple[bool, ...]
    makes: bool
    computes: bool


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype in (DType.FLOAT32, DType.FLOAT16)


def _stays_in_range(command: Command, element: FloatElement) -> bool:
    """Return whether an op's results are in the range about as well as its operands."""
    op = command.op
    attrs: Any = op.attrs
    if op.type == "BinaryOp":
        a, b = command.inputs[:2]
        assert b is not None
        leaves = a is b or (attrs.kind == "DIV" and not divides(b.value, element))
        return attrs.kind in BINARY_KINDS and not leaves
    if op.type == "UnaryOp":
        return attrs.kind not in FULL_UNARY_KINDS
    if op.type == "Elementwise":
        squares = any("MUL" in s.kind and s.values[0] == s.values[1] for s in attrs.steps)
        codes = any(s.kind == "ROUND" for s in attrs.steps)
        return not squares and not codes and all(s.kind in STEP_KINDS for s in attrs.steps)
    if op.type == "Pooling" and attrs.kind == "LP":
        return False
    if getattr(attrs, "ending", None) is not None or getattr(attrs, "of_input", None) is not None:
        return False
    filled = [getattr(attrs, name, 0.0) for name in ("fill", "extrapolation_value")]
    return fits(np.array(filled, np.float32), element)


def forms_of(
    commands: Sequence[Command],
    plain: Callable[[Command], bool],
    element: FloatElement,
    arithmetic: FloatElement,
    full: frozenset[str],
) -> list[Form]:
    """Return how each command of a plan works on floats.

    Args:
        commands: in running order.
        plain: whether a command is numpy's own, and not a plug-in's.
        element: how floats are stored.
        arithmetic: the type in which narrow floats are computed.
        full: names of ops, and of tensors whose readers, keep float32.
    """
    narrow: set[str] = set()
    found = []
    for command in commands:
        op = command.op
        kept = not plain(command) or not full.isdisjoint((op.name, *op.inputs, *op.outputs))
        follows = op.type in _FOLLOWS and _follows(command, narrow, element)
        takes = not kept and (follows or (op.type in _TAKES and not _adds_mask(command, element)))
        attention = "Attention" in op.type
        wants = tuple(takes and not (attention and n >= _MASK) for n in range(len(command.inputs)))
        found.append(Form(wants, takes, takes and arithmetic != "f32" and op.type in _COMPUTES))
        if takes:
            narrow.update(out.name for out in command.outputs if _is_float(out))
    return found


def _adds_mask(command: Command, element: FloatElement) -> bool:
    """Return whether a product adds a constant beyond the range."""
    mask = command.inputs[_MASK] if len(command.inputs) > _MASK else None
    return command.op.type == "MatMul" and mask is not None and exceeds(mask.value, element)


def _follows(command: Command, narrow: Collection[str], element: FloatElement) -> bool:
    operands = [t for t in command.inputs if t is not None and _is_float(t)]
    computed = [t for t in operands if t.value is None]
    clamped = command.op.type == "Select"
    constants = [t.value for t in operands if t.value is not None]
    return (
        bool(computed)
        and all(t.name in narrow or t.dtype is DType.FLOAT16 for t in computed)
        and all(fits(value, element, clamped=clamped) for value in constants)
        and _stays_in_range(command, element)
    )


class NarrowRunner:
    """Runs the commands of a plan on floats that are stored narrow.

    Args:
        commands: the commands of all segments.
        forms: the forms of each command.
        kept: tensors that the host reads, which are float32.
        element: how floats are stored.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        forms: Sequence[Form],
        kept: Collection[str],
        element: FloatElement,
    ) -> None:
        self._element = element
        self._dtype = FLOATS[element].dtype
        self._foreign = self._dtype.kind != "f"  # numpy stores these, and computes with few
        self._forms = {id(c): form for c, form in zip(commands, forms, strict=True)}
        self._kept = frozenset(kept)
        self._constants: dict[str, Array] = {}

    def run(
        self,
        command: Command,
        inputs: Sequence[Array | None],
        compute: Callable[[Sequence[Array | None]], list[Array]],
        found: list[Overflowed],
    ) -> list[Array]:
        """Return the results of a command, and record overflows in `found`.

        Args:
            command: one of those of the plan.
            inputs: its operands as they are stored.
            compute: computes the results from operands of the types that it is to work on.
            found: called with the overflows.
        """
        form = self._forms[id(command)]
        given = [
            self._operand(command, tensor, array, wants, found)
            for tensor, array, wants in zip(command.inputs, inputs, form.takes, strict=True)
        ]
        if self._foreign:
            given = [None if array is None else self._wide(array) for array in given]
        with arithmetic(form.computes):
            results = compute(given)
        outputs = iter(command.outputs)
        made = [
            self._stored(next(outputs), array, form.makes) if name else array
            for name, array in zip(command.op.outputs, results, strict=True)
        ]
        if form.makes and not all(_finite(array) for array in made):
            # What float32 makes of the same operands tells whether the element is to blame.
            wide = [None if array is None else self._wide(array) for array in given]
            full = compute(wide)
            if any(_lost(narrow, true) for narrow, true in zip(made, full, strict=True)):
                found.append(overflow_of(command, command.op.outputs))
        return made

    def _operand(
        self,
        command: Command,
        tensor: Tensor | None,
        array: Array | None,
        wants: bool,
        found: list[Overflowed],
    ) -> Array | None:
        if tensor is None or array is None or tensor.dtype is not DType.FLOAT32:
            return array
        if not wants:
            return self._wide(array)
        if array.dtype == self._dtype:
            return array
        if tensor.value is not None:
            narrow = self._constants.get(tensor.name)
            if narrow is None:
                narrow = self._constants[tensor.name] = to_element(array, self._element)
            return narrow
        with np.errstate(over="ignore"):
            narrow = array.astype(self._dtype)
        if _lost(narrow, array):
            found.append(overflow_of(command, [tensor.name]))
        return narrow

    def _stored(self, tensor: Tensor, array: Array, narrow: bool) -> Array:
        if tensor.dtype is not DType.FLOAT32 or array.dtype.kind != "f":
            return array
        if narrow:
            with np.errstate(over="ignore"):
                array = array.astype(self._dtype, copy=False)
        return self._wide(array) if not narrow or tensor.name in self._kept else array

    def _wide(self, array: Array) -> Array:
        return array.astype(np.float32) if array.dtype == self._dtype else array


def _finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _lost(narrow: Array, true: Array) -> bool:
    """Whether a number is finite only in `true`."""
    if narrow.dtype.kind != "f" or true.dtype.kind != "f":
        return False
    bad = ~np.isfinite(narrow)
    return bool(bad.any()) and bool((bad & np.isfinite(true)).any())
