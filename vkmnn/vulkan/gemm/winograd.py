"""Convolution with 3x3 windows by Winograd's minimal filtering: fewer products, two transforms.

F(m, 3) makes m x m results from (m + 2) x (m + 2) products instead of 9 m x m (Lavin and Gray,
"Fast Algorithms for Convolutional Neural Networks", 2015). For the products, each of the (m + 2)²
positions is a group of a convolution of one tap over the tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Activation, Array
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import epilogue_of, residual_spec
from vkmnn.vulkan.device_rules import cpu_lanes, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.convolution import (
    GPU_LOCAL,
    ConvProblem,
    Weights,
    bias_tensor,
    encode_convolution,
    rank_tiles,
)
from vkmnn.vulkan.gemm.families.shared import gemm_of
from vkmnn.vulkan.gemm.shared_tiles import pass_seconds, product_seconds

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

# Nanoseconds of one core for a tile of a channel block, (input, output), measured on lavapipe, by
# the invocations that run at once; and for two dispatches more.
TRANSFORM_NS = {
    8: {2: (86.0, 51.0), 4: (225.0, 135.0)},
    16: {2: (290.0, 95.0), 4: (700.0, 330.0)},
}
DISPATCH_NS = 50_000.0
# Sums of transformed values are a little less exact: worth it for a clear gain only.
LEAST_GAIN = 1.2
# Pairs of channels whose weights are transformed at a time: a product so small takes one thread of
# the BLAS library, which others, packing other weights, are not made to wait for.
TRANSFORM_PAIRS = 512


def product_problem(problem: ConvProblem, m: int) -> ConvProblem:
    """Return the products of F(m, 3) as a grouped convolution of one tap over all tiles."""
    tiles = problem.batch * prod(_grid(problem, m))
    blocks = ceil_div(problem.outputs, 4)
    return ConvProblem(
        batch=1,
        group=(m + 2) ** 2,
        inputs=ceil_div(problem.inputs, 4) * 4,
        outputs=blocks * 4,
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


def _grid(problem: ConvProblem, m: int) -> tuple[int, int]:
    _, height, width = problem.out_size
    return ceil_div(height, m), ceil_div(width, m)


def choose_winograd(problem: ConvProblem, weights: Weights, encoder: VulkanEncoder) -> int:
    """Return the m of F(m, 3) if that is faster than a direct convolution, else 0.

    On GPUs that is where products take long: a layer of a small batch is bound by latency, and two
    dispatches more cost more than the products that they save. There, halves have faster products.
    """
    info = encoder.info
    ready = encoder.has_texel_loads
    fits = (
        problem.group == 1
        and problem.kernel == (1, 3, 3)
        and problem.stride == problem.dilation == (1, 1, 1)
        and problem.in_size[0] == problem.out_size[0] == 1
        and problem.pad[0] == 0
        and 0 not in (*problem.in_size, problem.pixels, problem.channels)
    )
    if not ready or not fits or weights.tensor.value is None:
        return 0
    fitting = [
        m for m in WEIGHT_MATRIX if _largest(problem, m) <= info.limits.max_storage_buffer_range
    ]
    if is_gpu(info):
        costs, pays = _gpu_costs(problem, fitting, info), not encoder.half
    else:
        lanes = cpu_lanes(info)
        costs = _cpu_costs(problem, fitting, lanes)
        pays = encoder.prefers_texel_loads and lanes in rotate_lanes(info)
    costs[0] /= LEAST_GAIN
    ranked = sorted(costs, key=lambda m: (m > 0 and not pays, costs[m]))
    return encoder.choose("winograd", problem, ranked)


def _largest(problem: ConvProblem, m: int) -> int:
    """Return the bytes of the larger of the two transformed tensors."""
    product = product_problem(problem, m)
    return product.group * product.pixels * max(product.inputs, product.outputs) * 4


def _cpu_costs(problem: ConvProblem, sizes: Sequence[int], lanes: int) -> dict[int, float]:
    """Return the nanoseconds of one core that F(m, 3) takes, for m = 0 a direct convolution."""
    costs = {0: rank_tiles(problem, lanes, (lanes,))[0][0]}
    for m in sizes:
        before, after = TRANSFORM_NS[lanes][m]
        tiles = problem.batch * prod(_grid(problem, m))
        blocks = ceil_div(problem.inputs, 4), ceil_div(problem.outputs, 4)
        transforms = tiles * (before * blocks[0] + after * blocks[1])
        product = rank_tiles(product_problem(problem, m), lanes, (lanes,))[0][0]
        costs[m] = product + transforms + DISPATCH_NS
    return costs


def _gpu_costs(problem: ConvProblem, sizes: Sequence[int], info: DeviceInfo) -> dict[int, float]:
    """Return the seconds that F(m, 3) takes on a GPU, for m = 0 a direct convolution."""
    costs = {0: product_seconds(gemm_of(problem), info)}
    for m in sizes:
        product = product_problem(problem, m)
        values = product.group * product.pixels
        # The product reads and writes what the transforms write and read.
        before = 4 * (problem.batch * prod(problem.in_size) + 2 * values) * product.inputs
        after = 4 * (problem.pixels + 2 * values) * product.outputs
        costs[m] = product_seconds(gemm_of(product), info)
        costs[m] += pass_seconds(before, info) + pass_seconds(after, info)
    return costs


def transform_weights(w: Array, m: int) -> Array:
    """Return G g G' of weights [O, C, 1, 3, 3] as [(m + 2)² · O', C, 1, 1, 1], O' whole blocks."""
    outputs, inputs = w.shape[:2]
    # The rows of g ⊗ g, times the nine taps of every pair of channels: matrix products, each of so
    # many pairs that what it makes in float64 stays in the caches.
    both = np.kron(WEIGHT_MATRIX[m], WEIGHT_MATRIX[m])
    transformed = np.zeros((len(both), ceil_div(outputs, 4) * 4, inputs), np.float32)
    step = max(1, TRANSFORM_PAIRS // inputs)
    for first in range(0, outputs, step):
        taps = w[first : first + step].reshape(-1, 9).astype(np.float64)
        transformed[:, first : min(first + step, outputs)] = (both @ taps.T).reshape(
            len(both), -1, inputs
        )
    return transformed.reshape(-1, inputs, 1, 1, 1)


def encode_winograd(
    problem: ConvProblem,
    m: int,
    weights: Weights,
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    y: Tensor,
    activation: Activation,
    encoder: VulkanEncoder,
    join: str,
) -> None:
    """Record the three dispatches of F(m, 3); arguments as of `encode_convolution`."""
    grid = _grid(problem, m)
    tiles = problem.batch * prod(grid)
    in_blocks, out_blocks = ceil_div(problem.inputs, 4), ceil_div(problem.outputs, 4)
    positions = (m + 2) ** 2
    before = encoder.scratch(positions * in_blocks * tiles * 4, full=True)
    after = encoder.scratch(positions * out_blocks * tiles * 4, full=True)
    local = GPU_LOCAL if is_gpu(encoder.info) else cpu_lanes(encoder.info)
    groups = ceil_div(tiles, local)
    folds = ceil_div(groups, encoder.info.limits.max_workgroup_count[0])
    encoder.dispatch(
        kernels.winograd_in(m=m, storage=encoder.texel_storage),  # type: ignore[arg-type]
        [x, before],
        kernels.WinogradInParams(
            batch=problem.batch,
            grid=grid,
            in_size=problem.in_size[1:],
            pad=problem.pad[1:],
        ),
        (ceil_div(groups, folds), in_blocks, folds),
        {"local_size_x": local},
    )
    # Transforms multiply by up to 100: float32 between them, whatever the tensors are.
    with encoder.in_full():
        encode_convolution(
            product_problem(problem, m),
            Weights(
                weights.tensor,
                f"{weights.key}:winograd{m}",
                lambda plain: transform_weights(weights.view(plain), m),
            ),
            before,
            None,
            None,
            after,
            Activation(),
            encoder,
        )
    zeros = bias_tensor(bias, problem.channels, encoder)
    epilogue = epilogue_of(activation)
    encoder.dispatch(
        kernels.winograd_out(m=m, storage=encoder.texel_storage),  # type: ignore[arg-type]
        [after, zeros, residual or zeros, y],
        kernels.WinogradOutParams(
            batch=problem.batch,
            grid=grid,
            out_size=problem.out_size[1:],
            channels=problem.channels,
            act_alpha=epilogue.alpha,
            act_beta=epilogue.beta,
        ),
        (ceil_div(groups, folds), out_blocks, folds),
        {**epilogue.spec, **residual_spec(residual, join), "local_size_x": local},
    )
