"""Bindings, push constants and specialization constants shared by all GEMM kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.family import ConvKernel
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.operands import Operand
from vkmnn.vulkan.gemm.problem import MAX_BATCH_AXES
from vkmnn.vulkan.gemm.weights import bias_tensor
from vkmnn.vulkan.quantized.byte_codes import code_spec, shifts_of, with_shifts


@dataclass(slots=True)
class Binding:
    """Bindings and constants of a kernel dispatch.

    Attributes:
        tensors: x or a, weights or b, bias, residual, y.
        sizes: parameters of the kernel by name.
        spec: specialization constants of bias, residual and activation.
    """

    tensors: list[Tensor]
    sizes: dict[str, Any]
    spec: dict[str, int | bool]


def bind_convolution(job: ConvJob, kernel: ConvKernel, encoder: VulkanEncoder) -> Binding:
    """Pack the weights of a convolution for a kernel, and return its bindings."""
    problem, group = job.problem, job.problem.weight_groups
    # For single channels, all groups count as one, and input channels are not blocked.
    single = problem.grouping != "blocks"
    blocks = problem.outputs if single else ceil_div(problem.outputs, 4)
    epilogue, call = job.epilogue, job.epilogue.call
    weights = job.weights.packed(
        f"{kernel.form}:{group}",
        lambda plain: kernel.pack(plain, group),
        encoder,
        kernel.elements(problem),
    )
    shifts = shifts_of(job.x, epilogue.residual, job.y)
    bias = epilogue.bound_bias(problem.channels, encoder, shifts)
    bias = bias_tensor(bias, problem.channels, encoder)
    sizes: dict[str, Any] = {
        "pixels": problem.pixels,
        "in_size": problem.in_size,
        "out_size": problem.out_size,
        "stride": problem.stride,
        "pad": problem.pad,
        "in_block": (1 if job.plain_x else problem.batch) * prod(problem.in_size),
        "in_blocks": problem.inputs if single else problem.in_blocks,
        **_out_sizes(job),
        "out_offset": problem.out_offset,
        "group_blocks": blocks,
        "group_panels": ceil_div(blocks, kernel.panel),
        "channels": problem.channels,
        "act_alpha": call.alpha,
        "act_beta": call.beta,
    }
    tensors = [job.x, weights, bias, epilogue.residual or bias, job.y]
    spec = {
        **call.spec,
        **epilogue.spec,
        **_weight_spec(job.weights.shift),
        **code_spec(x=job.x, residual=epilogue.residual, y=job.y),
    }
    # Short loops convert bytes to floats faster with specialization constants.
    shifted = epilogue.requantize is not None and any(shifts) and not single
    if shifted or (epilogue.dynamic and job.x.codes is not None):
        spec = with_shifts(spec)
    if job.plain_x:
        spec["PLANES"] = problem.inputs
    if job.plain_y:
        spec["PLAIN_Y"] = True
    if job.spread:
        spec |= {"SPREAD": job.spread.side, "DEPTH_FIRST": job.spread.depth_first}
    return Binding(tensors, sizes, spec)


def _out_sizes(job: ConvJob) -> dict[str, Any]:
    """Return the parameters that locate a pixel of a channel block in the output."""
    problem = job.problem
    if not job.plain_y:
        return {"out_block": problem.out_block, "out_stride": problem.out_strides}
    image, *rest = problem.out_strides
    plane = problem.out_block // problem.batch
    if job.spread:
        # Images keep their size, with fewer and larger planes.
        side = job.spread.side
        rest = [size * scale for size, scale in zip(rest, (side**2, side**2, side), strict=True)]
        plane *= side**2
    return {"out_block": 4 * plane, "out_stride": (image * problem.channels, *rest)}


def bind_matmul(
    job: MatMulJob, operands: tuple[Operand, Operand], encoder: VulkanEncoder
) -> Binding:
    """Return the bindings of a kernel with these operands."""
    problem = job.problem
    left, right = operands
    epilogue, call = job.epilogue, job.epilogue.call
    left_shift = job.int8.activations
    shifts = left_shift or 0, *shifts_of(None, epilogue.residual, job.y)[1:]
    bias = epilogue.bound_bias(problem.n, encoder, shifts)
    sizes: dict[str, Any] = {
        "rows": problem.m,
        "columns": problem.n,
        "k4": ceil_div(problem.k, 4),
        "a_row": left.row,
        "a_step": left.step,
        "b_panel": right.panel,
        "b_row": right.row,
        "batch_size": _padded(problem.batch, 1)[1:],
        "a_batch": _batch_strides(problem.batch, problem.a_batch, left.batch),
        "b_batch": _batch_strides(problem.batch, problem.b_batch, right.batch),
        "alpha": job.alpha,
        "act_alpha": call.alpha,
        "act_beta": call.beta,
    }
    spec: dict[str, int | bool] = {
        "HAS_BIAS": bias is not None,
        **epilogue.spec,
        **_weight_spec(job.int8.weights),
        **({} if left_shift is None else {"A_SHIFT": left_shift}),
        **code_spec(residual=epilogue.residual, y=job.y),
    }
    if problem.dtype == "f32":  # integer products have no activation
        spec |= call.spec
    if left_shift is not None and (epilogue.dynamic or any(shifts)):
        spec = with_shifts(spec)
    if job.plain_y:
        spec["PLAIN_Y"] = True
    # Bindings that the specialization leaves out still need a buffer; any will do.
    unused = right.tensor
    tensors = [left.tensor, unused, bias or unused, epilogue.residual or unused, job.y]
    return Binding(tensors, sizes, spec)


def bind_rowwise(
    job: MatMulJob, operands: tuple[Operand, Operand], encoder: VulkanEncoder
) -> Binding:
    """Return the bindings of a kernel that supports row normalisation and gated columns."""
    bound, norms = bind_matmul(job, operands, encoder), job.norms
    bound.sizes["epsilon"] = norms.epsilon if norms else 0.0
    bound.sizes["mean"] = 1.0 / max(job.problem.k, 1)
    if norms or job.gated:  # byte and integer kernels support neither
        bound.spec["NORMED"] = norms is not None
        bound.spec["CENTERED"] = norms is not None and norms.centered
        bound.spec["GATED"] = job.gated
    return bound


def alignment(job: MatMulJob) -> Literal[1, 4]:
    """Return the elements that kernels may store at once: gating keeps two of four columns."""
    return 4 if job.problem.n % 4 == 0 and not job.gated else 1


def _weight_spec(shift: int | None) -> dict[str, int | bool]:
    return {} if shift is None else {"WEIGHT_SHIFT": shift}


def _padded(values: Sequence[int], fill: int) -> tuple[int, ...]:
    return (*[fill] * (MAX_BATCH_AXES - len(values)), *values)


def _batch_strides(sizes: Sequence[int], present: Sequence[bool], step: int) -> tuple[int, ...]:
    """Return an operand's stride along each batch axis, outermost first, 0 where it broadcasts."""
    strides = []
    for size, here in zip(reversed(sizes), reversed(present), strict=True):
        strides.append(step if here else 0)
        step *= size if here else 1
    return _padded(tuple(reversed(strides)), 0)
