"""Cases of the convolution kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, islice, product
from math import inf
from typing import Any, TypedDict

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation, Op
from vkmnn.ir.ops import (
    RESIDUAL_KINDS,
    BlockAttrs,
    CodeSum,
    ConvolutionAttrs,
    DeconvolutionAttrs,
    QuantizedConvolutionAttrs,
)
from vkmnn.testing.case import Case, Variant, op_case, op_cases, shader_cases
from vkmnn.testing.shapes import whole
from vkmnn.vulkan.gemm.coop_tiles import TILES_OF
from vkmnn.vulkan.gemm.families.coop import ConvTaps
from vkmnn_suite.cases.coded import as_bytes, chain_case, codes_from, maximum
from vkmnn_suite.cases.dynamic import dynamic_convolution
from vkmnn_suite.cases.pooled import pooled_tiles, tile_of

Ints = tuple[int, ...]


class Window(TypedDict):
    """How a window moves."""

    pads: Ints
    strides: Ints
    dilations: Ints


CLAMPS = (Activation(), Activation("CLIP", -5.0, 7.0), Activation("RELU"))
# One kind: drivers take seconds over each specialization. `binary` tests all of them.
SMOOTH = (Activation("LEAKY_RELU", 0.125),)
# Bounds that few results of long sums reach: clamped results would hide errors.
WIDE = (Activation("CLIP", -150.0, 210.0), Activation(), Activation("RELU"))

# The first kernel of a network, and the last.
PLAIN_ENDS = {"plain end": True}

# Every axis different.
VOLUME = Window(pads=(1, 0, 1, 0, 2, 0), strides=(2, 1, 3), dilations=(3, 1, 2))


class Maker:
    """Makes convolutions with small whole numbers, so that every order of sums is exact.

    Activations and kinds of residuals alternate. Cases have a residual and pads if they can:
    without them, the kernel is another specialization, which takes time to compile. So does an
    activation other than a clamp.
    """

    def __init__(self, turns: Sequence[Activation] = CLAMPS) -> None:
        self._turns = turns
        self._count = count()

    def __call__(
        self,
        x: Ints,
        w: Ints,
        *,
        bias: bool = True,
        residual: bool = False,
        constant: bool = True,
        fp16: bool = False,
        tolerance: float = 0.0,
        **window: Any,
    ) -> Case:
        """Return a case; shapes as of ONNX Conv, `fp16` for float16, `window` of `_window`."""
        turn = next(self._count)
        attrs = replace(_window(w, **window), activation=self._turns[turn % len(self._turns)])
        inputs: list[AnyArray | None] = [whole(*x), whole(*w, seed=1, low=-3, high=3)]
        inputs.append(whole(w[0], seed=2) if bias else None)
        if residual:
            kind = RESIDUAL_KINDS[turn % len(RESIDUAL_KINDS)]
            plain, attrs = replace(attrs, activation=Activation()), replace(attrs, residual=kind)
            shape = op_case("Convolution", plain, inputs).graph.outputs[0].dims
            inputs.append(whole(*shape, seed=3))
            tolerance *= 4 if kind == "MUL_AFTER" else 1  # 4: the largest factor
        if fp16:
            inputs = [None if array is None else array.astype(np.float16) for array in inputs]
        known = [1, 2] if constant else []
        return op_case("Convolution", attrs, inputs, constant=known, rtol=0, atol=tolerance)

    def codes(
        self,
        x: Ints,
        w: Ints,
        *,
        residual: bool = False,
        wide: bool = False,
        shift: int = 0,
        large: bool = False,
        table: bool = False,
        taken: tuple[float, float] = (-inf, inf),
        **window: Any,
    ) -> Case:
        """Return a quantised convolution; many of the sums are between two quantised values.

        Weights are bytes, including both ends of the range, plus `shift`, or with `wide` wider than
        bytes; with `large`, they are all as large as possible. With `table`, quantised values are
        looked up.
        """
        numbers, form = "QuantizedConvolution", _window(w, **window)
        attrs = QuantizedConvolutionAttrs(
            *(form.kernel, form.strides, form.dilations, form.pads, form.group, form.auto_pad),
            *(-90.0, 121.0),
            taken=taken,
        )
        factor = np.resize(np.array([0.5, 0.25, 0.75, 1.5, 0.125], np.float32), w[0])
        weights = whole(*w, seed=1, low=-3, high=3).astype(np.int16 if wide else np.int8)
        weights.reshape(-1)[::7] = 200 if wide else 127
        weights.reshape(-1)[3::11] = -129 if wide else -128
        if large:
            weights = np.where(weights < 0, -128, 127).astype(np.int8)
            factor /= 4096
        if shift:
            weights = weights + np.int16(shift)
        inputs: list[AnyArray | None] = [whole(*x), weights, whole(w[0], seed=2), None, factor]
        if residual:
            shape = op_case(numbers, attrs, inputs).graph.outputs[0].dims
            inputs[3] = whole(*shape, seed=3)
            attrs = replace(attrs, add=CodeSum(0.5, 0.75, 1.25, -20.0, 31.0))
        if table:
            inputs.append((np.arange(212) * 7 % 83 - 41).astype(np.float32))
            attrs = replace(attrs, first=-90)
        constant = [1, 2, 4, 5] if table else [1, 2, 4]
        return op_case(numbers, attrs, inputs, constant=constant, rtol=0, atol=0)

    def in_bytes(
        self,
        x: Ints,
        w: Ints,
        low: int,
        *,
        residual: bool = False,
        floats: str = "",
        **more: Any,
    ) -> Case:
        """Return a quantised convolution whose tensors take a byte per element.

        Quantised values of x and of the residual start at `low`, those of y elsewhere; sums meet
        both bounds. `floats`: "read" for x and residual, "made" for y, which then hold them as
        float32.
        """
        case = self.codes(x, w, residual=residual, **more)
        (op,), shape = case.graph.ops, case.graph.outputs[0].dims
        assert isinstance(op.attrs, QuantizedConvolutionAttrs)
        attrs = replace(op.attrs, low=-101.0, high=99.0, first=-90)
        if floats != "read":
            attrs = replace(attrs, taken=(float(low), low + 255.0))
        if floats == "made":
            attrs = replace(attrs, scale=0.5)
        # Sums of small numbers stay between the bounds, where every term shows.
        feeds = {"in0": whole(*x) if floats == "read" else codes_from(low, *x)}
        constants = dict(case.graph.constants)
        ops, inputs = [], list(op.inputs)
        if residual:
            feeds["in3"] = codes_from(low, *shape, seed=1)
            if floats == "read":
                feeds["in3"] = whole(*shape, seed=3)
            else:
                before, more_constants = as_bytes("in3", "beside", shape, low)
                constants |= more_constants
                inputs[3] = "beside"
                ops.append(before)
        made = "out0" if floats == "made" else "sum"
        ops.append(Op(op.type, op.name, inputs, [made], attrs))
        if made == "sum":
            ops.append(maximum("sum", "out0", len(x) - 2))
        return chain_case(ops, feeds, constants)

    def transposed(
        self, x: Ints, w: Ints, strides: Ints, group: int = 1, *, together: bool = False
    ) -> Case:
        """Return a transposed convolution, which writes its output in phases, one by one or not."""
        axes = len(x) - 2
        attrs = DeconvolutionAttrs(
            w[2:], strides, (1,) * axes, (0, 1) * axes, (0,) * axes, group=group
        )
        inputs = [whole(*x), whole(*w, seed=1), whole(w[1] * group, seed=2)]
        case = op_case("Deconvolution", attrs, inputs, constant=[1, 2], rtol=0, atol=0)
        return replace(case, takes={"phases": 1} if together else {})


def _window(
    w: Ints, *, strides: Ints = (), dilations: Ints = (), pads: Ints = (), group: int = 1
) -> ConvolutionAttrs:
    """Return the attributes of a convolution by weights of shape `w`."""
    ones, none = (1,) * len(w[2:]), (0,) * 2 * len(w[2:])
    return ConvolutionAttrs(w[2:], strides or ones, dilations or ones, pads or none, group)


def _tiles(variant: Variant) -> Iterator[Case]:
    """Yield convolutions without groups, or with groups of whole channel blocks."""
    make = Maker()
    if variant.narrow:
        yield from _narrow_tiles(make)
        return
    # Windows with asymmetric pads, every axis different; more than one panel of channels.
    yield make(
        (2, 7, 9, 5),
        (38, 7, 3, 2),
        strides=(3, 2),
        dilations=(2, 3),
        pads=(1, 0, 2, 3),
        residual=True,
    )
    # Groups of several panels, one to three axes.
    yield make((3, 16, 4, 3), (120, 8, 2, 2), pads=(0, 1, 1, 0), group=2, residual=True)
    yield make((2, 5, 5, 4, 7), (3, 5, 2, 3, 2), residual=True, **VOLUME)
    yield make((2, 7, 11), (5, 7, 4), pads=(3, 2), residual=True, fp16=True)
    yield make((0, 7, 5, 5), (4, 7, 3, 3))
    # An activation other than a clamp.
    yield Maker(SMOOTH)((1, 7, 9, 5), (38, 7, 3, 2), pads=(1, 0, 2, 3), residual=True)
    # One tap of one block; more pixels than a workgroup of any kernel processes.
    yield make((1, 3, 19, 28), (6, 3, 1, 1))
    yield make((1, 1, 1, 1), (2, 1, 1, 1), bias=False)
    # One tap of several blocks; fewer pixels than a tile; many channels.
    yield make((1, 13, 1, 3), (269, 13, 1, 1), bias=False, residual=True)
    if variant.element == "f32":
        x, w = (2, 7, 9, 5), (38, 7, 3, 2)
        yield make.codes(x, w, strides=(2, 1), pads=(1, 0, 2, 3), wide=True)
        yield make.codes((2, 9, 5, 4), (13, 9, 1, 1), residual=True, wide=True)
    if variant.axes.get("pixels") == 1:
        yield make.transposed((2, 6, 4, 3), (6, 5, 3, 2), (2, 3))


def _narrow_tiles(make: Maker) -> Iterator[Case]:
    """Yield quantised convolutions: panels, groups, volumes, taps and blocks of channels."""
    x, w = (2, 7, 9, 5), (38, 7, 3, 2)
    yield make.codes(x, w, strides=(2, 1), pads=(1, 0, 2, 3), shift=13)
    yield make.codes((3, 16, 4, 3), (120, 8, 2, 2), pads=(0, 1, 1, 0), group=2, residual=True)
    yield make.codes((2, 5, 5, 4, 7), (3, 5, 2, 3, 2), pads=VOLUME["pads"])
    yield make.codes((1, 3, 19, 28), (6, 3, 1, 1))
    yield make.codes((1, 1, 1, 1), (2, 1, 1, 1))
    yield make.codes((0, 7, 5, 5), (4, 7, 3, 3))
    yield make.codes((1, 13, 1, 3), (269, 13, 1, 1), residual=True, shift=-5)
    yield make.codes((1, 13, 1, 3), (269, 13, 1, 1), residual=True, table=True)
    yield make.in_bytes((1, 3, 7, 5), (6, 3, 1, 1), -255, table=True)
    yield make.in_bytes(x, w, -128, strides=(2, 1), pads=(1, 0, 2, 3), residual=True)
    yield make.in_bytes((3, 16, 4, 3), (120, 8, 2, 2), 0, pads=(0, 1, 1, 0), group=2)
    yield make.in_bytes((1, 3, 7, 5), (6, 3, 1, 1), -255, residual=True)
    yield make.in_bytes(x, w, -40, pads=(1, 0, 2, 3), residual=True, floats="read")
    yield make.in_bytes(x, w, -77, dilations=(2, 3), residual=True, floats="made")
    volume, kernel = (2, 5, 5, 4, 7), (3, 5, 2, 3, 2)
    apart = VOLUME["dilations"]
    yield make.in_bytes(volume, kernel, -9, pads=VOLUME["pads"], dilations=apart, residual=True)
    yield dynamic_convolution(x, w, 0, strides=(2, 1), pads=(1, 0, 2, 3), shift=13)
    yield dynamic_convolution((3, 16, 4, 3), (120, 8, 2, 2), 1, pads=(0, 1, 1, 0), group=2)
    yield dynamic_convolution((1, 13, 1, 1), (37, 13, 1, 1), 2)


def _wide(taps: int, axes: int, *, table: bool = False) -> Iterator[Case]:
    """Yield sums that pass 2^24 on their way, where a float would lose the ones between.

    The first input channels add as much as the last subtract, and each of those between adds one.
    """
    rng, side, few = np.random.default_rng(3), 604, 44
    x = np.full((2, 2 * side + few, *(1,) * (axes - 1), 9), 255, np.float32)
    x[:, side:-side] = rng.integers(0, 2, x[:, side:-side].shape)
    w = np.full((7, x.shape[1], *(1,) * (axes - 1), taps), 127, np.int8)
    w[:, -side:] = -127
    w[:, side:-side] = rng.integers(-1, 3, w[:, side:-side].shape)
    ones = (1,) * axes
    attrs = QuantizedConvolutionAttrs(
        *(w.shape[2:], ones, ones, (0,) * 2 * axes, 1, "NOTSET", -128.0, 127.0),
        taken=(0.0, 255.0),
        wide=True,
    )
    factor = np.resize(np.array([0.5, 0.25, 1.0], np.float32), 7)
    inputs: list[AnyArray | None] = [x, w, whole(7, seed=2), None, factor]
    constant = [1, 2, 4]
    if table:
        inputs.append((np.arange(212) * 7 % 83 - 41).astype(np.float32))
        constant.append(5)
    yield op_case("QuantizedConvolution", attrs, inputs, constant=constant, rtol=0, atol=0)


@op_cases
def wide_sums() -> Iterator[Case]:
    """Yield them by windows and single taps."""
    yield from _wide(3, 2)
    yield from _wide(3, 1, table=True)
    yield from _wide(1, 2)


@shader_cases("conv_tile")
def conv_tile(variant: Variant) -> Iterator[Case]:
    """Windows, single taps, groups, one to three axes."""
    return _tiles(variant)


@shader_cases("conv_shared")
def conv_shared(variant: Variant) -> Iterator[Case]:
    """Windows, single taps, groups, one to three axes; several tiles and steps, none whole."""
    tile = tile_of(variant)
    rows, columns, groups, depth = tile.rows, tile.columns, tile.groups, tile.depth
    make = Maker(WIDE)
    # Long inner axes: pixels, channels and K one more than whole tiles and steps.
    width = rows // 8 + 1
    if variant.narrow:
        yield make.codes((2, 9, width, 8), (columns + 6, 9, 3, 5), pads=(2, 0, 3, 4))
        long = 5 * depth - 3
        yield make.codes((1, long, rows + 3), (columns + 4, long, 1), residual=True)
        yield make.in_bytes((1, long, rows + 3), (columns + 4, long, 1), -57, residual=True)
        yield from _tiles(variant)
        return
    yield make((2, 9, width, 8), (columns + 6, 9, 3, 5), pads=(2, 0, 3, 4), residual=True)
    yield from _tiles(variant)
    yield make((1, 5 * depth - 3, rows + 3), (columns + 4, 5 * depth - 3, 1), residual=True)
    yield make((2, 2 * depth + 5, rows), (2 * columns, 2 * depth + 5, 1), residual=True)
    x, w = (1, 5 * depth, 3, rows), (7, 5 * depth, 1, 1)
    yield make(x, w, strides=(2, 3), pads=(1, 0, 2, 1), bias=False)
    x, w = (2, 2 * depth, 5, 3), (2 * depth, 9, 3, 3)
    yield make.transposed(x, w, (2, 3))
    if groups == 1:
        yield make.transposed((2, depth + 8, 5, 7), (depth + 8, 9, 4, 4), (2, 2), together=True)
    # Groups that become one could be transformed by Winograd, which is not exact.
    grouped = make((1, 4 * depth, 3, 2), (8, depth, 3, 3), pads=(1, 1, 1, 1), group=4)
    yield replace(grouped, takes={"winograd": 0})
    # As the host has them: three planes, which a window leaves, and results, not in whole blocks.
    x, w = (2, 3, width, 8), (columns + 6, 3, 3, 5)
    yield replace(make(x, w, strides=(1, 2), pads=(2, 0, 3, 4)), takes=PLAIN_ENDS)
    for planes in (1, 2, 4) if (rows, groups) == (32, 1) else (4,):
        yield replace(make((2, planes, 7, rows), (9, planes, 1, 1)), takes=PLAIN_ENDS)
    if (rows, groups) == (32, 1):
        yield from _spread((2, 3, 9, 5), (27, 3, 3, 2), 3)
    if variant.floats == "f32":
        yield make.codes((1, 5, rows + 3), (columns + 4, 5, 1), table=True)
    # Past K, the last line is repeated; it must not meet anything that counts as zero.
    endless, weights = np.abs(whole(1, depth + 4, 3, 5)) + 1, whole(4, depth + 4, 1, 1, seed=1)
    weights[1, -1] = inf
    attrs = ConvolutionAttrs((1, 1), (1, 1), (1, 1), (0,) * 4)
    yield op_case("Convolution", attrs, [endless, weights], constant=[1], rtol=0, atol=0)
    if variant.axes["split"] == 0:
        yield from pooled_tiles(tile)


@shader_cases("conv_dot")
def conv_dot(variant: Variant) -> Iterator[Case]:
    """Codes of every sign; several tiles and steps, none whole; pads, groups, one to three axes."""
    rows = int(str(variant.axes["tile"]).split("x")[0])
    make = Maker()
    x, w = (2, 7, 9, 5), (38, 7, 3, 2)
    for low in (-128, -57, -255):
        yield make.in_bytes(x, w, low, strides=(2, 1), pads=(1, 0, 2, 3), residual=True)
    yield make.in_bytes((2, 9, rows // 8 + 1, 8), (rows + 6, 9, 3, 5), 0, pads=(2, 0, 3, 4))
    yield make.in_bytes((1, 131, rows + 3), (rows + 4, 131, 1), -57, residual=True, table=True)
    yield make.in_bytes((3, 16, 4, 3), (2 * rows, 8, 2, 2), -1, pads=(0, 1, 1, 0), group=2)
    yield make.in_bytes((2, 5, 5, 4, 7), (3, 5, 2, 3, 2), -9, pads=VOLUME["pads"])
    yield make.in_bytes((1, 3, 19, 28), (6, 3, 1, 1), -255)
    yield dynamic_convolution((2, 9, rows // 8 + 1, 8), (rows + 6, 9, 3, 5), pads=(2, 0, 3, 4))
    yield from _wide(1, 2)


@shader_cases("conv_row")
def conv_row(variant: Variant) -> Iterator[Case]:
    """Windows three wide, quantised values of both signs; rows that end in or with tiles."""
    make = Maker()
    x, w = (2, 7, 9, 5), (38, 7, 3, 3)
    for low in (-128, -57, -255):
        yield make.in_bytes(x, w, low, strides=(2, 1), pads=(1, 1, 1, 1), residual=True)
    yield make.in_bytes((2, 9, 7, 12), (6, 9, 2, 3), 0, dilations=(3, 1), pads=(2, 2, 3, 4))
    yield make.in_bytes((1, 45, 4, 18), (37, 45, 1, 3), -57, residual=True, table=True)
    yield make.in_bytes((3, 16, 4, 6), (120, 8, 2, 3), -1, pads=(0, 1, 1, 0), group=2)
    yield make.in_bytes((2, 5, 5, 4, 7), (3, 5, 2, 3, 3), -9, pads=(1, 0, 2, 0, 2, 1))
    yield make.in_bytes((1, 3, 19, 30), (6, 3, 3, 3), -255, residual=True, floats="read")
    yield make.in_bytes((2, 6, 13), (5, 6, 3), -77, pads=(1, 1), residual=True, floats="made")
    yield from _wide(3, 2)
    yield dynamic_convolution((2, 9, 7, 12), (6, 9, 2, 3), dilations=(3, 1), pads=(2, 2, 3, 4))
    yield dynamic_convolution((3, 16, 4, 6), (120, 8, 2, 3), 2, pads=(0, 1, 1, 0), group=2)


@shader_cases("conv_coop")
def conv_coop(variant: Variant) -> Iterator[Case]:
    """Windows, single taps, groups, one to three axes; several tiles and steps, none whole."""
    rows, columns = map(int, str(variant.axes["tile"]).split("w")[0].split("x"))
    step = int(variant.axes["step"])
    # Bounds that few results reach: clamped results would hide errors.
    make = Maker((Activation("CLIP", -150.0, 210.0),))
    long = 3 * step + 37
    x = (2, 41, rows // 8 + 1, 8)
    yield make(x, (columns + 6, 41, 3, 5), pads=(2, 0, 3, 4), residual=True)
    yield make((1, long, rows + 3), (columns + 4, long, 1), residual=True)
    grouped = 2 * step + 12
    yield make((1, 2 * grouped, 3, 5), (24, grouped, 1, 1), group=2, residual=True)
    yield make((0, 7, 5, 5), (4, 7, 3, 3))
    if variant.axes["split"]:
        return
    if (rows, step) in ((16, 128), (64, 32)) and "l2" not in str(variant.axes["tile"]):
        yield from _by_taps(variant, make)
    yield make(
        (2, 7, 9, 5),
        (38, 7, 3, 2),
        strides=(3, 2),
        dilations=(2, 3),
        pads=(1, 0, 2, 3),
        residual=True,
    )
    yield make((3, 16, 4, 3), (120, 8, 2, 2), pads=(0, 1, 1, 0), group=2, residual=True)
    yield make((2, 5, 5, 4, 7), (3, 5, 2, 3, 2), residual=True, constant=False, **VOLUME)
    yield make((1, 1, 1, 1), (2, 1, 1, 1), bias=False, residual=True)
    if rows < 64:
        # Whole steps of one tap.
        yield make((1, 2 * step, 3, rows), (7, 2 * step, 1, 1), strides=(2, 3), bias=False)
    if rows == 16:
        for planes in (1, 2, 3, 4):
            x, w = (2, planes, 9, 5), (7, planes, 3, 2)
            yield replace(make(x, w, strides=(1, 2), pads=(1, 0, 2, 3)), takes=PLAIN_ENDS)
        yield replace(make((2, 3, 4, 9), (columns + 5, 3, 1, 1)), takes=PLAIN_ENDS)
        yield from _spread((2, 3, 9, 5), (27, 3, 3, 2), 3)
        # Whole steps of several taps, none of them outside; another activation; phases.
        yield make((1, step, 6, 5), (columns, step, 3, 3), residual=True)
        yield Maker(SMOOTH)((2, 8, 7, 5), (9, 8, 3, 3), pads=(1, 1, 1, 1))
        yield make.transposed((2, 6, 4, 3), (6, 5, 3, 2), (2, 3))
        yield make.transposed((2, step + 7, 5, 7), (step + 7, 9, 4, 4), (2, 2), together=True)
        yield make.transposed((1, 16, 3, 5), (16, 8, 2, 6), (2, 3), 2, together=True)


def _by_taps(variant: Variant, make: Maker) -> Iterator[Case]:
    """Yield windows over one to four channels, whose taps fill K; from planes as from blocks."""
    axes = {"tile": variant.axes["tile"], "step": variant.axes["step"]}
    tiles = chain.from_iterable(chain.from_iterable(TILES_OF.values()))
    tile = next(one for one in tiles if {"tile": one.name, "step": one.step} == axes)
    few = ((1, True), (3, False))
    more = ((1, False), (2, True), (2, False), (3, True), (4, True)) if tile.rows == 16 else ()
    for channels, plain in (*few, *more):
        x, w = (2, channels, 9, 11), (tile.columns + 6, channels, 5, 5)
        case = make(x, w, strides=(1, 2), pads=(1, 0, 2, 3), residual=not plain)
        ends = PLAIN_ENDS if plain else {}
        yield replace(case, takes={"convolution": ConvTaps(tile), "fold": False, **ends})


def _spread(x: Ints, w: Ints, side: int) -> Iterator[Case]:
    """Yield convolutions whose channels become squares of pixels in the last store."""
    for mode in ("CRD", "DCR"):
        attrs = replace(_window(w, pads=(1, 0, 2, 1)), activation=WIDE[0])
        known: dict[str, AnyArray] = {
            "w": whole(*w, seed=1, low=-3, high=3),
            "bias": whole(w[0], seed=2),
        }
        conv = Op("Convolution", "conv", ["x", "w", "bias"], ["y"], attrs)
        feeds: dict[str, AnyArray] = {"x": whole(*x)}
        spread = Op("DepthToSpace", "spread", ["y"], ["out"], BlockAttrs(side, mode))
        yield replace(chain_case([conv, spread], feeds, known), takes=PLAIN_ENDS)


@shader_cases("conv_halo_coop")
def conv_halo_coop(variant: Variant) -> Iterator[Case]:
    """Strips of a matrix and of whole images; pads, groups; tiles and steps that are not whole."""
    rows, columns = map(int, str(variant.axes["tile"]).split("w")[0].split("x"))
    make = Maker((Activation("CLIP", -150.0, 210.0),))
    split = bool(variant.axes["split"])
    long = 69 if split else 41
    # Wider than strips of a matrix; narrower, so that rows of whole images straddle tiles.
    yield make((2, long, 7, 37), (columns + 6, long, 3, 3), pads=(1, 2, 0, 1), residual=True)
    yield make((2, long, rows // 4, 5), (2 * columns, long, 3, 3), pads=(1, 1, 1, 1), residual=True)
    if split:
        return
    yield make((1, 64, 3, 14), (38, 32, 3, 3), pads=(1, 1, 1, 1), group=2, residual=True)
    yield make((1, 16, 3, 3), (5, 16, 3, 3), bias=False)
    if rows == 64:
        yield Maker(SMOOTH)((2, 32, 5, 11), (9, 32, 3, 3), pads=(3, 0, 0, 4))
        yield replace(make((2, 20, 4, 9), (7, 20, 3, 3), pads=(1, 1, 1, 1)), takes=PLAIN_ENDS)
    yield from _spread((2, 12, 9, 5), (27, 12, 3, 3), 3)


@shader_cases("conv_codes_coop")
def conv_codes_coop(variant: Variant) -> Iterator[Case]:
    """Codes of every sign; several tiles and steps, none whole; pads, groups, one to three axes."""
    rows, columns = map(int, str(variant.axes["tile"]).split("w")[0].split("x"))
    step = int(variant.axes["step"])
    make = Maker()
    x, w = (2, 7, 9, 5), (38, 7, 3, 2)
    yield make.in_bytes(x, w, -57, strides=(2, 1), pads=(1, 0, 2, 3), residual=True)
    long = 2 * step + 37
    yield make.in_bytes(
        (1, long, rows + 3), (columns + 4, long, 1), -128, residual=True, table=True
    )
    if rows > 64:
        return
    window = (2, 21, rows // 8 + 1, 8)
    yield make.in_bytes(window, (columns + 6, 21, 3, 5), 0, pads=(2, 0, 3, 4), residual=True)
    grouped = step + 12
    yield make.in_bytes((1, 2 * grouped, 3, 5), (24, grouped, 1, 1), -1, group=2, residual=True)
    yield make.in_bytes((0, 7, 5, 5), (4, 7, 3, 3), -9)
    yield make.in_bytes((1, 1, 1, 1), (2, 1, 1, 1), -255)
    yield dynamic_convolution(window, (columns + 6, 21, 3, 5), pads=(2, 0, 3, 4))
    if rows == 32:
        yield from _wide(1, 1)
        yield make.in_bytes(x, w, -77, dilations=(2, 3), residual=True, floats="made")
        yield make.in_bytes((3, 16, 4, 3), (120, 8, 2, 2), -1, pads=(0, 1, 1, 0), group=2)
        volume, kernel = (2, 5, 5, 4, 7), (3, 5, 2, 3, 2)
        apart = VOLUME["dilations"]
        yield make.in_bytes(volume, kernel, -9, pads=VOLUME["pads"], dilations=apart, residual=True)
        # Whole steps: of one tap, and of several.
        yield make.in_bytes((1, 2 * step, 3, rows), (7, 2 * step, 1, 1), -5, strides=(2, 3))
        yield make.in_bytes((1, step, 6, 5), (columns, step, 3, 3), -5, residual=True)


@shader_cases("conv_rotate")
def conv_rotate(variant: Variant) -> Iterator[Case]:
    """Windows, single taps, groups, one to three axes."""
    return _tiles(variant)


@shader_cases("conv_depthwise")
def conv_depthwise(variant: Variant) -> Iterator[Case]:
    """Windows of any shape."""
    make = Maker()
    if variant.element != "f16":
        wide = not variant.narrow
        yield make.codes((2, 7, 9, 5), (7, 1, 3, 2), pads=(1, 0, 2, 3), group=7, wide=wide)
        shift = 0 if wide else 7
        yield make.codes((1, 5, 4, 7), (5, 1, 2, 2), group=5, residual=True, wide=wide, shift=shift)
        yield make.codes((2, 6, 17, 31), (6, 1, 2, 2), group=6, wide=wide)
    if variant.narrow:
        x, w = (2, 7, 9, 5), (7, 1, 3, 2)
        yield make.in_bytes(x, w, -57, pads=(1, 0, 2, 3), group=7, residual=True)
        yield make.in_bytes((1, 5, 4, 7), (5, 1, 2, 2), 0, group=5, table=True)
        yield make.in_bytes(x, w, 5, strides=(3, 2), group=7, residual=True, floats="read")
        yield make.in_bytes(x, w, -9, dilations=(2, 3), group=7, residual=True, floats="made")
        yield make.in_bytes((2, 5, 5, 4, 7), (5, 1, 2, 3, 2), 0, group=5, pads=VOLUME["pads"])
        yield dynamic_convolution(x, w, pads=(1, 0, 2, 3), group=7, shift=5)
        return
    yield make(
        (2, 7, 9, 5),
        (7, 1, 3, 2),
        strides=(3, 2),
        dilations=(2, 3),
        pads=(1, 0, 2, 3),
        group=7,
        residual=True,
    )
    yield make((2, 5, 5, 4, 7), (5, 1, 2, 3, 2), group=5, bias=False, residual=True, **VOLUME)
    yield make((3, 9, 11), (9, 1, 4), pads=(3, 2), strides=(2,), group=9, residual=True, fp16=True)
    yield make((2, 6, 17, 31), (6, 1, 2, 2), group=6)
    yield make((1, 1, 1, 1), (1, 1, 1, 1))
    yield make((2, 3, 0), (3, 1, 1), group=3)
    # Phases: every other pixel of the result.
    yield make.transposed((2, 6, 4, 3), (6, 1, 3, 2), (2, 3), group=6)
    yield Maker(SMOOTH)((2, 7, 9, 5), (7, 1, 3, 2), pads=(1, 0, 2, 3), group=7, residual=True)


@shader_cases("conv_strip")
def conv_strip(variant: Variant) -> Iterator[Case]:
    """Square windows; widths on both sides of whole strips."""
    make = Maker()
    size, stride = int(variant.axes["size"]), int(variant.axes["stride"])
    strides, w = (stride, stride), (1, size, size)
    around = (size // 2,) * 4
    if variant.element != "f16":
        wide = not variant.narrow
        x = (2, 7, 6, 9)
        yield make.codes(x, (7, *w), strides=strides, pads=around, group=7, wide=wide)
        x = (1, 5, 7, 8)
        yield make.codes(
            x, (5, *w), strides=strides, pads=around, group=5, residual=True,
            wide=wide, shift=0 if wide else 7,
        )  # fmt: skip
    if variant.narrow:
        # No pads, whole strips, and more invocations than a workgroup has.
        x = (2, 4, 19, 3 * 8 * stride + size - stride)
        yield make.codes(x, (4, *w), strides=strides, group=4)
        yield make.codes((0, 3, 7, 7), (3, *w), strides=strides, group=3)
        x = (2, 7, 6, 9)
        yield make.in_bytes(x, (7, *w), -57, strides=strides, pads=around, group=7, residual=True)
        yield dynamic_convolution(x, (7, *w), strides=strides, pads=around, group=7)
        yield make.in_bytes(
            (1, 5, 7, 8), (5, *w), 0, strides=strides, pads=around, group=5, table=True
        )
        return
    for x, pads in (
        ((2, 7, 6, 9), (1, 0, 2, 3)),
        ((1, 5, 13, 37), (0, 2, 1, 0)),
        ((1, 3, 1, 1), (size, size - 1, size, size)),
        ((3, 1, 29, 6), (2, 1, 0, 3)),
    ):
        yield make(x, (x[1], *w), strides=strides, pads=pads, group=x[1], residual=True)
    for width in range(1, 9 * stride, stride):
        yield make((1, 4, 2, width), (4, *w), strides=strides, pads=around, group=4, residual=True)
    # No pads, whole strips, and more invocations than a workgroup has.
    x = (2, 4, 19, 3 * 8 * stride + size - stride)
    yield make(x, (4, *w), strides=strides, group=4, bias=False)
    yield make((0, 3, 7, 7), (3, *w), strides=strides, group=3)
    # Above zero: lanes past the last channel would be as well.
    above = Maker((Activation("CLIP", 0.5, 90.0),))
    for channels in (1, 2, 3):
        yield above(
            (1, channels, 3, 5), (channels, *w), strides=strides, pads=around, group=channels
        )
    x = (2, 7, 6, 9)
    yield Maker(SMOOTH)(x, (7, *w), strides=strides, pads=around, group=7, residual=True)


@shader_cases("conv_gather")
def conv_gather(variant: Variant) -> Iterator[Case]:
    """Groups of single channels and of odd numbers of them."""
    make = Maker()
    if variant.element != "f16":
        wide = not variant.narrow
        yield make.codes((2, 6, 9, 5), (9, 2, 3, 2), pads=(1, 0, 2, 3), group=3, wide=wide)
        shift = 0 if wide else 7
        x = (1, 6, 4, 7)
        yield make.codes(x, (9, 2, 2, 1), group=3, residual=True, wide=wide, shift=shift)
        yield make.codes((2, 2, 5, 4, 7), (6, 1, 2, 3, 2), group=2, wide=wide)
    if variant.narrow:
        x, w = (2, 6, 9, 5), (9, 2, 3, 2)
        yield make.in_bytes(x, w, -57, pads=(1, 0, 2, 3), group=3, residual=True)
        yield make.in_bytes((1, 6, 4, 7), (9, 2, 2, 1), 0, group=3)
        yield make.in_bytes(x, w, 5, strides=(3, 2), group=3, residual=True, floats="read")
        yield make.in_bytes(x, w, -9, dilations=(2, 3), group=3, residual=True, floats="made")
        yield make.in_bytes((2, 2, 5, 4, 7), (6, 1, 2, 3, 2), 0, group=2, pads=VOLUME["pads"])
        yield dynamic_convolution(x, w, pads=(1, 0, 2, 3), group=3, shift=5)
        return
    yield make(
        (2, 6, 9, 5),
        (9, 2, 3, 2),
        strides=(3, 2),
        dilations=(2, 3),
        pads=(1, 0, 2, 3),
        group=3,
        residual=True,
    )
    yield make((2, 2, 5, 4, 7), (6, 1, 2, 3, 2), group=2, bias=False, residual=True, **VOLUME)
    yield make((2, 9, 11), (3, 3, 4), pads=(3, 2), strides=(2,), group=3, residual=True, fp16=True)
    yield make((1, 10, 19, 28), (6, 5, 1, 1), group=2)
    yield make((0, 6, 3), (4, 3, 1), group=2)
    yield make.transposed((1, 6, 4, 3), (6, 1, 3, 2), (2, 3), group=3)
    yield Maker(SMOOTH)((2, 6, 9, 5), (9, 2, 3, 2), pads=(1, 0, 2, 3), group=3, residual=True)


@shader_cases("conv_weight")
def conv_weight(variant: Variant) -> Iterator[Case]:
    """Weights that are inputs: panels with and without gaps."""
    make = Maker()
    yield make((1, 3, 5, 4), (5, 3, 2, 3), constant=False, residual=True)
    yield make((1, 8, 2, 2), (16, 8, 1, 1), constant=False)
    yield make((2, 6, 4, 3), (6, 1, 3, 3), group=6, constant=False)
    yield make((2, 6, 4, 3), (9, 2, 2, 1), group=3, constant=False)


def _whole_winograd(variant: Variant) -> Iterator[Case]:
    """Codes of every sign, bytes and floats; sums in one part and in several."""
    make = Maker()
    around = (1, 1, 1, 1)

    def cases() -> Iterator[Case]:
        x, w = (2, 7, 9, 5), (6, 7, 3, 3)
        for low in (-128, -255, 0):
            yield make.in_bytes(x, w, low, pads=(1, 0, 2, 3), residual=True)
        yield make.in_bytes((1, 3, 7, 14), (5, 3, 3, 3), -9, pads=around, floats="made")
        yield make.in_bytes((3, 9, 10, 6), (12, 9, 3, 3), -57)
        yield make.in_bytes((1, 20, 5, 6), (5, 20, 3, 3), -100, pads=around, large=True)
        yield make.in_bytes((2, 36, 4, 7), (9, 36, 3, 3), 0, pads=around, large=True, residual=True)
        yield make.codes(x, w, pads=around, residual=True, wide=True, taken=(-99.0, 42.0))
        yield make.in_bytes((1, 1, 1, 1), (2, 1, 3, 3), -1, pads=(2, 1, 0, 1))
        for size, begin in product(range(5, 9), range(2)):
            x, w = (1, 3, size, size + 1), (4, 3, 3, 3)
            yield make.in_bytes(x, w, -3, pads=(begin, 1 - begin, 3, 3))

    for case in cases():
        yield replace(case, takes={"winograd": variant.axes["m"]})


def _winograd(variant: Variant, turns: Sequence[Activation] = CLAMPS) -> Iterator[Case]:
    if variant.element == "c8":
        yield from _whole_winograd(variant)
        return
    make = Maker(turns)
    # F(4, 3) has thirds in its weights.
    tolerance = 4e-4 if variant.axes["m"] == 4 else 0.0

    def case(x: Ints, w: Ints, pads: Ints = (), bias: bool = True, residual: bool = True) -> Case:
        return make(x, w, pads=pads, residual=residual, bias=bias, tolerance=tolerance)

    yield case((2, 7, 9, 5), (6, 7, 3, 3), pads=(1, 0, 2, 3))
    yield case((1, 3, 7, 14), (5, 3, 3, 3), pads=(1, 1, 1, 1), residual=False)
    yield case((3, 9, 10, 6), (12, 9, 3, 3), bias=False)
    yield case((1, 2, 29, 31), (3, 2, 3, 3), pads=(0, 2, 0, 1))
    # The border of the input at every position in a tile.
    for size, begin in product(range(5, 9), range(2)):
        yield case((1, 3, size, size + 1), (4, 3, 3, 3), pads=(begin, 1 - begin, 3, 3))
    # Broken tiles whose pixels past the end are not those before it.
    for height, width in ((5, 7), (6, 5)):
        yield case((1, 3, height, width), (4, 3, 3, 3), pads=(1, 1, 1, 1))
    yield case((1, 1, 1, 1), (2, 1, 3, 3), pads=(2, 1, 0, 1))


@shader_cases("conv_fold")
def conv_fold(variant: Variant) -> Iterator[Case]:
    """Rows of whole fours of taps and of others; pads on either side, steps, images, volumes."""
    make = Maker()
    for case in (
        make((1, 1, 13, 11), (9, 1, 5, 5), pads=(2, 2, 2, 2), residual=True),
        make((2, 1, 7, 37), (6, 1, 3, 8), pads=(0, 3, 2, 5), strides=(2, 3), constant=False),
        make((3, 1, 5, 29), (5, 1, 2, 4), dilations=(2, 3), residual=True),
        make((2, 1, 5, 4, 7), (6, 1, 2, 3, 2), residual=True, **VOLUME),
        make((1, 1, 1), (2, 1, 3), pads=(2, 1)),
        # Every tap of a row meets the first and the last pixel outside.
        make((1, 1, 3, 6), (3, 1, 2, 4), pads=(0, 4, 1, 4)),
    ):
        yield replace(case, takes={"fold": True})


@shader_cases("winograd_in")
def winograd_in(variant: Variant) -> Iterator[Case]:
    """Whole and broken tiles on every side."""
    return _winograd(variant)


@shader_cases("winograd_out")
def winograd_out(variant: Variant) -> Iterator[Case]:
    """Whole and broken tiles on every side; all kinds of activations."""
    smooth = () if variant.element == "c8" else islice(_winograd(variant, SMOOTH), 2)
    return chain(_winograd(variant), smooth)
