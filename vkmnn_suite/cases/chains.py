"""Cases of `elementwise`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from vkmnn.ir import Op
from vkmnn.ir.ops import STEP_KINDS, ElementwiseAttrs, PoolingAttrs, Step
from vkmnn.testing.case import Case, Variant, blocked_case, op_case, shader_cases
from vkmnn.testing.shapes import SHAPES, f32, floats, whole
from vkmnn_suite.cases.coded import as_bytes, chain_case, codes_from, maximum, quantizer
from vkmnn_suite.cases.elementwise import has_width

Shape = tuple[int, ...]

# Operands that broadcast over different axes: flat ones, rows, channels, and all six axes in turn.
_SHAPES: tuple[tuple[Shape, ...], ...] = (
    *((shape,) for shape in SHAPES),
    ((5, 12), (12,), (5, 1)),
    ((7, 5), (5,), (7, 1), ()),
    ((2, 3, 5, 8), (3, 1, 1), (1, 1, 5, 8), (2, 3, 5, 8)),
    ((2, 3, 5, 7), (3, 1, 1), (1, 1, 5, 7)),
    ((2, 1, 4, 1, 2, 1), (1, 3, 1, 5, 1, 8), (8,), (1,)),
    ((2, 1, 5, 1, 3, 1), (1, 3, 1, 2, 1, 5), (5,)),
    ((8,), (1,), (2, 1, 4, 1, 2, 8), (1, 3, 1, 5, 1, 8)),
    ((5,), (1, 3, 1, 2, 1, 5), (2, 1, 5, 1, 3, 1), (1, 3, 1, 2, 1, 5)),
    # Axes that the third operand has, and the first has not.
    ((1, 1, 2, 3, 1, 4), (3, 2, 1, 1, 5, 4), (3, 1, 1, 3, 5, 4), (1, 2, 2, 3, 1, 1)),
    ((1, 2, 2, 1, 5, 8), (3, 1, 1, 3, 5, 8), (1, 2, 1, 3, 1, 8), (3, 1, 2, 1, 1, 8)),
)
_BLOCKED: tuple[tuple[Shape, ...], ...] = (
    ((2, 8, 3, 5), (2, 8, 3, 5)),
    ((2, 8, 3, 5), (2, 1, 3, 5), (1, 8, 1, 1), (8, 1, 1)),
    ((2, 5, 3), (2, 5, 3)),
)
# As many numbers as a kernel takes, in as few steps as possible.
_NUMBERS = ElementwiseAttrs(
    (
        Step("MUL_ADD", (0, -1, -2)),
        Step("CLIP", (1, -3, -4)),
        Step("MUL_ADD", (2, -5, -6)),
        Step("MUL_ADD", (3, -7, -8)),
    ),
    (1.5, 0.25, -2.0, 2.5, 0.75, -0.5, 1.25, 3.0),
)
# Values that distinguish the branches of every kind, NaN and infinities among them.
_SPECIAL = f32([np.nan, 0.5, -0.5, np.inf, 1.5, -1.5, 2.5, 90, 0, -90, -np.inf, -0.0])


def _attrs(kinds: list[str], inputs: int) -> ElementwiseAttrs:
    """Return a chain in which each step combines the last result, an operand and a number."""
    steps = []
    for number, kind in enumerate(kinds):
        last = inputs + number - 1 if number else 0
        values = (last, (number + 1) % inputs, -1 - number)
        steps.append(Step(kind, values[: STEP_KINDS[kind]]))
    return ElementwiseAttrs(tuple(steps), tuple(0.25 + number for number in range(len(kinds))))


def _every_kind(width: int) -> Iterator[Case]:
    """Yield every kind on every pair of the special values; bounds of CLIP are numbers."""
    x, y = np.tile(_SPECIAL[: 9 if width == 1 else 12], (len(_SPECIAL), 1)), _SPECIAL[:, None]
    for kind, count in STEP_KINDS.items():
        values = (0, -2, -1) if kind == "CLIP" else (0, 1, -1)
        attrs = ElementwiseAttrs((Step(kind, values[:count]),), (1.25, -0.75))
        yield op_case("Elementwise", attrs, [x, y], rtol=2e-6, atol=1e-6)


@shader_cases("elementwise")
def elementwise(variant: Variant) -> Iterator[Case]:
    """Every kind on special values; chains as long as the kernel allows; broadcasting."""
    if variant.element == "c8":
        yield from _of_codes()
        return
    steps, width = int(variant.axes["steps"]), int(variant.axes["width"])
    kinds = ["MUL", "SUB", "MUL_ADD", "ADD", "SIGMOID", "MAX", "MUL", "SUB"]
    if steps == 4:
        yield from _every_kind(width)
        yield op_case("Elementwise", _NUMBERS, [floats(3, 4 if width == 4 else 5)], rtol=2e-6)
    for length in {4: (1, 2, 4), 8: (5, 8)}[steps]:
        for shapes in _SHAPES:
            if has_width(width, *shapes):
                yield _chain(kinds[:length], shapes)
    if width == 4:
        for shapes in _BLOCKED:
            inputs = [floats(*shape, seed=n) for n, shape in enumerate(shapes)]
            for chain in (kinds[:steps], ["MUL", "ADD", "TANH", "MUL", "ABS", "SUB"][:steps]):
                yield blocked_case("Elementwise", _attrs(chain, len(shapes)), inputs, rtol=2e-6)
    fp16 = [array.astype(np.float16) for array in (floats(3, 4 if width == 4 else 5),) * 2]
    yield op_case("Elementwise", _attrs(kinds[:steps], 2), fp16, rtol=2e-3, atol=2e-3)


def _of_codes() -> Iterator[Case]:
    """Yield chains from quantised bytes and floats to floats and to quantised values; ties."""
    sums = (Step("ADD", (0, 1)), Step("MUL_ADD", (3, 2, -1)), Step("MUL", (4, -2)))
    ends = (Step("ROUND", (5,)), Step("CLIP", (6, -3, -4)))
    numbers = (0.0, 0.25, -99.0, 120.0)
    for low, shape in product((-57, 0, -255), ((2, 8, 3, 5), (1, 6, 7), (1, 4, 2, 3, 5))):
        axes, feeds = len(shape) - 2, {f"in{n}": codes_from(low, *shape, seed=n) for n in (0, 1)}
        one, constants = as_bytes("in0", "one", shape, low)
        other, more = as_bytes("in1", "other", shape, low)
        # Results of a pooling of floats, which is channel-blocked as well; multiples of a half.
        feeds["in2"] = whole(*shape) * np.float32(0.5)
        floats_beside = Op("Pooling", "beside:op", ["in2"], ["beside"], _pixels(axes))
        before, known = [one, other, floats_beside], constants | more
        for steps in (sums, (*sums, *ends)):
            attrs = ElementwiseAttrs(steps, numbers)
            chain = Op("Elementwise", "op", ["one", "other", "beside"], ["made"], attrs)
            yield chain_case([*before, chain], feeds, known)
            if steps != sums:
                yield chain_case([*before, chain, maximum("made", "out", axes)], feeds, known)
        attrs = quantizer(0.75, low, low + 255)
        rounds = Op("Elementwise", "op", ["beside"], ["made"], attrs)
        ops = [floats_beside, rounds, maximum("made", "out", axes)]
        yield chain_case(ops, {"in2": feeds["in2"]}, {})


def _pixels(axes: int) -> PoolingAttrs:
    """Return a pooling that does not change floats and does not quantise."""
    return PoolingAttrs("LP", (1,) * axes, (1,) * axes, (1,) * axes, (0,) * 2 * axes, p=1)


def _chain(kinds: list[str], shapes: tuple[Shape, ...]) -> Case:
    inputs = [floats(*shape, seed=n) for n, shape in enumerate(shapes)]
    return op_case("Elementwise", _attrs(kinds, len(shapes)), inputs, rtol=2e-6, atol=2e-6)
