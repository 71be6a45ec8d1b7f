"""Cases of `norm_rows`, `norm_apply` and `group_norm`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation
from vkmnn.ir.ops import ACTIVATION_KINDS, CodeMean, GroupNormAttrs, LayerNormAttrs
from vkmnn.testing.case import Case, Variant, blocked_case, op_case, op_cases, shader_cases
from vkmnn.testing.shapes import floats, whole
from vkmnn_suite.cases.coded_rows import normed_rows
from vkmnn_suite.cases.rows import in_groups, in_row_groups, taking

_EPSILON = 0.125
# Row sizes: as many as invocations hold in registers, up to the maximum, and larger ones.
_SIZES = {"aligned": (4, 36, 404, 20, 1024, 1100), "rows": (1, 5, 403, 19, 1021, 1101)}
# Shapes and groups of plain and channel-blocked images.
_IMAGES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((2, 7, 5, 3), 0),
    ((3, 4, 1), 0),
    ((1, 1, 1, 1), 0),
    ((2, 7, 5, 3), 1),
    ((2, 6, 5, 3), 3),
    ((1, 8, 401), 2),
    ((3, 12, 4), 3),
    ((0, 6, 3), 2),
)
_OWN: tuple[tuple[int, ...], ...] = ((2, 7, 5, 3), (3, 4, 1), (1, 8, 131), (2, 1, 1, 1), (1, 5, 0))
_JOINT: tuple[tuple[tuple[int, ...], int], ...] = (
    ((2, 8, 5, 3), 2),
    ((3, 12, 4), 1),
    ((1, 16, 131), 2),
    ((2, 4, 1, 1), 1),
    ((2, 24, 7), 3),
)


def _activations() -> Iterator[Activation]:
    for kind in ACTIVATION_KINDS:
        yield Activation(kind, -0.5, 0.75) if kind == "CLIP" else Activation(kind, 0.25, 0.625)


def _layer(
    *shape: int,
    axis: int = -1,
    rms: bool = False,
    scale: AnyArray | None = None,
    bias: AnyArray | None = None,
    constant: tuple[int, ...] = (),
    outputs: int = 1,
    dtype: type = np.float32,
) -> Case:
    inputs: list[AnyArray | None] = [
        None if array is None else array.astype(dtype)
        for array in (floats(*shape) + np.float32(0.5), scale, bias)
    ]
    while inputs[-1] is None:
        inputs.pop()
    tolerance = 2e-3 if dtype is np.float16 else 3e-6
    return op_case(
        "LayerNorm",
        LayerNormAttrs(axis, _EPSILON, rms),
        inputs,
        constant=set(constant) & set(range(len(inputs))),
        outputs=outputs,
        rtol=tolerance,
        atol=tolerance,
    )


def _layers(sizes: Sequence[int]) -> Iterator[Case]:
    """Yield normalisations of rows, alternately in small and in large workgroups.

    Each combination of optional inputs is a pipeline of its own, slow to build: few of them.
    """
    *_, held, over = sizes
    for size, rms in (
        *((size, size % 8 > 4) for size in sizes[:-2]),
        (held, False), (held, True), (over, True), (over, False),
    ):  # fmt: skip
        scale, bias = floats(size, seed=1), floats(size, seed=2)
        yield _layer(5, size, rms=rms, scale=scale, bias=bias, outputs=3)
    size = sizes[1]
    scale, bias = floats(size, seed=1), floats(size, seed=2)
    yield _layer(3, size)
    yield _layer(3, size, scale=scale, outputs=2)
    yield _layer(3, size, bias=bias, rms=True)
    yield _layer(0, size, scale=scale)
    yield _layer(2, 3, size, axis=1, scale=floats(3, size, seed=1), bias=floats(3, size, seed=2))
    # Factors of one word, or with one word for each element of x.
    yield _layer(3, size, scale=floats(3, size, seed=1), bias=bias)
    yield _layer(3, size, scale=scale, bias=floats(3, size, seed=2))
    yield _layer(3, size, scale=floats(1, seed=1), bias=bias)
    yield _layer(3, size, scale=scale, bias=floats(1, seed=2))
    yield _layer(2, 3, size, axis=2, scale=floats(3, 1), bias=floats(2, 1, 1), constant=(1, 2))
    yield _layer(5, size, scale=scale, bias=bias, outputs=3, dtype=np.float16)


def _factors(*shape: int, dtype: type = np.float32) -> list[AnyArray | None]:
    x = (floats(*shape) + np.float32(0.5)).astype(dtype)
    return [x, floats(shape[1], seed=1).astype(dtype), floats(shape[1], seed=2).astype(dtype)]


def _images() -> Iterator[Case]:
    """Yield normalisations of plain images, with factors per channel."""
    for shape, groups in _IMAGES:
        x, scale, bias = _factors(*shape)
        attrs = GroupNormAttrs(groups, _EPSILON)
        for inputs in ([x, scale, bias], [x, scale, bias], [x], [x, scale], [x, None, bias]):
            yield op_case("GroupNorm", attrs, inputs, rtol=4e-6, atol=4e-6)
            if shape != _IMAGES[0][0]:
                break
    for activation in _activations():
        attrs = GroupNormAttrs(2, _EPSILON, activation)
        yield op_case("GroupNorm", attrs, _factors(2, 6, 5), rtol=4e-6, atol=4e-6)
    fp16 = _factors(2, 6, 5, dtype=np.float16)
    yield op_case("GroupNorm", GroupNormAttrs(2), fp16, rtol=2e-3, atol=2e-3)


_LAYERS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1,), 0), ((7,), 0), ((5, 1), -1), ((3, 2), 1), ((37, 768), -1), ((2, 13, 197), -1),
    ((2, 3, 5, 7), 2), ((2, 3, 5, 8), 1), ((4, 1031), 1), ((3, 2048), 1), ((2, 5003), -1),
    ((1, 2, 1, 3, 1, 2, 1, 18), 5),
)  # fmt: skip
_GROUPED: tuple[tuple[tuple[int, ...], int], ...] = (
    ((2, 7, 5, 3), 0), ((1, 8, 9), 0), ((3, 4, 1), 0), ((1, 1, 1, 1), 0), ((2, 5, 33, 31), 0),
    ((2, 7, 5, 3), 1), ((2, 8, 5, 3), 2), ((3, 12, 4), 3), ((2, 32, 7, 5), 4), ((2, 6, 5, 3), 3),
    ((1, 10, 2, 2), 2), ((2, 6, 3), 6), ((1, 8, 2, 3, 5), 2),
)  # fmt: skip


def _layer_norm(
    attrs: LayerNormAttrs,
    inputs: Sequence[AnyArray | None],
    *,
    constant: Sequence[int] = (),
    outputs: int = 1,
    rtol: float = 2e-5,
    atol: float = 2e-6,
) -> Case:
    return op_case(
        "LayerNorm", attrs, inputs, constant=constant, outputs=outputs, rtol=rtol, atol=atol
    )


def _around(offset: float, *shape: int, seed: int = 0) -> AnyArray:
    return np.asarray(floats(*shape, seed=seed) + np.float32(offset))


@op_cases
def layer_norm_shapes() -> Iterator[Case]:
    """Normalised axes of all sorts, with and without the mean; all that is optional."""
    for (shape, axis), rms, constant in product(_LAYERS, (False, True), ((), (1, 2))):
        inner = shape[axis:]
        inputs = [_around(0.5, *shape), floats(*inner, seed=1), floats(*inner, seed=2)]
        attrs = LayerNormAttrs(axis, 1e-5, rms)
        yield _layer_norm(attrs, inputs, constant=constant, outputs=3)
    for size, outputs in product((768, 197), (1, 2, 3)):
        x, scale, bias = _around(0.5, 5, size), floats(size, seed=1), floats(size, seed=2)
        for given in ([x], [x, scale], [x, None, bias], [x, scale, bias]):
            yield _layer_norm(LayerNormAttrs(), given, outputs=outputs)
    for shape in ((0, 5), (2, 0, 3)):
        yield _layer_norm(LayerNormAttrs(-1), [floats(*shape), floats(shape[-1])])


@op_cases
def layer_norm_factors() -> Iterator[Case]:
    """Factors that broadcast, constant and computed."""
    x = _around(0.5, 2, 3, 4)
    for shape in ((1,), (1, 1), (4,), (3, 1), (2, 1, 1), (2, 3, 4), (3, 4)):
        for axis in (0, 1, 2):
            inputs = [x, floats(*shape), _around(2.0, *shape)]
            yield _layer_norm(LayerNormAttrs(axis), inputs, constant=(1, 2))
    for shape in ((1,), (4,), (2, 3, 4)):
        yield _layer_norm(LayerNormAttrs(2), [x, floats(*shape), floats(*shape, seed=1)])


@op_cases
def layer_norm_special() -> Iterator[Case]:
    """A mean that must not cancel; infinities and NaN; float16."""
    yield _layer_norm(LayerNormAttrs(), [_around(1000.0, 7, 512)], rtol=1e-4, atol=1e-4)
    x = floats(4, 33)
    x[0, 3], x[1, 32], x[2] = np.nan, np.inf, 4.0
    yield _layer_norm(LayerNormAttrs(), [x])
    halves = [floats(3, 40).astype(np.float16), floats(40).astype(np.float16)]
    yield _layer_norm(LayerNormAttrs(), halves, outputs=3, rtol=2e-3, atol=1e-3)


@op_cases
def layer_norm_of_codes() -> Iterator[Case]:
    """Quantised input and output, with statistics; rows that start anywhere in a vec4, and NaN."""
    for size, rms in product((5, 64, 197), (False, True)):
        x, scale, bias = whole(6, size), floats(size, seed=1), floats(size, seed=2)
        x[4, 2] = np.nan
        for ending in (None, CodeMean(1.0, 0.03125, -70.0, 50.0, 0.5)):
            attrs = LayerNormAttrs(-1, 1e-5, rms, 0.125, ending)
            atol = 0.5 if ending else 2e-6
            yield _layer_norm(attrs, [x, scale, bias], constant=(1, 2), atol=atol)
            yield _layer_norm(attrs, [x], outputs=3, atol=atol)


@op_cases
def layer_norm_in_workgroups() -> Iterator[Case]:
    """Rows below and above the capacity of workgroups."""
    yield from in_row_groups(
        _layer_norm(
            LayerNormAttrs(), [floats(3, n), floats(n, seed=1), floats(n, seed=2)], outputs=3
        )
        for n in (16, 197, 1100, 5003)
    )


def _everywhere(
    attrs: GroupNormAttrs, inputs: Sequence[AnyArray | None], atol: float = 4e-6
) -> Iterator[Case]:
    """Yield a normalisation of plain and of channel-blocked images."""
    yield op_case("GroupNorm", attrs, inputs, atol=atol)
    factors = range(1, len(inputs))
    yield blocked_case("GroupNorm", attrs, inputs, constant=factors, atol=atol)


@op_cases
def group_norm_shapes() -> Iterator[Case]:
    """Groups of all sorts, in both orders, with all that is optional; without pixels."""
    for (shape, groups), constant in product(_GROUPED, ((), (1, 2))):
        inputs = _factors(*shape)
        attrs = GroupNormAttrs(groups)
        yield op_case("GroupNorm", attrs, inputs, constant=constant, atol=4e-6)
        attrs = GroupNormAttrs(groups, 1e-3)
        yield blocked_case("GroupNorm", attrs, inputs, constant=constant, atol=4e-6)
    x, scale, bias = _factors(2, 8, 5)
    for given, groups in product(([x], [x, scale], [x, None, bias]), (0, 2)):
        yield from _everywhere(GroupNormAttrs(groups), given)
    for shape, groups in (((4, 6), 2), ((4, 6), 0), ((0, 6, 3), 2)):
        yield op_case("GroupNorm", GroupNormAttrs(groups), _factors(*shape), atol=4e-6)


@op_cases
def group_norm_more() -> Iterator[Case]:
    """Activations, groups of many pixels, float16, workgroups."""
    for kind, groups in product(ACTIVATION_KINDS, (0, 1)):
        attrs = GroupNormAttrs(groups, 1e-5, Activation(kind, 0.25, 0.75))
        yield from _everywhere(attrs, _factors(2, 7, 5))
    for shape, groups in (((1, 3, 513, 517), 0), ((1, 8, 401, 263), 1), ((1, 90_000, 1), 1)):
        yield from _everywhere(GroupNormAttrs(groups), _factors(*shape), 1e-5)
    fp16 = _factors(2, 8, 5, dtype=np.float16)
    yield op_case("GroupNorm", GroupNormAttrs(2), fp16, rtol=2e-3, atol=2e-3)
    for groups in (0, 2):
        yield from in_row_groups(_everywhere(GroupNormAttrs(groups), _factors(2, 8, 7, 23)))


@shader_cases("norm_rows")
def norm_rows(variant: Variant) -> Iterator[Case]:
    """Rows held in registers or not, that start anywhere in a vec4; images without a layout."""
    if variant.element == "c8":
        yield from in_groups(variant, normed_rows())
        return
    form = str(variant.axes["form"])
    cases = _images() if form == "channels" else _layers(_SIZES[form])
    for case in in_groups(variant, cases):
        yield taking(case, {"row norm": "rows"})


@shader_cases("norm_apply")
def norm_apply(variant: Variant) -> Iterator[Case]:
    """The last of the stages that long rows need."""
    channels = variant.axes["form"] == "channels"
    for case in _images() if channels else _layers((1, 5, 36, 131)):
        yield taking(case, {"row norm": "stages"})


@shader_cases("group_norm")
def group_norm(variant: Variant) -> Iterator[Case]:
    """Channel-blocked images whose channels have statistics alone or together."""
    yield from in_groups(variant, _blocked_cases(variant.axes["mode"] == "own"))


def _blocked_cases(own: bool) -> Iterator[Case]:
    images = [(shape, 0) for shape in _OWN] if own else list(_JOINT)
    for shape, groups in images:
        attrs = GroupNormAttrs(groups, _EPSILON)
        for constant in ((), (1, 2)):
            yield blocked_case(
                "GroupNorm", attrs, _factors(*shape), constant=constant, rtol=4e-6, atol=4e-6
            )
    shape, groups = images[0]
    x, scale, bias = _factors(*shape)
    for inputs in ([x], [x, scale], [x, None, bias]):
        attrs = GroupNormAttrs(groups, _EPSILON)
        yield blocked_case("GroupNorm", attrs, inputs, rtol=4e-6, atol=4e-6)
    for activation in _activations():
        attrs = GroupNormAttrs(groups, _EPSILON, activation)
        yield blocked_case("GroupNorm", attrs, _factors(*shape), rtol=4e-6, atol=4e-6)
