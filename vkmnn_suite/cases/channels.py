"""Cases of `lrn` and `scale`: kernels that work channel by channel."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation
from vkmnn.ir.ops import ACTIVATION_KINDS, LRNAttrs, ScaleAttrs
from vkmnn.testing.case import Case, Variant, blocked_case, op_case, op_cases, shader_cases
from vkmnn.testing.shapes import floats

Shape = tuple[int, ...]

_LRN_SHAPES: dict[object, tuple[Shape, ...]] = {
    1: ((1, 1, 1), (2, 7, 5, 3), (3, 13), (0, 5, 3), (1, 17, 5), (2, 5, 0)),
    4: ((1, 1, 4), (2, 7, 2, 2), (3, 13, 8), (0, 5, 4), (1, 17, 12)),
    "blocked": ((1, 1, 1), (2, 7, 5, 3), (3, 13, 1), (1, 8, 12), (2, 17, 5)),
}
# Windows: of one channel, odd and even ones, and one that is wider than the tensor.
_WINDOWS = (1, 2, 3, 5, 6, 11, 40)
# Plain images whose pixels are vec4s, vectors of whole channel blocks, and neither.
_SCALE_SHAPES: dict[int, tuple[Shape, ...]] = {
    4: ((1, 1, 4), (2, 7, 2, 4), (3, 5, 36), (3, 8), (5, 4, 1), (1, 132), (0, 8)),
    1: ((1, 1), (2, 7), (2, 7, 5, 3), (3, 13, 9), (0, 5, 3), (2, 0, 3)),
}
_BLOCKED: tuple[Shape, ...] = ((1, 1, 1), (2, 7, 5, 3), (3, 4, 5), (1, 13, 9), (2, 8, 2))


_ATTRS = (
    LRNAttrs(5, 0.5, 0.75, 1.0),
    LRNAttrs(1, 0.3, 0.5, 2.0),
    LRNAttrs(4, 1e-4, 0.75, 1.0),
    LRNAttrs(3, 2.0, 1.5, 0.25),
    LRNAttrs(11, 1.0, 1.0, 1.0),
)
_PLAIN_LRN: tuple[Shape, ...] = (
    (2, 7, 3, 5), (1, 16, 2, 2), (3, 5), (1, 1, 1), (2, 9, 4), (1, 4, 0), (2, 3, 2, 3, 5),
)  # fmt: skip
_BLOCKED_LRN: tuple[Shape, ...] = ((2, 7, 3, 5), (1, 16, 2, 2), (1, 1, 1), (3, 9, 4), (2, 23, 1))
_SCALED: tuple[Shape, ...] = (
    (1, 1), (3, 7), (2, 8), (2, 5, 1), (2, 3, 4), (1, 13, 5, 3), (2, 6, 2, 2), (3, 8, 7, 1),
    (1, 3, 2, 3, 5), (1, 2, 1, 3, 1, 2, 1, 3), (2, 0, 3), (0, 5, 3),
)  # fmt: skip


@op_cases
def lrn_everywhere() -> Iterator[Case]:
    """Parameters of all sorts, in both orders."""
    for attrs in _ATTRS:
        yield from (_lrn(floats(*shape), attrs, False) for shape in _PLAIN_LRN)
        yield from (_lrn(floats(*shape), attrs, True) for shape in _BLOCKED_LRN)


@op_cases
def scale_everywhere() -> Iterator[Case]:
    """Factors that are fed and constant, in both orders."""
    for shape, constant in product(_SCALED, ((), (1, 2))):
        inputs = _scaled(*shape)
        yield op_case("Scale", ScaleAttrs(), inputs, constant=constant, rtol=1e-6)
        if 2 < len(shape) < 6 and 0 not in shape:
            yield blocked_case("Scale", ScaleAttrs(), inputs, constant=constant, rtol=1e-6)
    for kind in ACTIVATION_KINDS:
        attrs = ScaleAttrs(Activation(kind, 0.25, 0.75))
        yield op_case("Scale", attrs, _scaled(2, 7, 3))
        yield blocked_case("Scale", attrs, _scaled(2, 7, 3), constant=(1, 2))


@shader_cases("lrn")
def lrn(variant: Variant) -> Iterator[Case]:
    """Windows of all sorts; the exponent for which there is a shortcut, and another."""
    form = variant.axes["form"]
    for number, shape in enumerate(_LRN_SHAPES[form]):
        for size in _WINDOWS:
            beta = (0.75, 0.5)[(number + size) % 2]
            yield _lrn(floats(*shape), LRNAttrs(size, 0.5 * size, beta, 0.75), form == "blocked")
    # An exponent next to the shortcut's.
    yield _lrn(floats(*_LRN_SHAPES[form][1]), LRNAttrs(3, 0.5, 1.75, 0.75), form == "blocked")
    fp16 = floats(2, 5, 4 if form == 4 else 3).astype(np.float16)
    if form != "blocked":
        yield op_case("LRN", LRNAttrs(3, 0.5, 0.75, 2.0), [fp16], rtol=2e-3, atol=2e-3)


def _lrn(x: AnyArray, attrs: LRNAttrs, blocked: bool) -> Case:
    return (blocked_case if blocked else op_case)("LRN", attrs, [x], rtol=2e-6, atol=1e-7)


@shader_cases("scale")
def scale(variant: Variant) -> Iterator[Case]:
    """Factors per channel in all three orders, and every activation."""
    width = int(variant.axes["width"])
    blocked = _BLOCKED if width == 4 else ()
    for shape in _SCALE_SHAPES[width]:
        yield op_case("Scale", ScaleAttrs(), _scaled(*shape), rtol=4e-7, atol=4e-7)
    for shape in blocked:
        yield blocked_case("Scale", ScaleAttrs(), _scaled(*shape), rtol=4e-7, atol=4e-7)
        yield blocked_case(
            "Scale", ScaleAttrs(), _scaled(*shape), constant={1, 2}, rtol=4e-7, atol=4e-7
        )
    for kind in ACTIVATION_KINDS:
        attrs = ScaleAttrs(
            Activation(kind, -0.5, 0.75) if kind == "CLIP" else Activation(kind, 0.25, 0.625)
        )
        inputs = _scaled(2, 5, 12 if width == 4 else 11)
        yield op_case("Scale", attrs, inputs, rtol=2e-6, atol=1e-6)
        if width == 4:
            yield blocked_case("Scale", attrs, _scaled(2, 7, 11), rtol=2e-6, atol=1e-6)
            if kind == "SIGMOID":  # of zero it is not zero: lanes past the last channel show
                for channels in (1, 2, 5, 6):
                    yield blocked_case("Scale", attrs, _scaled(2, channels, 3), rtol=2e-6)
    fp16 = [array.astype(np.float16) for array in _scaled(2, 5, 4 if width == 4 else 3)]
    yield op_case("Scale", ScaleAttrs(), fp16, rtol=2e-3, atol=2e-3)


def _scaled(*shape: int) -> list[AnyArray]:
    channels = shape[1]
    return [floats(*shape), floats(channels, seed=1), floats(channels, seed=2)]
