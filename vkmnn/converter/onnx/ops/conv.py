"""Convolutions."""

from __future__ import annotations

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.errors import ModelError
from vkmnn.ir.ops import ConvolutionAttrs, DeconvolutionAttrs

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True, slots=True)
class Window:
    """The attributes that convolutions and pools share; one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str


def window(node: NodeContext, kernel: tuple[int, ...]) -> Window:
    """Read strides, dilations, pads and auto_pad.

    Raises:
        ModelError: a list has the wrong length, or a size is not positive.
    """
    rank = len(kernel)
    auto_pad = node.choice("auto_pad", "NOTSET", AUTO_PADS)
    strides = node.ints("strides", (1,) * rank) or (1,) * rank
    dilations = node.ints("dilations", (1,) * rank) or (1,) * rank
    pads = (0,) * (2 * rank)
    if auto_pad == "NOTSET":
        pads = node.ints("pads", pads) or pads
    for name, values, count in (
        ("kernel_shape", kernel, rank),
        ("strides", strides, rank),
        ("dilations", dilations, rank),
    ):
        if len(values) != count or min(values, default=1) < 1:
            raise _invalid(node, name, values, f"{count} positive numbers")
    if len(pads) != 2 * rank:
        raise _invalid(node, "pads", pads, f"{2 * rank} numbers")
    return Window(kernel, strides, dilations, pads, auto_pad)


def _invalid(node: NodeContext, name: str, values: tuple[int, ...], wanted: str) -> ModelError:
    return ModelError(
        f"attribute '{name}' is {list(values)}, not {wanted}",
        op=node.op,
        node=node.name,
        hint="the model is not valid ONNX; export it again",
    )


def _kernel(node: NodeContext, weight: str) -> tuple[int, ...]:
    """Return kernel_shape, from the weight's shape when the attribute is absent.

    Raises:
        ModelError: attribute and weight differ.
        UnsupportedCaseError: neither defines it.
    """
    info = node.info(weight)
    spatial = None if info is None or info.shape is None else info.shape[2:]
    given = node.ints("kernel_shape", ())
    if not given:
        known = tuple(dim for dim in spatial or () if isinstance(dim, int))
        if spatial is None or len(known) != len(spatial):
            raise node.unsupported("neither kernel_shape nor the weight's shape is known")
        return known
    if spatial is not None:
        pairs = zip(given, spatial, strict=False)
        if len(given) != len(spatial) or any(
            isinstance(dim, int) and dim != size for size, dim in pairs
        ):
            raise _invalid(node, "kernel_shape", given, f"the weight's {list(spatial)}")
    return given


@converter("Conv")
def _conv(node: NodeContext) -> None:
    node.finish("Convolution", node.inputs, convolution_attrs(node, node.input(1)))


def convolution_attrs(node: NodeContext, weight: str) -> ConvolutionAttrs:
    """Read the attributes of Conv; the kernel's shape defaults to the weight's."""
    w = window(node, _kernel(node, weight))
    return ConvolutionAttrs(w.kernel, w.strides, w.dilations, w.pads, _group(node), w.auto_pad)


def _group(node: NodeContext) -> int:
    group = node.int("group", 1)
    if group < 1:
        raise _invalid(node, "group", (group,), "a positive number")
    return group


@converter("ConvTranspose")
def _conv_transpose(node: NodeContext) -> None:
    w = window(node, _kernel(node, node.input(1)))
    rank = len(w.kernel)
    output_padding = node.ints("output_padding", ()) or (0,) * rank
    output_shape = node.ints("output_shape", ())[-rank:]  # early exporters include N and C
    for name, values in (("output_padding", output_padding), ("output_shape", output_shape)):
        if values and len(values) != rank:
            raise _invalid(node, name, values, f"{rank} numbers")
    attrs = DeconvolutionAttrs(
        w.kernel,
        w.strides,
        w.dilations,
        w.pads,
        output_padding,
        output_shape,
        _group(node),
        w.auto_pad,
    )
    node.finish("Deconvolution", node.inputs, attrs)
