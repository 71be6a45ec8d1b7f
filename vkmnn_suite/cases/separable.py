"""Cases of the kernels of a depthwise convolution and the projection that follows it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from vkmnn.ir import Activation, Op
from vkmnn.ir.ops import RESIDUAL_KINDS, ConvolutionAttrs
from vkmnn.testing.case import Case, Variant, shader_cases
from vkmnn.testing.shapes import whole
from vkmnn_suite.cases.coded import chain_case

Ints = tuple[int, ...]

NONE, RELU, RELU6 = Activation(), Activation("RELU"), Activation("CLIP", 0.0, 6.0)
CLAMPS = (Activation("CLIP", -20.0, 25.0), NONE, RELU, RELU6)
HARD_SWISH = Activation("HARD_SWISH")


class Maker:
    """Makes pairs of small whole numbers, so that every order of sums is exact.

    Activations between and after the two, and kinds of residuals, alternate.
    """

    def __init__(self) -> None:
        self._count = count()

    def __call__(
        self,
        x: Ints,
        kernel: Ints,
        outputs: int,
        *,
        bias: bool = True,
        residual: bool = False,
        between: Activation | None = None,
        after: Activation | None = None,
        rtol: float = 0.0,
        **window: Ints,
    ) -> Case:
        """Return a case; shapes and `window` (strides, dilations, pads) as of ONNX Conv."""
        turn, axes, channels = next(self._count), len(x) - 2, x[1]
        ones, edges = (1,) * axes, (0,) * 2 * axes
        form = {"strides": ones, "dilations": ones, "pads": edges} | window
        strides, dilations, pads = form["strides"], form["dilations"], form["pads"]
        kind = RESIDUAL_KINDS[turn % len(RESIDUAL_KINDS)] if residual else "ADD_BEFORE"
        first = ConvolutionAttrs(
            kernel, strides, dilations, pads, channels, activation=between or CLAMPS[turn % 4]
        )
        second = ConvolutionAttrs(
            ones, ones, ones, edges, activation=after or CLAMPS[turn // 2 % 4], residual=kind
        )
        size = tuple(
            (x[2 + i] + pads[i] + pads[axes + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i]
            + 1
            for i in range(axes)
        )
        constants = {
            "taps": whole(channels, 1, *kernel, seed=1, low=-3, high=3),
            "w": whole(outputs, channels, *ones, seed=2, low=-3, high=3),
        }
        if bias:
            constants |= {"shift": whole(channels, seed=3), "bias": whole(outputs, seed=4)}
        feeds = {"x": whole(*x)}
        if residual:
            feeds["residual"] = whole(x[0], outputs, *size, seed=5)
        names = ["shift", "bias"] if bias else ["", ""]
        ops = [
            Op("Convolution", "depthwise", ["x", "taps", names[0]], ["between"], first),
            Op(
                "Convolution",
                "projection",
                ["between", "w", names[1], *(["residual"] if residual else [])],
                ["out"],
                second,
            ),
        ]
        return chain_case(ops, feeds, constants, rtol)


@shader_cases("conv_separable")
def conv_separable(variant: Variant) -> Iterator[Case]:
    """Odd and prime sizes, windows of all kinds, several tiles, panels and chunks."""
    make = Maker()
    same = (1, 1, 1, 1)
    yield make((1, 32, 14, 14), (3, 3), 16, pads=same, residual=True)
    yield make((1, 24, 15, 13), (3, 3), 40, strides=(2, 2), pads=same)
    yield make((2, 17, 7, 11), (5, 5), 19, pads=(2,) * 4, residual=True, bias=False)
    yield make((1, 7, 13, 9), (5, 5), 37, strides=(2, 2), pads=(1, 2, 2, 1))
    yield make((2, 13, 9, 17), (3, 2), 5, strides=(2, 3), dilations=(2, 3), pads=(2, 0, 1, 3))
    yield make((1, 1, 1, 1), (1, 1), 1, residual=True)
    yield make((1, 3, 5, 5), (5, 5), 1)
    # More channels than a chunk holds, and more columns than a panel.
    yield make((1, 1031, 3, 3), (3, 3), 67, pads=same, residual=True)
    yield make((3, 29, 31), (4,), 6, strides=(3,), pads=(3, 2))
    yield make((1, 20, 10, 23), (3, 3), 12, pads=same, residual=True, after=RELU)
    # Activations that are not clamps round.
    yield make((1, 11, 6, 7), (3, 3), 9, pads=same, between=HARD_SWISH, rtol=1e-4)
    if variant.floats == "f32":
        yield make((1, 4, 300, 257), (3, 3), 4, pads=same)
