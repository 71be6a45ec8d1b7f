"""`vkmnn.mnn`: programs written for MNN, and every call that they make."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
import vkmnn.mnn as MNN  # noqa: N812 - as programs write it
from vkmnn import InvalidInputError, ModelError
from vkmnn.mnn import expr, nn

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
        (((2,), MNN.Halide_Type_Uint8, (1, 300), CAFFE), "does not hold all the values"),
        (((2,), MNN.Halide_Type_String, ("a", "b"), CAFFE), "no elements of type"),
        (((2,), np.float32, (1, 2), CAFFE), "no elements of type"),
        (((2,), MNN.Halide_Type_Float, (1, 2), 7), "7 is not an order of axes"),
        (((-1,), MNN.Halide_Type_Float, CAFFE), "not the shape"),
        (((2,), MNN.Halide_Type_Float), "not made of 2 arguments"),
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
    with pytest.raises(InvalidInputError, match="shape"):
        net.resizeTensor(source, (1, 4, 8, 8))
    with pytest.raises(InvalidInputError, match="no information 9"):
        net.getSessionInfo(session, 9)
    for config, text in (
        ({"backend": "ABACUS"}, "no backend 'ABACUS'"),
        ({"precision": "utter"}, "no precision 'utter'"),
        ({"nonsense": 1}, "no setting 'nonsense'"),
        ({"inputPaths": ("imaeg",)}, "no op 'imaeg'"),
        ({"saveTensors": ("q",)}, "no tensor 'q'"),
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
    assert net.createSession({"backend": 0})._opened.devices[0].name.startswith("CPU")
    runtime, effective = net.createRuntime({"backend": "CPU", "numThread": 4})
    assert effective == (True, True)
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
    assert module.onForward([X])[0].read_as_tuple() == z.read_as_tuple()
    assert not module.is_training
    classify = nn.load_module_from_file(str(pictures), backend=backends()[0])
    assert classify.forward(PICTURE).shape == [2, 5]
    last = expr.Var(np.ascontiguousarray(PICTURE.transpose(0, 2, 3, 1)), expr.NHWC)
    np.testing.assert_array_equal(classify(last), classify(PICTURE))
    for wrong, text in (
        (lambda: module([X, X]), "takes 1 input, got 2"),
        (lambda: module(X.astype(complex)), "got complex128"),
        (lambda: module.train(), "does not train"),
        (lambda: nn.load_module_from_file(str(dense), ["q"]), "no input 'q'"),
        (lambda: nn.load_module_from_file(str(dense), ["x"], ["q"]), "no output 'q'"),
        (lambda: nn.create_runtime_manager({"q": 1}), "no setting 'q'"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            wrong()


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
    with pytest.raises(AttributeError, match="computes nothing"):
        expr.softmax  # noqa: B018 - the access is the test
    with pytest.raises(AttributeError, match="'llm'"):
        MNN.llm  # noqa: B018 - the access is the test


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
    with pytest.raises(InvalidInputError, match="does not hold all the values"):
        output.copyToHostTensor(narrow)
    assert output.getData() == (6, 2**31)


def test_a_tensor_of_another_session(pictures: Path) -> None:
    net = vkmnn.Interpreter(pictures)
    first, second = (net.create_session({"backend": "CPU"}) for _ in range(2))
    with pytest.raises(InvalidInputError, match="not an input of this session"):
        net.resize_tensor(first, net.get_session_input(second), (1, 3, 8, 8))
