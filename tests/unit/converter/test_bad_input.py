from __future__ import annotations

import contextlib
import gzip
import io
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from vkmnn.converter.onnx import load_model
from vkmnn.errors import ConversionError, ModelError, UnsupportedOpError, VkmnnError

Build = Callable[..., onnx.ModelProto]
X = {"x": np.zeros((2, 3), np.float32)}


@pytest.fixture
def model(build: Build) -> onnx.ModelProto:
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["y"], name="rectify"),
    ]
    return build(nodes, X, ["y"], {"w": w})


def refuse(given: object, *parts: str, kind: type[VkmnnError] = ModelError) -> VkmnnError:
    """Loading must fail with a hint and with these words."""
    with pytest.raises(kind) as caught:
        load_model(given)  # type: ignore[arg-type]
    assert caught.value.hint
    for part in parts:
        assert part in str(caught.value)
    return caught.value


# --- files -------------------------------------------------------------------------------------


def test_missing_file(tmp_path: Path) -> None:
    refuse(tmp_path / "none.onnx", "no such file")


def test_folder_instead_of_file(tmp_path: Path) -> None:
    refuse(tmp_path, "not a regular file")


def test_path_with_null_byte() -> None:
    refuse("a\0b.onnx")


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    refuse(path, "is empty")


def test_truncated_file(tmp_path: Path, model: onnx.ModelProto) -> None:
    data = model.SerializeToString()
    for size in range(1, len(data) - 1):
        refuse(data[:size], kind=VkmnnError)


def sub(number: int, *parts: bytes) -> bytes:
    """Return a field of a protobuf message with bytes, or other fields, in it."""
    data = b"".join(parts)
    tag = number << 3 | 2
    head = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    return head + bytes([len(data)]) + data


def zipped(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return stream.getvalue()


HEADER = b"\x40\0\0\0\0\0\0\0"
# content of a file -> what it is, and what helps.
CONTENTS: dict[bytes, tuple[str, str]] = {
    zipped("archive/data.pkl", "archive/data/0"): ("PyTorch archive", "torch.onnx.export"),
    zipped("m/.format_version", "m/data.pkl"): ("PyTorch archive", "torch.onnx.export"),
    zipped("metadata.json", "config.json", "model.weights.h5"): ("Keras archive", "vkmnn[keras]"),
    zipped("arr_0.npy"): ("archive of numpy arrays", "--input"),
    zipped("model.onnx"): ("a zip archive", "unpack it"),
    b"PK\x03\x04archive" + bytes(range(256)): ("a zip archive", "torch.onnx.export"),
    b"version https://git-lfs.github.com/spec/v1\noid": ("Git LFS pointer", "git lfs pull"),
    b"\x89HDF\r\n\x1a\n" + bytes(64): ("HDF5", "tf2onnx"),
    b"\x18\0\0\0ORTM" + bytes(64): ("ORT-format", "made from"),
    b"<!DOCTYPE html><html>": ("web page", "download the file"),
    b"\n <HTML><body>404": ("web page", "download the file"),
    b"Entry not found": ("server's error message", "download the file"),
    b"Invalid username or password.": ("server's error message", "permissions"),
    b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code>': ("error message in XML", "address"),
    b'{"error": "access denied"}': ("error message in JSON", "download the file"),
    b'{"model_type": "llama"}': ("configuration of a model", "vkmnn generate"),
    b'{"modelTopology": {}}': ("TensorFlow.js", "tf2onnx"),
    b'{"a": 1}': ("JSON", ".onnx"),
    b"GGUF\x03\0\0\0" + bytes(64): ("GGUF", "vkmnn chat"),
    b"7767517\n2 2\nInput x 0 1 x\n": ("ncnn", "made from"),
    HEADER + b'{"w":{"dtype":"F32","shape":[1]}}': ("safetensors", "weights only"),
    b"\x08" + HEADER[1:] + b'{"w":{}}' + bytes(64): ("safetensors", "weights only"),
    b'<?xml version="1.0"?><net/>': ("OpenVINO model (XML)", "made from"),
    b'<?xml version="1.0"?><net name="x" version="11">': ("OpenVINO", "made from"),
    b"ftrt" + bytes(64): ("TensorRT engine", "made from"),
    b"\x80\x04\x95\x18\0\0\0\0\0\0\0}\x94.": ("Python pickle", "torch.onnx.export"),
    b"\x80\x04\x95\x20csklearn.ensemble\nForest\n": ("scikit-learn", "skl2onnx"),
    gzip.compress(b"model"): ("gzip", "gunzip"),
    b"\xff\xd8\xff\xe0\0\x10JFIF": ("a picture", "--input"),
    b"\x89PNG\r\n\x1a\n": ("a picture", "--input"),
    bytes(4096): ("zero bytes", "did not finish"),
    b'name: "AlexNet"\nlayer {\n  type: "Input"\n}\n': ("Caffe network as text", "NAME.prototxt"),
    b"# a comment\nlayer {\n}": ("Caffe network as text", "NAME.prototxt"),
    b'node {\n  name: "x"\n}': ("TensorFlow graph as text", "--graphdef"),
    sub(1, sub(1, b"x"), sub(2, b"Placeholder")): ("frozen TensorFlow graph", "--graphdef"),
    sub(1, b"AlexNet") + sub(100, sub(1, b"data")): ("Caffe model", "NAME.caffemodel"),
    sub(1, b"CaffeNet") + sub(2, sub(4, b"data")): ("Caffe model", "NAME.caffemodel"),
    b"\x08\x04" + sub(2, sub(1, sub(1, b"image"))): ("Core ML", "export the original"),
    b"\x08\x01" + sub(2, sub(1, sub(4, b"serve"))): ("SavedModel", "path of the folder"),
    sub(1, b"\x08\0", sub(3, sub(1, b"feed"), b"\x0a\x05fetch")): ("PaddlePaddle", "paddle2onnx"),
    b"\x89HDF\r\n\x1a\n" + bytes(64) + b"keras_version": ("Keras model (HDF5)", "vkmnn[keras]"),
    b"\xdd\x85\x76\0" + bytes(64): ("ncnn", "made from"),
    b"ptrt" + bytes(64): ("TensorRT engine", "cannot be converted"),
    b"LITERTLM" + bytes(64): ("LiteRT-LM", "made from"),
    b"CBM1" + bytes(64): ("CatBoost", "save_model"),
    b"IMOD" + bytes(64): ("Ascend", "made from"),
    b"\x01HEF" + bytes(64): ("Hailo", "made from"),
    b"\x12\x01\0\0\0\0\0\0" + bytes(64): ("MXNet weights", "export_model"),
    b'{"nodes": [], "arg_nodes": [0]}': ("MXNet symbol file", "export_model"),
    b'{"learner": {"attributes": {}}}': ("XGBoost model", "convert_xgboost"),
    b"{L\0\0\0\0\0\0\0\x06learner": ("XGBoost model", "convert_xgboost"),
    b"tree\nversion=v4\nnum_class=1": ("LightGBM model", "convert_lightgbm"),
    b"<\n  ir_version: 8,\n  opset_import: []": ("ONNX model as text", "format='onnxtxt'"),
    b'ir_version: 8\nproducer_name: "x"': ("as text (.textproto)", "format='textproto'"),
    b"a text of some kind": ("a text file", "'a text of some kind'"),
}


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: repr(CONTENTS[content][0]))
def test_other_file_formats_are_named(content: bytes, tmp_path: Path) -> None:
    """The first line names the format; protobuf's words are not in it."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    name, advice = CONTENTS[content]
    for given in (content, path):
        error = refuse(given)
        assert name in error.message
        assert "not an ONNX model" in error.message
        assert "protobuf" not in str(error).lower()
        assert "parsing" not in str(error)
        assert error.hint is not None
        assert advice in error.hint


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *[(f"m.{suffix}", "TensorRT engine") for suffix in ("engine", "plan", "trt")],
        *[(f"m.{suffix}", "PaddlePaddle") for suffix in ("pdmodel", "pdiparams")],
        *[(f"m.{suffix}", "PyTorch") for suffix in ("pt", "PTH")],
        ("m.pb", "frozen TensorFlow graph"),
        ("saved_model.pb", "SavedModel"),
        ("m.caffemodel", "Caffe"),
        ("m.mlmodel", "Core ML"),
        ("m.h5", "HDF5"),
        ("m.keras", "Keras"),
        ("m.joblib", "scikit-learn"),
        ("m.gguf", "GGUF"),
        ("m.safetensors", "safetensors"),
        ("m.caffemodel.h5", "weights of Caffe in HDF5"),
        ("m.weights.h5", "weights of Keras"),
        ("variables.index", "TensorFlow checkpoint"),
        ("m.vmfb", "IREE"),
    ],
)
def test_names_tell_what_contents_do_not(name: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x93\x01\x02\x03" * 9)
    error = refuse(path, words, "not an ONNX model")
    assert "protobuf" not in str(error).lower()


@pytest.mark.parametrize(
    ("name", "content", "words", "advice"),
    [
        ("m.dlc", zipped("model.params"), "Qualcomm", "made from"),
        ("m.mar", zipped("MAR-INF/MANIFEST.json"), "TorchServe", "torch.onnx.export"),
        ("m.task", zipped("pose_landmarks.tflite"), "MediaPipe", "unzip"),
        ("m.nemo", bytes(257) + b"ustar" + bytes(99), "NeMo", "model.export"),
        ("m.pdparams", b"\x80\x04\x95\x18\0\0\0\0\0\0\0}\x94.", "PaddlePaddle", "paddle2onnx"),
        ("m.caffemodel.h5", b"\x89HDF\r\n\x1a\n" + bytes(64), "weights of Caffe", "pycaffe"),
        ("m.ckpt", b"\x80\x02}q\0." + bytes(9), "PyTorch", "torch.onnx.export"),
        ("m.onnx", zipped("model.onnx"), "a zip archive", "unpack"),
    ],
)
def test_names_say_more_of_containers(
    name: str, content: bytes, words: str, advice: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    error = refuse(path, words)
    assert error.hint is not None
    assert advice in error.hint


def test_a_large_file_of_another_format_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.write(b"GGUF\x03\0\0\0")
        file.truncate(1 << 40)
    refuse(path, "GGUF")


FOLDERS: dict[str, tuple[list[str], str, str]] = {
    "core.mlpackage": (["Manifest.json", "Data/m.mlmodel"], "Core ML package", "original"),
    "core.mlmodelc": (["coremldata.bin"], "Core ML model", "original"),
    "paddle": (["inference.pdmodel", "inference.pdiparams"], "PaddlePaddle", "paddle2onnx"),
    "genai": (["genai_config.json", "model.onnx"], "language model", "vkmnn generate"),
    "optimum": (["config.json", "onnx/model.onnx"], "language model", "vkmnn generate"),
    "weights": (["config.json", "model.safetensors"], "language model", "vkmnn generate"),
    "paddle 3": (["inference.json", "inference.pdiparams"], "PaddlePaddle", "paddle2onnx"),
    "paddle 1": (["__model__", "__params__"], "PaddlePaddle", "paddle2onnx"),
    "openvino": (["m.xml", "m.bin"], "OpenVINO model", "made from"),
    "ncnn": (["m.param", "m.bin"], "ncnn model", "made from"),
    "tfjs": (["model.json", "group1-shard1of1.bin"], "TensorFlow.js", "--tfjs"),
    "checkpoint": (
        ["checkpoint", "m.index", "m.data-00000-of-00001"],
        "TensorFlow checkpoint",
        "saved_model.save",
    ),
    "mxnet": (["m-symbol.json", "m-0000.params"], "MXNet model", "export_model"),
    "engines": (["config.json", "rank0.engine"], "TensorRT engines", "cannot be converted"),
    "mlflow": (["MLmodel", "data/model.pkl"], "MLflow", "that is in it"),
    "caffe": (["deploy.prototxt", "m.caffemodel"], "folder of models", "deploy.prototxt"),
    "caffe weights": (["m.caffemodel"], "weights of Caffe", "NAME.prototxt"),
    "keras": (["m.keras"], "folder of models", "m.keras"),
    "keras of old": (["m.h5"], "Keras", "vkmnn[keras]"),
    "torch": (["a.pt", "b.pt"], "PyTorch models", "torch.onnx.export"),
    "bin": (["config.json", "pytorch_model.bin"], "PyTorch weights", "optimum-cli"),
    "several": (["a.onnx", "b.onnx"], "folder of models", "a.onnx, b.onnx"),
    "empty": ([], "empty folder", "check the path"),
    "other": (["readme.md"], "a folder", ".onnx file"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_are_named(name: str, tmp_path: Path) -> None:
    files, words, advice = FOLDERS[name]
    folder = tmp_path / name
    folder.mkdir()
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(b"{}")
    error = refuse(folder, words, "not a regular file")
    assert error.hint is not None
    assert advice in error.hint


@pytest.mark.parametrize("model", [io.BytesIO(b"x"), bytearray(b"x"), None, 5, ["m.onnx"]])
def test_objects_that_are_no_models(model: object) -> None:
    loads: list[Callable[[Any], object]] = [
        lambda model: vkmnn.load(model, "cpu"),
        lambda model: vkmnn.InferenceSession(model, "cpu"),
        vkmnn.Interpreter,
    ]
    for load in loads:
        with pytest.raises(vkmnn.InvalidInputError, match="a model is a path, bytes") as caught:
            load(model)
        assert caught.value.hint


@pytest.mark.parametrize(
    "proto",
    [TensorProto(name="t", dims=[1]), onnx.NodeProto(op_type="Relu"), onnx.ModelProto()],
    ids=["tensor", "node", "nothing"],
)
def test_wrong_protobuf(proto: object) -> None:
    refuse(proto.SerializeToString() or b"\0")  # type: ignore[attr-defined]


def test_random_bytes() -> None:
    generator = random.Random(5)
    for _ in range(300):
        data = generator.randbytes(generator.randrange(1, 400))
        refuse(data, kind=VkmnnError)


def test_flipped_bytes(model: onnx.ModelProto) -> None:
    """Damage may go unnoticed, but never raises anything untyped."""
    data = model.SerializeToString()
    generator = random.Random(7)
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(generator.randrange(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        with contextlib.suppress(VkmnnError):
            load_model(bytes(damaged))


# --- versions ----------------------------------------------------------------------------------


def test_newer_ir_version(model: onnx.ModelProto) -> None:
    model.ir_version = onnx.IR_VERSION + 1
    refuse(model, "IR version", kind=ConversionError)


@pytest.mark.parametrize("opset", [1, 6, 10_000])
def test_unknown_opset(model: onnx.ModelProto, opset: int) -> None:
    model.opset_import[0].version = opset
    refuse(model, f"opset {opset}", kind=ConversionError)


def test_opset_given_twice(model: onnx.ModelProto) -> None:
    model.opset_import.add(domain="ai.onnx", version=13)
    refuse(model, "2 versions")


def test_opset_given_twice_alike(model: onnx.ModelProto) -> None:
    """As converters of scikit-learn's models write it."""
    model.opset_import.add(domain="", version=model.opset_import[0].version)
    load_model(model)


def test_no_default_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].domain = "elsewhere"
    refuse(model, "which opset")


# --- tensors -----------------------------------------------------------------------------------


def with_weight(model: onnx.ModelProto, tensor: TensorProto) -> onnx.ModelProto:
    tensor.name = "w"
    model.graph.initializer[0].CopyFrom(tensor)
    return model


@pytest.mark.parametrize("dims", [[-3, 4], [3, 5], [2**40, 2**40], [2**62, 2**62, 0, 7], [3]])
def test_shape_and_data_differ(model: onnx.ModelProto, dims: list[int]) -> None:
    tensor = numpy_helper.from_array(np.zeros((3, 4), np.float32))
    tensor.dims[:] = dims
    refuse(with_weight(model, tensor), "tensor 'w' is damaged")


@pytest.mark.parametrize(
    ("dtype", "field"),
    [
        ("float32", "float_data"),
        ("float64", "double_data"),
        ("float16", "int32_data"),
        ("int64", "int64_data"),
        ("int32", "int32_data"),
        ("int8", "int32_data"),
        ("uint8", "int32_data"),
        ("uint16", "int32_data"),
        ("bool", "int32_data"),
        ("uint32", "uint64_data"),
        ("uint64", "uint64_data"),
    ],
)
def test_typed_fields_and_raw_data_agree(build: Build, dtype: str, field: str) -> None:
    array = np.array([[0, 1, 2], [100, 1, 0]]).astype(dtype)
    code = helper.np_dtype_to_tensor_dtype(array.dtype)
    values = array.view(np.uint16) if dtype == "float16" else array
    values = values.astype(np.uint8) if dtype == "bool" else values
    typed = TensorProto(name="typed", data_type=code, dims=array.shape)
    getattr(typed, field).extend(values.reshape(-1).tolist())
    raw = numpy_helper.from_array(array, "raw")
    nodes = [helper.make_node("Identity", [name], [f"y_{name}"]) for name in ("typed", "raw")]
    outputs = {f"y_{name}": (code, None) for name in ("typed", "raw")}
    built = build(nodes, {}, outputs)
    built.graph.initializer.extend([typed, raw])
    constants = load_model(built).constants
    for name in ("typed", "raw"):
        assert constants[name].dtype == array.dtype
        np.testing.assert_array_equal(constants[name], array)
        assert not constants[name].flags.writeable
    getattr(typed, field).pop()
    built.graph.initializer[0].CopyFrom(typed)
    refuse(built, "5 values, its shape asks for 6")


def test_bytes_of_bool_are_made_0_or_1(build: Build) -> None:
    tensor = TensorProto(name="b", data_type=TensorProto.BOOL, dims=[3], raw_data=b"\x00\x02\x01")
    built = build([helper.make_node("Not", ["b"], ["y"])], {}, {"y": (TensorProto.BOOL, [3])})
    built.graph.initializer.append(tensor)
    assert load_model(built).constants["b"].view(np.uint8).tolist() == [0, 1, 1]


def test_huge_input_dimension(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2**40
    refuse(model, "'x'", str(2**40))


def test_too_many_axes(model: onnx.ModelProto) -> None:
    for _ in range(31):
        model.graph.input[0].type.tensor_type.shape.dim.add(dim_value=1)
    refuse(model, "'x'", "33 axes")


# --- external data -----------------------------------------------------------------------------


def save_external(model: onnx.ModelProto, folder: Path, location: str, **entries: str) -> Path:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


WEIGHT = np.arange(12, dtype="<f4")


def test_external_data_is_read(tmp_path: Path, model: onnx.ModelProto) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"1234567" + WEIGHT.tobytes() + b"tail")
    path = save_external(model, tmp_path, "data/w.bin", offset="7", length="48")
    np.testing.assert_array_equal(load_model(path).constants["w"], WEIGHT.reshape(3, 4))


@pytest.mark.parametrize(
    "location",
    [
        "../w.bin",
        "inside/../../w.bin",
        "/etc/hostname",
        "C:\\w.bin",
        "\\\\host\\share\\w.bin",
        "..\\w.bin",
        "link.bin",
        "linked/w.bin",
        "",
        "a\0b",
    ],
)
def test_external_data_outside_the_folder(
    tmp_path: Path, model: onnx.ModelProto, location: str
) -> None:
    folder = tmp_path / "folder"
    (folder / "inside").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "linked").symlink_to(tmp_path)
    refuse(save_external(model, folder, location), "outside the model's folder")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"offset": "4"}, "4+48"),
        ({"length": "44"}, "44 bytes"),
        ({"offset": "-1"}, "offset '-1'"),
        ({"offset": "ten"}, "offset 'ten'"),
        ({"length": "9" * 30}, "length"),
    ],
)
def test_external_data_of_wrong_size(
    tmp_path: Path, model: onnx.ModelProto, entries: dict[str, str], words: str
) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    refuse(save_external(model, tmp_path, "w.bin", **entries), "'w'", words)


def test_external_data_missing(tmp_path: Path, model: onnx.ModelProto) -> None:
    refuse(save_external(model, tmp_path, "w.bin"), "'w.bin'", "cannot be read")


def test_external_data_is_a_folder(tmp_path: Path, model: onnx.ModelProto) -> None:
    (tmp_path / "w.bin").mkdir()
    refuse(save_external(model, tmp_path, "w.bin"), "not a regular file")


def test_external_data_with_hard_links(tmp_path: Path, model: onnx.ModelProto) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    try:
        (folder / "w.bin").hardlink_to(tmp_path / "w.bin")
    except OSError:
        pytest.skip("this file system has no hard links")
    path = save_external(model, folder, "w.bin")
    refuse(path, "'w'", "hard links")
    (tmp_path / "w.bin").unlink()
    load_model(path)


def test_external_data_without_folder(tmp_path: Path, model: onnx.ModelProto) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    save_external(model, tmp_path, "w.bin")
    refuse(model, "'w'", "path of the model")


# --- graphs ------------------------------------------------------------------------------------


def test_missing_input_names_node_and_tensor(model: onnx.ModelProto) -> None:
    model.graph.node[1].input[0] = "nowhere"
    refuse(model, "'nowhere'", "'rectify'", "Relu")


def test_cycle_names_its_members(build: Build) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["start"], name="before"),
        helper.make_node("Add", ["start", "c"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Neg", ["b"], ["c"], name="third"),
        helper.make_node("Neg", ["c"], ["y"], name="after"),
    ]
    error = refuse(build(nodes, X, ["y"]), "cycle", "'first'", "'second'", "'third'", "[c]")
    assert "'before'" not in str(error)
    assert "'after'" not in str(error)


def test_node_that_reads_itself(build: Build) -> None:
    nodes = [helper.make_node("Add", ["x", "y"], ["y"], name="self")]
    refuse(build(nodes, X, ["y"]), "cycle", "'self'")


def test_tensor_produced_twice(model: onnx.ModelProto) -> None:
    model.graph.node[1].output[0] = "h"
    refuse(model, "'h' is produced twice", "'rectify'")


def test_node_overwrites_an_input(model: onnx.ModelProto) -> None:
    model.graph.node[1].output[0] = "x"
    refuse(model, "'x' is produced twice")


@pytest.mark.parametrize("kind", ["input", "initializer"])
def test_duplicate_names(model: onnx.ModelProto, kind: str) -> None:
    values = getattr(model.graph, kind)
    values.add().CopyFrom(values[0])
    refuse(model, "occurs twice")


def test_output_that_nothing_produces(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "z"
    refuse(model, "'z' is not produced")


def test_name_that_is_not_text(model: onnx.ModelProto) -> None:
    data = model.SerializeToString().replace(b"rectify", b"rect\xff\xfey")
    refuse(data, "not text")


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (helper.make_node("Relu", ["x", "x"], ["y"], name="n"), "takes 1 to 1 inputs"),
        (helper.make_node("Relu", ["x"], ["y", "z"], name="n"), "outputs"),
        (helper.make_node("Add", ["x", ""], ["y"], name="n"), "input 'B' is missing"),
        (helper.make_node("Relu", ["x"], ["y"], name="n", slope=1.0), "no attribute 'slope'"),
        (helper.make_node("Concat", ["x"], ["y"], name="n"), "attribute 'axis' is missing"),
        (helper.make_node("Concat", ["x"], ["y"], name="n", axis=1.5), "'axis' is not of type"),
        (
            helper.make_node(
                "MaxPool", ["x"], ["y"], name="n", kernel_shape=[2, 2], strides=[0, 1]
            ),
            "strides",
        ),
        (
            helper.make_node("MaxPool", ["x"], ["y"], name="n", kernel_shape=[2, 2], pads=[1, 1]),
            "pads",
        ),
    ],
)
def test_invalid_nodes(build: Build, node: onnx.NodeProto, words: str) -> None:
    refuse(build([node], X, ["y"]), words, "'n'", node.op_type)


# --- functions ---------------------------------------------------------------------------------


def function(name: str, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
    return helper.make_function(
        "my",
        name,
        ["a"],
        ["b"],
        list(nodes),
        [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)],
    )


def call(name: str, a: str, b: str) -> onnx.NodeProto:
    return helper.make_node(name, [a], [b], domain="my")


def test_recursive_functions(build: Build) -> None:
    functions = [function("f", call("g", "a", "b")), function("g", call("f", "a", "b"))]
    refuse(build([call("f", "x", "y")], X, ["y"], functions=functions, my=1), "calls itself")


def test_function_bomb(build: Build) -> None:
    """Twenty functions that call the next one ten times each."""
    functions = []
    for level in range(20):
        names = ["a", *(f"t{index}" for index in range(9)), "b"]
        nodes = [call(f"f{level + 1}", a, b) for a, b in pairwise(names)]
        functions.append(function(f"f{level}", *nodes))
    functions.append(function("f20", helper.make_node("Relu", ["a"], ["b"])))
    refuse(build([call("f0", "x", "y")], X, ["y"], functions=functions, my=1), "nodes")


def test_function_defined_twice(build: Build) -> None:
    functions = [function("f", helper.make_node("Relu", ["a"], ["b"]))] * 2
    refuse(build([call("f", "x", "y")], X, ["y"], functions=functions, my=1), "twice")


def test_function_that_leaves_its_output_open(build: Build) -> None:
    functions = [function("f", helper.make_node("Relu", ["a"], ["c"]))]
    refuse(build([call("f", "x", "y")], X, ["y"], functions=functions, my=1), "'y'")


# --- unsupported nodes -------------------------------------------------------------------------


def test_all_unsupported_nodes_are_listed(build: Build) -> None:
    nodes = [
        helper.make_node("Bernoulli", ["x"], ["a"], name="find"),
        helper.make_node("Relu", ["x"], ["b"], name="fine"),
        helper.make_node("Frobnicate", ["b"], ["c"], name="what", domain="my.ops"),
        helper.make_node("Cast", ["c"], ["d"], name="follows", to=TensorProto.INT64),
        helper.make_node("Cast", ["x"], ["e"], name="text", to=TensorProto.STRING),
        helper.make_node("BitShft", ["x"], ["f"], name="typo"),
        helper.make_node("Gelu", ["x"], ["y"], name="early"),
    ]
    model = build(nodes, X, ["y"], my_ops=3)
    error = refuse(model, kind=UnsupportedOpError)
    assert isinstance(error, UnsupportedOpError)
    listed = {node.node: node for node in error.nodes}
    assert list(listed) == ["find (Bernoulli)", "what", "text", "typo", "early"]
    assert (listed["what"].domain, listed["what"].opset) == ("my.ops", 3)
    assert "random" in listed["find (Bernoulli)"].reason
    assert "STRING" in listed["text"].reason
    assert "BitShift" in listed["typo"].reason
    assert "from opset 20" in listed["early"].reason


def test_unsupported_inputs_and_initializers(build: Build) -> None:
    model = build(
        [helper.make_node("Add", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])],
        {"x": (TensorProto.COMPLEX64, [2])},
        {"z": (TensorProto.COMPLEX64, [2])},
    )
    model.graph.initializer.add(
        name="w", data_type=TensorProto.COMPLEX64, dims=[2], raw_data=bytes(16)
    )
    error = refuse(model, "COMPLEX64", kind=UnsupportedOpError)
    assert isinstance(error, UnsupportedOpError)
    assert {(node.op, node.node) for node in error.nodes} == {("Input", "x"), ("Initializer", "w")}
    text = str(error)
    assert "input 'x': element type COMPLEX64 is not supported" in text
    assert "float32 or float16" in text
    assert "ai.onnx::" not in text
    assert "add-an-operator" not in text


def test_control_flow_is_refused(build: Build) -> None:
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["b"])],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [2, 3])],
    )
    node = helper.make_node(
        "If", ["c"], ["y"], name="choose", then_branch=branch, else_branch=branch
    )
    model = build([node], X | {"c": np.array(True)}, ["y"])
    refuse(model, "constant conditions", "'choose'", kind=UnsupportedOpError)


@pytest.mark.parametrize("indices", [[0], [3], [-1], [[-1]], [[0, 0]], [0, 1]])
def test_damaged_sparse_initializer(build: Build, indices: list[object]) -> None:
    model = build([helper.make_node("Add", ["x", "w"], ["y"])], X, ["y"])
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    places = numpy_helper.from_array(np.array(indices, np.int64), "i")
    model.graph.sparse_initializer.add(values=values, indices=places, dims=[3])
    if indices == [0]:
        assert load_model(model).constants["w"].tolist() == [1, 0, 0]
    else:
        refuse(model, "damaged", "'w'")


def test_failure_inside_a_function_names_the_calling_node(build: Build) -> None:
    node = helper.make_node("Bernoulli", ["x"], ["y"], name="coin")
    error = refuse(build([node], X, ["y"]), kind=UnsupportedOpError)
    assert isinstance(error, UnsupportedOpError)
    assert [(n.op, n.node) for n in error.nodes] == [("RandomUniformLike", "coin (Bernoulli)")]


def test_import_does_not_load_onnx() -> None:
    code = "import sys, vkmnn.converter.onnx; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("axis", [-(2**31), 2**31, 2, -3])
def test_axes_out_of_range_cost_nothing(build: Build, axis: int) -> None:
    node = helper.make_node("ReverseSequence", ["x", "n"], ["y"], name="turn", batch_axis=axis)
    model = build([node], X | {"n": np.ones(2, np.int64)}, ["y"])
    refuse(model, "'turn'", f"{axis}")


def test_rank_out_of_range_costs_nothing(build: Build) -> None:
    inputs = X | {"n": (TensorProto.INT64, [2**31 - 1])}
    model = build([helper.make_node("Reshape", ["x", "n"], ["y"])], inputs, ["y"])
    assert load_model(model).infos["y"].shape is None
