"""MatMul: batched matrix products with scale, bias, residual and activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

from vkmnn.base.elements import FloatElement
from vkmnn.base.records import dataclass
from vkmnn.core.execution import Rejection
from vkmnn.core.float_range import exceeds
from vkmnn.ir import Layout
from vkmnn.ir.ops import (
    DynamicQuantizeMatMulAttrs,
    MatMulAttrs,
    NormedMatMulAttrs,
    QuantizedMatMulAttrs,
)
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.gemm.dynamic import Dynamic, code_numbers
from vkmnn.vulkan.gemm.encode import encode, plain_end_us
from vkmnn.vulkan.gemm.epilogue import Ending, Epilogue
from vkmnn.vulkan.gemm.family import FAMILIES, Apart, MatMulKernel, rank
from vkmnn.vulkan.gemm.job import Dots, Int8Operands, MatMulJob, RowNorms
from vkmnn.vulkan.gemm.normed import NormedKernel, NormedProblem, candidates_of
from vkmnn.vulkan.gemm.operands import lies_by_rows
from vkmnn.vulkan.gemm.problem import MAX_BATCH_AXES, MatMulProblem
from vkmnn.vulkan.gemm.requantize import Requantize
from vkmnn.vulkan.gemm.rowwise import encode_stages
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import shift_of
from vkmnn.vulkan.quantized.byte_codes import (
    code_shift,
    keeps_rows_of_codes,
    shift_of_codes,
)
from vkmnn.vulkan.storage import kernel_dtype

# Every kernel runs its loop at most once per four k.
MAX_K = 4 * MAX_LOOP_ROUNDS


_Product = TypeVar(
    "_Product", MatMulAttrs, QuantizedMatMulAttrs, NormedMatMulAttrs, DynamicQuantizeMatMulAttrs
)
# Up to this many rows, kernels that normalise and gate are preferred: on GPUs, and elsewhere.
ROWWISE_ROWS = {True: 8, False: 1}


class ProductExecution(VulkanExecution[_Product]):
    """Shared parts of both kinds: the problem, and its recording."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject problems that exceed the kernels' loops or axes."""
        attrs, a, b = self.attrs, self.operand(0), self.operand(1)
        self._sizes = sizes = matmul_problem(attrs, a.shape, b.shape)
        if sizes.k > MAX_K:
            raise Rejection(f"inner size {sizes.k} exceeds {MAX_K}")
        if len(sizes.batch) > MAX_BATCH_AXES:
            axes = len(sizes.batch)
            raise Rejection(f"batches alternate over {axes} axes, at most {MAX_BATCH_AXES} fit")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the product."""
        if 0 not in self.output.shape:
            encode(self.job(encoder), encoder)

    def job(self, encoder: VulkanEncoder) -> MatMulJob:
        """Return the job."""
        attrs, sizes, a, b = self.attrs, self._sizes, self.operand(0), self.operand(1)
        transposed_a = attrs.transpose_a and len(a.shape) > 1
        transposed_b = attrs.transpose_b and len(b.shape) > 1
        problem = replace(
            sizes,
            dtype=kernel_dtype(a.dtype) or "f32",
            plain=a.value is None and not transposed_a and sizes.k % 4 == 0,
            by_rows=lies_by_rows(a, sizes.m, sizes.k, transposed_a)
            and lies_by_rows(b, sizes.n, sizes.k, not transposed_b),
            constant=b.value is not None,
        )
        return MatMulJob(
            problem,
            a,
            b,
            self.output,
            transposed_a,
            transposed_b,
        )

    def _epilogue(self, mode: str, ending: Ending) -> Epilogue:
        return Epilogue(self.optional(2), self.optional(3), mode, ending)


@vulkan_execution("MatMul")
class MatMulExecution(ProductExecution[MatMulAttrs]):
    """Packs operands that the kernels cannot read directly, then one dispatch."""

    float_rule = FloatRule.TAKES
    repeatable = True

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Read narrow floats, unless a constant mask that is added exceeds their range."""
        mask = self.optional(3)
        full = mask is not None and exceeds(mask.value, element)
        return self.by_rule(FloatRule.FULL if full else self.float_rule, element)

    def prepare(self, info: DeviceInfo) -> None:
        """Reject problems that exceed the kernels' loops or axes."""
        super().prepare(info)
        attrs = self.attrs
        plain = attrs.activation.kind == "NONE" and attrs.alpha == 1.0
        if kernel_dtype(self.operand(0).dtype) == "i32" and not plain:
            raise Rejection("scale or activation of an integer product")

    def job(self, encoder: VulkanEncoder) -> MatMulJob:
        """Return the job."""
        attrs = self.attrs
        return replace(
            super().job(encoder),
            alpha=attrs.alpha,
            epilogue=self._epilogue(attrs.residual, attrs.activation),
            plain_y=encoder.element != "f32" and self.output.element == "f32",
        )

    def plain_end_us(self, end: int, encoder: VulkanEncoder) -> float | None:
        """A product of float16 may end in float32; none of its other parts may."""
        fits = end == 1 and self.operand(0).element != "f32"
        return plain_end_us(self.job(encoder).problem, encoder) if fits else None


@vulkan_execution("QuantizedMatMul")
class QuantizedMatMulExecution(ProductExecution[QuantizedMatMulAttrs]):
    """A product of quantised values, stored as float32, or as bytes if rows are whole words."""

    float_rule = FloatRule.FULL
    code_layout = Layout.NCHW

    def prepare(self, info: DeviceInfo) -> None:
        """Reject the same as `MatMul`, and computed biases, factors and bytes."""
        super().prepare(info)
        attrs, b = self.attrs, self.operand(1)
        if kernel_dtype(b.dtype) != "f32" and shift_of(b) is None:
            raise Rejection(f"'{b.name}' is {b.dtype.value}, whose values do not fit 8 bits")
        for tensor in (self.optional(2), self.operand(4), self.optional(5), self.optional(6)):
            if tensor is not None and tensor.value is None:
                raise Rejection(f"'{tensor.name}' is not constant")
        whole = keeps_rows_of_codes(info) and self._has_whole_words()
        self._left = code_shift(*attrs.taken) if whole else None

    def _has_whole_words(self) -> bool:
        """Return whether bytes pay: weights are bytes, rows at both ends are whole words."""
        sizes, a = self._sizes, self.operand(0)
        whole = sizes.k % 4 == 0 and sizes.n % 4 == 0 and not self.attrs.transpose_a
        rows = a.value is None and not sizes.batch and sizes.gemm.pays_packing
        return whole and rows and shift_of(self.operand(1)) is not None

    def code_inputs(self) -> dict[int, int | None]:
        """Kernels of CPU devices with 8-bit weights read quantised inputs and residuals."""
        return {} if self._left is None else {0: self._left, 3: None}

    def begins_codes(self) -> bool:
        """Return whether its operands have kernels."""
        return self._left is not None

    def made_codes(self, wish: int | None = None) -> int | None:
        """Results that are rounded and not dequantised are quantised."""
        attrs, table, again = self.attrs, self.optional(5), self.optional(6)
        if self._left is None or attrs.scale != 1.0:
            return None
        if attrs.add is not None:
            return code_shift(attrs.add.low, attrs.add.high, wish)
        if table is not None:
            return shift_of_codes(table.value, wish)
        if again is not None and again.value is not None:
            low, high = again.value[-2:]
            return code_shift(float(low.min()), float(high.max()), wish)
        return code_shift(attrs.low, attrs.high, wish)

    def job(self, encoder: VulkanEncoder) -> MatMulJob:
        """Return the job."""
        job = super().job(encoder)
        end = Requantize.of(self.attrs, self.operand(4), self.optional(5), self.optional(6))
        left = self._left if job.a.codes is None or self._left is None else job.a.codes
        shift = shift_of(job.b)
        return replace(
            job,
            epilogue=self._epilogue(end.residual_mode, end),
            int8=Int8Operands(shift, left, self._dots(shift)),
        )

    def _dots(self, shift: int | None) -> Dots | None:
        """Return how both operands are bytes; None if one is not known to be."""
        attrs, a, b, point = self.attrs, self.operand(0), self.operand(1), self.optional(7)
        right = code_shift(*attrs.taken_b) if b.value is None else shift
        left = code_shift(*attrs.taken) if a.value is None else shift_of_codes(a.value)
        if right is None or (left is None and point is None):
            return None
        return Dots(left or 0, right, point if left is None else None)


@vulkan_execution("DynamicQuantizeMatMul")
class DynamicQuantizeMatMulExecution(ProductExecution[DynamicQuantizeMatMulAttrs]):
    """Quantises the left operand for an 8-bit product, whose epilogue applies both scales."""

    float_rule = FloatRule.FULL

    def prepare(self, info: DeviceInfo) -> None:
        """Reject the same as `MatMul`, and computed weights, biases and factors."""
        super().prepare(info)
        weights = self.operand(1)
        if shift_of(weights) is None:
            raise Rejection(f"'{weights.name}' is not constant, or its values do not fit 8 bits")
        for tensor in (self.optional(2), self.operand(4)):
            if tensor is not None and tensor.value is None:
                raise Rejection(f"'{tensor.name}' is not constant")
        sizes = self._sizes
        whole = sizes.k % 4 == 0 and sizes.n % 4 == 0 and sizes.m > 1 and not sizes.batch
        self._bytes = whole and keeps_rows_of_codes(info)

    def job(self, encoder: VulkanEncoder) -> MatMulJob:
        """Return the job."""
        attrs, job = self.attrs, super().job(encoder)
        shift = shift_of(job.b)
        assert shift is not None
        by, point = (self.operand(5), self.operand(6)), self.operand(6)
        columns, bias = job.problem.n, self.optional(2)
        dynamic = Dynamic.of(by, self.operand(4), bias, columns, attrs.activation, encoder)
        return replace(
            job,
            a=job.a if self._bytes else code_numbers(job.a, dynamic, encoder),
            epilogue=self._epilogue(attrs.residual, dynamic),
            int8=Int8Operands(shift, 0 if self._bytes else None, Dots(0, shift, point)),
        )


@dataclass(frozen=True, slots=True)
class Stages:
    """Normalisation, product and gates in separate dispatches."""


@dataclass(frozen=True, slots=True)
class RowwiseProblem:
    """A product whose rows are normalised, by one of NORMS, or whose columns are gated.

    `plain`: it is stored as float32 while the operands are float16.
    """

    product: MatMulProblem
    norm: str
    gated: bool
    plain: bool = False

    @property
    def needs(self) -> Trait:
        """The traits that kernels must support."""
        needs = Trait.NONE if self.norm == "NONE" else Trait.NORM_ROWS
        needs |= Trait.GATED if self.gated else Trait.NONE
        return needs | Trait.PLAIN_IO if self.plain else needs


@vulkan_execution("NormedMatMul")
class NormedMatMulExecution(ProductExecution[NormedMatMulAttrs]):
    """One dispatch for few rows, up to three for many."""

    float_rule = FloatRule.TAKES
    repeatable = True

    def prepare(self, info: DeviceInfo) -> None:
        """Reject problems that exceed the kernels' loops, and computed weights."""
        super().prepare(info)
        if self.operand(1).value is None:
            raise Rejection(f"the weights '{self.operand(1).name}' are not constant")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the product."""
        if 0 in self.output.shape:
            return
        job, problem = self.job(encoder), self.problem(encoder)
        kernel = encoder.choose("rowwise", problem, rowwise_candidates(problem, encoder))
        if isinstance(kernel, Stages):
            encode_stages(job, encoder)
            return
        kernel.record(job, encoder)
        if isinstance(kernel, NormedKernel):
            centered = self.attrs.norm == "STD"
            fused, target = NormedProblem(job.problem, centered), Target.of(encoder)
            encoder.expect(lambda: kernel.predict(fused, target))

    def job(self, encoder: VulkanEncoder) -> MatMulJob:
        """Return the job."""
        attrs = self.attrs
        norms = None
        if attrs.norm != "NONE":
            norms = RowNorms(attrs.epsilon, centered=attrs.norm == "STD")
        return replace(
            super().job(encoder),
            epilogue=self._epilogue(attrs.residual, attrs.activation),
            norms=norms,
            gated=attrs.gated,
            plain_y=encoder.element != "f32" and self.output.element == "f32",
        )

    def problem(self, encoder: VulkanEncoder) -> RowwiseProblem:
        """Return the product and what its kernel has to do beside it."""
        job = self.job(encoder)
        return RowwiseProblem(job.problem, self.attrs.norm, self.attrs.gated, job.plain_y)

    def plain_end_us(self, end: int, encoder: VulkanEncoder) -> float | None:
        """A product of float16 may end in float32 at no cost where a kernel for few rows does."""
        if end != 1 or self.operand(0).element == "f32":
            return None
        problem = replace(self.problem(encoder), plain=True)
        return 0.0 if rowwise_candidates(problem, encoder) else None


def rowwise_candidates(
    problem: RowwiseProblem, encoder: VulkanEncoder
) -> list[MatMulKernel | NormedKernel | Stages]:
    """Return the ways to compute a product, the likely fastest first."""
    product = problem.product
    rowwise = Target.of(encoder, problem.needs)
    found: list[MatMulKernel | NormedKernel | Stages] = []
    # Rows padded with zeros have another mean.
    if problem.norm != "STD" or product.k % 4 == 0:
        key = "ranked products", len(FAMILIES), product, rowwise
        found += encoder.once(key, lambda: rank(product, rowwise))
    few = product.m <= ROWWISE_ROWS[is_gpu(encoder.info)]
    if problem.plain:
        return found if few else []
    found.insert(len(found) if few else 0, Stages())
    if problem.norm == "NONE" or problem.gated:
        return found
    fused = candidates_of(
        NormedProblem(product, problem.norm == "STD"), Target.of(encoder), encoder
    )
    kernels = [kernel for kernel in fused if not isinstance(kernel, Apart)]
    first = fused[:1] != [Apart()] and not few
    return [*kernels, *found] if first else [*found, *kernels]


def matmul_problem(
    attrs: MatMulAttrs | QuantizedMatMulAttrs | NormedMatMulAttrs | DynamicQuantizeMatMulAttrs,
    a: Sequence[int],
    b: Sequence[int],
) -> MatMulProblem:
    """Return the sizes of a product with numpy's rules for 1-D operands and broadcast batches."""
    a2 = (1, *a) if len(a) == 1 else tuple(a)
    b2 = (*b, 1) if len(b) == 1 else tuple(b)
    m, k = (a2[-1], a2[-2]) if attrs.transpose_a and len(a) > 1 else a2[-2:]
    n = b2[-2] if attrs.transpose_b and len(b) > 1 else b2[-1]
    rank = max(len(a2), len(b2)) - 2
    a_axes = (1,) * (rank - len(a2) + 2) + a2[:-2]
    b_axes = (1,) * (rank - len(b2) + 2) + b2[:-2]
    if all(size == 1 for size in b_axes) and not attrs.transpose_a:
        # One matrix for the whole batch: its rows are simply more rows.
        return MatMulProblem((), (), (), m * prod(a_axes), n, k)
    batch: list[int] = []
    present: list[tuple[bool, bool]] = []
    for size_a, size_b in zip(a_axes, b_axes, strict=True):
        size = max(size_a, size_b) if 0 not in (size_a, size_b) else 0
        if size == 1:
            continue
        here = (size_a != 1, size_b != 1)
        if present and present[-1] == here:
            batch[-1] *= size
        else:
            batch.append(size)
            present.append(here)
    return MatMulProblem(
        tuple(batch), tuple(h[0] for h in present), tuple(h[1] for h in present), m, n, k
    )
