"""Cases of the attention kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np

from vkmnn.base.packed_rows import Packing, pack_rows
from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Op
from vkmnn.ir.ops import (
    AttentionAttrs,
    CachedAttentionAttrs,
    CodeAttention,
    LinearAttentionAttrs,
    RotaryAttrs,
    UnpackRowsAttrs,
)
from vkmnn.shaders import kernels
from vkmnn.testing.case import Case, Variant, op_case, shader_cases, tensor_info
from vkmnn.testing.shapes import floats, whole
from vkmnn.vulkan.attention.kernels import ROTATE_CODES, AttentionRotate

# Batch, heads, queries, keys, elements of a key, columns; by what rows are whole multiples of. More
# than a tile of queries, rounds of keys, pieces of their elements, more than 64 columns.
_SIZES: dict[int, tuple[tuple[int, int, int, int, int, int], ...]] = {
    8: ((2, 3, 5, 7, 8, 16), (1, 2, 37, 139, 72, 88), (1, 1, 1, 33, 8, 8), (2, 1, 48, 64, 64, 64)),
    4: ((2, 3, 5, 7, 8, 4), (1, 2, 37, 139, 68, 72), (1, 1, 1, 33, 4, 4), (2, 1, 48, 32, 12, 64)),
    1: ((2, 3, 5, 7, 7, 3), (1, 2, 37, 139, 67, 71), (1, 1, 1, 33, 1, 1), (2, 1, 48, 32, 5, 64)),
}


def _cases(variant: Variant) -> Iterator[Case]:
    """Yield one size after the other, with masks of all kinds in turn.

    Mask, triangle and zeros are specializations, which are slow to build: few combinations.
    """
    sizes = _SIZES[int(variant.axes["aligned"])]
    for number, (batch, heads, queries, keys, depth, width) in enumerate(sizes):
        operands: list[AnyArray | None] = [
            floats(batch, heads, queries, depth),
            floats(batch, heads, keys, depth, seed=1),
            floats(batch, heads, keys, width, seed=2),
        ]
        masks = (
            None,
            floats(batch, heads, queries, keys, seed=3),
            floats(batch, 1, 1, keys, seed=3),
            floats(queries, keys, seed=3),
        )
        mask = masks[number % len(masks)]
        inputs = operands if mask is None else [*operands, mask]
        yield op_case("Attention", AttentionAttrs(0.5, zero_fully_masked=False), inputs)
        if number == 1:
            yield op_case("Attention", AttentionAttrs(0.5, True, False), operands)
            hidden = np.where(floats(queries, keys, seed=4) > 1, np.float32(0), np.float32(-np.inf))
            hidden[3] = -np.inf
            yield op_case("Attention", AttentionAttrs(0.5), [*operands, hidden])
            # One key far above the others, at every position in a vec4: the others' differences
            # from the highest score exceed what an exponential can handle.
            spikes = np.zeros((queries, keys), np.float32)
            numbers = np.arange(queries)
            spikes[numbers, (5 * numbers + numbers // 8) % keys] = 200
            yield op_case("Attention", AttentionAttrs(0.5), [*operands, spikes])
            yield from _scored(operands, heads)
        if number < 3:
            yield _counted(operands, (mask, None, None)[number], keys)
    same = floats(3, sizes[0][4], seed=5)
    yield op_case("Attention", AttentionAttrs(0.5, zero_fully_masked=False), [same, same, same])


def _scored(operands: list[AnyArray | None], heads: int) -> Iterator[Case]:
    """Yield soft caps, sinks, and windows of one key, at all positions, and of all keys."""
    sink, (q, k, *_) = floats(heads, 1, 1, seed=7), operands
    assert q is not None
    assert k is not None
    capped = AttentionAttrs(8.0, zero_fully_masked=False, softcap=2.0)
    # Scores on both sides of the point where the formula of the hyperbolic tangent changes.
    yield op_case("Attention", capped, operands, rtol=1e-4, atol=1e-5)
    for window in (1, 20):
        attrs = AttentionAttrs(0.5, window=window)
        yield op_case("Attention", attrs, [*operands, None, None, sink + 2])
    hidden = np.full((q.shape[-2], k.shape[-2]), -np.inf, np.float32)
    hidden[1:, 2:9] = 0
    for seen in (sink, np.full_like(sink, -np.inf)):
        yield op_case("Attention", AttentionAttrs(0.5), [*operands, hidden, None, seen])
    band = np.full_like(hidden, -np.inf)
    band[np.tri(*band.shape, 33) > np.tri(*band.shape, 20)] = 0
    yield op_case("Attention", AttentionAttrs(0.5), [*operands, band])
    keys = np.array([50], np.int64)
    yield op_case("Attention", AttentionAttrs(0.5, window=33), [*operands, None, keys, sink])


def _counted(operands: list[AnyArray | None], mask: AnyArray | None, keys: int) -> Case:
    """Return a case with fewer keys than the cache can hold; the rest of the cache is NaN."""
    there = max(1, keys - 3) if keys < 50 else 33
    poisoned = [np.array(operand) for operand in operands]
    for operand in poisoned[1:]:
        operand[..., there:, :] = np.nan
    length = np.array([there], np.int64)
    return op_case("Attention", AttentionAttrs(0.5), [*poisoned, mask, length])


def _of_codes(variant: Variant) -> Iterator[Case]:
    """Yield attention of quantised values: probabilities of 1, 1/2 or 0 reveal every rounding."""
    for batch, heads, queries, keys, depth, width in _SIZES[int(variant.axes["aligned"])]:
        operands: list[AnyArray | None] = [
            whole(batch, heads, queries, depth),
            whole(batch, heads, keys, depth, seed=1),
            whole(batch, heads, keys, width, seed=2),
        ]
        # Far from one another but for two that are the same.
        table = tuple(float(300 * (code // 2)) for code in range(81))
        # Keys after the query count as much as all others, or are in an order of their own.
        other = tuple(float(300 * (40 - code // 2)) for code in range(81))
        for made, decoded, later in ((0.375, 1.0, ()), (0.03125, 0.5, ()), (0.375, 1.0, other)):
            codes = CodeAttention(
                -40.0, table, 2.0**-7, (-3.0, 97.0), made, (-90.0, 100.0), decoded, later
            )
            attrs = AttentionAttrs(0.25, zero_fully_masked=False, codes=codes)
            yield op_case("Attention", attrs, operands, rtol=0, atol=0)
            if keys <= 64:
                continue
            # The key after those of the first round, and the one before, are all that counts.
            k = np.zeros((batch * heads, keys, depth), np.float32)
            k[[0, 1], [64, 63]] = 3
            q = np.ones((batch, heads, queries, depth), np.float32)
            chosen = [q, k.reshape(batch, heads, keys, depth), operands[2]]
            yield op_case("Attention", attrs, chosen, rtol=0, atol=0)


@shader_cases("attention_rotate")
def attention_rotate(variant: Variant) -> Iterator[Case]:
    """Broken tiles, masks per key and per query, triangles, queries that see nothing."""
    if variant.element != "c8":
        yield from _cases(variant)
        return
    rows = cast(kernels.AttentionRotateRows, variant.axes["rows"])
    for keeps in (True, False):
        kernel = AttentionRotate(rows, ROTATE_CODES, codes=True, keeps=keeps)
        for case in _of_codes(variant):
            yield replace(case, takes={"attention": kernel})


@shader_cases("attention_codes")
def attention_codes(variant: Variant) -> Iterator[Case]:
    """Broken vec4s, more keys and columns than invocations."""
    return _of_codes(variant)


@shader_cases("attention_tile")
def attention_tile(variant: Variant) -> Iterator[Case]:
    """Broken tiles, masks per key and per query, triangles, queries that see nothing."""
    return _cases(variant)


@shader_cases("attention_coop")
def attention_coop(variant: Variant) -> Iterator[Case]:
    """The same; rounded probabilities may be off by 2^-12 of values that cancel one another."""
    return (replace(case, atol=max(case.atol, 2**-12)) for case in _cases(variant))


@shader_cases("linear_attention")
def linear_attention(variant: Variant) -> Iterator[Case]:
    """With and without each input, shared heads; more steps than a loop counts."""
    uses = ((1, 1, 1, 1, 1, 1), (2, 5, 3, 1, 7, 3), (1, 4, 2, 3, 4, 8), (3, 0, 2, 2, 3, 5),
            (1, 67, 1, 2, 33, 65), (0, 3, 2, 1, 3, 5))  # fmt: skip
    for number, (images, times, heads, shared, depth, width) in enumerate(uses):
        for past, decay, rate in ((0, 0, 0), (1, heads, 0), (0, heads * depth, 1), (1, 0, heads)):
            inputs: list[AnyArray | None] = [
                floats(images, times, heads * shared * depth),
                floats(images, times, heads * depth, seed=1, scale=depth**-0.5),
                floats(images, times, heads * width, seed=2),
                floats(images, heads, depth, width, seed=3) if past else None,
                -np.abs(floats(images, times, decay, seed=4)) if decay else None,
                np.abs(floats(images, times, rate, seed=5, scale=0.3)) if rate else None,
            ]
            attrs = LinearAttentionAttrs(heads * shared, heads, 0.5 * (number % 2))
            yield op_case("LinearAttention", attrs, inputs, outputs=2, rtol=1e-4, atol=1e-4)
    attrs = LinearAttentionAttrs(1, 1)
    inputs = [whole(1, 23_001, 1, seed=n, low=-1, high=1) for n in range(3)]
    yield op_case("LinearAttention", attrs, inputs, outputs=2, rtol=0, atol=0)


@shader_cases("rotary")
def rotary(variant: Variant) -> Iterator[Case]:
    """Both ways to pair, tables per pair and per column, columns that stay, one position, none."""
    aligned = int(variant.axes["aligned"]) == 4
    sizes = (
        (((1, 4, 1, 64), 64), ((2, 3, 5, 24), 16), ((3, 1, 7, 8), 8), ((2, 5, 0, 8), 8))
        if aligned
        else (((1, 3, 1, 6), 6), ((2, 3, 5, 7), 2), ((1, 1, 1, 2), 2), ((3, 2, 11, 13), 10))
    )
    for number, (shape, width) in enumerate(sizes):
        for interleaved in (False, True):
            columns = width if (number + interleaved) % 2 else width // 2
            images = shape[0] if number % 2 else 1
            tables = (floats(images, 1, shape[2], columns, seed=seed) for seed in (1, 2))
            attrs = RotaryAttrs(width, interleaved)
            yield op_case("Rotary", attrs, [floats(*shape), *tables])


# Images, heads, heads of keys, capacity, cached rows, new rows, elements, columns, rotated columns,
# and the layout. Cached rows are given per image: a negative number leaves one out.
_CACHED = (
    (1, 4, 2, 7, 3, 1, 8, 8, 8, ""),
    (2, 3, 1, 130, 129, 1, 20, 12, 16, ""),
    (1, 2, 2, 66, 65, 1, 64, 64, 64, ""),
    (2, 2, 1, 5, 0, 1, 4, 4, 0, ""),
    (1, 1, 1, 200, 128, 1, 256, 256, 130, ""),
    (3, 6, 2, 70, 64, 1, 12, 4, 6, ""),
    (2, 4, 2, 80, 70, 5, 12, 8, 6, "packed"),
    (2, 3, 1, 70, 64, 3, 16, 20, 16, "rows"),
    (2, 2, 1, 9, 1, 8, 4, 8, 4, ""),
    (1, 2, 2, 4, 0, 2, 72, 68, 0, "packed"),
    (4, 4, 2, 140, (3, -1, 138, 64), 1, 12, 8, 6, "packed"),
    (3, 2, 1, 9, (0, 8, -1), 1, 8, 4, 4, "rows"),
    (2, 2, 2, 70, (65, 1), 3, 4, 8, 0, ""),
    # One vec4 more than the lanes hold together, for every number of them.
    (1, 2, 1, 19, 17, 2, 36, 228, 36, ""),
    (1, 2, 1, 19, 17, 2, 68, 196, 36, "packed"),
    (2, 2, 2, 19, (17, 1), 2, 100, 164, 100, "rows"),
    (1, 2, 1, 19, 17, 2, 132, 132, 132, ""),
    (1, 2, 1, 19, 17, 2, 164, 100, 164, "packed"),
    (2, 2, 2, 19, (17, 1), 2, 196, 68, 196, "rows"),
    (1, 2, 1, 19, 17, 2, 228, 36, 228, ""),
)


# Soft cap, window, and whether there are sinks, of some of them.
_SCORED = {
    1: (2.0, 50, True),
    2: (0.5, 0, False),
    3: (0.0, 1, True),
    4: (0.0, 70, False),
    7: (0.0, 2, True),
    8: (1.5, 3, False),
    10: (0.0, 65, True),
    11: (0.0, 1, False),
    12: (0.0, 66, False),
}


@shader_cases("cached_attention")
@shader_cases("cached_attention_subgroup")
@shader_cases("cached_attention_wide")
def cached_attention(variant: Variant) -> Iterator[Case]:
    """Empty, broken and full blocks of rows, tables and masks of all kinds; the rest is poison."""
    packing = variant.axes["packing"]
    for case in _cached_cases():
        yield case if packing == "none" else _packed(case, cast(Packing, packing))


def _packed(case: Case, packing: Packing) -> Case:
    """Return a case with packed caches, which are unpacked in the end: they may round otherwise."""
    graph, feeds = case.graph, dict(case.feeds)
    (op,) = graph.ops
    assert isinstance(op.attrs, CachedAttentionAttrs)
    caches, inputs = op.inputs[5:7], {info.name: info for info in graph.inputs}
    ops, infos = [replace(op, attrs=replace(op.attrs, packing=packing))], {}
    for cache, output in zip(caches, op.outputs[1:], strict=True):
        rows = feeds[cache]
        poison, depth = np.isnan(rows).any(-1), rows.shape[-1]
        words = pack_rows(np.nan_to_num(rows), packing)
        words[poison, -1] = 0x7E007E00 if packing == "f16" else 0x7FC00000
        feeds[cache] = words
        inputs[cache] = tensor_info(cache, words)
        infos[output] = tensor_info(output, words)
        attrs = UnpackRowsAttrs(2, packing, depth)
        ops.append(Op("UnpackRows", output, [output, "rows"], [f"{output}:floats"], attrs))
    feeds["rows"] = np.array([rows.shape[2]], np.int64)
    inputs["rows"] = tensor_info("rows", feeds["rows"])
    outputs = [
        replace(info, name=f"{info.name}:floats") if info.name in infos else info
        for info in graph.outputs
    ]
    graph = replace(graph, inputs=[*inputs.values()], outputs=outputs, ops=ops, infos=infos)
    return replace(case, graph=graph, feeds=feeds, rtol=1e-3, atol=1e-3)


def _cached_cases() -> Iterator[Case]:
    """Yield one size after the other."""
    for number, (
        images, heads, shared, capacity, lengths, rows, depth, columns, width, layout
    ) in enumerate(_CACHED):  # fmt: skip
        each = np.array(lengths, np.int64).reshape(-1)
        held = int(each.max())
        own = images if number % 2 else 1
        pairs = width // 2 if number % 3 else width
        tables = [floats(own, 1, rows, pairs, seed=seed) if width else None for seed in (3, 4)]
        caches = [floats(images, shared, capacity, size, seed=size) for size in (depth, columns)]
        for cache in caches:
            for image in range(images):
                cache[image, :, max(each[image % each.size], 0) :] = np.nan
        masks = (None, (images, heads, rows, capacity), (capacity,), (images, 1, rows, capacity))
        shape = masks[number % 4]
        mask = None if shape is None else floats(*shape, seed=6)
        if mask is not None:
            mask[..., held + rows :] = np.nan
            mask[..., : held // 2] = -np.inf
        new = [
            floats(images, count, rows, size, seed=seed)
            for seed, (count, size) in enumerate(
                ((heads, depth), (shared, depth), (shared, columns))
            )
        ]
        # Where scores are large, their maximum matters.
        scale = 16.0 if number == 2 else 0.5
        attrs = CachedAttentionAttrs(scale, width, number % 2 == 1, number % 2 == 0, layout)
        inputs = [*_laid_out(new, layout), *tables, *caches, each, mask]
        yield op_case("CachedAttention", attrs, inputs, outputs=3, rtol=1e-4, atol=1e-4)
        if number % 2:  # queries and keys of normalised rows
            gains = [floats(depth, seed=seed) for seed in (9, 10)]
            more = [*inputs, *[None] * (10 - len(inputs)), *gains]
            normed = replace(attrs, epsilon=0.01, scale=0.5)
            yield op_case("CachedAttention", normed, more, outputs=3, rtol=1e-4, atol=1e-4)
        if (width and each.size == 1) or number in (10, 11):
            wide = [floats(1, 1, capacity, pairs, seed=seed) for seed in (11, 12)]
            placed = [*inputs[:3], *wide, *inputs[5:]]
            by_place = replace(attrs, positions=True)
            yield op_case("CachedAttention", by_place, placed, outputs=3, rtol=1e-4, atol=1e-4)
        if number not in _SCORED:
            continue
        cap, window, sinks = _SCORED[number]
        for cache in caches if window else []:  # before the window, nothing is read
            for image in range(images):
                cache[image, :, : max(each[image % each.size] + 1 - window, 0)] = np.nan
        if mask is not None and window:
            mask = mask.copy()
            mask[..., : held // 2] = 0
        attrs = replace(attrs, softcap=cap, window=window)
        inputs = [*inputs[:-1], mask, floats(heads, 1, 1, seed=8) if sinks else None]
        yield op_case("CachedAttention", attrs, inputs, outputs=3, rtol=1e-4, atol=1e-4)


def _laid_out(new: list[AnyArray], layout: str) -> list[AnyArray | None]:
    """Return queries, keys and values as a layout has them."""
    if not layout:
        return list(new)
    rows = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in new]
    if layout == "rows":
        return list(rows)
    flat = [x.reshape(*x.shape[:2], -1) for x in rows]
    return [np.concatenate(flat, axis=2), None, None]
