"""Elementwise: chains of functions of floats."""

from __future__ import annotations

import numpy as np

from vkmnn.base.elements import FLOATS, FloatElement
from vkmnn.core.execution import Layouts
from vkmnn.core.float_range import STEP_KINDS
from vkmnn.ir import Layout
from vkmnn.ir.ops import (
    MAX_STEP_INPUTS,
    MAX_STEP_NUMBERS,
    CodeMean,
    ElementwiseAttrs,
    Step,
)
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.broadcast import (
    elementwise_layouts,
    may_be_blocked,
    plan_operands,
    reject_many_axes,
)
from vkmnn.vulkan.copies.layout_change import change_layout, is_reordered
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.quantized.byte_codes import code_shift, code_spec, rounding_spec
from vkmnn.vulkan.storage import reject_integers

# Kinds that return zero if all their values are zero.
_ZERO_OF_ZEROS = frozenset(
    {
        "ADD", "SUB", "MIN", "MAX", "GREATER", "LESS", "ABS", "FLOOR", "CEIL", "ROUND", "SIGN",
        "SQRT", "TANH",
    }
)  # fmt: skip
# Steps of QuantizeLinear: numbers are the scale and the bounds, and NaN becomes the lower one.
_QUANTIZE = (
    Step("DIV", (0, -1)),
    Step("ROUND", (1,)),
    Step("GREATER", (2, -2)),
    Step("SELECT", (3, 2, -2)),
    Step("MIN", (4, -3)),
)
_FIRST_RESULT = MAX_STEP_INPUTS + MAX_STEP_NUMBERS


@vulkan_execution("Elementwise")
class ElementwiseExecution(VulkanExecution[ElementwiseAttrs]):
    """One dispatch over the broadcast result."""

    float_rule = FloatRule.FOLLOWS
    repeatable = True

    def prepare(self, info: DeviceInfo) -> None:
        """Reject integers, and shapes with too many alternating axes."""
        reject_many_axes(self.operands, self.output)
        reject_integers(self.inputs)

    def layouts(self) -> Layouts:
        """Use the order of the largest operand; quantised values are channel-blocked."""
        zero = keeps_zero(self.attrs, len(self.inputs))
        codes = any(tensor.codes is not None for tensor in self.operands)
        return elementwise_layouts(self.operands, self.output, zero, blocked=codes)

    def code_inputs(self) -> dict[int, int | None]:
        """Quantised inputs of the result's shape, if all operands may be channel-blocked."""
        zero = keeps_zero(self.attrs, len(self.inputs))
        if not may_be_blocked(self.operands, self.output, zero):
            return {}
        shape = self.output.shape
        return {n: None for n, t in enumerate(self.inputs) if t is not None and t.shape == shape}

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the operands if results stay in the range as easily as they do."""
        steps = self.attrs.steps
        squares = any("MUL" in step.kind and step.values[0] == step.values[1] for step in steps)
        codes = any(step.kind == "ROUND" for step in steps) and any(
            abs(number) > FLOATS[element].whole for number in self.attrs.numbers
        )
        stays = not squares and not codes and all(step.kind in STEP_KINDS for step in steps)
        return self.by_rule(self.float_rule if stays else FloatRule.FULL, element)

    def begins_codes(self) -> bool:
        """Return whether it ends with rounding and bounds."""
        return code_bounds(self.attrs, len(self.inputs)) is not None

    def made_codes(self, wish: int | None = None) -> int | None:
        """Results of rounding channel-blocked floats, or plain ones, whose order then changes."""
        bounds = code_bounds(self.attrs, len(self.inputs))
        if bounds is None or any(tensor.element != "f32" for tensor in self.operands):
            return None
        x = self.operand(0)
        plain = quantizes(self.attrs) is not None and is_reordered(x)
        reorders = plain and x.shape == self.output.shape
        if not reorders and self.layouts()[1] != [Layout.NC4HW4]:
            return None
        return code_shift(*bounds, wish)

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        attrs, output = self.attrs, self.output
        ending, x = quantizes(attrs), self.operand(0)
        if output.codes is not None and ending is not None and x.layout is Layout.NCHW:
            change_layout(x, output, output.shape, encoder, rounding_spec(ending))
            return
        plan, tensors = plan_operands(self.operands, output, encoder)
        narrow = any(tensor.codes is not None for tensor in (*tensors, output))
        shader = kernels.elementwise(
            steps=4 if len(attrs.steps) <= 4 and not narrow else 8,
            width=4 if plan.width == 4 else 1,
            element="c8" if narrow else encoder.element,
            load="buffer" if narrow else encoder.load,
        )
        # Omitted operands still need a buffer and strides; the first one's will do.
        order = [n if n < len(tensors) else 0 for n in range(MAX_STEP_INPUTS)]
        strides = [plan.padded_strides(n) for n in order]
        params = kernels.ElementwiseParams(
            count=plan.count,
            size=plan.padded_sizes(),
            x0_stride=strides[0],
            x1_stride=strides[1],
            x2_stride=strides[2],
            x3_stride=strides[3],
        )
        spec: dict[str, int | bool] = {
            "AXES": len(plan.sizes),
            "OPERANDS": len(tensors),
            "STEPS": len(attrs.steps),
        }
        if plan.width == 4:
            spec |= {f"SPLAT{n}": plan.splats[n] for n in range(len(tensors))}
        spec |= code_spec(**{f"x{n}": tensor for n, tensor in enumerate(tensors)}, y=output)
        for number, step in enumerate(attrs.steps):
            spec |= _step_spec(number, step, len(tensors))
        numbers = np.zeros(MAX_STEP_NUMBERS, np.float32)
        numbers[: len(attrs.numbers)] = attrs.numbers
        bound = [tensors[n] for n in order]
        with encoder.in_full():
            bound.append(encoder.literal(f"{self.op.name}:numbers", numbers))
        encoder.dispatch_linear(shader, [*bound, output], params, plan.count, spec)


def quantizes(attrs: ElementwiseAttrs) -> CodeMean | None:
    """Return how floats are quantised, if the steps are those of a QuantizeLinear."""
    if attrs.steps != _QUANTIZE or len(attrs.numbers) != 3:
        return None
    unit, low, high = attrs.numbers
    # Lanes past the last channel stay zero.
    return CodeMean(1.0, unit, low, high) if low <= 0 <= high else None


def code_bounds(attrs: ElementwiseAttrs, inputs: int) -> tuple[float, float] | None:
    """Return the bounds at the end of the steps, after rounding; None for other endings."""
    last = attrs.steps[-1]
    before = _made(attrs, last.values[0], inputs)
    bounds = [attrs.numbers[-1 - v] if v < 0 else np.nan for v in last.values[1:]]
    if last.kind == "MIN" and before is not None and before.kind == "SELECT":
        # A comparison that NaN fails: values above the lower bound, else the bound.
        _, above, lowest = before.values
        if before.values[0] < inputs or lowest >= 0:
            return None
        if _made(attrs, before.values[0], inputs) != Step("GREATER", (above, lowest)):
            return None
        bounds = [attrs.numbers[-1 - lowest], *bounds]
        before = _made(attrs, above, inputs)
    elif last.kind != "CLIP":
        return None
    rounds = before is not None and before.kind == "ROUND"
    return (bounds[0], bounds[1]) if rounds and bounds[0] <= bounds[1] else None


def _made(attrs: ElementwiseAttrs, value: int, inputs: int) -> Step | None:
    """Return the step that computes a value."""
    return attrs.steps[value - inputs] if value >= inputs else None


def _step_spec(number: int, step: Step, inputs: int) -> dict[str, int]:
    """Return the specialization of a step, with values as the kernel numbers them."""
    spec = {f"KIND{number}": kernels.Step[step.kind].value}
    for letter, value in zip("ABC", step.values, strict=False):
        if value < 0:
            value = MAX_STEP_INPUTS - 1 - value
        elif value >= inputs:
            value += _FIRST_RESULT - inputs
        spec[f"{letter}{number}"] = value
    return spec


def keeps_zero(attrs: ElementwiseAttrs, inputs: int) -> bool:
    """Return whether inputs of zero give zero, judged by the kinds of the steps."""
    zero = [True] * inputs
    for step in attrs.steps:
        parts = [zero[v] if v >= 0 else attrs.numbers[-1 - v] == 0 for v in step.values]
        if step.kind in ("MUL", "MUL_ADD"):
            parts = [parts[0] or parts[1], *parts[2:]]
        elif step.kind in ("DIV", "PRELU"):
            # Zero divided by a number that is not zero.
            parts = [parts[0], step.kind == "PRELU" or (step.values[1] < 0 and not parts[1])]
        elif step.kind == "CLIP":
            low, high = (attrs.numbers[-1 - v] if v < 0 else np.nan for v in step.values[1:])
            parts = [parts[0], bool(low <= 0 <= high)]
        elif step.kind == "SELECT":
            parts = parts[1:]
        elif step.kind not in _ZERO_OF_ZEROS:
            parts = [False]
        zero.append(all(parts))
    return zero[-1]
