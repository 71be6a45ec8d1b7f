"""`vkmnn.mnn`: programs written for MNN, and all of their calls."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
import vkmnn.mnn as MNN  # noqa: N812 - as programs write it
from tests.model.mnn_models import converted
from vkmnn import InvalidInputError, ModelError, ShapeError
from vkmnn.mnn import expr, nn
from vkmnn.opening.paths import OpenPaths
from vkmnn.opening.reshaped import Openings

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
CAFFE, TENSORFLOW = MNN.Tensor_DimensionType_Caffe, MNN.Tensor_DimensionType_Tensorflow
X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
PICTURE = np.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)


def backends() -> list[str]:
    return ["VULKAN", "CPU"] if vkmnn.devices() else ["CPU"]


@pytest.mark.parametrize("program", ["mnn_session.py", "mnn_callbacks.py", "mnn_module.py"])
def test_programs_run_unchanged(program: str, pictures: Path) -> None:
    picture = np.linspace(0, 1, 3 * 8 * 8).reshape(8, 8, 3) - (0.4, 0.5, 0.6)
    x = picture.transpose(2, 0, 1)[None].astype(np.float32)
    (want,) = vkmnn.InferenceSession(pictures, "cpu").run(None, {"image": x})
    for backend in backends():
        done = subprocess.run(
            [sys.executable, "-m", "vkmnn.mnn", str(PROGRAMS / program), str(pictures), backend],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.splitlines()
        assert first == f"backend {7 if backend == 'VULKAN' else 0}"
        _, index, scores = second.split(maxsplit=2)
        assert int(index) == want.argmax()
        np.testing.assert_allclose(np.array(eval(scores)), want, atol=2e-4)  # noqa: S307 - a list


@pytest.mark.parametrize("program", ["mnn_session.py", "mnn_callbacks.py", "mnn_module.py"])
def test_programs_run_on_mnn_and_here(program: str, pictures: Path, tmp_path: Path) -> None:
    """The same program and the same file: with MNN itself, and with vkmnn in its place."""
    model = converted(onnx.load(pictures), tmp_path)
    lines = []
    for start in ([], ["-m", "vkmnn.mnn"]):
        done = subprocess.run(
            [sys.executable, *start, str(PROGRAMS / program), str(model), "CPU"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        # MNN's own output, which C buffers, may come after the program's.
        lines.append([line for line in done.stdout.splitlines() if line.startswith("class ")][-1])
    assert lines[0].split()[:2] == lines[1].split()[:2]
    mine, theirs = (np.array(eval(line.split(maxsplit=2)[2])) for line in lines)  # noqa: S307
    np.testing.assert_allclose(mine, theirs, atol=1e-3)


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a fully convolutional network as MNN's converter writes it: all sizes are fixed."""
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        onnx.helper.make_node("Conv", ["image", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        onnx.helper.make_node("LeakyRelu", ["c"], ["r"], "relu", alpha=0.5),
        onnx.helper.make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        onnx.helper.make_node("Sigmoid", ["p"], ["y"], "end"),
    ]
    infos = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)]
        for name, shape in (("image", [1, 3, 16, 16]), ("y", [1, 4, 8, 8]))
    ]
    constants = [onnx.numpy_helper.from_array(weight, "w")]
    graph = onnx.helper.make_graph(nodes, "fcn", *infos, constants)
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return converted(model, tmp_path_factory.mktemp("convolutions"))


def by_mnn(path: Path, arrays: list[Any]) -> list[Any]:
    """Return MNN's own answers, resized for every array."""
    real = importlib.import_module("MNN")
    net = real.Interpreter(str(path))
    session = net.createSession({"backend": "CPU", "precision": "high"})
    return [run_on(real, net, session, array) for array in arrays]


def run_on(module: Any, net: Any, session: Any, array: Any) -> Any:
    source, output = net.getSessionInput(session), net.getSessionOutput(session)
    net.resizeTensor(source, array.shape)
    net.resizeSession(session)
    order = module.Tensor_DimensionType_Caffe
    source.copyFrom(module.Tensor(array.shape, module.Halide_Type_Float, array, order))
    assert net.runSession(session) == 0
    shape = output.getShape()
    host = module.Tensor(shape, module.Halide_Type_Float, np.zeros(shape, np.float32), order)
    output.copyToHostTensor(host)
    return np.array(host.getNumpyData()).reshape(shape)


@pytest.mark.parametrize("backend", backends())
def test_a_file_of_fixed_sizes_takes_others(backend: str, convolutions: Path) -> None:
    """Batches and images of other sizes, back and forth, as MNN resizes them."""
    shapes = [(1, 3, 16, 16), (1, 3, 24, 32), (5, 3, 16, 16), (2, 3, 9, 11), (1, 3, 24, 32)]
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    net = MNN.Interpreter(str(convolutions))
    session = net.createSession({"backend": backend})
    found = [run_on(MNN, net, session, array) for array in arrays]
    module = nn.load_module_from_file(str(convolutions), ["image"], ["y"], backend=backend)
    for mine, theirs, array in zip(found, by_mnn(convolutions, arrays), arrays, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
        np.testing.assert_allclose(module.forward([array])[0].read(), theirs, atol=1e-5)
    net.resizeTensor(net.getSessionInput(session), (1, 5, 16, 16))
    with pytest.raises(ShapeError, match="Convolution"):
        net.resizeSession(session)
    with pytest.raises(InvalidInputError, match="call resizeSession first"):
        net.runSession(session)
    run_on(MNN, net, session, arrays[0])


def test_names_of_ops_are_those_of_the_file(convolutions: Path) -> None:
    """In callbacks, and if tensors that passes would fuse away are kept."""
    x = np.ones((1, 3, 16, 16), np.float32)
    seen: list[str] = []
    net = MNN.Interpreter(str(convolutions))
    session = net.createSession({"backend": "CPU", "saveTensors": ("c",)})
    kept = net.getSessionOutputAll(session)["c"]
    run_on(MNN, net, session, x)
    assert kept.getShape() == (1, 4, 16, 16)
    assert kept.getNumpyData().min() < net.getSessionOutput(session).getNumpyData().min()
    net.runSessionWithCallBack(
        session, lambda _, name: bool(seen.append(name)) or True, lambda *_: 1
    )
    real = importlib.import_module("MNN")
    theirs: list[str] = []
    other = real.Interpreter(str(convolutions))
    with_names = other.createSession({"backend": "CPU"})
    other.runSessionWithCallBack(
        with_names, lambda _, name: bool(theirs.append(name)) or True, lambda *_: True
    )
    assert seen
    assert set(seen) <= {name.removesuffix("_raster_0") for name in theirs}


def test_error_codes(net: MNN.Interpreter) -> None:
    """Errors are raised, with MNN's numbers for them; programs of MNN's get the numbers."""
    session = net.createSession({"backend": "CPU"})
    for code, spoil in (
        (10, lambda: None),
        (3, lambda: net.resizeTensor(net.getSessionInput(session), (2, 3, 8, 8))),
    ):
        spoil()
        with pytest.raises(InvalidInputError) as caught:
            net.runSession(session)
        assert MNN.error_code(caught.value) == code == MNN.ErrorCode(code)
        MNN.return_error_codes()
        try:
            assert net.runSession(session) == code
            assert net.runSessionWithCallBack(session, lambda *_: True, lambda *_: True) == code
        finally:
            MNN.return_error_codes(False)
    assert MNN.ErrorCode.NO_ERROR == 0
    assert MNN.error_code(vkmnn.OutOfDeviceMemoryError("q")) is MNN.ErrorCode.OUT_OF_MEMORY
    assert MNN.error_code(vkmnn.UnsupportedOpError([])) is MNN.ErrorCode.NOT_SUPPORT


def test_more_of_tensors(net: MNN.Interpreter, capsys: pytest.CaptureFixture[str]) -> None:
    session = net.createSession({"backend": "CPU"})
    source = net.getSessionInput(session)
    host = MNN.Tensor((1, 3, 8, 8), MNN.Halide_Type_Float, PICTURE[:1], CAFFE)
    assert source.copyFromHostTensor(host) is True
    np.testing.assert_array_equal(source.getNumpyData(), PICTURE[:1])
    source.fromNumpy(2 * PICTURE[:1])
    np.testing.assert_array_equal(source.getNumpyData(), 2 * PICTURE[:1])
    with pytest.raises(InvalidInputError, match=r"not \(2, 3, 8, 8\)"):
        source.fromNumpy(PICTURE)
    MNN.Tensor((2,), MNN.Halide_Type_Int, (5, 6), CAFFE).printTensorData()
    assert "5 6" in capsys.readouterr().out


def test_the_model_is_written(net: MNN.Interpreter, tmp_path: Path) -> None:
    session = net.createSession({"backend": "CPU"})
    net.updateSessionToModel(session)
    net.updateSessionToModel(session, tmp_path / "again.vkmnn")
    again = MNN.Interpreter(tmp_path / "again.vkmnn")
    x = PICTURE[:1]
    one, other = (run_on(MNN, n, n.createSession({"backend": "CPU"}), x) for n in (net, again))
    np.testing.assert_allclose(one, other, atol=1e-6)
    net.resizeTensor(net.getSessionInput(session), (2, 3, 8, 8))
    with pytest.raises(InvalidInputError, match="call resizeSession first"):
        net.updateSessionToModel(session)


def test_what_modules_say_and_their_copies(pictures: Path) -> None:
    module = nn.load_module_from_file(str(pictures), ["image"], ["scores"], backend=0)
    info = module.get_info()
    assert (info["inputNames"], info["outputNames"]) == (["image"], ["scores"])
    assert info["inputs"][0]["shape"][1:] == [3, 8, 8]
    assert {"version", "bizCode"} < info.keys()
    again = module.clone()
    module.clear_cache()
    (one,), (other,) = module.forward([PICTURE]), again.forward([PICTURE])
    assert one.shape == [2, 5]
    np.testing.assert_array_equal(one, other)


def test_names_of_enumerations_stand_in_the_module() -> None:
    assert (expr.VULKAN, expr.CPU, expr.HIAI, expr.TRT) == (7, 0, 8, 9)
    assert (expr.High, expr.Low, expr.Normal, expr.Low_BF16) == (1, 2, 0, 3)
    assert expr.const([1, -2], [2], expr.NCHW, expr.int8).dtype == expr.int8
    assert MNN.OpInfo.getName


@pytest.mark.parametrize(
    "line", ["import MNN.audio", "import MNN.optim as o", "from MNN import data"]
)
def test_modules_that_are_not_there_say_where_to_look(line: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(line)
    done = subprocess.run(
        [sys.executable, "-m", "vkmnn.mnn", str(tmp_path / "app.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "coming-from-mnn" in done.stderr


@pytest.fixture(scope="module")
def net(pictures: Path) -> MNN.Interpreter:
    return MNN.Interpreter(str(pictures))


@pytest.fixture
def session(net: MNN.Interpreter) -> MNN.Session:
    return net.createSession({"backend": backends()[0]})


def test_a_session_begins_planned_for_one(net: MNN.Interpreter, session: MNN.Session) -> None:
    source, output = net.getSessionInput(session), net.getSessionOutput(session, "scores")
    assert source.getShape() == (1, 3, 8, 8)
    assert output.getShape() == (1, 5)
    assert net.getSessionInfo(session, 3) == 0
    assert net.getSessionInputAll(session) == {"image": source}
    assert net.getSessionOutputAll(session) == {"scores": output}
    with pytest.raises(InvalidInputError, match="'image' holds no data"):
        net.runSession(session)
    net.setSessionMode(7)
    deferred = net.createSession()
    net.setSessionMode(6)
    assert net.getSessionInfo(deferred, 3) == 2
    with pytest.raises(InvalidInputError, match="call resizeSession first"):
        net.runSession(deferred)


def test_sizes_change(net: MNN.Interpreter, session: MNN.Session, pictures: Path) -> None:
    source, output = net.getSessionInput(session), net.getSessionOutput(session)
    plain = vkmnn.InferenceSession(pictures)
    for rows in (2, 1, 2):
        net.resizeTensor(source, (rows, 3, 8, 8))
        assert net.resizeSession(session) is True
        assert output.getShape() == (rows, 5)
        host = MNN.Tensor((rows, 3, 8, 8), MNN.Halide_Type_Float, PICTURE[:rows], CAFFE)
        assert source.copyFrom(host)
        assert net.runSession(session) == 0
        want = plain.run(None, {"image": PICTURE[:rows]})[0]
        np.testing.assert_array_equal(output.getNumpyData(), want)
    assert net.getSessionInfo(session, 0) >= 0
    assert net.getSessionInfo(session, 1) == pytest.approx(0.0351, rel=0.2)
    assert net.getSessionInfo(session, 4) == 1


def test_channels_last(net: MNN.Interpreter, session: MNN.Session) -> None:
    source, output = net.getSessionInput(session), net.getSessionOutput(session)
    results = []
    for data, shape, order in (
        (PICTURE[:1], (1, 3, 8, 8), CAFFE),
        (PICTURE[:1].transpose(0, 2, 3, 1), (1, 8, 8, 3), TENSORFLOW),
    ):
        source.copyFrom(MNN.Tensor(shape, MNN.Halide_Type_Float, data, order))
        net.runSession(session)
        results.append(output.getData())
    assert results[0] == results[1]
    back = MNN.Tensor((1, 8, 8, 3), MNN.Halide_Type_Float, TENSORFLOW)
    assert source.copyToHostTensor(back)
    np.testing.assert_array_equal(back.getNumpyData(), PICTURE[:1].transpose(0, 2, 3, 1))


def test_tensors() -> None:
    t = MNN.Tensor((1, 3), MNN.Halide_Type_Float, (1.0, 2.0, 3.0), CAFFE)
    assert (t.getShape(), t.getDataType(), t.getDimensionType(), t.getData()) == (
        *((1, 3), MNN.Halide_Type_Float, CAFFE),
        (1.0, 2.0, 3.0),
    )
    np.testing.assert_array_equal(t.getNumpyData(), [[1, 2, 3]])
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    floats = ctypes.cast(address(t.getHost(), None), ctypes.POINTER(ctypes.c_float))
    assert floats[:3] == [1, 2, 3]
    assert MNN.Tensor(t).getData() == t.getData()
    assert MNN.Tensor(np.arange(4, dtype=np.int32)).getDataType() is MNN.Halide_Type_Int
    of_bytes = MNN.Tensor((2,), MNN.Halide_Type_Int, np.array([5, 6], np.int32).tobytes(), CAFFE)
    assert of_bytes.getData() == (5, 6)
    picture = MNN.Tensor((1, 3, 8, 8), MNN.Halide_Type_Float, PICTURE[:1], CAFFE)
    assert MNN.Tensor(picture, TENSORFLOW).getShape() == (1, 8, 8, 3)
    assert picture.getDimensionFormat() == expr.NCHW
    assert repr(MNN.Halide_Type_Int64) == "MNN.Halide_Type_Int64"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (((2, 3), MNN.Halide_Type_Float, (1, 2), CAFFE), r"2 elements do not fill .*\(2, 3\)"),
        (((2,), MNN.Halide_Type_Int, (1.5, 2.5), CAFFE), "is int32, got float64"),
        (((2,), MNN.Halide_Type_Uint8, (1, 300), CAFFE), "cannot represent all the values"),
        (((2,), MNN.Halide_Type_String, ("a", "b"), CAFFE), "no elements of type"),
        (((2,), np.float32, (1, 2), CAFFE), "no elements of type"),
        (((2,), MNN.Halide_Type_Float, (1, 2), 7), "7 is not an order of axes"),
        (((-1,), MNN.Halide_Type_Float, CAFFE), "not the shape"),
        (((2,), MNN.Halide_Type_Float), "cannot be created from 2 arguments"),
    ],
)
def test_tensors_that_cannot_be(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        MNN.Tensor(*arguments)


def test_wrong_calls(net: MNN.Interpreter, session: MNN.Session, tmp_path: Path) -> None:
    source = net.getSessionInput(session)
    with pytest.raises(InvalidInputError, match=r"shape \(1, 3, 8, 8\), not \(2, 3, 8, 8\)"):
        source.copyFrom(MNN.Tensor((2, 3, 8, 8), MNN.Halide_Type_Float, PICTURE, CAFFE))
    with pytest.raises(InvalidInputError, match=r"not \(1, 8, 3, 8\)"):
        source.copyFrom(MNN.Tensor((1, 3, 8, 8), MNN.Halide_Type_Float, TENSORFLOW))
    with pytest.raises(InvalidInputError, match="no input 'q'"):
        net.getSessionInput(session, "q")
    with pytest.raises(InvalidInputError, match="only inputs of sessions"):
        net.resizeTensor(net.getSessionOutput(session), (1,))
    with pytest.raises(InvalidInputError, match="-3"):
        net.resizeTensor(source, (1, -3, 8, 8))
    net.resizeTensor(source, (1, 4, 8, 8))
    with pytest.raises(ShapeError, match="Convolution"):
        net.resizeSession(session)
    net.resizeTensor(source, (1, 3, 8, 8))
    net.resizeSession(session)
    with pytest.raises(InvalidInputError, match="no information 9"):
        net.getSessionInfo(session, 9)
    for config, text in (
        ({"backend": "ABACUS"}, "no backend 'ABACUS'"),
        ({"precision": "utter"}, "no precision 'utter'"),
        ({"nonsense": 1}, "no setting 'nonsense'"),
        ({"inputPaths": ("imaeg",)}, "no op 'imaeg'"),
        ({"saveTensors": ("q",)}, "no tensor 'q'"),
        ({"saveTensors": "r"}, "saveTensors is 'r'"),
        ({"inputPaths": 5}, "inputPaths is 5"),
        ({"backend": ["CPU"]}, "no backend"),
        ({"precision": ["high"]}, "no precision"),
        ({"memory": {}}, "no memory"),
        ({"execution": 3}, "execution"),
        ("VULKAN", "a configuration is a dictionary"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            net.createSession(config)
    path = tmp_path / "m.mnn"
    path.write_bytes(b"\x20\x00\x00\x00\x00\x00\x1c\x00 nothing")
    with pytest.raises(ModelError, match="not an MNN model"):
        MNN.Interpreter(str(path))


def test_callbacks(net: MNN.Interpreter, session: MNN.Session) -> None:
    source = net.getSessionInput(session)
    source.copyFrom(MNN.Tensor((1, 3, 8, 8), MNN.Halide_Type_Float, PICTURE[:1], CAFFE))
    net.runSession(session)
    want = net.getSessionOutput(session).getNumpyData()
    names: list[str] = []
    infos: list[tuple[str, str, float]] = []

    def begin(tensors: list[MNN.Tensor], name: str) -> bool:
        names.append(name)
        assert all(tensor.getShape() for tensor in tensors)
        return True

    def end(tensors: list[MNN.Tensor], info: Any) -> bool:
        infos.append((info.getName(), info.getType(), info.getFlops()))
        assert tensors[0].getNumpyData().size
        return True

    assert net.runSessionWithCallBack(session, begin, lambda *_: True) == 0
    np.testing.assert_allclose(net.getSessionOutput(session).getNumpyData(), want, atol=1e-5)
    assert net.runSessionWithCallBackInfo(session, lambda *_: True, end) == 0
    assert [name for name, _, _ in infos] == names
    assert any(kind == "Convolution" and flops > 0 for _, kind, flops in infos)
    assert net.runSessionWithCallBackInfo(session, lambda *_: True, lambda *_: False) == 11


def test_settings(net: MNN.Interpreter) -> None:
    assert net.getSessionInfo(net.createSession({"backend": 0}), 2) == 0
    runtime, effective = MNN.Interpreter.createRuntime(({"backend": "CPU", "numThread": 4},))
    assert effective == (True,)
    assert net.createRuntime([{"backend": "CPU"}, {"backend": 0}])[1] == (True, True)
    for wrong in ({"backend": "CPU"}, (), None):
        with pytest.raises(InvalidInputError, match="a sequence of configurations"):
            MNN.Interpreter.createRuntime(wrong)
    session = net.createSession({"saveTensors": ("r",)}, runtime)
    assert net.getSessionInfo(session, 2) == 0
    assert net.getSessionOutputAll(session)["r"].getShape() == (1, 5, 8, 8)
    with pytest.warns(UserWarning, match="no backend OPENCL"):
        net.createSession({"backend": 3, "precision": "high"})
    with pytest.warns(UserWarning, match="ignores session mode 3"):
        net.setSessionMode(3)
    with pytest.warns(UserWarning, match="setExternalFile"):
        net.setExternalFile("weights")
    assert net.getModelVersion() == "0"
    with pytest.raises(InvalidInputError, match="createRuntime"):
        net.createSession({}, 5)


def test_a_part_of_the_network(net: MNN.Interpreter, session: MNN.Session) -> None:
    """From a tensor, here "r", to the outputs; by way of the names of ops or of tensors."""
    image = MNN.Tensor((1, 3, 8, 8), MNN.Halide_Type_Float, PICTURE[:1], CAFFE)
    whole = net.createSession({"backend": backends()[0], "outputPaths": ("r",)})
    net.getSessionInput(whole).copyFrom(image)
    net.runSession(whole)
    wanted = net.getSessionOutput(whole, "scores").getNumpyData()
    part = net.createSession(
        {"backend": backends()[0], "inputPaths": ("r",), "outputPaths": ("scores",)}
    )
    assert list(net.getSessionInputAll(part)) == ["r"]
    middle = net.getSessionOutput(whole, "r")
    net.resizeTensor(net.getSessionInput(part), middle.getShape())
    net.resizeSession(part)
    net.getSessionInput(part).copyFrom(middle)
    net.runSession(part)
    assert list(net.getSessionOutputAll(part)) == ["scores"]
    np.testing.assert_allclose(net.getSessionOutput(part).getNumpyData(), wanted, atol=1e-5)


def test_modules(dense: Path, pictures: Path) -> None:
    module = nn.load_module_from_file(str(dense), ["x"], ["z", "y"], backend=expr.Backend.CPU)
    z, y = module(expr.const(X, X.shape))
    assert (z.name, y.shape, y.dtype, y.data_format) == ("z", [2, 3], expr.float, expr.NCHW)
    np.testing.assert_array_equal(z.read(), np.maximum(y.read(), 0))
    assert [var.name for var in module.forward([X])] == ["z", "y"]
    assert module.onForward([X])[0].read_as_tuple() == z.read_as_tuple()
    assert not module.is_training
    classify = nn.load_module_from_file(str(pictures), backend=backends()[0])
    assert classify.forward(PICTURE).shape == [2, 5]
    (listed,) = classify.forward([PICTURE])
    assert listed.shape == [2, 5]
    assert classify([PICTURE])[0].shape == [2, 5]
    last = expr.Var(np.ascontiguousarray(PICTURE.transpose(0, 2, 3, 1)), expr.NHWC)
    np.testing.assert_array_equal(classify(last), classify(PICTURE))
    for wrong, text in (
        (lambda: module([X, X]), "takes 1 input, got 2"),
        (lambda: module(X.astype(complex)), "got complex128"),
        (lambda: module.train(), "does not train"),
        (lambda: nn.load_module_from_file(str(dense), ["q"]), "no input 'q'"),
        (lambda: nn.load_module_from_file(str(dense), ["x"], ["q"]), "no output 'q'"),
        (lambda: nn.load_module_from_file(str(dense), memory_mode=9), "no memory 9"),
        (lambda: nn.load_module_from_file(str(dense), power_mode=9), "no power 9"),
        (lambda: nn.create_runtime_manager({"q": 1}), "no setting 'q'"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            wrong()


def test_threads_may_call_a_module_with_other_shapes(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another thread makes current between the choice of a session and the run is not used."""
    module = nn.load_module_from_file(str(pictures), backend=0)
    small = np.ones((1, *PICTURE.shape[1:]), np.float32)
    wanted = module(small).read()
    real = Openings.fit

    def fit(self: Openings, shapes: Mapping[str, tuple[int, ...]]) -> OpenPaths:
        found = real(self, shapes)
        real(self, {"image": PICTURE.shape})
        return found

    module(PICTURE)
    monkeypatch.setattr(Openings, "fit", fit)
    np.testing.assert_array_equal(module(small).read(), wanted)


def test_vars() -> None:
    x = expr.const([1, 2, 3, 4], [2, 2], expr.NCHW, expr.int)
    assert (x.size, x.ndim, len(x), x[0, 1], x[1].read_as_tuple()) == (4, 2, 2, 2, (3, 4))
    assert np.argmax(x) == 3
    x.write((5, 6, 7, 8))
    assert repr(x) == repr(np.array([[5, 6], [7, 8]], np.int32))
    assert expr.convert(expr.placeholder([1, 2, 3, 4]), expr.NHWC).shape == [1, 3, 4, 2]
    with pytest.raises(InvalidInputError, match="does not take 3 elements"):
        x.write([1, 2, 3])
    with pytest.raises(InvalidInputError, match="do not fill"):
        expr.const([1, 2, 3], [2, 2])
    with pytest.raises(AttributeError, match="operators in networks"):
        expr.jsonop  # noqa: B018 - the access is the test
    with pytest.raises(AttributeError, match="'audio'"):
        MNN.audio  # noqa: B018 - the access is the test


def test_integers_are_as_wide_as_the_model_has_them(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Add", ["i", "i"], ["j"])]
    infos = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [2])] for name in "ij"
    ]
    path = tmp_path / "i.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", *infos)), path)
    net = MNN.Interpreter(path)
    session = net.createSession({"backend": "CPU"})
    source, output = net.getSessionInput(session), net.getSessionOutput(session)
    assert source.getDataType() is MNN.Halide_Type_Int64
    source.copyFrom(MNN.Tensor((2,), MNN.Halide_Type_Int, (3, 2**30), CAFFE))
    net.runSession(session)
    narrow = MNN.Tensor((2,), MNN.Halide_Type_Int, CAFFE)
    with pytest.raises(InvalidInputError, match="cannot represent all the values"):
        output.copyToHostTensor(narrow)
    assert output.getData() == (6, 2**31)


def test_a_tensor_of_another_session(pictures: Path) -> None:
    net = vkmnn.Interpreter(pictures)
    first, second = (net.create_session({"backend": "CPU"}) for _ in range(2))
    with pytest.raises(InvalidInputError, match="not an input of this session"):
        net.resize_tensor(first, net.get_session_input(second), (1, 3, 8, 8))
