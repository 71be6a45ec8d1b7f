"""Additional bindings of kernels that can normalise whole rows of their left operand."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.float_range import to_element
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.binding import Binding
from vkmnn.vulkan.gemm.job import MatMulJob, RowNorms


@dataclass(frozen=True, slots=True)
class NormBinding:
    """Bindings, parameters and constants appended to those of all products.

    `kept` and `kept_spec` are for kernels that can also store the normalised rows.
    """

    folded: Tensor
    sizes: dict[str, Any]
    spec: dict[str, int | bool]
    kept: tuple[Tensor, ...]
    kept_spec: dict[str, int | bool]

    @classmethod
    def of(cls, job: MatMulJob, bound: Binding, encoder: VulkanEncoder) -> NormBinding:
        """Return the additional bindings of a job; unused ones get any buffer."""
        norms, unused = job.norms, bound.tensors[1]
        if norms is None:
            sizes = {"epsilon": 0.0, "mean": 1.0}
            return cls(unused, sizes, {}, (unused, unused, job.y), {})
        folded = _folded(job, norms, encoder)
        gain, shift = norms.gain or unused, norms.shift or unused
        return cls(
            folded,
            {"epsilon": norms.epsilon, "mean": 1.0 / max(job.problem.k, 1)},
            {"NORMED": True, "CENTERED": norms.centered},
            (gain, shift, norms.rows or job.y),
            {
                "KEEPS": norms.rows is not None,
                "HAS_GAIN": norms.gain is not None,
                "HAS_SHIFT": norms.shift is not None,
            },
        )


def _folded(job: MatMulJob, norms: RowNorms, encoder: VulkanEncoder) -> Tensor:
    """Return, for every four columns, the sums of their weights, and the shift times the weights.

    In float32: means far from zero only cancel against sums of the same rounded weights that the
    kernel multiplies.
    """
    problem, element = job.problem, encoder.element
    gain, shift = _numbers(norms.gain), _numbers(norms.shift)

    def pack(array: Array) -> Array:
        weights = array if job.transposed_b else array.T
        scaled = weights if gain is None else np.multiply(weights, gain, dtype=np.float32)
        table = np.zeros((ceil_div(problem.n, 4) * 4, 2), np.float32)
        if norms.centered:
            rounded = to_element(scaled, element)
            table[: problem.n, 0] = rounded.sum(axis=1, dtype=np.float64)
        if shift is not None:
            table[: problem.n, 1] = np.matmul(weights, shift, dtype=np.float32)
        by_four: Array = table.reshape(-1, 4, 2).swapaxes(1, 2)
        return by_four

    names = [tensor.name if tensor else "" for tensor in (norms.gain, norms.shift)]
    key = f"folded:{problem.n}:{job.transposed_b}:{norms.centered}:{names}:{element}"
    return encoder.constant(job.b, key, pack, full=True)


def _numbers(tensor: Tensor | None) -> Array | None:
    if tensor is None:
        return None
    assert tensor.value is not None
    return tensor.value.reshape(-1).astype(np.float32, copy=False)
