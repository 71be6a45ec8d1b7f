"""ExpertMatMul: rows by the weights of the experts that are chosen for them, and of no others."""

from __future__ import annotations

from math import isfinite, prod
from typing import cast

import numpy as np

from vkmnn.base.elements import FloatElement
from vkmnn.base.records import dataclass
from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType
from vkmnn.ir.ops import ExpertMatMulAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import call_of
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.gemm.codes import (
    CHUNK,
    DIRECT_LANES,
    CodeForm,
    PackedCodes,
    pack_codes,
    pack_floats,
)
from vkmnn.vulkan.gemm.job import MatMulJob
from vkmnn.vulkan.gemm.operands import left_operand
from vkmnn.vulkan.gemm.problem import MatMulProblem

MAX_DEPTH = CHUNK * MAX_LOOP_ROUNDS
MAX_EXPERTS = 1024
"""Experts whose rows are counted in shared memory."""
GROUPERS = 256
"""Invocations that collect the rows of experts."""


@dataclass(frozen=True, slots=True)
class ExpertsKernel:
    """A kernel that takes `rows` rows of an expert; `lanes` as for `CodesKernel`."""

    rows: kernels.MatmulExpertsRows
    lanes: kernels.MatmulExpertsLanes


@dataclass(frozen=True, slots=True)
class ExpertsProblem:
    """Products of `rows` rows, each with one expert's weights."""

    rows: int
    form: CodeForm


@vulkan_execution("ExpertMatMul")
class ExpertMatMulExecution(VulkanExecution[ExpertMatMulAttrs]):
    """One dispatch; one before it to collect the rows of experts, one after it to sum them up."""

    def prepare(self, info: DeviceInfo) -> None:
        """Refuse what the kernels have no loop for, and weights that are not constant."""
        attrs, weights = self.attrs, self.operand(1)
        for tensor in (weights, self.optional(3), self.optional(4), self.optional(5)):
            if tensor is not None and tensor.value is None:
                raise Rejection(f"'{tensor.name}' is not constant")
            if tensor is not None and tensor.dtype is DType.FLOAT64:
                raise Rejection(f"'{tensor.name}' is float64")
        if attrs.depth > MAX_DEPTH or attrs.experts > MAX_EXPERTS:
            raise Rejection(f"inner size {attrs.depth}, {attrs.experts} experts")
        block = attrs.block if attrs.bits else CHUNK
        self._form = CodeForm(attrs.bits or 32, block, attrs.depth, attrs.columns, attrs.experts)
        if attrs.bits not in (0, 4, 8) or not self._form.fits:
            raise Rejection(f"blocks of {block} codes of {attrs.bits} bits")
        self._rows = prod(self.operand(2).shape)
        limits = info.limits.max_workgroup_count
        if self._form.panels > limits[0] or self._rows > min(limits[1], MAX_LOOP_ROUNDS // 2):
            raise Rejection(f"{self._rows} rows by {attrs.columns} columns")

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Read and write narrow floats; weights, scales and zeros stay as they are."""
        wanted, made = self.by_rule(FloatRule.TAKES, element)
        return [number not in (1, 4, 5) and want for number, want in enumerate(wanted)], made

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the products, and their sum by shares."""
        if 0 in self.output.shape:
            return
        form, shares = self._narrowed(encoder), self.optional(6)
        problem = ExpertsProblem(self._rows, form)
        kernel = encoder.choose("experts", problem, candidates_of(problem, encoder))
        table = self.operand(2)
        groups = self._rows
        if kernel.rows > 1:
            table, groups = self._groups(kernel.rows, encoder)
        made = self.output
        if shares is not None:
            made = encoder.scratch(self._rows * self.attrs.width)
        self._encode(kernel, form, table, groups, made, encoder)
        if shares is not None:
            self._mix(made, shares, self.optional(7), encoder)

    def _narrowed(self, encoder: VulkanEncoder) -> CodeForm:
        """Return the form of the weights: floats as they are, float16 beside narrow floats."""
        form, dtype = self._form, self.operand(1).dtype
        if self.attrs.bits or (encoder.element == "f32" and dtype is not DType.FLOAT16):
            return form
        return CodeForm(16, form.block, form.depth, form.columns, form.experts)

    def _groups(self, rows: int, encoder: VulkanEncoder) -> tuple[Tensor, int]:
        """Record the table of groups of rows, each of one expert; return it and their number."""
        experts, count = self.attrs.experts, self._rows
        # Every expert that is chosen may leave one group unfilled.
        groups = (count + min(experts, count) * (rows - 1)) // rows
        table = encoder.scratch(groups * (rows + 1), DType.INT32)
        params = kernels.ExpertGroupsParams(count=count, experts=experts, rows=rows, groups=groups)
        encoder.dispatch(kernels.expert_groups(), [self.operand(2), table], params)
        return table, groups

    def _packed(self, form: CodeForm, encoder: VulkanEncoder) -> PackedCodes:
        if not self.attrs.bits:
            return pack_floats(form, self.operand(1), encoder)
        return pack_codes(form, self.operand(1), self.operand(4), self.optional(5), encoder)

    def _encode(
        self,
        kernel: ExpertsKernel,
        form: CodeForm,
        table: Tensor,
        groups: int,
        made: Tensor,
        encoder: VulkanEncoder,
    ) -> None:
        attrs, x, packed = self.attrs, self.operand(0), self._packed(form, encoder)
        sizes = MatMulProblem((), (), (), prod(x.shape[:-1]), attrs.columns, attrs.depth)
        left = left_operand(MatMulJob(sizes, x, packed.codes, made), encoder)
        call, bias, unused = call_of(attrs.activation), self.optional(3), left.tensor
        bounded = isfinite(attrs.limit)
        params = kernels.MatmulExpertsParams(
            rows=self._rows,
            columns=attrs.columns,
            k4=ceil_div(attrs.depth, 4),
            blocks=form.blocks,
            chunks=form.chunks,
            act_alpha=call.alpha,
            act_beta=call.beta,
            epsilon=0.0,
            mean=0.0,
            sharing=1 if attrs.each else self.operand(2).shape[-1],
            experts=attrs.experts,
            limit=attrs.limit if bounded else float(np.finfo(np.float32).max),
            offset=attrs.offset,
        )
        spec = {
            **packed.spec,
            **call.spec,
            "HAS_BIAS": bias is not None,
            "GATED": attrs.gated,
            "LIMITED": bounded or attrs.offset != 0.0,
        }
        shader = kernels.matmul_experts(
            bits=cast(kernels.MatmulExpertsBits, form.bits),
            rows=kernel.rows,
            lanes=kernel.lanes,
            element=encoder.element,
        )
        weights = [packed.codes, packed.scales, packed.zeros]
        tensors = [left.tensor, *weights, bias or unused, unused, unused, made, table]
        encoder.dispatch(shader, tensors, params, (form.panels, groups, 1), spec)

    def _mix(
        self, made: Tensor, shares: Tensor, residual: Tensor | None, encoder: VulkanEncoder
    ) -> None:
        columns = self.attrs.width
        width: kernels.ExpertMixWidth = 4 if columns % 4 == 0 else 1
        count = prod(self.output.shape) // width
        shader = kernels.expert_mix(width=width, element=encoder.element, load=encoder.load)
        params = kernels.ExpertMixParams(
            count=count, columns=columns // width, chosen=self.operand(2).shape[-1]
        )
        tensors = [made, shares, residual or made, self.output]
        spec = {"HAS_RESIDUAL": residual is not None}
        encoder.dispatch_linear(shader, tensors, params, count, spec)


def candidates_of(problem: ExpertsProblem, encoder: VulkanEncoder) -> list[ExpertsKernel]:
    """Return what can compute the products, the likely fastest first."""
    info, gpu = encoder.info, is_gpu(encoder.info)
    lanes: list[kernels.MatmulExpertsLanes] = [0]
    if "texel" in encoder.loads and 8 in rotate_lanes(info):
        lanes = [8, 0] if encoder.loads[0] == "texel" else [0, 8]
    limits = info.limits
    room = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0]) >= GROUPERS
    order: list[kernels.MatmulExpertsRows] = [1]
    if room:
        each = problem.rows / problem.form.experts
        order = [8, 4, 1] if gpu and each > 4 else [4, 8, 1]
        order = order if each > 1 else [1, 4, 8]
    found = [
        ExpertsKernel(rows, width)
        for width in lanes
        for rows in order
        if (width or room) and not (width and rows == 8)
    ]
    first = class_of(info).shared_in_memory and order[0] == 1
    found.insert(0 if first else len(found), ExpertsKernel(1, DIRECT_LANES))
    return found
