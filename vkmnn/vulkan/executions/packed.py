"""MatMulNBits and GatherNBits: weights stay quantised on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, prod
from typing import TypeAlias, cast

import numpy as np

from vkmnn.base.elements import FloatElement
from vkmnn.base.records import dataclass
from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType
from vkmnn.ir.ops import GatherNBitsAttrs, MatMulNBitsAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.shader import Shader
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.codes import (
    DIRECT_FLOPS,
    DIRECT_ROW_FLOPS,
    DOT_FLOPS,
    DOT_OVERLAP,
    ROW_FLOPS,
    SLICED_FLOPS,
    WEIGHT_FLOPS,
    CodesLoop,
    codes_cost,
    first_loads_us,
)
from vkmnn.vulkan.cost.devices import class_of, cores_of
from vkmnn.vulkan.cost.terms import Cost, Expected
from vkmnn.vulkan.device_rules import (
    MAX_LOOP_ROUNDS,
    has_fast_dots,
    has_mixed_dots,
    is_gpu,
    rotate_lanes,
)
from vkmnn.vulkan.encoder import Params, VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.executions.gathering import expect_rows
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.gemm.coded import (
    CodedCoop,
    CodesProblem,
    coded_kernels,
    unpacked_us,
    unpacking_cost,
)
from vkmnn.vulkan.gemm.codes import (
    CHUNK,
    DIRECT_LANES,
    FLOAT_BITS,
    PANEL,
    CodeForm,
    PackedCodes,
    bits_per_weight,
    pack_codes,
)
from vkmnn.vulkan.gemm.encode import reads_rows
from vkmnn.vulkan.gemm.epilogue import Epilogue
from vkmnn.vulkan.gemm.job import MatMulJob, RowNorms
from vkmnn.vulkan.gemm.operands import left_operand, lies_by_rows
from vkmnn.vulkan.gemm.problem import MatMulProblem
from vkmnn.vulkan.gemm.rowwise import encode_stages
from vkmnn.vulkan.storage import FLOAT_BYTES

MAX_DEPTH = CHUNK * MAX_LOOP_ROUNDS
# From this many rows, weights are unpacked once for a float kernel: on GPUs, elsewhere.
UNPACK_ROWS = {True: 17, False: 25}
# Unless they exceed this size, as those of a large vocabulary do.
UNPACK_BYTES = 1 << 28
DOT_WORKGROUPS = 3
"""Workgroups of a multiprocessor that compute a row by dot products."""
DOT_INVOCATIONS = 256
ROW_COLUMNS = 8
"""Columns of a single row per workgroup, if there are few of them."""


@dataclass(frozen=True, slots=True)
class CodesKernel:
    """A kernel that reads quantised weights: rows at a time, lanes (0: a whole workgroup).

    With `DIRECT_LANES`, invocations read rows through the cache, which needs no device feature.
    """

    rows: kernels.MatmulCodesRows
    lanes: kernels.MatmulCodesLanes

    @property
    def loop(self) -> CodesLoop:
        """Its work per weight."""
        if self.lanes == DIRECT_LANES:
            return CodesLoop(self.rows, DIRECT_FLOPS, DIRECT_ROW_FLOPS, DOT_OVERLAP, self.lanes)
        return CodesLoop(self.rows, WEIGHT_FLOPS, ROW_FLOPS)

    def groups(self, problem: CodesProblem) -> tuple[int, int, int]:
        """Return the workgroups."""
        return problem.form.panels, ceil_div(problem.rows, self.rows), 1


@dataclass(frozen=True, slots=True)
class RowCodes:
    """A kernel for one row; a workgroup computes a part of a panel."""

    loop = CodesLoop(1, WEIGHT_FLOPS + SLICED_FLOPS, ROW_FLOPS, DOT_OVERLAP)

    def groups(self, problem: CodesProblem) -> tuple[int, int, int]:
        """Return the workgroups."""
        return PANEL // ROW_COLUMNS, problem.form.panels, 1


@dataclass(frozen=True, slots=True)
class DotCodes:
    """A kernel for one row by integer dot products; a workgroup computes groups of columns.

    `mixed`: of signed with unsigned bytes.
    """

    columns: kernels.MatmulCodesDotColumns
    workgroups: int
    mixed: bool = False

    loop = CodesLoop(1, 0.0, DOT_FLOPS, DOT_OVERLAP)

    def groups(self, problem: CodesProblem) -> tuple[int, int, int]:
        """Return the workgroups."""
        return self.workgroups, problem.rows, 1


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The weights unpacked to floats in temporary memory, then a float product."""


InRegisters: TypeAlias = CodesKernel | RowCodes | DotCodes
CodesWay: TypeAlias = InRegisters | CodedCoop | Unpacked


@vulkan_execution("MatMulNBits")
class MatMulNBitsExecution(VulkanExecution[MatMulNBitsAttrs]):
    """One dispatch, or two; two to four if the weights are unpacked first."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject problems that exceed the kernels' loops, and computed weights."""
        attrs, limits = self.attrs, info.limits.max_workgroup_count
        self._form = _form_of(attrs.bits, attrs.block, attrs.depth, attrs.columns)
        _refuse_computed(self.operand(1), self.operand(4), self.optional(5), self.optional(6))
        self._rows = prod(self.operand(0).shape[:-1])
        if self._form.panels > min(limits[:2]) or self._rows > limits[1]:
            raise Rejection(f"{self._rows} rows by {attrs.columns} columns")

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Read and write narrow floats; scales and zeros stay as they are."""
        wanted, made = self.by_rule(FloatRule.TAKES, element)
        return [number not in (4, 5) and want for number, want in enumerate(wanted)], made

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the product."""
        if 0 in self.output.shape:
            return
        normed = self.optional(6) is not None
        problem = CodesProblem(self._rows, self._form, normed, self.attrs.gated)
        codes, scales, zeros = self.operand(1), self.operand(4), self.optional(5)
        weight_bits = bits_per_weight(self._form, scales, zeros)
        candidates = candidates_of(problem, encoder, weight_bits)
        kernel = encoder.choose("codes", problem, candidates)
        packed = pack_codes(self._form, codes, scales, zeros, encoder)
        if isinstance(kernel, Unpacked):
            self._encode_unpacked(problem, packed, encoder)
        elif isinstance(kernel, CodedCoop):
            norms = RowNorms(self.attrs.epsilon, gain=self.optional(6)) if normed else None
            job = replace(self._job(packed.codes, self.operand(0)), norms=norms)
            kernel.record(problem, replace(job, gated=problem.gated), packed, encoder)
            encoder.expect(lambda: kernel.predict(problem, weight_bits, encoder))
        else:
            self._encode_codes(kernel, problem, packed, encoder)
            encoder.expect(lambda: _expected(kernel, problem, weight_bits, encoder.info))

    def _job(self, weights: Tensor, x: Tensor) -> MatMulJob:
        attrs = self.attrs
        sizes = MatMulProblem((), (), (), self._rows, attrs.columns, attrs.depth)
        plain = x.value is None and attrs.depth % 4 == 0
        problem = replace(sizes, plain=plain, by_rows=False, constant=False)
        epilogue = Epilogue(self.optional(2), self.optional(3), attrs.residual, attrs.activation)
        return MatMulJob(problem, x, weights, self.output, epilogue=epilogue)

    def _encode_unpacked(
        self, problem: CodesProblem, packed: PackedCodes, encoder: VulkanEncoder
    ) -> None:
        form, attrs = self._form, self.attrs
        weights = encoder.scratch(form.depth * form.columns)
        job = self._job(weights, self.operand(0))
        ways: list[kernels.UnpackCodesForm] = ["matrix"]
        rows = replace(job, problem=replace(job.problem, by_rows=True), transposed_b=True)
        if lies_by_rows(weights, form.columns, form.depth, across=False):
            ways.insert(0 if reads_rows(rows, encoder) else 1, "columns")
        way = encoder.choose("unpacked", problem, ways)
        along = way == "columns"
        shader = kernels.unpack_codes(
            bits=_bits(form),
            form=way,
            aligned=4 if along or form.columns % 4 == 0 else 1,
            element=encoder.element,
            load="buffer" if along else encoder.load,
        )
        words = ceil_div(form.depth * form.bits, 32)
        count = form.vectors if along else words * ceil_div(form.columns, 4)
        params = _unpack_params(form, count)
        tensors = [packed.codes, packed.scales, packed.zeros, weights]
        encoder.dispatch_linear(shader, tensors, params, count, packed.spec)
        weight_bits = bits_per_weight(form, self.operand(4), self.optional(5))
        unpacking = Expected(unpacking_cost(form, weight_bits, encoder))
        encoder.expect(lambda: unpacking)
        gain = self.optional(6)
        norms = None if gain is None else RowNorms(attrs.epsilon)
        encode_stages(
            replace(rows if along else job, norms=norms, gated=attrs.gated), encoder, gain
        )

    def _encode_codes(
        self,
        kernel: InRegisters,
        problem: CodesProblem,
        packed: PackedCodes,
        encoder: VulkanEncoder,
    ) -> None:
        form, job = self._form, self._job(packed.codes, self.operand(0))
        left = left_operand(job, encoder)
        epilogue, call = job.epilogue, job.epilogue.call
        shader, params_of = _call(kernel, _bits(form), encoder)
        params = params_of(
            rows=self._rows,
            columns=form.columns,
            k4=ceil_div(form.depth, 4),
            blocks=form.blocks,
            chunks=form.chunks,
            act_alpha=call.alpha,
            act_beta=call.beta,
            epsilon=self.attrs.epsilon,
            mean=1.0 / form.depth,
        )
        # Bindings that the specialization leaves out still need a buffer; any will do.
        weights = [packed.codes, packed.scales, packed.zeros]
        unused = left.tensor
        added = [
            epilogue.bias or unused,
            epilogue.residual or unused,
            self._gain(encoder) or unused,
        ]
        spec = {
            **packed.spec,
            **call.spec,
            **epilogue.spec,
            "HAS_BIAS": epilogue.bias is not None,
            "NORMED": self.optional(6) is not None,
            "GATED": self.attrs.gated,
        }
        if isinstance(kernel, DotCodes):
            spec["MIXED"] = kernel.mixed
        tensors = [left.tensor, *weights, *added, self.output]
        encoder.dispatch(shader, tensors, params, kernel.groups(problem), spec)

    def _gain(self, encoder: VulkanEncoder) -> Tensor | None:
        """Return the factors of normalised rows in whole vec4s."""
        gain, depth = self.optional(6), self.attrs.depth
        if gain is None or depth % 4 == 0:
            return gain
        return encoder.constant(gain, "gain4", lambda array: np.pad(array, (0, -depth % 4)))


def _call(
    kernel: InRegisters, bits: kernels.MatmulCodesBits, encoder: VulkanEncoder
) -> tuple[Shader, Callable[..., Params]]:
    """Return the shader and the type of its parameters."""
    element = encoder.element
    if isinstance(kernel, RowCodes):
        return kernels.matmul_codes_row(bits=bits, element=element), kernels.MatmulCodesRowParams
    if isinstance(kernel, DotCodes):
        shader = kernels.matmul_codes_dot(bits=bits, columns=kernel.columns, element=element)
        return shader, kernels.MatmulCodesDotParams
    shader = kernels.matmul_codes(bits=bits, rows=kernel.rows, lanes=kernel.lanes, element=element)
    return shader, kernels.MatmulCodesParams


def _cost(kernel: InRegisters, problem: CodesProblem, weight_bits: float, info: DeviceInfo) -> Cost:
    weights = problem.form.depth * problem.form.columns
    groups = prod(kernel.groups(problem))
    return codes_cost(kernel.loop, problem.rows, weights, weights * weight_bits / 8, groups, info)


def _expected(
    kernel: InRegisters, problem: CodesProblem, weight_bits: float, info: DeviceInfo
) -> Expected:
    cost = _cost(kernel, problem, weight_bits, info)
    if not isinstance(kernel, DotCodes):
        return Expected(cost)
    chunks = 4 if kernel.columns == PANEL else 2
    asked = prod(kernel.groups(problem)) * DOT_INVOCATIONS * chunks * CHUNK
    weights = min(asked, problem.form.depth * problem.form.columns)
    return Expected(cost, ahead=first_loads_us(weights * weight_bits / 8, info))


def candidates_of(
    problem: CodesProblem, encoder: VulkanEncoder, weight_bits: float = 0.0
) -> list[CodesWay]:
    """Return the ways to compute a product, the likely fastest first.

    Args:
        problem: its sizes.
        encoder: describes the device.
        weight_bits: bits per weight with its share of scales and zeros; 0: without kernels by
            cooperative matrices.
    """
    found = _in_registers(problem, encoder)
    coded = coded_kernels(problem, weight_bits, encoder) if weight_bits else []
    if coded and is_gpu(encoder.info):
        return _by_time(found, coded, problem, weight_bits, encoder)
    small = problem.form.depth * problem.form.columns * 4 <= UNPACK_BYTES
    many = problem.rows >= UNPACK_ROWS[is_gpu(encoder.info)]
    ways: list[CodesWay] = [*found]
    ways.insert(0 if many and small else len(found), Unpacked())
    return [*ways, *(kernel for _, kernel in coded)]


def _in_registers(problem: CodesProblem, encoder: VulkanEncoder) -> list[InRegisters]:
    """Return the kernels that unpack weights in registers, the likely fastest first."""
    info, form = encoder.info, problem.form
    lanes: list[kernels.MatmulCodesLanes] = [0]
    if encoder.loads[0] == "texel" and 8 in rotate_lanes(info):
        lanes = [8, 0]
    elif "texel" in encoder.loads and 8 in rotate_lanes(info):
        lanes = [0, 8]
    limits = info.limits
    shared = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0]) >= 256
    sizes: tuple[kernels.MatmulCodesRows, ...] = (1, 4, 8)
    order = sorted(sizes, key=lambda rows: (ceil_div(problem.rows, rows), rows))
    if not is_gpu(info) and problem.rows > 1:
        order = [4, 8, 1]  # eight rows do not fit the registers of CPU devices
    found: list[InRegisters] = [
        CodesKernel(rows, width) for width in lanes for rows in order if width or shared
    ]
    # Measured on an H100: faster if panels leave multiprocessors idle, otherwise slower.
    few = is_gpu(info) and form.panels <= cores_of(info)
    if problem.rows == 1 and shared:
        found.insert(0 if few else len(found), RowCodes())
    mixed = has_mixed_dots(info) and not has_fast_dots(info)
    fast = problem.rows == 1 and is_gpu(info) and (mixed or has_fast_dots(info))
    if shared and "integer_dot" in info.features:
        widths: tuple[kernels.MatmulCodesDotColumns, ...] = (8, 32) if few else (32, 8)
        dots = [_dot_codes(columns, form, mixed, info) for columns in widths]
        at = 0 if fast else len(found)
        found[at:at] = dots
    direct: tuple[kernels.MatmulCodesRows, ...] = (1, 4) if problem.rows == 1 else (4, 1)
    found += [CodesKernel(rows, DIRECT_LANES) for rows in direct]
    if class_of(info).shared_in_memory:
        bits = form.bits + FLOAT_BITS[DType.FLOAT16] / form.block
        found.sort(
            key=lambda kernel: (
                isinstance(kernel, DotCodes) and not fast,
                _cost(kernel, problem, bits, info).total,
            )
        )
    return found


def _by_time(
    found: list[InRegisters],
    coded: list[tuple[float, CodedCoop]],
    problem: CodesProblem,
    weight_bits: float,
    encoder: VulkanEncoder,
) -> list[CodesWay]:
    """Return all ways by the predicted time of the best of their kind."""
    form = problem.form
    sizes = MatMulProblem((), (), (), problem.rows, form.columns, form.depth, constant=False)
    unpacked = unpacked_us(problem, sizes, weight_bits, encoder)
    if form.depth * form.columns * FLOAT_BYTES[encoder.element] > UNPACK_BYTES:
        unpacked = inf
    ways: list[tuple[float, list[CodesWay]]] = [
        (coded[0][0], [kernel for _, kernel in coded]),
        (unpacked, [Unpacked()]),
    ]
    if found:
        first = _cost(found[0], problem, weight_bits, encoder.info).total
        ways.append((first, [*found]))
    return [way for _, kind in sorted(ways, key=lambda pair: pair[0]) for way in kind]


def _dot_codes(
    columns: kernels.MatmulCodesDotColumns, form: CodeForm, mixed: bool, info: DeviceInfo
) -> DotCodes:
    """Return the kernel with as many workgroups as a device runs at once."""
    groups = ceil_div(form.columns, columns)
    most = info.limits.max_workgroup_count[0]
    at_once = min(DOT_WORKGROUPS * cores_of(info) if is_gpu(info) else groups, most)
    rounds = max(ceil_div(groups, at_once), 1)
    return DotCodes(columns, ceil_div(groups, rounds), mixed)


@vulkan_execution("GatherNBits")
class GatherNBitsExecution(VulkanExecution[GatherNBitsAttrs]):
    """One dispatch over the words of the rows."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject blocks that the kernel cannot read, and computed tables."""
        attrs = self.attrs
        self._form = _form_of(attrs.bits, attrs.block, attrs.depth, attrs.rows)
        _refuse_computed(self.operand(0), self.operand(2), self.optional(3))

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Convert the scales to the requested type; otherwise they stay float32."""
        return [False] * len(self.inputs), [True]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        form, index = self._form, self.operand(1)
        packed = pack_codes(form, self.operand(0), self.operand(2), self.optional(3), encoder)
        words = ceil_div(form.depth * form.bits, 32)
        count = words * prod(index.shape)
        shader = kernels.unpack_codes(
            bits=_bits(form), form="rows", aligned=1, element=encoder.element, load=encoder.load
        )
        params = _unpack_params(form, count)
        tensors = [packed.codes, packed.scales, packed.zeros, index, self.output]
        encoder.dispatch_linear(shader, tensors, params, count, packed.spec)
        expect_rows(index, self.output, encoder)


def _bits(form: CodeForm) -> kernels.MatmulCodesBits:
    return cast(kernels.MatmulCodesBits, form.bits)


def _unpack_params(form: CodeForm, count: int) -> kernels.UnpackCodesParams:
    return kernels.UnpackCodesParams(
        count=count,
        columns=form.columns,
        depth=form.depth,
        words=ceil_div(form.depth * form.bits, 32),
        blocks=form.blocks,
        chunks=form.chunks,
    )


def _form_of(bits: int, block: int, depth: int, columns: int) -> CodeForm:
    form = CodeForm(bits, block, depth, columns)
    if bits not in (4, 8) or not form.fits:
        raise Rejection(f"blocks of {block} values of {bits} bits")
    if depth > MAX_DEPTH:
        raise Rejection(f"inner size {depth} exceeds {MAX_DEPTH}")
    return form


def _refuse_computed(*weights: Tensor | None) -> None:
    for tensor in weights:
        if tensor is not None and tensor.value is None:
            raise Rejection(f"the weights '{tensor.name}' are not constant")
        if tensor is not None and tensor.dtype is DType.FLOAT64:
            raise Rejection(f"'{tensor.name}' is float64")
