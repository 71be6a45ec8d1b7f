"""Networks as devices elsewhere would run them, planned without a device: `vkmnn plan`."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import vkmnn
from tests.model.networks import NETWORKS as SMALL
from tests.model.networks import Net
from tests.model.test_light import FOLDER
from vkmnn.cli.app import app
from vkmnn.errors import InvalidInputError, VkmnnError
from vkmnn.ir import Array
from vkmnn.opening import Network, OpenDevice, load_network, open_session
from vkmnn.opening.planned import Planned, plan_for
from vkmnn.runtime import device as devices
from vkmnn.runtime import drivers
from vkmnn.runtime.device import open_profile
from vkmnn.runtime.device_profiles import load_profile, profile_names
from vkmnn.runtime.limit_checker import CheckedDevice
from vkmnn.schedule_config import PrecisionName, ScheduleConfig
from vkmnn.testing.profile_driver import PlanningDevice, ProfileDriver
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.executions.packed import CodesKernel, _cost
from vkmnn.vulkan.gemm.coded import CodesProblem
from vkmnn.vulkan.gemm.codes import CodeForm
from vkmnn.vulkan.gemm.coop_tiles import CoopKernel
from vkmnn.vulkan.gemm.problem import MatMulProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.plan.forecast import PlanningBackend

PROFILES = ("nvidia-h200", "radeon-rx-7900-xtx", "intel-arc-a770", "adreno-740")
# MobileNetV2 has the most, in float16: depthwise layers inside projections, in tiles of 32 pixels.
MAX_PADDED = 1.43
BUSY = 66


# --- networks in the widths that they are known for ---------------------------------------------


def mobilenet_v2() -> onnx.ModelProto:
    """All blocks of MobileNetV2 (Sandler et al. 2018)."""
    net = Net("mobilenet_v2")

    def relu6(x: str) -> str:
        return net.op("Clip", x, net.constant(0.0), net.constant(6.0))

    x = relu6(net.conv_norm(net.input("x", (1, 3, 224, 224)), 3, 32, 3, 2))
    channels = 32
    for expand, outputs, count, stride in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for number in range(count):
            step = 1 if number else stride
            hidden = expand * channels
            y = relu6(net.conv_norm(x, channels, hidden, 1)) if expand > 1 else x
            y = relu6(net.conv_norm(y, hidden, hidden, 3, step, group=hidden))
            y = net.conv_norm(y, hidden, outputs, 1)
            x = net.op("Add", x, y) if step == 1 and channels == outputs else y
            channels = outputs
    x = relu6(net.conv_norm(x, 320, 1280, 1))
    return net.finish({net.classifier(x, 1280, 1000): (1, 1000)})


def unet() -> onnx.ModelProto:
    """Four levels of sixteen to 256 channels, with transposed convolutions (Ronneberger 2015)."""
    net = Net("unet")

    def double(x: str, inputs: int, outputs: int) -> str:
        x = net.relu(net.conv_norm(x, inputs, outputs))
        return net.relu(net.conv_norm(x, outputs, outputs))

    x, channels = net.input("x", (1, 3, 256, 256)), 3
    skips = []
    for outputs in (16, 32, 64, 128):
        skips.append((double(x, channels, outputs), outputs))
        x = net.op("MaxPool", skips[-1][0], kernel_shape=[2, 2], strides=[2, 2])
        channels = outputs
    x, channels = double(x, 128, 256), 256
    for skip, outputs in reversed(skips):
        w = net.weight(channels, outputs, 2, 2, inputs=channels)
        x = net.op("ConvTranspose", x, w, net.near_zero(outputs), strides=[2, 2])
        x = double(net.op("Concat", skip, x, axis=1), 2 * outputs, outputs)
        channels = outputs
    return net.finish({net.conv(x, channels, 2, 1): (1, 2, 256, 256)})


def yolo() -> onnx.ModelProto:
    """The backbone of YOLOv5s at 320 pixels: SiLU, blocks that split and join, SPPF."""
    net = Net("yolo")

    def conv(x: str, *args: int) -> str:
        return net.silu(net.conv_norm(x, *args))

    def block(x: str, channels: int, count: int) -> str:
        half = channels // 2
        a, b = conv(x, channels, half, 1), conv(x, channels, half, 1)
        for _ in range(count):
            a = net.op("Add", a, conv(conv(a, half, half, 1), half, half, 3))
        return conv(net.op("Concat", a, b, axis=1), channels, channels, 1)

    x = conv(net.input("x", (1, 3, 320, 320)), 3, 32, 3, 2)
    channels = 32
    for count in (1, 2, 3, 1):
        x = block(conv(x, channels, 2 * channels, 3, 2), 2 * channels, count)
        channels *= 2
    x = conv(x, channels, channels // 2, 1)
    pools = [x]
    for _ in range(3):
        pools.append(
            net.op("MaxPool", pools[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4)
        )
    x = conv(net.op("Concat", *pools, axis=1), 2 * channels, channels, 1)
    return net.finish({net.conv(x, channels, 255, 1): (1, 255, 10, 10)})


def transformer(
    name: str,
    tokens: int,
    width: int,
    heads: int,
    *,
    before: bool,
    columns: int,
    layers: int = 2,
) -> onnx.ModelProto:
    """Layers that normalise before or after, and a product with as many columns."""
    net = Net(name)
    size = width // heads
    x = net.input("x", (1, tokens, width))
    for _ in range(layers):
        seen = net.layer_norm(x, width) if before else x
        packed = net.linear(seen, width, 3 * width)
        parts = net.ops("Split", 3, packed, net.ints(width, width, width), axis=2)
        q, k, v = (net.heads(part, heads, size) for part in parts)
        y = net.linear(net.attend(q, k, v, size, lambda scores: scores), width, width)
        x = net.op("Add", x, y)
        x = x if before else net.layer_norm(x, width)
        seen = net.layer_norm(x, width) if before else x
        y = net.linear(net.gelu(net.linear(seen, width, 4 * width)), 4 * width, width)
        x = net.op("Add", x, y)
        x = x if before else net.layer_norm(x, width)
    return net.finish({net.linear(x, width, columns): (1, tokens, columns)})


def espcn() -> onnx.ModelProto:
    """Three times as many rows and columns of 240 x 320 pixels (Shi et al. 2016)."""
    net = Net("espcn")
    x = net.op("Tanh", net.conv(net.input("x", (1, 1, 240, 320)), 1, 64, 5))
    x = net.conv(net.op("Tanh", net.conv(x, 64, 32)), 32, 9)
    x = net.op("Sigmoid", net.op("DepthToSpace", x, blocksize=3, mode="CRD"))
    return net.finish({x: (1, 1, 720, 960)})


BUILT: dict[str, Callable[[], onnx.ModelProto]] = {
    "espcn": espcn,
    "mobilenet_v2": mobilenet_v2,
    "unet": unet,
    "yolo": yolo,
    "vit_b16": lambda: transformer("vit_b16", 197, 768, 12, before=True, columns=1000),
    "bert_base": lambda: transformer("bert_base", 128, 768, 12, before=False, columns=768),
    "gpt2": lambda: transformer("gpt2", 64, 768, 12, before=True, columns=5003),
    "deit_tiny": lambda: transformer("deit_tiny", 197, 192, 3, before=True, columns=1000),
}
# Dispatches and levels, at most.
NETWORKS = {
    "squeezenet": (37, 29),
    "resnet50": (59, 55),
    # On the last profile, few depthwise convolutions are computed in the projections after them.
    "mobilenet_v2": (53, 53),
    "unet": (29, 29),
    "yolo": (39, 35),
    "vit_b16": (18, 17),
    "bert_base": (17, 17),
    "gpt2": (18, 17),
    "deit_tiny": (18, 17),
}


@functools.cache
def network(name: str) -> Network:
    if name in BUILT:
        return load_network(BUILT[name]())
    return load_network(FOLDER / f"light_{name}.onnx")


def feeds(name: str) -> dict[str, Array]:
    return {info.name: np.zeros(info.dims, np.float32) for info in network(name).graph.inputs}


@functools.cache
def planned(name: str, profile: str, precision: PrecisionName = "normal") -> Planned:
    return plan_for(network(name), profile, precision, feeds(name), places=True)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", NETWORKS)
def test_plans(name: str, profile: str) -> None:
    """Limits are checked where the plan is recorded."""
    plan = planned(name, profile)
    forecast = plan.forecast
    dispatches, levels = NETWORKS[name]
    assert not plan.placement.off_device
    assert len(forecast.steps) <= dispatches
    assert forecast.levels <= levels
    assert forecast.padded_work <= MAX_PADDED
    assert sum(forecast.terms().values()) == forecast.predicted_us
    assert all(step.cost.total > 0 for step in forecast.steps)
    assert plan.memory.constants > 0


# Microseconds, at most, of float32 and float16; PyTorch with channels last took 106 in float16.
ESPCN_US: dict[PrecisionName, float] = {"high": 170, "normal": 88}


@pytest.mark.parametrize("precision", ESPCN_US)
@pytest.mark.parametrize("profile", PROFILES)
def test_super_resolution_takes_its_convolutions_alone(
    profile: str, precision: PrecisionName
) -> None:
    """The first layer multiplies taps, and the last stores DepthToSpace of what the host wants."""
    forecast = planned("espcn", profile, precision).forecast
    ops = [step.op for step in forecast.steps]
    if precision == "normal" and profile != "adreno-740":  # which has no matrices
        assert [op.partition("_")[0] for op in ops] == ["Conv"] * 3
    if profile == "adreno-740":  # the last kernel there stores images
        return
    assert not [op for op in ops if "DepthToSpace" in op or "convert" in op]
    if profile == "nvidia-h200":
        assert forecast.predicted_us <= ESPCN_US[precision]
    if (profile, precision) == ("nvidia-h200", "normal"):
        assert forecast.padded_work <= 1.5


# At least as many of the 17 convolutions of U-Net that have nine taps and more than four channels.
# Arc's matrices are slow, so that they are not used.
WITH_HALO = {"nvidia-h200": 16, "radeon-rx-7900-xtx": 8, "intel-arc-a770": 0}


@pytest.mark.parametrize("profile", WITH_HALO)
def test_windows_read_their_pixels_once(profile: str) -> None:
    """Where pixels outnumber multiprocessors' tiles, a patch serves all nine taps."""
    steps = planned("unet", profile).forecast.steps
    count = sum(step.kernel.startswith("conv_halo_coop") for step in steps)
    assert count >= WITH_HALO[profile]
    assert count == 0 or WITH_HALO[profile]


@pytest.mark.parametrize("precision", ["high", "normal"])
@pytest.mark.parametrize("name", ["mobilenet_v2", "unet"])
def test_nothing_converts_at_the_ends(name: str, precision: PrecisionName) -> None:
    """The first kernel reads what the host has, and the last stores what it wants."""
    forecast = planned(name, "nvidia-h200", precision).forecast
    assert not [step.kernel for step in forecast.steps if step.kernel.startswith("convert")]


def test_one_row_of_the_last_layer() -> None:
    """A classifier reads one row of 197: no others are computed after the last keys."""
    net, width = Net("classifier"), 192
    x = net.input("x", (1, 197, width))
    parts = net.ops("Split", 3, net.linear(x, width, 3 * width), net.ints(*[width] * 3), axis=2)
    q, k, v = (net.heads(part, 3, 64) for part in parts)
    y = net.attend(q, k, v, 64, lambda scores: scores)
    x = net.op("Add", x, net.linear(y, width, width))
    y = net.gelu(net.linear(net.layer_norm(x, width), width, 4 * width))
    x = net.layer_norm(net.op("Add", x, net.linear(y, 4 * width, width)), width)
    x = net.op("Gather", x, net.constant(0, np.int64), axis=1)
    weight = net.weight(1000, width, inputs=width)
    out = net.op("Gemm", x, weight, net.near_zero(1000), transB=1)
    model, feed = net.finish({out: (1, 1000)}), {"x": np.zeros((1, 197, width), np.float32)}
    for precision in ("high", "normal"):
        plan = plan_for(load_network(model), "nvidia-h200", precision, feed, places=False)
        kernels = [step.kernel for step in plan.forecast.steps]
        assert "attention" in kernels[-5]
        assert all("gemv" in kernel for kernel in kernels[-4:])


# Tokens, whether norms come first, and at most as many microseconds in float32 and float16.
# PyTorch's graphs took 3,060 and 720 for one, 2,050 and 740 for the other.
TWELVE_LAYERS = {"bert_base": (128, False, 1_500, 480), "gpt2": (64, True, 1_120, 465)}


@pytest.mark.slow
@pytest.mark.parametrize("name", TWELVE_LAYERS)
def test_whole_transformers(name: str) -> None:
    """Seven dispatches a layer, each a level of its own; in float16 five, products normalise."""
    tokens, before, *limits = TWELVE_LAYERS[name]
    columns = 50_257 if before else 768
    built = transformer(name, tokens, 768, 12, before=before, columns=columns, layers=12)
    model, x = load_network(built), {"x": np.zeros((1, tokens, 768), np.float32)}
    precisions: tuple[PrecisionName, ...] = ("high", "normal")
    for precision, limit in zip(precisions, limits, strict=True):
        forecast = plan_for(model, "nvidia-h200", precision, x, places=False).forecast
        assert forecast.levels <= {"high": 7 * 12 + 5, "normal": 5 * 12 + 3}[precision]
        assert forecast.padded_work <= MAX_PADDED
        assert forecast.predicted_us <= limit
        attention = [step for step in forecast.steps if "attention" in step.kernel]
        assert len(attention) == 12
        by_matrices = {"attention_coop" in step.kernel for step in attention}
        assert by_matrices == {precision == "normal"}


# At most as many microseconds in float32 and float16: 0.85 of what PyTorch's graphs took.
MOBILENET_US: dict[PrecisionName, float] = {"high": 280, "normal": 263}


@pytest.mark.parametrize("precision", MOBILENET_US)
def test_depthwise_layers_lie_inside_projections(precision: PrecisionName) -> None:
    """One dispatch for the two of each of 17 blocks, one for the expansion before 16 of them."""
    forecast = planned("mobilenet_v2", "nvidia-h200", precision).forecast
    kernels = Counter(step.kernel.rpartition("_")[0] for step in forecast.steps)
    assert sum(count for name, count in kernels.items() if "separable" in name) == 17
    assert not any("strip" in name or "depthwise" in name for name in kernels)
    assert len(forecast.steps) <= 39
    assert forecast.predicted_us <= MOBILENET_US[precision]


def test_rows_of_a_table_count() -> None:
    """Rows that are gathered, not the 94 MB that they come from."""
    net = Net("embedding")
    index = net.input("x", (1, 128), onnx.TensorProto.INT64)
    table = net.constant(np.zeros((30_522, 768), np.float32))
    model = net.finish({net.op("Gather", table, index): (1, 128, 768)})
    feed = {"x": np.zeros((1, 128), np.int64)}
    (step,) = plan_for(
        load_network(model), "nvidia-h200", "high", feed, places=False
    ).forecast.steps
    assert step.nbytes < 1_000_000
    assert step.cost.total < 4


def test_lookups_by_given_indices_share_a_level() -> None:
    """The host checks their indices, so neither waits for the other."""
    net = Net("embeddings")
    rows = [
        net.op("Gather", net.constant(np.zeros((50, 64), np.float32)), index)
        for index in (net.input(f"x{n}", (1, 8), onnx.TensorProto.INT64) for n in range(2))
    ]
    model = net.finish({net.op("Add", *rows): (1, 8, 64)})
    given = {f"x{n}": np.zeros((1, 8), np.int64) for n in range(2)}
    plan = plan_for(load_network(model), "nvidia-h200", "high", given, places=False)
    assert plan.forecast.levels == 2


@pytest.mark.parametrize("precision", ["high", "normal"])
def test_the_likeliest_of_many_in_one_dispatch(precision: PrecisionName) -> None:
    """After a product in float16 as well, without a conversion."""
    net = Net("logits")
    x = net.input("x", (1, 64))
    logits = net.op("MatMul", x, net.constant(np.zeros((64, 32_000), np.float32)))
    chosen = net.op("ArgMax", logits, axis=-1)
    model = net.finish({chosen: (1, 1)}, onnx.TensorProto.INT64)
    given = {"x": np.zeros((1, 64), np.float32)}
    steps = plan_for(
        load_network(model), "nvidia-h200", precision, given, places=False
    ).forecast.steps
    assert [step.kernel.rsplit("_", 3)[0] for step in steps][-1] == "arg_reduce"
    assert sum("arg_reduce" in step.kernel for step in steps) == 1
    assert not any("convert" in step.kernel and step.op != "x" for step in steps[1:])


def test_bytes_of_packed_weights_count_as_they_are() -> None:
    """Half a byte a value and two for a scale of 32: not four bytes a byte."""
    steps = planned_product(1, 4096, half=True).forecast.steps
    (step,) = (step for step in steps if "codes" in step.kernel)
    weights = 4096 * 2048 * 4.5 / 8
    assert weights < step.nbytes < 1.2 * weights


def test_work_is_shared_out() -> None:
    """A workgroup for each channel block that is pooled; all phases in one dispatch."""
    (pool,) = (
        step
        for step in planned("resnet50", "nvidia-h200").forecast.steps
        if "pool_w" in step.kernel
    )
    assert pool.workgroups >= 2048 // 4
    steps = planned("unet", "nvidia-h200").forecast.steps
    phases = Counter(step.op for step in steps if "ConvTranspose" in step.op)
    assert phases
    assert set(phases.values()) == {1}


@pytest.mark.parametrize("name", NETWORKS)
def test_no_kernel_idles_where_a_split_pays(name: str) -> None:
    """Of few workgroups, none with more is expected to be faster."""
    device = open_profile("nvidia-h200")
    backend = PlanningBackend(device, "f16")
    config = ScheduleConfig(precision="normal")
    opened = open_session(network(name), config, OpenDevice(backend, device.info, "normal"))
    opened.core.run(feeds(name))
    (recording, _), *_ = backend.recordings
    choices = {choice.op: choice for choice in recording.choices if choice.what != "load"}
    seen = 0
    for dispatch in recording.dispatches:
        expected, choice = dispatch.expected, choices.get(dispatch.label)
        if expected is None or choice is None or not isinstance(choice.taken, CoopKernel):
            continue
        seen += 1
        _, problem = choice.problem
        if isinstance(problem, tuple):  # of other ends
            _, problem = problem
        gemm = problem.gemm if isinstance(problem, MatMulProblem) else problem.gemm(8)
        taken = choice.taken
        if taken.tile.workgroups(gemm) * taken.parts >= BUSY:
            continue
        target = Target(device.info, "f16", weight_bytes=weight_bytes(name))
        for kernel in choice.candidates:
            if isinstance(kernel, CoopKernel) and kernel.parts > taken.parts:
                assert kernel.predict(problem, target).cost.total * 1.2 > expected.cost.total
    opened.core.close()
    device.close()
    assert seen


@pytest.mark.soak
def test_weights_beyond_a_binding_are_cut_on_gpus_with_texel_buffers() -> None:
    """They load from buffers, which bind less than texel buffers would."""
    model = load_network(transformer("head", 4, 768, 12, before=True, columns=50_257))
    x = {"x": np.zeros((1, 4, 768), np.float32)}
    plan = plan_for(model, "adreno-740", "high", x, places=False)
    assert not plan.placement.off_device
    limit = load_profile("adreno-740").limits.max_storage_buffer_range
    assert limit < 50_257 * 768 * 4
    assert all(step.nbytes <= 2 * limit for step in plan.forecast.steps)


def weight_bytes(name: str) -> int:
    return sum(array.nbytes for array in network(name).graph.constants.values())


def test_a_forecast_adds_up() -> None:
    steps = planned("squeezenet", "nvidia-h200").forecast
    alone = replace(steps, steps=steps.steps[:1])
    assert alone.levels == 1
    cost, server = steps.steps[0].cost, class_of(steps.info)
    assert alone.predicted_us == pytest.approx(
        server.submit_us + server.gap_us + cost.total, rel=1e-9
    )
    # Two small dispatches of a level take little more than one, two that fill the device both.
    small = replace(steps.steps[0], workgroups=10)
    large = replace(small, workgroups=10_000)
    both = [replace(steps, steps=(step, step)).predicted_us for step in (small, large)]
    one = replace(steps, steps=(small,)).predicted_us
    assert both[0] == pytest.approx(one + server.beside_us)
    assert both[1] == pytest.approx(one + server.beside_us + cost.total)


@pytest.mark.parametrize("precision", ["high", "normal"])
def test_what_is_planned_is_what_a_session_runs(
    precision: PrecisionName, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned("squeezenet", "lavapipe-22.3", precision)
    kernels = [step.kernel for step in plan.forecast.steps]
    monkeypatch.setattr(devices, "_devices", {})
    monkeypatch.setattr(
        drivers, "_loaded", {"vulkan": ProfileDriver(load_profile("lavapipe-22.3"))}
    )
    path = FOLDER / "light_squeezenet.onnx"
    config = ScheduleConfig(precision=precision, driver="vulkan")
    with vkmnn.InferenceSession(path, driver="vulkan", precision=config.precision) as session:
        assert session.memory() == plan.memory
        (device,) = devices._devices.values()
        checked = device.driver_device
        assert isinstance(checked, CheckedDevice)
        assert isinstance(checked.inner, PlanningDevice)
        # Pipelines are warmed up by a dispatch that does nothing.
        recorded = checked.inner.shaders
        assert set(recorded) == set(kernels)
        assert all(recorded[kernel] >= kernels.count(kernel) for kernel in kernels)
    device.close()


# --- the command ----------------------------------------------------------------------------------

MODEL = str(FOLDER / "light_squeezenet.onnx")


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_json() -> None:
    facts = json.loads(invoke(MODEL, "--as", "radeon-rx-7900-xtx", "-p", "fp16", "--json"))
    plan = planned("squeezenet", "radeon-rx-7900-xtx").forecast
    assert facts["predicted_ms"] == pytest.approx(plan.predicted_us / 1000)
    assert facts["dispatches"] == len(plan.steps) == len(facts["steps"])
    assert facts["levels"] == plan.levels
    assert facts["padded_work"] == plan.padded_work
    assert sum(facts["terms_us"].values()) == pytest.approx(1000 * facts["predicted_ms"])
    assert set(facts["profiles"]) == set(profile_names())
    assert all(milliseconds > 0 for milliseconds in facts["profiles"].values() if milliseconds)
    assert facts["profiles"]["nvidia-h200"] < facts["profiles"]["adreno-610"]
    assert facts["memory"]["constants"] > 0


def test_tables_and_page(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    text = invoke(MODEL, "--as", "adreno-740", "--alone", "--html", str(page))
    assert "as adreno-740" in text
    assert "levels" in text
    html = page.read_text("utf-8")
    assert "conv_shared" in html  # a narrow terminal cuts names
    assert html.count("<tr>") > 30
    assert "adreno-740" in html
    assert "Predicted, not measured" in html


def test_shapes_are_given_or_assumed(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    onnx.save(SMALL["resnet"].build(), path)
    counts = []
    for size in ("32", "64"):
        arguments = ("--as", "nvidia-h200", "--alone", "--json", "-s", f"H={size}")
        facts = json.loads(invoke(str(path), *arguments, "-s", f"W={size}"))
        counts.append(facts["bytes"])
    assert counts[1] > counts[0]


def test_unknown_profiles_and_paths() -> None:
    with pytest.raises(VkmnnError, match="did you mean nvidia-h200"):
        invoke(MODEL, "--as", "nvidia-h300", "--alone")
    with pytest.raises(InvalidInputError, match="the page cannot be written"):
        invoke(MODEL, "--as", "nvidia-h200", "--alone", "--html", "/nowhere/plan.html")
    with pytest.raises(VkmnnError):
        invoke("nothing.onnx", "--as", "nvidia-h200")


def test_no_vulkan_is_needed() -> None:
    """Neither the bindings nor a loader."""
    code = (
        "import sys; sys.modules['vulkan'] = None\n"
        "from vkmnn.cli.app import run_cli\n"
        f"sys.exit(run_cli(['plan', {MODEL!r}, '--as', 'intel-arc-a770', '--alone']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "predicted" in done.stdout


def planned_product(
    rows: int,
    columns: int,
    bits: int = 4,
    profile: str = "nvidia-h200",
    *,
    half: bool = False,
    zeros: bool = False,
    places: bool = False,
) -> Planned:
    """Return the plan of a product with quantised weights, stored in float16.

    Args:
        rows: of the left operand, of 2,048 elements each.
        columns: of the weights.
        bits: of a weight.
        profile: the device.
        half: the file has float16 numbers.
        zeros: there are zero points.
        places: also place the tensors.
    """
    dtype = np.float16 if half else np.float32
    arrays = {
        "codes": np.zeros((columns, 64, 4 * bits), np.uint8),
        "scales": np.ones((columns, 64), dtype),
        **({"zeros": np.zeros((columns, 8 * bits), np.uint8)} if zeros else {}),
    }
    node = onnx.helper.make_node(
        "MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", K=2048, N=columns,
        bits=bits, block_size=32,
    )  # fmt: skip
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = onnx.helper.make_graph(
        [node], "g",
        [onnx.helper.make_tensor_value_info("x", kind, (rows, 2048))],
        [onnx.helper.make_tensor_value_info("y", kind, (rows, columns))],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    made = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    given = {"x": np.zeros((rows, 2048), dtype)}
    return plan_for(load_network(made), profile, "normal", given, places=places)


def quantised_product(
    rows: int, columns: int, bits: int = 4, profile: str = "nvidia-h200"
) -> list[str]:
    """Return the kernels of a product with quantised weights."""
    steps = planned_product(rows, columns, bits, profile).forecast.steps
    return [step.kernel for step in steps if not step.kernel.startswith("convert")]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_float16_scales_stay_so_in_memory(bits: int, zeros: bool) -> None:
    """4.5 bits instead of 5 for a weight of 4 bits, and as much for its zero point as before."""
    weights = 2048 * 256
    points = bits / 32 if zeros else 0
    for half, scale_bits in ((True, 16), (False, 32)):
        planned = planned_product(1, 256, bits, half=half, zeros=zeros, places=True)
        assert planned.memory.constants == weights * (bits + scale_bits / 32 + points) // 8


@pytest.mark.parametrize(("rows", "columns", "bits"), [(128, 4099, 8), (2048, 11264, 4)])
def test_prompts_unpack_weights_as_matrices_read_them(rows: int, columns: int, bits: int) -> None:
    """No transposition between: quantised values lie along K, as cooperative matrices read them."""
    names = quantised_product(rows, columns, bits)
    assert [name.split("_")[:2] for name in names] == [["unpack", "codes"], ["matmul", "coop"]]
    assert f"unpack_codes_{bits}_columns" in names[0]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("profile", "rows", "suffix"),
    [
        ("nvidia-h200", (16, 32, 64, 128, 512), ""),
        ("radeon-rx-7900-xtx", (16, 64, 512), ""),
        ("radeon-rx-9070-xt", (32, 64, 512), "m16x16x16s64"),
    ],
)
def test_matrices_read_quantised_weights(
    bits: int, profile: str, rows: tuple[int, ...], suffix: str
) -> None:
    """A prompt's product, and that of a step of several texts, is one dispatch."""
    for count in rows:
        (name,) = quantised_product(count, 11264, bits, profile)
        assert name.startswith("matmul_coop_")
        assert name.endswith(f"_{bits}_4")
        assert suffix in name
    (name,) = quantised_product(1, 11264, bits, profile)
    assert name.startswith("matmul_codes_dot")


@pytest.mark.parametrize(
    ("profile", "rows", "staged"),
    [
        ("mali-g610", 1, False),
        ("mali-g610", 8, False),
        ("mali-g78", 1, False),
        ("mali-g78", 8, False),
        ("raspberry-pi-5", 1, False),
        ("adreno-740", 1, True),
        ("powervr-ge8320", 1, True),
    ],
)
def test_rows_are_not_staged_where_shared_memory_is_ordinary_memory(
    profile: str, rows: Literal[1, 8], staged: bool
) -> None:
    """Kernels read them through the cache, without any feature, in the smallest workgroups."""
    for columns in (2048, 11264):
        steps = planned_product(rows, columns, 4, profile).forecast.steps
        (step,) = (step for step in steps if not step.kernel.startswith("convert"))
        assert step.kernel.startswith(f"matmul_codes_4_{min(rows, 4)}_64_") != staged
        if not staged:
            problem = CodesProblem(rows, CodeForm(4, 32, 2048, columns))
            info = open_profile(profile).info
            assert step.cost.total < 0.95 * _cost(CodesKernel(rows, 0), problem, 4.5, info).total


def test_matrices_that_are_not_worthwhile_stay_unused() -> None:
    """Subgroups of 64 have matrices; Arc before Xe2 offers slow ones."""

    def products(profile: str) -> set[str]:
        steps = planned("resnet50", profile).forecast.steps
        return {step.kernel for step in steps if "coop" in step.kernel}

    assert products("radeon-rx-9070-xt")
    assert all("s64_" in name for name in products("radeon-rx-9070-xt"))
    assert not products("intel-arc-a770")
    times = [
        sum(step.cost.total for step in planned("resnet50", profile).forecast.steps)
        for profile in ("radeon-rx-9070-xt", "radeon-rx-7900-xtx")
    ]
    assert times[0] < 1.2 * times[1]
