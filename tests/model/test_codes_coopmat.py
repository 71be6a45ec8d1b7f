"""Quantised networks with cooperative matrices of bytes, real or emulated: the same results."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model.test_quantized_networks import SHAPE, quantised, stages
from vkmnn import InferenceSession
from vkmnn.runtime import device as devices
from vkmnn.testing.emulation import bench_for
from vkmnn.vulkan.choice import Preferences
from vkmnn.vulkan.gemm.coop_tiles import CoopKernel, byte_matrix_of
from vkmnn_suite import mutation


@pytest.fixture(scope="module", autouse=True)
def coopmat(validation: bool) -> Iterator[None]:
    """Use the kernels of matrices on any device; features that it lacks are emulated."""
    if not devices.enumerate_devices():
        pytest.skip("no Vulkan device")
    device = devices.open_device("auto", validation=validation)
    if byte_matrix_of(device.info) is None:
        bench = bench_for(mutation.find("conv_codes_coop_32x32w16x16k1m16x16x32s32_64"), device)
        if isinstance(bench, str):
            pytest.skip(bench)
        device = bench.device
    patch = pytest.MonkeyPatch()
    patch.setattr(devices, "open_device", lambda *_, **__: device)
    by_rule = Preferences.__call__

    def first_coopmat(
        self: Preferences, what: str, problem: Hashable, candidates: Sequence[Any]
    ) -> Any:
        # Rules of CPU devices rank them last.
        for candidate in candidates:
            if isinstance(candidate, CoopKernel):
                return candidate
        return by_rule(self, what, problem, candidates)

    patch.setattr(Preferences, "__call__", first_coopmat)
    yield
    patch.undo()


@pytest.mark.parametrize("way", ["per channel", "per tensor"])
def test_codes_are_the_same_by_matrices(way: str, tmp_path: Path) -> None:
    made = quantised(stages((1, 1), 16), way, tmp_path)
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    with InferenceSession(made, "cpu") as session:
        (on_host,) = session.run(None, {"x": x})
    with InferenceSession(made, "auto", require_device=True) as session:
        for _ in range(2):  # leftovers of a run must not affect the next
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], on_host)
        ran = {op.kernel for op in session.profile({"x": x}, 1).ops()}
    assert any("conv_codes_coop" in kernel for kernel in ran), ran
