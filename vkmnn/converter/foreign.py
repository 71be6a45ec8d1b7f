"""Identifies files and folders that no front end reads, and says how to convert them.

Formats are identified by their content first; names count if the content is inconclusive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

_TF2ONNX = "python -m tf2onnx.convert"
_EXPORT = "load it in PyTorch and export it: torch.onnx.export(model, args, 'model.onnx')"
_OPTIMUM = "optimum-cli export onnx --model FOLDER OUTPUT"
_SOURCE = "give the model that it was made from, as an .onnx file"
_AGAIN = "download the file itself, not its page: check the address and the permissions"
_LFS = "run `git lfs pull` to get the model itself"
_PADDLE = (
    "convert it: paddle2onnx --model_dir FOLDER --model_filename inference.pdmodel "
    "--params_filename inference.pdiparams --save_file model.onnx"
)
_SAVED_MODEL = "vkmnn reads SavedModels: give the path of the folder"
_GRAPH_DEF = (
    "vkmnn reads binary ones as NAME.pb; or convert it: "
    f"{_TF2ONNX} --graphdef FILE --inputs NAME:0 --outputs NAME:0 --output model.onnx"
)
_CAFFE = (
    "name the network NAME.prototxt and its weights NAME.caffemodel, in one folder, and open either"
)
_GGUF = "vkmnn.llm.load(FILE) and `vkmnn chat FILE` read GGUF files; download it again"
_GGML = "convert it to GGUF, with the scripts of llama.cpp"
_LEARNT = "convert it with skl2onnx (scikit-learn) or onnxmltools (XGBoost, LightGBM)"
_PICTURE = "give a model here; a picture becomes an array first: --input NAME=array.npy"

_OPENVINO = f"OpenVINO's files cannot be converted back; {_SOURCE}"
_NCNN = f"{_SOURCE}; of a model of pnnx's, export the .pt file that it was made from"
_TENSORRT = f"an engine fits one GPU and cannot be converted back; {_SOURCE}"
_KERAS = (
    "vkmnn reads .keras and .h5 files where Keras is installed (pip install 'vkmnn[keras]'); or "
    "export the model: keras.saving.load_model(FILE).export(FOLDER)"
)
_KERAS_WEIGHTS = "load them into the model in Keras: model.load_weights(FILE); model.export(FOLDER)"
_TFJS = f"convert it: {_TF2ONNX} --tfjs FOLDER/model.json --output model.onnx"
_CHECKPOINT = (
    "it holds weights only; save the model in TensorFlow with tf.saved_model.save(model, FOLDER), "
    "and give that folder"
)
_CAFFE_HDF5 = "save the weights as a .caffemodel: net.save(FILE) in pycaffe; vkmnn reads that"
_MXNET = "convert it: mxnet.onnx.export_model('M-symbol.json', 'M-0000.params', [SHAPE])"
_XGBOOST = (
    "convert it: onnxmltools.convert_xgboost(xgboost.Booster(model_file=FILE), initial_types=…)"
)
_LIGHTGBM = (
    "convert it: onnxmltools.convert_lightgbm(lightgbm.Booster(model_file=FILE), initial_types=…)"
)
_ONNX_TEXT = (
    "convert it: onnx.save(onnx.load(FILE, format='{}'), 'model.onnx'), in Python with the onnx "
    "package"
)

Matches = Callable[[bytes], bool]


class Kind(NamedTuple):
    """A format: its name, with its article, and what to do."""

    name: str
    advice: str


class _Format(NamedTuple):
    """A format; for a vague one, such as a zip archive, the name of a file may say more."""

    name: str
    advice: str
    matches: Matches | None = None
    suffixes: tuple[str, ...] = ()
    vague: bool = False


def _at(offset: int, *magics: bytes) -> Matches:
    return lambda head: any(head.startswith(magic, offset) for magic in magics)


def _has(*words: bytes) -> Matches:
    return lambda head: any(word in head for word in words)


def _both(*checks: Matches) -> Matches:
    return lambda head: all(check(head) for check in checks)


def _text(pattern: bytes) -> Matches:
    """Match the beginning of a text, after white space and a byte order mark."""
    compiled = re.compile(rb"(?:\xef\xbb\xbf)?\s*" + pattern, re.IGNORECASE)
    return lambda head: compiled.match(head) is not None


def _zipped(pattern: bytes) -> Matches:
    """Match the name of a zip archive's first member."""
    compiled = re.compile(pattern)

    def matches(head: bytes) -> bool:
        length = int.from_bytes(head[26:28], "little")
        return _ZIP(head) and compiled.search(head[30 : 30 + length]) is not None

    return matches


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at
    return -1, at


def _fields(head: bytes, most: int = 4) -> list[tuple[int, bytes]]:
    """Return the first fields of a protobuf message: numbers, and bytes that may be truncated."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(head) and len(found) < most:
        tag, at = _varint(head, at)
        if tag & 7 == 0:
            value, at = _varint(head, at)
            found.append((tag >> 3, b""))
        elif tag & 7 == 2:
            value, at = _varint(head, at)
            if value < 0:
                break
            found.append((tag >> 3, head[at : at + value]))
            at += value
        else:
            break
    return found


def _is_graph_def(head: bytes) -> bool:
    """TensorFlow's GraphDef begins with a node: its name, then its operator."""
    first = _fields(head, 1)
    if not first or first[0][0] != 1:
        return False
    inner = _fields(first[0][1], 2)
    return [number for number, _ in inner] == [1, 2] and all(
        re.fullmatch(rb"[\w./>-]+", text) for _, text in inner
    )


def _is_saved_model(head: bytes) -> bool:
    """It has a schema version of 1, then meta graphs, whose first field is a description."""
    fields = _fields(head, 2)
    return head.startswith(b"\x08\x01\x12") and _fields(fields[-1][1], 1)[:1] != []


def _is_caffe(head: bytes) -> bool:
    """A NetParameter: a name, then layers (field 100, or 2 in old files) or inputs."""
    numbers = [number for number, _ in _fields(head, 2)]
    return numbers in ([1, 100], [1, 2], [1, 3])


def _is_core_ml(head: bytes) -> bool:
    """A specification version, then a description (field 2) which begins with a feature."""
    fields = _fields(head, 2)
    inner = _fields(fields[1][1], 1) if len(fields) == 2 else []
    return [number for number, _ in fields] == [1, 2] and bool(inner) and inner[0][0] in (1, 10)


_ZIP = _at(0, b"PK\x03\x04")
_PICKLE = _at(0, *(bytes([0x80, version]) for version in (2, 3, 4, 5)))
_XML = _text(rb"<\?xml")
_JSON = _text(rb"[{\[]\s*[\"{\[\]}\d]")
_HDF5 = _at(0, b"\x89HDF\r\n\x1a\n")
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM")

# The first match counts: specific ones precede general ones.
_BY_CONTENT = (
    _Format(
        "a Git LFS pointer",
        _LFS,
        _at(0, b"version https://git-lfs"),
    ),
    _Format("a web page", _AGAIN, _text(rb"<(!doctype html|html)")),
    _Format(
        "a server's error message",
        _AGAIN,
        _text(
            rb"(Entry not found|Invalid username or password|Access to model|Not Found|40[0134]\b)"
        ),
    ),
    _Format("an error message in XML", _AGAIN, _both(_XML, _has(b"<Error>", b"<Code>"))),
    _Format("a GGUF file", _GGUF, _at(0, b"GGUF")),
    _Format("a GGML file", _GGML, _at(0, b"lmgg", b"tjgg", b"fmgg")),
    _Format("a bundle of LiteRT-LM", _SOURCE, _at(0, b"LITERTLM"), (".litertlm",)),
    _Format("a .vkmnn file", _SOURCE, _at(4, b"VKMN"), (".vkmnn",)),
    _Format("an ORT-format model", _SOURCE, _at(4, b"ORTM"), (".ort",)),
    _Format("an ExecuTorch program", _SOURCE, _at(4, b"ET12", b"ET13"), (".pte",)),
    _Format(
        "a Keras model (HDF5)",
        _KERAS,
        _both(_HDF5, _has(b"keras_version", b"model_config", b"layer_names")),
    ),
    _Format(
        "an HDF5 file (a Keras model?)",
        f"{_KERAS}, or {_TF2ONNX}",
        _HDF5,
        (".h5", ".hdf5"),
        vague=True,
    ),
    _Format(
        "a Keras archive",
        _KERAS,
        _zipped(rb"^(metadata\.json|config\.json|model\.weights\.h5)$"),
        (".keras",),
    ),
    _Format(
        "a PyTorch archive (.pt, .pth)",
        _EXPORT,
        _zipped(rb"(\.pkl|/data/|\.format_version|/byteorder|/version|archive_format)$|/code/"),
        (".pt", ".pth", ".ckpt", ".pt2", ".torchscript"),
    ),
    _Format(
        "an archive of numpy arrays",
        "give a model here, and the arrays with --input",
        _zipped(rb"\.npy$"),
        (".npz",),
    ),
    _Format(
        "a numpy array",
        "give a model here, and the array with --input",
        _at(0, b"\x93NUMPY"),
        (".npy",),
    ),
    _Format("a packed Core ML model", "", _zipped(rb"\.mlpackage/|\.mlmodelc/")),
    _Format(
        "a zip archive",
        "unpack it and give the model inside; if it is PyTorch's, use torch.onnx.export",
        _ZIP,
        (".zip",),
        vague=True,
    ),
    _Format("a pickle of PyTorch (.pt, .pth)", _EXPORT, _at(0, b"\x80\x02\x8a\x0al\xfc\x9c\x46")),
    _Format(
        "a pickle of scikit-learn or the like (joblib)",
        _LEARNT,
        _both(_PICKLE, _has(b"sklearn", b"xgboost", b"lightgbm", b"joblib", b"numpy_pickle")),
        (".joblib",),
    ),
    _Format(
        "a Python pickle",
        f"{_EXPORT}; models of scikit-learn: {_LEARNT}",
        _PICKLE,
        (".pkl", ".pickle"),
        vague=True,
    ),
    _Format(
        "a safetensors file",
        "it holds weights only; give its folder, which has config.json, to `vkmnn chat FOLDER`",
        _both(_at(6, b"\0\0{"), _at(8, b'{"', b"{}", b"{ ")),
        (".safetensors",),
    ),
    _Format("a TensorRT engine", _TENSORRT, _at(0, b"ftrt", b"ptrt"), (".engine", ".trt", ".plan")),
    _Format("an ncnn .param file", _NCNN, _at(0, b"7767517", b"\xdd\x85\x76\0"), (".param",)),
    _Format("an RKNN model", _SOURCE, _at(0, b"RKNN"), (".rknn",)),
    _Format("an Ascend model", _SOURCE, _at(0, b"IMOD"), (".om",)),
    _Format("a Hailo executable", _SOURCE, _at(0, b"\x01HEF"), (".hef",)),
    _Format(
        "a CatBoost model",
        "convert it: model.save_model('model.onnx', format='onnx')",
        _at(0, b"CBM1"),
        (".cbm",),
    ),
    _Format("MXNet weights", _MXNET, _at(0, b"\x12\x01\0\0\0\0\0\0")),
    _Format(
        "an OpenVINO model (XML)",
        _OPENVINO,
        _both(_text(rb"<(\?xml|net\b)"), _has(b"<net ", b"<net>", b"<net/")),
    ),
    _Format("a PMML model", "convert it to ONNX with its own tools", _both(_XML, _has(b"<PMML"))),
    _Format("an XML file", _SOURCE, _XML, (".xml",), vague=True),
    _Format(
        "a TensorFlow.js model",
        _TFJS,
        _both(_JSON, _has(b'"modelTopology"')),
    ),
    _Format("an MXNet symbol file", _MXNET, _both(_JSON, _has(b'"arg_nodes"', b'"mxnet_version"'))),
    _Format(
        "an index of safetensors files", f"export the model: {_OPTIMUM}", _has(b'"weight_map"')
    ),
    _Format("a PaddlePaddle model", _PADDLE, _both(_JSON, _has(b'"base_code"', b'"pir"'))),
    _Format(
        "the configuration of a model (JSON)",
        "give the .onnx file, or the folder to `vkmnn generate`",
        _both(_JSON, _has(b'"model_type"', b'"architectures"', b'"tokenizer_class"')),
    ),
    _Format("an error message in JSON", _AGAIN, _both(_JSON, _has(b'"error"', b'"message"'))),
    _Format("an XGBoost model", _XGBOOST, _both(_JSON, _has(b'"learner"', b'"gradient_booster"'))),
    _Format("a JSON file", "give the path of an .onnx file", _JSON, (".json",), vague=True),
    _Format(
        "a gzip archive",
        "unpack it: gunzip FILE, or tar xzf FILE",
        _at(0, b"\x1f\x8b"),
        (".gz", ".tgz"),
        vague=True,
    ),
    _Format("a Zstandard archive", "unpack it: zstd -d FILE", _at(0, b"\x28\xb5\x2f\xfd")),
    _Format("an xz archive", "unpack it: unxz FILE", _at(0, b"\xfd7zXZ\0")),
    _Format("a bzip2 archive", "unpack it: bunzip2 FILE", _at(0, b"BZh")),
    _Format("a 7-Zip archive", "unpack it: 7z x FILE", _at(0, b"7z\xbc\xaf\x27\x1c")),
    _Format("a RAR archive", "unpack it: unrar x FILE", _at(0, b"Rar!\x1a\x07")),
    _Format("a tar archive", "unpack it: tar xf FILE", _at(257, b"ustar"), (".tar",), vague=True),
    _Format("a picture", _PICTURE, _at(0, *_IMAGES), (".jpg", ".jpeg", ".png", ".webp", ".bmp")),
    _Format("a picture", _PICTURE, _both(_at(0, b"RIFF"), _at(8, b"WEBP"))),
    _Format("a sound", "give a model here", _both(_at(0, b"RIFF"), _at(8, b"WAVE")), (".wav",)),
    _Format("a PDF document", "give a model here", _at(0, b"%PDF")),
    _Format("an executable", "give a model here", _at(0, b"\x7fELF", b"MZ")),
    _Format("a LightGBM model", _LIGHTGBM, _both(_text(rb"tree\s"), _has(b"version="))),
    _Format("an XGBoost model", _XGBOOST, _at(0, b"{L\0\0\0\0\0\0", b"binf"), (".ubj",)),
    _Format(
        "an ONNX model as text",
        _ONNX_TEXT.format("onnxtxt"),
        _text(rb"<\s*ir_version\s*:"),
        (".onnxtxt",),
    ),
    _Format(
        "an ONNX model as text (.textproto)",
        _ONNX_TEXT.format("textproto"),
        _text(rb"ir_version\s*:\s*\d"),
    ),
    _Format("a Darknet configuration", _EXPORT, _text(rb"\[net(work)?\]"), (".cfg",)),
    _Format(
        "a Caffe network as text (.prototxt)",
        _CAFFE,
        _text(rb"(#[^\n]*\s+)*(name\s*:\s*\"|layers?\s*\{|input(_shape|_dim)?\s*[:{])"),
        (".prototxt",),
    ),
    _Format("a TensorFlow graph as text (.pbtxt)", _GRAPH_DEF, _text(rb"node\s*\{"), (".pbtxt",)),
    _Format(
        "nothing but zero bytes",
        "the download did not finish; download it again",
        lambda head: len(head) >= 16 and not head.strip(b"\0"),
    ),
)

# Protobuf messages have no magic number: these are only tried if a file does not parse as a model.
_BY_STRUCTURE = (
    _Format(
        "a PaddlePaddle model", _PADDLE, _both(_at(0, b"\x0a"), _has(b"\x04feed", b"\x05fetch"))
    ),
    _Format(
        "a TensorFlow SavedModel's graph",
        _SAVED_MODEL,
        lambda head: _is_saved_model(head) and b"serve" in head,
    ),
    _Format("a Core ML model", "", _is_core_ml),
    _Format("a frozen TensorFlow graph (GraphDef)", _GRAPH_DEF, _is_graph_def),
    _Format("a Caffe model (.caffemodel)", _CAFFE, _is_caffe, (".caffemodel",)),
)

_BY_NAME = (
    _Format("a frozen TensorFlow graph (GraphDef)", _GRAPH_DEF, suffixes=(".pb",)),
    _Format("a Core ML model", "", suffixes=(".mlmodel",)),
    _Format("a PaddlePaddle model", _PADDLE, suffixes=(".pdmodel", ".pdiparams", ".pdparams")),
    _Format("a GGUF file", _GGUF, suffixes=(".gguf",)),
    _Format("weights of Flax", _EXPORT, suffixes=(".msgpack",)),
    _Format("a Qualcomm model", _SOURCE, suffixes=(".dlc",)),
    _Format("a TNN model", _SOURCE, suffixes=(".tnnproto", ".tnnmodel")),
    _Format("MXNet weights", _MXNET, suffixes=(".params",)),
    _Format("Darknet weights", _EXPORT, suffixes=(".weights",)),
    _Format("a TensorFlow checkpoint", _CHECKPOINT, suffixes=(".index", ".meta")),
    _Format("weights of Caffe in HDF5", _CAFFE_HDF5, suffixes=(".caffemodel.h5",)),
    _Format("weights of Keras", _KERAS_WEIGHTS, suffixes=(".weights.h5",)),
    _Format("a NeMo archive", "load it in NeMo: model.export('model.onnx')", suffixes=(".nemo",)),
    _Format("a TorchServe archive", _EXPORT, suffixes=(".mar",)),
    _Format(
        "a MediaPipe bundle", "unpack it: unzip FILE; give the .tflite inside", suffixes=(".task",)
    ),
    _Format("an IREE module", _SOURCE, suffixes=(".vmfb",)),
    _Format("a Paddle Lite model", _PADDLE, suffixes=(".nb",)),
)
_ALL = (*_BY_CONTENT, *_BY_STRUCTURE, *_BY_NAME)
_CORE_ML = (
    "Core ML models cannot be converted back; export the original model to ONNX "
    "(torch.onnx.export, tf2onnx)"
)


PIPELINE = Kind(
    "the folder of a pipeline of diffusers",
    'paint with it: vkmnn run FOLDER -i "a prompt" -o out.png; or give one of its networks, such '
    "as FOLDER/unet/model.onnx",
)
LANGUAGE_MODEL = Kind(
    "the folder of a language model",
    'write `vkmnn generate FOLDER "text"`, or vkmnn.llm.load(folder); `vkmnn info FOLDER` '
    "lists the networks in it",
)


def _named(path: Path | None, formats: tuple[_Format, ...]) -> Kind | None:
    """Return the format that a file's name indicates; of several suffixes, the longest counts."""
    name = path.name.lower() if path is not None else ""
    ends = [(suffix, one) for one in formats for suffix in one.suffixes if name.endswith(suffix)]
    return _kind(max(ends, key=lambda end: len(end[0]))[1]) if ends else None


def _kind(one: _Format) -> Kind:
    return Kind(one.name, one.advice or _CORE_ML)


def kind_of(head: bytes, path: Path | None = None) -> Kind | None:
    """Return the format that the first bytes of a file mark beyond doubt, or None.

    Args:
        head: its first bytes.
        path: its path, which tells more about a zip archive, a pickle, and the like.
    """
    found = next((one for one in _BY_CONTENT if one.matches and one.matches(head)), None)
    if found is None:
        return None
    return (_named(path, _ALL) if found.vague else None) or _kind(found)


def likely_kind(head: bytes, path: Path | None = None) -> Kind | None:
    """Return the most likely kind of a file that no front end could read; None if unknown.

    Args:
        head: its first bytes.
        path: its path, if it has one.
    """
    found = kind_of(head, path)
    if found is None and path is not None and path.name == "saved_model.pb":
        found = Kind("a TensorFlow SavedModel's graph", _SAVED_MODEL)
    if found is None:
        found = next(
            (_kind(one) for one in _BY_STRUCTURE if one.matches and one.matches(head)), None
        )
    if found is None:
        found = _named(path, _ALL)
    if found is None and _is_text(head):
        line = head.decode("utf-8", "replace").strip().partition("\n")[0][:60]
        found = Kind("a text file", f"it begins with {line!r}; download the model again")
    return found


def _is_text(head: bytes) -> bool:
    return bool(head) and not re.search(rb"[^\t\n\r\x20-\x7e\x80-\xff]", head[:512])


READ = (".onnx", ".vkmnn", ".mnn", ".tflite", ".prototxt", ".pb", ".pt2", ".keras")
"""Suffixes of files with a network that vkmnn reads."""

MODELS = "a folder of models"
PREPROCESSOR = "preprocessor_config.json"
"""What a folder has beside config.json whose model takes pictures or sounds."""

_FOLDERS = (
    (("*-symbol.json", "*.params"), Kind("an MXNet model", _MXNET)),
    (("*.pdmodel",), Kind("a PaddlePaddle model", _PADDLE)),
    (("*.json", "*.pdiparams"), Kind("a PaddlePaddle model", _PADDLE)),
    (("__model__",), Kind("a PaddlePaddle model", _PADDLE)),
    (("*.xml", "*.bin"), Kind("an OpenVINO model", _OPENVINO)),
    (("*.param", "*.bin"), Kind("an ncnn model", _NCNN)),
    (("model.json", "*shard*.bin"), Kind("a TensorFlow.js model", _TFJS)),
    (("*.index", "*.data-*"), Kind("a TensorFlow checkpoint", _CHECKPOINT)),
    (("*.engine",), Kind("a folder of TensorRT engines", _TENSORRT)),
    (("MLmodel",), Kind("an MLflow model", "give the model file that is in it")),
    (("*.safetensors",), Kind("a folder of PyTorch weights", f"export it: {_OPTIMUM}")),
    (("*.caffemodel",), Kind("a folder of weights of Caffe", _CAFFE)),
    (("*.h5",), Kind("a folder of Keras models", _KERAS)),
    (("*.bin",), Kind("a folder of PyTorch weights", f"export it: {_OPTIMUM}")),
    (("*.pt",), Kind("a folder of PyTorch models", _EXPORT)),
    (("*.pth",), Kind("a folder of PyTorch models", _EXPORT)),
)
"""Files in a folder, as patterns, and the kind that they indicate."""


def holds_language_model(names: Collection[str]) -> bool:
    """Return whether the files of a folder, and those in its folder onnx, make a language model."""
    if "genai_config.json" in names or any(one.endswith(".gguf") for one in names):
        return True
    networks = any(one.lower().endswith(READ) for one in names)
    weights = any(one.endswith(".safetensors") for one in names)
    described = "config.json" in names and PREPROCESSOR not in names
    return (described and (networks or weights)) or ("tokenizer.json" in names and networks)


def is_pipeline(names: Collection[str]) -> bool:
    """Return whether the files of a folder make a pipeline of diffusers."""
    return "model_index.json" in names


def has_model_suffix(name: str) -> bool:
    """Return whether a name ends as those of files do that hold models."""
    lower = name.lower()
    known = (suffix for one in _ALL for suffix in one.suffixes)
    return lower.endswith((*READ, ".safetensors", ".caffemodel", ".gguf", *known))


def is_plain_zip(head: bytes) -> bool:
    """Return whether the first bytes of a file mark a zip archive of no particular format."""
    found = next((one for one in _BY_CONTENT if one.matches and one.matches(head)), None)
    return found is not None and found.matches is _ZIP


def mistaken_download(head: bytes) -> Kind | None:
    """Return what a server sent in place of a file, by its first bytes; None for a file."""
    found = kind_of(head)
    return found if found is not None and found.advice in (_AGAIN, _LFS) else None


def kind_of_folder(folder: Path) -> Kind | None:
    """Return the kind of model in a folder; None if unknown."""
    name = folder.name.lower()
    for path, kind in (
        ("saved_model.pb", Kind("a TensorFlow SavedModel", _SAVED_MODEL)),
        ("genai_config.json", LANGUAGE_MODEL),
        ("Manifest.json", Kind("a Core ML package", _CORE_ML)),
        ("coremldata.bin", Kind("a compiled Core ML model", _CORE_ML)),
    ):
        if (folder / path).is_file() and (path != "Manifest.json" or name.endswith(".mlpackage")):
            return kind
    if name.endswith((".mlpackage", ".mlmodelc")):
        return Kind("a Core ML package", _CORE_ML)
    try:
        names = sorted(path.name for path in folder.iterdir())
        inner = sorted(path.name for path in (folder / "onnx").glob("*.onnx"))
    except OSError:
        return None
    if is_pipeline(names):
        return PIPELINE
    networks = [one for one in names if one.lower().endswith(READ)]
    if holds_language_model([*names, *(f"onnx/{one}" for one in inner)]):
        return LANGUAGE_MODEL
    if networks or inner:
        found = networks or [f"onnx/{one}" for one in inner]
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        return Kind(MODELS, f"give one of them: {', '.join(found[:4])}{more}")
    for patterns, kind in _FOLDERS:
        if all(any(fnmatchcase(one, pattern) for one in names) for pattern in patterns):
            return kind
    return None if names else Kind("an empty folder", "check the path")
