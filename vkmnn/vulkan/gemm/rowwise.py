"""Row normalisation, product and column gating as separate dispatches."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Activation
from vkmnn.ir.ops import NO_ACTIVATION
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import call_of
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.encode import encode
from vkmnn.vulkan.gemm.job import MatMulJob
from vkmnn.vulkan.rows.norm import Factor, RowNorm, encode_row_norm


def encode_stages(job: MatMulJob, encoder: VulkanEncoder, gain: Tensor | None = None) -> None:
    """Record one to three dispatches: normalisation with factors `gain`, product, gates."""
    gated = job.gated
    job = replace(encode_norm(job, encoder, gain) if job.norms else job, gated=False)
    if gated:
        whole = encoder.scratch(job.problem.m * job.problem.n)
        plain = replace(job.epilogue, ending=NO_ACTIVATION)
        encode(replace(job, y=whole, epilogue=plain), encoder)
        encode_gate(whole, job.y, job.epilogue.activation, encoder)
    else:
        encode(job, encoder)


def encode_norm(job: MatMulJob, encoder: VulkanEncoder, gain: Tensor | None = None) -> MatMulJob:
    """Record the normalisation of a job's rows, with factors `gain`; return the product of them."""
    norms, rows, depth = job.norms, job.problem.m, job.problem.k
    assert norms is not None
    x = encoder.scratch(rows * depth)
    scale = None if gain is None else Factor(gain)
    norm = RowNorm(rows, depth, norms.epsilon, rms=not norms.centered, scale=scale)
    encode_row_norm(norm, job.a, x, encoder)
    return replace(job, a=x, norms=None)


def encode_gate(x: Tensor, y: Tensor, activation: Activation, encoder: VulkanEncoder) -> None:
    """Record the dispatch in which two of every four columns of x gate the others."""
    call, count = call_of(activation), prod(y.shape) // 2
    shader = kernels.gate_columns(element=encoder.element, load=encoder.load)
    params = kernels.GateColumnsParams(count=count, act_alpha=call.alpha, act_beta=call.beta)
    encoder.dispatch_linear(shader, [x, y], params, count, call.spec)
