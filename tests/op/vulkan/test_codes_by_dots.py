"""A row of floats by quantised weights, through integer dot products of its two limbs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from tests.op.vulkan.harness import device, run_graph
from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir.ops import MatMulNBitsAttrs
from vkmnn.runtime.device import open_profile
from vkmnn.runtime.drivers.vulkan.features import fast_dots
from vkmnn.testing.case import op_case
from vkmnn.vulkan.cost.devices import cores_of
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.executions import packed
from vkmnn.vulkan.executions.packed import DotCodes, RowCodes, candidates_of
from vkmnn.vulkan.gemm.coded import CodesProblem
from vkmnn.vulkan.gemm.codes import CodeForm

Array = npt.NDArray[Any]
WIDTHS = pytest.mark.parametrize("columns", [32, 8])
BITS = pytest.mark.parametrize("bits", [4, 8])


def weights(depth: int, columns: int, bits: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(depth)
    codes = rng.integers(0, 256, (columns, -(-depth // 32), 4 * bits), dtype=np.uint8)
    scales = rng.uniform(0.01, 0.05, codes.shape[:2]).astype(np.float32)
    return codes, scales


def product(x: Array, columns: int, bits: int, way: DotCodes) -> Array:
    """Return x by random weights, computed with this kernel alone."""
    if "integer_dot" not in device().info.features:
        pytest.skip("no integer dot products")
    depth = x.shape[-1]
    codes, scales = weights(depth, columns, bits)
    attrs = MatMulNBitsAttrs(bits, 32, depth, columns)
    inputs: list[AnyArray | None] = [x, codes, None, None, scales]
    case = op_case("MatMulNBits", attrs, inputs, constant=(1, 4), rtol=0, atol=1e30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "candidates_of", lambda *_: [way])
        (made,) = run_graph(case.graph, dict(case.feeds))
    return made


def exact(x: Array, columns: int, bits: int) -> Array:
    codes, scales = weights(x.shape[-1], columns, bits)
    if bits == 4:
        codes = np.stack((codes & 15, codes >> 4), -1)
    steps = codes.reshape(*scales.shape, 32).astype(np.float64) - 2 ** (bits - 1)
    matrix = (steps * scales[..., None]).reshape(columns, -1)[:, : x.shape[-1]]
    result: Array = x.astype(np.float64) @ matrix.T
    return result


@BITS
@WIDTHS
@pytest.mark.parametrize(("workgroups", "mixed"), [(1, False), (2, True), (5, False)])
def test_as_exact_as_sixteen_bits_allow(
    columns: int, bits: int, workgroups: int, mixed: bool
) -> None:
    """A row longer than what is staged at once, with outliers; fewer workgroups than columns."""
    rng = np.random.default_rng(bits)
    x = rng.standard_normal((2, 5664)).astype(np.float32)
    x[:, ::97] *= 50
    made = product(x, 70, bits, DotCodes(cast(Any, columns), workgroups, mixed))
    want = exact(x, 70, bits)
    assert np.abs(made - want).max() < 1e-4 * np.abs(want).max()


@BITS
@WIDTHS
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_has_no_limbs_is_not_lost(columns: int, bits: int, odd: float) -> None:
    x = np.ones((2, 100), np.float32)
    x[0, 77] = odd
    made = product(x, 33, bits, DotCodes(cast(Any, columns), 3))
    assert not np.isfinite(made[0]).any()
    assert np.isfinite(made[1]).all()


@pytest.mark.parametrize("size", [1e-30, 1e-44, 1e30, 65504.0])
def test_sizes_of_rows(size: float) -> None:
    x = np.full((1, 64), size, np.float32)
    x[:, ::3] *= -0.5
    made = product(x, 33, 4, DotCodes(32, 2))
    want = exact(x, 33, 4)
    assert np.abs(made - want).max() <= 6e-5 * np.abs(want).max() + 1e-29


def test_dot_products_of_signed_and_of_mixed_bytes_are_told_apart() -> None:
    """Mesa's driver for Adreno has instructions for signed with unsigned bytes only."""
    signed = "integerDotProduct4x8BitPackedSignedAccelerated"
    mixed = "integerDotProduct4x8BitPackedMixedSignednessAccelerated"
    for signs in ({signed: 0, mixed: 1}, {signed: 1, mixed: 0}):
        (name,) = fast_dots(SimpleNamespace(**signs))
        assert ("mixed" in name) == signs[mixed]


@pytest.mark.parametrize(
    ("profile", "panels", "rows", "first"),
    [
        ("nvidia-h200", 352, 1, DotCodes(32, 352)),
        ("nvidia-h200", 64, 1, DotCodes(8, 256)),
        ("nvidia-h200", 896, 1, DotCodes(32, 299)),
        ("nvidia-h200", 352, 4, None),
        ("adreno-740", 352, 1, DotCodes(32, 24, mixed=True)),
        ("lavapipe-22.3", 352, 1, None),
    ],
)
def test_devices_with_dot_products_take_them_for_one_row(
    profile: str, panels: int, rows: int, first: DotCodes | None
) -> None:
    info = open_profile(profile).info
    encoder = cast(VulkanEncoder, SimpleNamespace(info=info, loads=("buffer",)))
    found = candidates_of(CodesProblem(rows, CodeForm(4, 32, 2048, 32 * panels)), encoder)
    if first is None:
        assert not isinstance(found[0], DotCodes | RowCodes)
    else:
        assert found[0] == first
        assert first.workgroups <= 3 * cores_of(info)
