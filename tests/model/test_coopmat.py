"""Networks in halves by cooperative matrices, the device's or emulated: all layers together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pytest

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from tests.model.oracle import assert_agree
from tests.onnxruntime_oracle import open_oracle
from vkmnn.runtime import device as devices
from vkmnn.testing.emulation import bench_for
from vkmnn.vulkan.choice import Preferences
from vkmnn.vulkan.gemm.coop_tiles import CoopKernel, matrix_of
from vkmnn.vulkan.gemm.families.halo import ConvHalo
from vkmnn.vulkan.gemm.normed import NormedCoop
from vkmnn_suite import mutation


@pytest.fixture(scope="module", autouse=True)
def coopmat(validation: bool) -> Iterator[None]:
    """Use the kernels of matrices on any device; features that it lacks are emulated."""
    if not devices.enumerate_devices():
        pytest.skip("no Vulkan device")
    device = devices.open_device("auto", validation=validation)
    if matrix_of(device.info) is None:
        bench = bench_for(mutation.find("matmul_coop_16x32w16x32k4_128_0_0_4"), device)
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
            if isinstance(candidate, (CoopKernel, ConvHalo, NormedCoop)):
                return candidate
        return by_rule(self, what, problem, candidates)

    patch.setattr(Preferences, "__call__", first_coopmat)
    yield
    patch.undo()


@pytest.mark.parametrize("name", ["resnet", "squeezenet", "unet", "espcn", "vit", "gpt2"])
def test_network(name: str):
    model = NETWORKS[name].build()
    oracle = open_oracle(model)
    with vkmnn.InferenceSession(model, require_device=True, precision="normal") as session:
        for size in NETWORKS[name].sizes[:2]:
            feeds = make_feeds(model, size)
            expected = oracle.run(None, feeds)
            for _ in range(2):  # leftovers of a run must not affect the next
                assert_agree(session.run(None, feeds), expected, 1e-2, f"{name} {size}")
        ran = {op.kernel for op in session.profile(feeds, 1).ops()}
    assert any("_coop_" in kernel for kernel in ran)
    if name in ("unet", "espcn"):  # nine taps of more than eight channels
        assert any(kernel.startswith("conv_halo_coop") for kernel in ran)
