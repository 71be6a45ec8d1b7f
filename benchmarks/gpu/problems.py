"""The problems to measure: shapes from networks, as cases of single ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import (
    AttentionAttrs,
    CachedAttentionAttrs,
    ConvolutionAttrs,
    LayerNormAttrs,
    MatMulAttrs,
    MatMulNBitsAttrs,
    OpAttrs,
    PoolingAttrs,
)
from vkmnn.testing.case import Case, op_case, tensor_info
from vkmnn.vulkan.executions.packed import Unpacked

# Batch 1: input channels, output channels, kernel, stride, height and width of the input.
RESNET_50: tuple[tuple[int, int, int, int, int], ...] = (
    (3, 64, 7, 2, 224),
    (64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56), (256, 64, 1, 1, 56),
    (256, 128, 1, 1, 56), (128, 128, 3, 2, 56), (128, 512, 1, 1, 28), (256, 512, 1, 2, 56),
    (512, 128, 1, 1, 28), (128, 128, 3, 1, 28), (512, 256, 1, 1, 28), (256, 256, 3, 2, 28),
    (256, 1024, 1, 1, 14), (512, 1024, 1, 2, 28), (1024, 256, 1, 1, 14), (256, 256, 3, 1, 14),
    (512, 512, 3, 2, 14), (512, 2048, 1, 1, 7), (2048, 512, 1, 1, 7), (512, 512, 3, 1, 7),
)  # fmt: skip
# Convolutions of few channels over large images, as in U-Net.
NARROW: tuple[tuple[int, int, int, int, int], ...] = (
    (3, 16, 3, 1, 256), (16, 16, 3, 1, 256), (16, 32, 3, 1, 128), (32, 32, 3, 1, 128),
    (48, 16, 3, 1, 256),
)  # fmt: skip
# Windows that kernels read in other ways than by taps and blocks: of few channels by taps as K, of
# 3 x 3 taps from one patch of pixels, as in ESPCN, U-Net, ResNet-50 and YOLO.
WINDOWS: tuple[tuple[int, int, int, int, int], ...] = (
    (1, 64, 5, 1, 256), (64, 32, 3, 1, 256), (32, 9, 3, 1, 256), (3, 64, 7, 2, 224),
    (32, 32, 3, 1, 256), (64, 64, 3, 1, 128), (256, 256, 3, 1, 32), (128, 128, 3, 1, 28),
)  # fmt: skip
# Products for tiles that are in shared memory a step ahead.
LARGE = ((4096, 4096, 4096), (2048, 2048, 2048))
# Products of transformers whose weights come from memory: rows, columns, K.
WEIGHTS: tuple[tuple[int, int, int], ...] = (
    *((197, columns, 768) for columns in (768, 2304, 3072)), (197, 768, 3072),
    (128, 2304, 768), (128, 3072, 768), (128, 768, 3072), (64, 3072, 768),
)  # fmt: skip
REHEARSED_WEIGHTS = ((40, 36, 72),)
REHEARSED_WINDOWS = ((1, 8, 5, 1, 12), (12, 8, 3, 1, 12))
REHEARSED_LARGE = ((144, 136, 72),)
# Heads, queries, keys, elements of a key.
ATTENTION: tuple[tuple[int, int, int, int], ...] = (
    (12, 64, 64, 64), (12, 128, 128, 64), (12, 197, 197, 64), (12, 512, 512, 64),
    (12, 1024, 1024, 64), (12, 1, 1024, 64), (12, 4, 1024, 64),
)  # fmt: skip
# Rows, outputs, K.
VECTORS: tuple[tuple[int, int, int], ...] = (
    *((rows, 4096, 4096) for rows in (1, 2, 4, 8)),
    *((1, 50257, 768), (1, 1000, 2048), (8, 768, 768)),
)
# Columns, K: products of a model with 1.1 billion parameters, and the largest of one with 8.
CODES: tuple[tuple[int, int], ...] = (
    (2560, 2048), (2048, 2048), (2048, 5632), (11264, 2048), (28672, 4096),
)  # fmt: skip
CODE_ROWS = (1, 128, 8, 512, 32)
"""Of a token, of prompts, of eight and more texts."""
CODE_BITS = 4 + 16 / 32
"""Of a weight, with its share of a scale."""
# Texts, rows, capacity, rows in the cache: heads and depth as in both models.
CACHES: tuple[tuple[int, int, int, int], ...] = (
    (1, 1, 2048, 1024), (1, 1, 256, 128), (8, 1, 2048, 1024), (1, 128, 2048, 1024),
)  # fmt: skip
REHEARSED_CODES = ((96, 64),)
REHEARSED_CACHES = ((1, 1, 32, 16), (1, 4, 32, 16))


@dataclass(frozen=True, slots=True)
class Problem:
    """A case, how it is called, and the choice that its kernels are candidates of."""

    what: str
    kind: str
    case: Case

    def stored(self, fp16: bool) -> Problem:
        """Return it with floats stored in 16 bits or in 32."""
        return replace(self, case=replace(self.case, floats="f16" if fp16 else "f32"))


def _random(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return (values * np.float32(scale)).astype(np.float32)


def _problem(
    what: str,
    kind: str,
    op: str,
    attrs: OpAttrs,
    inputs: Sequence[Array | None],
    constant: Sequence[int] = (),
) -> Problem:
    return Problem(what, kind, op_case(op, attrs, inputs, constant=constant))


def product(m: int, n: int, k: int) -> Problem:
    """Return a product of M×K by a constant K×N."""
    inputs = [_random(m, k), _random(k, n, seed=1, scale=k**-0.5)]
    return _problem(f"product {m}×{n}×{k}", "matmul", "MatMul", MatMulAttrs(), inputs, (1,))


def convolution(inputs: int, outputs: int, size: int, stride: int, side: int) -> Problem:
    """Return a convolution of a square image, padded as usual."""
    attrs = ConvolutionAttrs((size, size), (stride, stride), (1, 1), (size // 2,) * 4, 1)
    scale = (inputs * size * size) ** -0.5
    arrays = [
        _random(1, inputs, side, side),
        _random(outputs, inputs, size, size, seed=1, scale=scale),
        _random(outputs, seed=2),
    ]
    what = f"conv {inputs}→{outputs} {size}×{size}/{stride} on {side}×{side}"
    return _problem(what, "convolution", "Convolution", attrs, arrays, (1, 2))


def as_product(inputs: int, outputs: int, size: int, stride: int, side: int) -> Problem:
    """Return the product that has as much arithmetic as a convolution."""
    return product((side // stride) ** 2, outputs, inputs * size * size)


def depthwise(channels: int, stride: int, side: int) -> Problem:
    """Return a depthwise convolution by 3×3."""
    attrs = ConvolutionAttrs((3, 3), (stride, stride), (1, 1), (1, 1, 1, 1), channels)
    arrays = [_random(1, channels, side, side), _random(channels, 1, 3, 3, seed=1)]
    what = f"depthwise {channels} 3×3/{stride} on {side}×{side}"
    return _problem(what, "convolution", "Convolution", attrs, arrays, (1,))


def attention(heads: int, queries: int, keys: int, depth: int) -> Problem:
    """Return attention without a mask."""
    arrays = [_random(1, heads, n, depth, seed=n + i) for i, n in enumerate((queries, keys, keys))]
    what = f"attention {heads} heads, {queries} × {keys}"
    return _problem(what, "attention", "Attention", AttentionAttrs(depth**-0.5), arrays)


def codes(rows: int, columns: int, depth: int, kind: str = "codes") -> Problem:
    """Return a product by weights in 4 bits, in blocks of 32 with float16 scales.

    Args:
        rows: rows of x.
        columns: columns of the result.
        depth: columns of x.
        kind: "codes" for all kernels, "unpacked" for the ways to unpack weights before a product.
    """
    blocks = depth // 32
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 256, (columns, blocks, 16), dtype=np.uint8)
    scales = np.full((columns, blocks), 0.2 * depth**-0.5, np.float16)
    op = Op(
        "MatMulNBits", "op", ["x", "q", "", "", "s"], ["y"],
        MatMulNBitsAttrs(4, 32, depth, columns),
    )  # fmt: skip
    feeds = {"x": _random(rows, depth)}
    # Not by `op_case`, which computes the result: this one takes seconds.
    outputs = [TensorInfo("y", DType.FLOAT32, (rows, columns))]
    inputs = [tensor_info(name, array) for name, array in feeds.items()]
    graph = Graph("codes", inputs, outputs, [op], {"q": weights, "s": scales})
    what = f"codes {rows}×{columns}×{depth}"
    if kind == "codes":
        return Problem(what, kind, Case(graph, feeds))
    return Problem(f"{what}, {kind}", kind, Case(graph, feeds, takes={"codes": Unpacked()}))


def cached(texts: int, rows: int, capacity: int, held: int, depth: int = 64) -> Problem:
    """Return attention of new rows on caches that hold some, 32 heads in 4 groups."""
    heads, groups = 32, 4
    sizes = ((heads, rows), (groups, rows), (groups, rows))
    new = [_random(texts, count, size, depth, seed=i) for i, (count, size) in enumerate(sizes)]
    caches = [_random(texts, groups, capacity, depth, seed=seed) for seed in (4, 5)]
    length = np.full(texts, held, np.int64)
    attrs = CachedAttentionAttrs(depth**-0.5)
    what = f"{rows} new rows of {texts} texts on caches of {held} of {capacity}"
    inputs = [*new, None, None, *caches, length]
    case = op_case("CachedAttention", attrs, inputs, outputs=3)
    return Problem(what, "cached_attention", case)


def passes() -> list[Problem]:
    """Return the ops that networks run between products."""
    mean = PoolingAttrs("AVERAGE", is_global=True)
    norm = [_random(128, 768), _random(768, seed=1), _random(768, seed=2)]
    return [
        _problem("global pool 2048×7×7", "", "Pooling", mean, [_random(1, 2048, 7, 7)]),
        _problem("global pool 1000×13×13", "", "Pooling", mean, [_random(1, 1000, 13, 13)]),
        depthwise(384, 1, 14),
        depthwise(96, 2, 112),
        _problem(
            "layer norm 128×768", "row norm", "LayerNorm", LayerNormAttrs(-1, 1e-5), norm, (1, 2)
        ),
    ]
