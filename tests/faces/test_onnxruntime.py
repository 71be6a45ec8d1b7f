"""`vkmnn.onnxruntime` beside onnxruntime: the same calls, the same answers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkmnn
import vkmnn.onnxruntime as own

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("[!m]*.py"))
X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
theirs = pytest.importorskip("onnxruntime")

Call = Callable[[Any, Path], Any]


def made(nodes: list[onnx.NodeProto], opset: int = 17, **values: Any) -> bytes:
    """Return a model of nodes from x: float[2] to y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8, **values).SerializeToString()


def opened(ort: Any, path: Path, **arguments: Any) -> Any:
    return ort.InferenceSession(str(path), **arguments)


def fields(nodes: Any) -> list[tuple[Any, ...]]:
    return [(node.name, node.type, node.shape) for node in nodes]


def bound(ort: Any, path: Path, shape: tuple[int, ...] = (2, 3)) -> Any:
    session = opened(ort, path)
    binding = session.io_binding()
    into = ort.OrtValue.ortvalue_from_shape_and_type(list(shape), np.float32)
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(X))
    binding.bind_ortvalue_output("z", into)
    session.run_with_iobinding(binding)
    return into.numpy()


def by_cpu_binding(ort: Any, path: Path) -> Any:
    session = opened(ort, path)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    arrays = binding.copy_outputs_to_cpu()
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    return arrays


def entries(ort: Any, options: Any, kind: str) -> Any:
    getattr(options, f"add_{kind}_config_entry")("a", "b")
    return getattr(options, f"get_{kind}_config_entry")("a")


def terminated(ort: Any, path: Path) -> Any:
    options = ort.RunOptions()
    options.terminate = True
    return opened(ort, path).run(None, {"x": X}, options)


def fixed(ort: Any, path: Path) -> Any:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    session = opened(ort, path, sess_options=options)
    return fields(session.get_inputs()), session.run(["z"], {"x": X})


def unoptimised(ort: Any, path: Path) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return opened(ort, path, sess_options=options).run(None, {"x": X})


def asynchronous(ort: Any, path: Path) -> Any:
    done = threading.Event()
    answers: list[Any] = []

    def callback(*arguments: Any) -> None:
        answers.extend(arguments)
        done.set()

    opened(ort, path).run_async(["z"], {"x": X}, callback, "mine")
    assert done.wait(60)
    return answers


def value_facts(ort: Any) -> Any:
    value = ort.OrtValue.ortvalue_from_numpy(X.copy())
    value.update_inplace(X + 1)
    names = (
        *("data_type", "device_name", "element_type", "has_value", "is_sparse_tensor"),
        *("is_tensor", "is_tensor_sequence", "shape", "tensor_size_in_bytes"),
    )
    return [value.numpy(), *(getattr(value, name)() for name in names)]


COUNTED = [
    helper.make_node("NonZero", ["x"], ["n"]),
    helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
]
SAME: dict[str, Call] = {
    "inputs": lambda ort, path: fields(opened(ort, path).get_inputs()),
    "outputs": lambda ort, path: fields(opened(ort, path).get_outputs()),
    "overridable": lambda ort, path: fields(opened(ort, path).get_overridable_initializers()),
    "node as text": lambda ort, path: str(opened(ort, path).get_inputs()[0]),
    "metadata": lambda ort, path: [
        getattr(opened(ort, path).get_modelmeta(), name)
        for name in (
            *("custom_metadata_map", "description", "domain", "graph_description"),
            *("graph_name", "producer_name", "version"),
        )
    ],
    "open sizes": lambda ort, path: fields(ort.InferenceSession(made(COUNTED)).get_outputs()),
    "run all": lambda ort, path: opened(ort, path).run(None, {"x": X}),
    "run empty list": lambda ort, path: opened(ort, path).run([], {"x": X}),
    "run tuple": lambda ort, path: opened(ort, path).run(("z", "y", "z"), {"x": X}),
    "bytes": lambda ort, path: ort.InferenceSession(path.read_bytes()).run(None, {"x": X}),
    "feed an initializer": lambda ort, path: opened(ort, path).run(
        None, {"x": X, "b": np.full(3, 7, np.float32)}
    ),
    "lists": lambda ort, path: opened(ort, path).run(None, {"x": X.tolist()}),
    "fortran order": lambda ort, path: opened(ort, path).run(None, {"x": np.asfortranarray(X)}),
    "no rows": lambda ort, path: opened(ort, path).run(None, {"x": X[:0]}),
    "ort values": lambda ort, path: [
        value.numpy()
        for value in opened(ort, path).run_with_ort_values(
            None, {"x": ort.OrtValue.ortvalue_from_numpy(X)}
        )
    ],
    "ort value in run": lambda ort, path: opened(ort, path).run(
        None, {"x": ort.OrtValue.ortvalue_from_numpy(X)}
    ),
    "value": lambda ort, path: value_facts(ort),
    "binding": bound,
    "cpu binding": by_cpu_binding,
    "async": asynchronous,
    "fixed dimension": fixed,
    "no optimisation": unoptimised,
    "session entry": lambda ort, path: entries(ort, ort.SessionOptions(), "session"),
    "run entry": lambda ort, path: entries(ort, ort.RunOptions(), "run"),
    "defaults": lambda ort, path: {
        f"{kind}.{name}": str(getattr(getattr(ort, kind)(), name))
        for kind in ("SessionOptions", "RunOptions")
        for name in dir(getattr(theirs, kind)())
        if not name.startswith("_") and not callable(getattr(getattr(theirs, kind)(), name))
    },
    "levels": lambda ort, path: [
        (str(one), int(one), one == ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
        for one in ort.GraphOptimizationLevel.__members__.values()
    ],
    "unprofiled": lambda ort, path: opened(ort, path).end_profiling(),
    "model path": lambda ort, path: Path(opened(ort, path)._model_path).name,
}


@pytest.mark.parametrize("name", SAME)
def test_same_answers(name: str, dense: Path) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return ["array", str(value.dtype), value.round(4).tolist()]
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return value

    assert plain(SAME[name](own, dense)) == plain(SAME[name](theirs, dense))


NODE = helper.make_node("Nope", ["x"], ["y"], name="n")
REFUSED: dict[str, tuple[Call, str]] = {
    "no such file": (
        lambda ort, path: opened(ort, path.with_name("none.onnx")),
        "File doesn't exist",
    ),
    "folder": (lambda ort, path: opened(ort, path.parent), "Protobuf parsing failed"),
    "garbage": (lambda ort, path: ort.InferenceSession(b"hello world"), "INVALID_PROTOBUF"),
    "model object": (
        lambda ort, path: ort.InferenceSession(onnx.load(path)),
        "Unable to load from",
    ),
    "unknown op": (
        lambda ort, path: ort.InferenceSession(made([NODE])),
        "No Op registered for Nope",
    ),
    "unknown domain": (
        lambda ort, path: ort.InferenceSession(
            made([helper.make_node("Nope", ["x"], ["y"], domain="my")])
        ),
        "my:Nope(-1) is not a registered function/op",
    ),
    "unknown output": (
        lambda ort, path: opened(ort, path).run(["q"], {"x": X}),
        "Invalid output name:q",
    ),
    "missing input": (
        lambda ort, path: opened(ort, path).run(None, {}),
        "Required inputs (['x']) are missing from input feed ([]).",
    ),
    "unknown input": (
        lambda ort, path: opened(ort, path).run(None, {"x": X, "q": X}),
        "Invalid input name: q",
    ),
    "text for names": (lambda ort, path: opened(ort, path).run("z", {"x": X}), "run(): incompat"),
    "no dictionary": (lambda ort, path: opened(ort, path).run(None, X), "has no attribute 'keys'"),
    "wrong type": (
        lambda ort, path: opened(ort, path).run(None, {"x": X.astype(np.int64)}),
        "Unexpected input data type. Actual: (tensor(int64)) , expected: (tensor(float))",
    ),
    "wrong rank": (
        lambda ort, path: opened(ort, path).run(None, {"x": X[0]}),
        "Invalid rank for input: x Got: 1 Expected: 2",
    ),
    "wrong size": (
        lambda ort, path: opened(ort, path).run(None, {"x": X[:, :3]}),
        "Got invalid dimensions for input: x for the following indices\n index: 1 Got: 3 Expected",
    ),
    "number": (lambda ort, path: opened(ort, path).run(None, {"x": 3}), "Unable to handle object"),
    "None": (lambda ort, path: opened(ort, path).run(None, {"x": None}), "Missing Input: x"),
    "run options": (lambda ort, path: opened(ort, path).run(None, {"x": X}, 5), "run(): incompat"),
    "terminated": (terminated, "Exiting due to terminate flag being set to true."),
    "no output bound": (
        lambda ort, path: (
            opened(ort, path).run_with_iobinding(opened(ort, path).io_binding())
            if ort is own
            else (lambda s: s.run_with_iobinding(s.io_binding()))(opened(ort, path))
        ),
        "At least one output should be requested.",
    ),
    "bound to another size": (lambda ort, path: bound(ort, path, (3, 3)), "output 'z'"),
    "unknown input bound": (
        lambda ort, path: opened(ort, path).io_binding().bind_cpu_input("q", X),
        "Failed to find NodeArg with name: q",
    ),
    "no such attribute": (
        lambda ort, path: setattr(ort.SessionOptions(), "nonsense", 1),
        "object has no attribute 'nonsense'",
    ),
    "attribute of another type": (
        lambda ort, path: setattr(ort.SessionOptions(), "intra_op_num_threads", "four"),
        "",
    ),
    "level by number": (
        lambda ort, path: setattr(ort.SessionOptions(), "graph_optimization_level", 99),
        "",
    ),
    "no such entry": (
        lambda ort, path: ort.SessionOptions().get_session_config_entry("zz"),
        "does not have configuration with key: zz",
    ),
    "custom ops": (
        lambda ort, path: ort.SessionOptions().register_custom_ops_library("/none.so"),
        "Failed to load library /none.so with error",
    ),
    "severity": (lambda ort, path: ort.set_default_logger_severity(9), "Invalid logging severity"),
    "value on CUDA": (
        lambda ort, path: ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0),
        "Can't allocate memory on the device using this package of OnnxRuntime",
    ),
    "value on nothing": (
        lambda ort, path: ort.OrtValue.ortvalue_from_numpy(X, "zzz", 0),
        "Unsupported device type: zzz",
    ),
    "value of another size": (
        lambda ort, path: ort.OrtValue.ortvalue_from_numpy(X.copy()).update_inplace(X[:1]),
        "The input size of numpy arrays does not match the size of the OrtValue.",
    ),
    "options by number": (lambda ort, path: opened(ort, path, sess_options=5), ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_same_refusals(name: str, dense: Path) -> None:
    call, text = REFUSED[name]
    kinds = []
    for ort in (own, theirs):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is compared below
            call(ort, dense)
        assert text in str(caught.value)
        kinds.append(caught.type.__name__)
    assert kinds[0] == kinds[1]


def test_exceptions_are_the_same_by_name() -> None:
    mine = importlib.import_module("vkmnn.onnxruntime.capi.onnxruntime_pybind11_state")
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    names = [
        name
        for name, value in vars(state).items()
        if isinstance(value, type) and issubclass(value, Exception) and name != "DeviceReset"
    ]
    assert len(names) > 10
    for name in names:
        assert issubclass(getattr(mine, name), vkmnn.VkmnnError)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs_run_unchanged(program: Path, dense: Path) -> None:
    def output(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command, str(program), str(dense)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert output("-m", "vkmnn.onnxruntime") == output()


def test_a_program_that_is_a_module(tmp_path: Path, dense: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import sys, onnxruntime as ort\n"
        "s = ort.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
        "print(s._main.device.name, sys.argv[2:], ort.get_build_info()[:5])\n"
    )

    def output(*options: str) -> str:
        return subprocess.run(
            [
                *(sys.executable, "-m", "vkmnn.onnxruntime", *options, "-m", "pack"),
                *(str(dense), "--mine"),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert output("--keep-providers") == "CPU (numpy backend) ['--mine'] vkmnn\n"
    assert output("--device", "cpu") == "CPU (numpy backend) ['--mine'] vkmnn\n"
    if vkmnn.devices():
        assert output().startswith(vkmnn.devices()[0].name)


# --- what only vkmnn has -------------------------------------------------------------------------


def test_providers(dense: Path) -> None:
    available = own.get_available_providers()
    assert available[-1] == "CPUExecutionProvider"
    assert set(available) <= set(own.get_all_providers())
    session = own.InferenceSession(str(dense))
    assert session.get_providers() == available
    assert list(session.get_provider_options()) == available
    session.set_providers(["CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}
    assert np.isfinite(session.run(["z"], {"x": X})[0]).all()


def test_vulkan_takes_the_place_of_cuda(dense: Path) -> None:
    with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not in available provider"):
        session = own.InferenceSession(
            str(dense),
            providers=[("CUDAExecutionProvider", {"device_id": 7}), "CPUExecutionProvider"],
        )
    assert session.get_providers() == own.get_available_providers()
    with pytest.warns(UserWarning, match="'NoneSuch' .* it is ignored"):
        session = own.InferenceSession(str(dense), providers=["NoneSuch", "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_options_of_the_provider(dense: Path) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    device = vkmnn.devices()[0]
    session = own.InferenceSession(
        str(dense), providers=[("VulkanExecutionProvider", {"device_id": device.index})]
    )
    options = session.get_provider_options()["VulkanExecutionProvider"]
    assert options["device_id"] == str(device.index)
    assert options["device"] == device.name
    for wrong in ({"device_id": "first"}, {"cudnn_conv_algo_search": "DEFAULT"}):
        with pytest.raises(Exception, match=r"INVALID_ARGUMENT : .*rovider option"):
            own.InferenceSession(str(dense), providers=[("VulkanExecutionProvider", wrong)])
    with pytest.raises(Exception, match=r"EP_FAIL : .*no device 99"):
        own.InferenceSession(
            str(dense), providers=["VulkanExecutionProvider"], provider_options=[{"device_id": 99}]
        )


@pytest.mark.parametrize(
    ("providers", "options", "text"),
    [
        (5, None, "'providers' should be a sequence."),
        ([5], None, "'providers' values must be either strings"),
        (["CPUExecutionProvider"], 5, "'provider_options' should be a sequence."),
        (["CPUExecutionProvider"], [], "should be the same length"),
        (["CPUExecutionProvider"], [5], "'provider_options' values must be dicts."),
        ([("CPUExecutionProvider", {})], [{}], "Only string values"),
    ],
)
def test_providers_that_do_not_fit(providers: Any, options: Any, text: str, dense: Path) -> None:
    with pytest.raises(ValueError, match=text):
        own.InferenceSession(str(dense), providers=providers, provider_options=options)


def test_no_fallback_to_the_cpu() -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    nodes = [
        helper.make_node("Cast", ["x"], ["d"], to=TensorProto.DOUBLE),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Cast", ["e"], ["y"], to=TensorProto.FLOAT),
    ]
    options = own.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(Exception, match="FAIL : This session contains graph nodes"):
        own.InferenceSession(made(nodes), options, providers=["VulkanExecutionProvider"])


def test_one_warning_for_all_that_is_ignored(dense: Path) -> None:
    options = own.SessionOptions()
    options.enable_mem_pattern = False
    options.intra_op_num_threads = 3
    options.optimized_model_filepath = "out.onnx"
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    names = "enable_mem_pattern, intra_op_num_threads, optimized_model_filepath"
    with pytest.warns(UserWarning, match="ignores these session options") as caught:
        own.InferenceSession(str(dense), options)
    (warning,) = caught
    assert str(warning.message).endswith(f": {names}, session.intra_op.allow_spinning")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.InferenceSession(str(dense), own.SessionOptions())


def test_a_profile_is_a_trace(dense: Path, tmp_path: Path) -> None:
    options = own.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace_")
    session = own.InferenceSession(str(dense), options)
    assert session.end_profiling() == ""
    session.run(None, {"x": X})
    path = session.end_profiling()
    assert path.startswith(str(tmp_path / "trace_"))
    assert json.loads(Path(path).read_text("utf-8"))["traceEvents"]
    assert session.get_profiling_start_time_ns() > 0


def test_precision_of_the_provider(dense: Path) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    session = own.InferenceSession(
        str(dense), providers=[("VulkanExecutionProvider", {"precision": "fp16"})]
    )
    assert session.get_provider_options()["VulkanExecutionProvider"]["precision"] == "fp16"
    want = own.InferenceSession(str(dense)).run(["z"], {"x": X})[0]
    np.testing.assert_allclose(session.run(["z"], {"x": X})[0], want, rtol=1e-2, atol=1e-2)


def test_what_is_not_there_says_so() -> None:
    with pytest.raises(
        AttributeError, match=r"no attribute 'LoraAdapter'.*coming-from-onnxruntime"
    ):
        own.LoraAdapter  # noqa: B018 - the access is the test
    with pytest.raises(Exception, match="FAIL"):
        own.register_execution_provider_library("x", "x.so")


def test_values_over_memory_of_others() -> None:
    value = own.OrtValue.from_dlpack(X.copy())
    assert value.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(np.from_dlpack(value), X)
    np.testing.assert_array_equal(np.asarray(value), X)
    assert own.OrtDevice.make("cpu", 0).device_type() == 0
    with pytest.raises(Exception, match="Unsupported device type: zz"):
        own.OrtDevice.make("zz", 0)


def test_outputs_bound_to_the_device_stay_there(dense: Path) -> None:
    session = own.InferenceSession(str(dense))
    if session.get_providers()[0] != "VulkanExecutionProvider":
        pytest.skip("no Vulkan device")
    inputs, outputs = session.get_inputs(), session.get_outputs()
    x = np.ones([size if isinstance(size, int) else 2 for size in inputs[0].shape], np.float32)
    (want,) = session.run([outputs[0].name], {inputs[0].name: x})
    value = own.OrtValue.ortvalue_from_numpy(x, "vulkan", 0)
    assert value.device_name() == "vulkan"
    binding = session.io_binding()
    binding.bind_ortvalue_input(inputs[0].name, value)
    binding.bind_output(outputs[0].name, "vulkan")
    session.run_with_iobinding(binding)
    (result,) = binding.get_outputs()
    assert (result.device_name(), result.shape()) == ("vulkan", list(want.shape))
    np.testing.assert_allclose(result.numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], want, rtol=1e-6)

    value.update_inplace(2 * x)
    held = own.OrtValue.ortvalue_from_shape_and_type(want.shape, np.float32, "vulkan", 0)
    binding.bind_ortvalue_output(outputs[0].name, held)
    for _ in range(2):
        session.run_with_iobinding(binding)
        (doubled,) = session.run([outputs[0].name], {inputs[0].name: 2 * x})
        np.testing.assert_allclose(held.numpy(), doubled, rtol=1e-6)
    np.testing.assert_allclose(result.numpy(), want, rtol=1e-6)
    (again,) = session.run_with_ort_values([outputs[0].name], {inputs[0].name: value})
    np.testing.assert_allclose(again.numpy(), doubled, rtol=1e-6)


def test_nodes_on_the_host_run_in_onnxruntime_itself(tmp_path: Path) -> None:
    """Its name is taken, for the program as for everything that the program imports."""
    graph = helper.make_graph(
        [helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.5)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "program.py").write_text(
        "import numpy as np, onnxruntime as ort\n"
        "s = ort.InferenceSession('model.onnx')\n"
        "(y,) = s.run(None, {'x': np.float32([0, 1, 2])})\n"
        "import onnxruntime\n"
        "print(y.tolist(), [op.backend for op in s._main.core.placement()], onnxruntime.__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "vkmnn.onnxruntime", "program.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0.0, 1.0, 1.0] ['onnxruntime'] vkmnn.onnxruntime\n"
