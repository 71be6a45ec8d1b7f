"""3 x 3 convolution by Winograd's minimal filtering: fewer products, two transforms.

F(m, 3) computes m x m results from (m + 2) x (m + 2) products instead of 9 m x m (Lavin and Gray,
"Fast Algorithms for Convolutional Neural Networks", 2015). Each of the (m + 2)² positions is a
group of a one-tap convolution over the tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod
from typing import cast

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import ActivationCall
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.passes import pass_cost
from vkmnn.vulkan.device_rules import CpuLanes, cpu_lanes, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.cpu_tiles import min_nanoseconds
from vkmnn.vulkan.gemm.encode import encode
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.loops import GPU_LOCAL
from vkmnn.vulkan.gemm.problem import ConvProblem, Gemm
from vkmnn.vulkan.gemm.shared_tiles import timed_shared
from vkmnn.vulkan.gemm.weights import Weights, bias_tensor
from vkmnn.vulkan.quantized.byte_codes import code_spec

# G of F(m, 3) for the points 0, 1, -1 (and 2, -2), matching `include/winograd.glsl.j2`.
WEIGHT_MATRIX = {
    2: np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
    4: np.array(
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ]
    ),
}

# Nanoseconds on one core per tile and channel block, (input, output), measured on lavapipe, by
# concurrent invocations; and for the two additional dispatches.
TRANSFORM_NS = {
    8: {2: (86.0, 51.0), 4: (225.0, 135.0)},
    16: {2: (290.0, 95.0), 4: (700.0, 330.0)},
}
DISPATCH_NS = 50_000.0
# Sums of transformed values are slightly less exact, which only a clear gain justifies.
MIN_GAIN = 1.2
# Pairs of channels whose weights are transformed at once: products this small use a single BLAS
# thread, so that concurrent packing of other weights does not wait.
TRANSFORM_PAIRS = 512


def gemm_problem(problem: ConvProblem, m: int) -> ConvProblem:
    """Return the products of F(m, 3) as a grouped one-tap convolution over all tiles."""
    return product_problem(problem, m, (m + 2) ** 2, problem.in_blocks)


def product_problem(problem: ConvProblem, m: int, groups: int, blocks: int) -> ConvProblem:
    """Return `groups` products of `blocks` blocks of input channels, over all tiles of F(m, 3)."""
    tiles = problem.batch * prod(tile_grid(problem, m))
    return ConvProblem(
        batch=1,
        group=groups,
        inputs=blocks * 4,
        outputs=ceil_div(problem.outputs, 4) * 4,
        in_size=(1, 1, tiles),
        out_size=(1, 1, tiles),
        kernel=(1, 1, 1),
        stride=(1, 1, 1),
        dilation=(1, 1, 1),
        pad=(0, 0, 0),
        out_strides=(tiles, tiles, tiles, 1),
        out_offset=0,
        out_block=tiles,
    )


def tile_grid(problem: ConvProblem, m: int) -> tuple[int, int]:
    """Return the rows and columns of tiles of m x m results."""
    _, height, width = problem.out_size
    return ceil_div(height, m), ceil_div(width, m)


def has_filters(problem: ConvProblem, weights: Weights) -> bool:
    """Return whether all windows are constant and 3 x 3, without strides and groups."""
    return (
        problem.kernel == (1, 3, 3)
        and problem.group == 1
        and problem.stride == problem.dilation == (1, 1, 1)
        and problem.in_size[0] == problem.out_size[0] == 1
        and problem.pad[0] == 0
        and 0 not in (*problem.in_size, problem.pixels, problem.channels)
        and weights.tensor.value is not None
    )


def choose_winograd(problem: ConvProblem, weights: Weights, encoder: VulkanEncoder) -> int:
    """Return the m of F(m, 3) if that is faster than a direct convolution, else 0.

    On GPUs, it pays if products dominate: a layer with a small batch is latency-bound, and two
    additional dispatches cost more than the saved products. There, float16 has faster kernels.
    """
    info = encoder.info
    if not has_filters(problem, weights) or "texel" not in encoder.loads:
        return 0
    products = {m: gemm_problem(problem, m) for m in WEIGHT_MATRIX}
    most = info.limits.max_storage_buffer_range
    fitting = {m: product for m, product in products.items() if _largest(product) <= most}
    if is_gpu(info):
        costs, pays = _gpu_costs(problem, fitting, info), encoder.element == "f32"
    else:
        lanes = cpu_lanes(info)
        costs = _cpu_costs(problem, fitting, lanes)
        pays = encoder.load == "texel" and lanes in rotate_lanes(info)
    costs[0] /= MIN_GAIN
    ranked = sorted(costs, key=lambda m: (m > 0 and not pays, costs[m]))
    return encoder.choose("winograd", problem, ranked)


def _largest(product: ConvProblem) -> int:
    """Return the bytes of the larger of the two transformed tensors."""
    return product.group * product.pixels * max(product.inputs, product.outputs) * 4


def _cpu_costs(
    problem: ConvProblem, products: Mapping[int, ConvProblem], lanes: CpuLanes
) -> dict[int, float]:
    """Return the nanoseconds of F(m, 3) on one core; m = 0 is a direct convolution."""
    costs = {0: min_nanoseconds(problem, lanes, (lanes,))}
    blocks = problem.in_blocks, ceil_div(problem.outputs, 4)
    for m, product in products.items():
        before, after = TRANSFORM_NS[lanes][m]
        tiles = product.pixels
        transforms = tiles * (before * blocks[0] + after * blocks[1])
        costs[m] = min_nanoseconds(product, lanes, (lanes,)) + transforms + DISPATCH_NS
    return costs


def _gpu_costs(
    problem: ConvProblem, products: Mapping[int, ConvProblem], info: DeviceInfo
) -> dict[int, float]:
    """Return the microseconds of F(m, 3) on a GPU; m = 0 is a direct convolution."""
    costs = {0: _product_us(problem.gemm(), info, padded=problem.padded)}
    for m, product in products.items():
        values = product.group * product.pixels
        # The product reads and writes the transforms' tensors.
        before = 4 * (problem.batch * prod(problem.in_size) + 2 * values) * product.inputs
        after = 4 * (problem.pixels + 2 * values) * product.outputs
        groups = ceil_div(product.pixels, GPU_LOCAL)
        blocks = ceil_div(problem.inputs, 4), ceil_div(problem.outputs, 4)
        transforms = pass_cost(before, info, groups * blocks[0]).total
        transforms += pass_cost(after, info, groups * blocks[1]).total
        costs[m] = _product_us(product.gemm(), info) + transforms + 2 * class_of(info).gap_us
    return costs


def _product_us(gemm: Gemm, info: DeviceInfo, *, padded: bool = False) -> float:
    timed = timed_shared(gemm, info, pixels=True, padded=padded)
    return min((us for us, _ in timed), default=inf)


def transform_weights(w: Array, m: int) -> Array:
    """Return G g G' of weights [O, C, 1, 3, 3] as [(m + 2)² · O', C, 1, 1, 1], O' whole blocks."""
    outputs, inputs = w.shape[:2]
    # The rows of g ⊗ g times the nine taps of every pair of channels: matrix products over a few
    # pairs at a time, so that their float64 results stay in the caches.
    both = np.kron(WEIGHT_MATRIX[m], WEIGHT_MATRIX[m])
    transformed = np.zeros((len(both), ceil_div(outputs, 4) * 4, inputs), np.float32)
    step = max(1, TRANSFORM_PAIRS // inputs)
    for first in range(0, outputs, step):
        taps = w[first : first + step].reshape(-1, 9).astype(np.float64)
        transformed[:, first : min(first + step, outputs)] = (both @ taps.T).reshape(
            len(both), -1, inputs
        )
    return transformed.reshape(-1, inputs, 1, 1, 1)


def by_winograd(job: ConvJob, encoder: VulkanEncoder) -> ConvJob | None:
    """Record the three dispatches if that is chosen, else return the convolution."""
    m = choose_winograd(job.problem, job.weights, encoder)
    if not m:
        return job
    problem = job.problem
    positions = (m + 2) ** 2
    tiles = problem.batch * prod(tile_grid(problem, m))
    out_blocks = ceil_div(problem.outputs, 4)
    before = encoder.scratch(positions * problem.in_blocks * tiles * 4, full=True)
    after = encoder.scratch(positions * out_blocks * tiles * 4, full=True)
    transform_input(job, m, before, encoder)
    # Transforms multiply by up to 100, so the intermediate tensors are always float32.
    with encoder.in_full():
        transformed = job.weights.seen_as(f"winograd{m}", lambda w: transform_weights(w, m))
        encode(ConvJob(gemm_problem(problem, m), transformed, before, after), encoder)
    epilogue, call = job.epilogue, job.epilogue.call
    ending = ActivationCall(call.alpha, call.beta, {**call.spec, **epilogue.spec})
    bias = bias_tensor(epilogue.bias, problem.channels, encoder)
    transform_output(job, m, (after, bias), ending, encoder.element, encoder)
    return None


def transform_input(
    job: ConvJob, m: int, before: Tensor, encoder: VulkanEncoder, center: float | None = None
) -> None:
    """Record the dispatch that computes `before`: for quantised values, in integers, centred."""
    problem = job.problem
    params = kernels.WinogradInParams(
        batch=problem.batch,
        grid=tile_grid(problem, m),
        in_size=problem.in_size[1:],
        pad=problem.pad[1:],
    )
    element: kernels.WinogradInElement = encoder.element
    groups, spec = tile_workgroups(problem, m, problem.in_blocks, encoder)
    if center is not None:
        element, spec = "c8", {**spec, **code_spec(x=job.x), "CENTER": center}
    shader = kernels.winograd_in(m=cast(kernels.WinogradInM, m), element=element)
    encoder.dispatch(shader, [job.x, before], params, groups, spec)


def transform_output(
    job: ConvJob,
    m: int,
    read: tuple[Tensor, Tensor],
    ending: ActivationCall,
    element: kernels.WinogradOutElement,
    encoder: VulkanEncoder,
) -> None:
    """Record the dispatch that computes y from products and bias, with the ending of sums."""
    problem = job.problem
    params = kernels.WinogradOutParams(
        batch=problem.batch,
        grid=tile_grid(problem, m),
        out_size=problem.out_size[1:],
        channels=problem.channels,
        act_alpha=ending.alpha,
        act_beta=ending.beta,
    )
    shader = kernels.winograd_out(m=cast(kernels.WinogradOutM, m), element=element)
    groups, spec = tile_workgroups(problem, m, ceil_div(problem.outputs, 4), encoder)
    tensors = [*read, job.epilogue.residual or read[1], job.y]
    encoder.dispatch(shader, tensors, params, groups, {**ending.spec, **spec})


def tile_workgroups(
    problem: ConvProblem, m: int, blocks: int, encoder: VulkanEncoder
) -> tuple[tuple[int, int, int], dict[str, float]]:
    """Return the workgroup count, one invocation per tile and channel block, and size."""
    info = encoder.info
    local = GPU_LOCAL if is_gpu(info) else cpu_lanes(info)
    groups = ceil_div(problem.batch * prod(tile_grid(problem, m)), local)
    folds = ceil_div(groups, info.limits.max_workgroup_count[0])
    return (ceil_div(groups, folds), blocks, folds), {"local_size_x": local}
