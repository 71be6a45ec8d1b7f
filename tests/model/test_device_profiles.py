"""Networks on devices that seem to be others: every profile plans all, some run all.

Plans are made without a device, for exactly the device that a profile describes. Runs use the
available device, made to resemble the profile as far as possible.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from _pytest.mark.structures import ParameterSet
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from tests.model.oracle import assert_agree
from tests.model.test_light import FOLDER, QUICK, TOLERANCES, with_random_weights
from tests.onnxruntime_oracle import open_oracle
from vkmnn.runtime import device as devices
from vkmnn.runtime import drivers
from vkmnn.runtime.device_info import CooperativeMatrixShape
from vkmnn.runtime.device_profiles import DeviceProfile, load_profile, profile_names
from vkmnn.runtime.limit_checker import CheckedDevice
from vkmnn.testing.profile_driver import PlanningDevice, ProfileDriver
from vkmnn.vulkan.gemm.coop_tiles import FEATURES, unused_matrices

pytestmark = pytest.mark.elsewhere("test: the profiles and networks that differ most")

# The least alike: few bindings and 16 KiB of shared memory; memory that is not coherent; subgroups
# of one and no timestamps; 4-KiB push constants; hidden memory; texel buffers of 65536 elements.
DIFFERENT = (
    "raspberry-pi-4",
    "adreno-740",
    "powervr-ge8320",
    "apple-m1",
    "geforce-rtx-3060-laptop",
    "swiftshader",
)
SMALL = ("mobilenet_v2", "detector", "gpt2")  # what the run on each of them has time for
MAX_BINDINGS = 8  # storage buffers that some kernel needs; with fewer, ops run on the CPU


def profile_params() -> list[ParameterSet]:
    """Return all profiles as parameters, those that are much like others marked as slow."""
    return [
        pytest.param(name, marks=[] if name in DIFFERENT else [pytest.mark.slow])
        for name in profile_names()
    ]


@functools.cache
def built(network: str) -> onnx.ModelProto:
    return NETWORKS[network].build()


@pytest.fixture
def no_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Open new devices, and close them afterwards."""
    monkeypatch.setattr(devices, "_devices", {})
    yield
    for device in list(devices._devices.values()):
        device.close()


Plans = Callable[[DeviceProfile], None]


@pytest.fixture
def plan_as(no_devices: None, monkeypatch: pytest.MonkeyPatch) -> Plans:
    """Let sessions be planned for a profile, without a device."""

    def begin(profile: DeviceProfile) -> None:
        monkeypatch.setattr(drivers, "_loaded", {"vulkan": ProfileDriver(profile)})

    return begin


def open_as(
    model: onnx.ModelProto | Path,
    profile: DeviceProfile,
    precision: str = "high",
    validation: bool = False,
) -> vkmnn.InferenceSession:
    return vkmnn.InferenceSession(
        model,
        driver="vulkan",
        validation=validation,
        require_device=profile.limits.max_storage_bindings >= MAX_BINDINGS,
        precision=precision,
    )


def plan_small(profile: DeviceProfile, precision: str) -> None:
    for name, network in NETWORKS.items():
        with open_as(built(name), profile, precision) as session:
            for size in network.sizes[:2]:
                session.run(None, make_feeds(built(name), size))
    (device,) = devices._devices.values()
    assert isinstance(device.driver_device, CheckedDevice)
    assert isinstance(device.driver_device.inner, PlanningDevice)
    assert device.driver_device.inner.shaders


@pytest.mark.parametrize("name", profile_names())
def test_small_networks_are_planned(name: str, plan_as: Plans):
    profile = load_profile(name)
    plan_as(profile)
    plan_small(profile, "high")


@pytest.mark.parametrize("name", profile_params())
def test_small_networks_in_halves_are_planned(name: str, plan_as: Plans):
    profile = load_profile(name)
    plan_as(profile)
    plan_small(profile, "normal")


def matrices(*sizes: tuple[int, int, int], of: str = "f16") -> tuple[CooperativeMatrixShape, ...]:
    total = "i32" if of == "i8" else "f32"
    return tuple(
        CooperativeMatrixShape(*size, of, of, total, total, "subgroup", False) for size in sizes
    )


# What devices that nobody has seen here may list: subgroups, matrices, and the tile that is used.
LISTS: dict[str, tuple[tuple[int, int], tuple[CooperativeMatrixShape, ...], str | None]] = {
    "as Adreno 8xx may": ((64, 128), matrices((16, 16, 16)), "m16x16x16s64"),
    "of 32": ((32, 32), matrices((16, 16, 16), (32, 32, 16)), "w"),
    "narrow": ((32, 64), matrices((16, 8, 16)), "m16x8x16s32"),
    "as Intel's": ((8, 32), matrices((8, 8, 16)), "m8x8x16s8"),
    "as Mali may": ((16, 16), matrices((16, 16, 16)), None),
    "odd": ((64, 64), matrices((12, 12, 4), (1, 1, 1), (0, 0, 0)), None),
    "only int8": ((32, 64), matrices((16, 16, 32), of="i8"), None),
    "only bfloat16": ((32, 64), matrices((16, 16, 16), of="bf16"), None),
    "float16 sums": (
        (64, 64),
        (replace(matrices((16, 16, 16))[0], c="f16", result="f16"),),
        None,
    ),
}


@functools.cache
def _product() -> onnx.ModelProto:
    weights = numpy_helper.from_array(np.ones((768, 768), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (256, 768))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (256, 768))],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("precision", ["normal", "fast"])
@pytest.mark.parametrize("listed", LISTS)
def test_matrices_of_any_list_are_used_or_left(listed: str, precision: str, plan_as: Plans) -> None:
    """On a phone's GPU with them: tiles follow from the list, and nothing fails."""
    subgroups, shapes, tile = LISTS[listed]
    phone = load_profile("adreno-740")
    plan_as(
        replace(
            phone,
            features=phone.features | FEATURES | {"int8"},
            limits=replace(phone.limits, subgroup_size_range=subgroups),
            cooperative_matrices=shapes,
        )
    )
    with open_as(_product(), phone, precision) as session:
        session.run(None, {"x": np.zeros((256, 768), np.float32)})
    with open_as(built("bert"), phone, precision) as session:  # attention, too
        session.run(None, make_feeds(built("bert"), NETWORKS["bert"].sizes[0]))
    (device,) = devices._devices.values()
    assert isinstance(device.driver_device, CheckedDevice)
    assert isinstance(device.driver_device.inner, PlanningDevice)
    used = [name for name in device.driver_device.inner.shaders if "_coop_" in name]
    # Limbs have few tiles, and are predicted to gain nothing with this class's subgroups of 64.
    assert bool(used) == (tile == "w" or (tile is not None and precision == "normal"))
    assert all((tile or "") in name for name in used)
    assert (unused_matrices(device.info) is None) == (
        tile is not None or not any(shape.a == "f16" and shape.c == "f32" for shape in shapes)
    )


def plan_light(network: str, names: Sequence[str], plan_as: Plans) -> None:
    for name in names:
        profile = load_profile(name)
        plan_as(profile)
        with open_as(FOLDER / f"light_{network}.onnx", profile) as session:
            # Shapes are known: opening makes the plan.
            assert session.memory().activations > 0


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(name, marks=[] if name == "squeezenet" else [pytest.mark.slow])
        for name in TOLERANCES
    ],
)
def test_light_networks_are_planned(network: str, plan_as: Plans):
    plan_light(network, DIFFERENT, plan_as)


@pytest.mark.soak
@pytest.mark.parametrize("network", TOLERANCES)
def test_light_networks_are_planned_on_all_others(network: str, plan_as: Plans):
    plan_light(network, sorted(set(profile_names()) - set(DIFFERENT)), plan_as)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("nvidia-h200", "matmul_coop"),
        ("adreno-740", "matmul_shared"),
        ("lavapipe-22.3", "matmul_rotate"),
        ("swiftshader", "matmul_tile"),
    ],
)
def test_kernels_are_those_of_the_profile(name: str, family: str, plan_as: Plans):
    plan_as(load_profile(name))
    families = {"matmul_coop", "matmul_shared", "matmul_rotate", "matmul_tile"}
    with open_as(built("bert"), load_profile(name), "normal") as session:
        session.run(None, make_feeds(built("bert"), NETWORKS["bert"].sizes[0]))
        (device,) = devices._devices.values()
        assert isinstance(device.driver_device, CheckedDevice)
        assert isinstance(device.driver_device.inner, PlanningDevice)
        used = {"_".join(kernel.split("_")[:2]) for kernel in device.driver_device.inner.shaders}
    assert family in used & families


def test_ops_that_bind_too_much_run_elsewhere_and_it_shows(plan_as: Plans):
    profile = load_profile("raspberry-pi-4")
    limits = replace(profile.limits, max_storage_bindings=4)
    plan_as(replace(profile, limits=limits))
    model = built("squeezenet")
    with vkmnn.InferenceSession(model, driver="vulkan") as session:
        session.run(None, make_feeds(model, NETWORKS["squeezenet"].sizes[0]))
        reasons = [op.reason for op in session.placement().ops if op.reason]
    assert reasons
    assert all("storage buffers" in reason for reason in reasons)


@pytest.mark.usefixtures("no_devices")
@pytest.mark.parametrize(
    "network",
    [
        pytest.param(name, marks=[] if name in SMALL else [pytest.mark.slow])
        for name in [*NETWORKS, *QUICK]
    ],
)
@pytest.mark.parametrize("profile", profile_params())
def test_networks_run(
    profile: str, network: str, validation: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", profile)
    if network in NETWORKS:
        model = built(network)
        feeds = make_feeds(model, NETWORKS[network].sizes[0])
    else:
        model = with_random_weights(onnx.load(FOLDER / f"light_{network}.onnx"))
        feeds = {}
    with open_as(model, load_profile(profile), validation=validation) as session:
        for info in session.get_inputs() if not feeds else ():
            assert info.shape is not None
            x = np.random.default_rng(1).standard_normal(info.shape, dtype=np.float32)
            feeds[info.name] = x
        results = session.run(None, feeds)
    assert_agree(results, open_oracle(model).run(None, feeds), what=f"{network} as {profile}")
