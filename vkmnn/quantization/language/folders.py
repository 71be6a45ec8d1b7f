"""Folders of language models: recognised, read, and written with quantised networks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkmnn.base.records import dataclass
from vkmnn.converter.language import is_described
from vkmnn.converter.onnx.model_file import ModelFile, read_model
from vkmnn.converter.onnx.tensors import array_from_tensor, with_data
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array
from vkmnn.llm.layout import Layout, files_of, read_layout
from vkmnn.llm.text import Tokenizer
from vkmnn.quantization import model as models

if TYPE_CHECKING:
    import onnx

_GGUF = ".gguf"
_FLOAT_KINDS = frozenset({"f16", "bf16", "f32", "f64"})
_WEIGHTS = (".onnx", ".onnx_data", ".data", ".safetensors", ".gguf", ".bin", ".pt", ".pth", ".h5",
            ".msgpack")  # fmt: skip
"""Suffixes of files that are not copied."""
_INDEX = ".index.json"
_LARGEST_COPY = 256 << 20
_INLINE = 1024
"""Bytes of constants that stay in the .onnx file."""


def is_language_model(path: Path) -> bool:
    """Return whether a path is a GGUF file, or a folder with a decoder of text."""
    if not path.is_dir():
        return path.suffix.lower() == _GGUF
    if (path / "genai_config.json").is_file() or is_described(path):
        return True
    if any(path.glob(f"*{_GGUF}")) and not any(path.glob("*.onnx")):
        return True
    if not (path / "config.json").is_file() or not files_of(path):
        return False
    layout = read_layout(path)
    if layout.kind != "decoder":
        return False
    names = {value.name for value in read_model(layout.decoder).proto.graph.input}
    return "input_ids" in names and any("past" in name for name in names)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A language model in float.

    Attributes:
        layout: its files.
        file: its network, whose weights are read when they are asked for.
    """

    layout: Layout
    file: ModelFile

    def reader(self) -> Reader:
        """Return a reader of the network's constants."""
        return Reader(self.file)


def open_source(path: Path) -> Source:
    """Read a language model.

    Raises:
        ModelFileError: its layout or its family is not known.
        InvalidInputError: it has no decoder, or is quantised already.
    """
    layout = read_layout(path, _float_variant(path))
    if layout.kind != "decoder":
        raise InvalidInputError(
            f"'{path}' is no decoder of text ({layout.kind})",
            hint="quantize its networks one by one: give the path of an .onnx file",
        )
    if layout.described is None:
        return Source(layout, read_model(layout.decoder))
    kind = layout.described.kind
    if kind not in _FLOAT_KINDS:
        raise InvalidInputError(
            f"'{path}' is already quantised ({kind}); nothing was written",
            hint="run it as it is, or quantise the float model that it was made from",
        )
    return Source(layout, layout.described.network())


def _float_variant(path: Path) -> str | None:
    """Return the most precise variant of a folder of networks; None for the only one."""
    found = files_of(path) if path.is_dir() else {}
    variants = next((found[one] for one in ("decoder_model_merged", "model") if one in found), {})
    if (path / "genai_config.json").is_file() or len(variants) < 2:
        return None
    return next((name or "fp32" for name in ("", "fp32", "fp16", "bf16") if name in variants), None)


class Reader:
    """Reads constants of a network, and puts the data of those that stay into the model.

    Args:
        file: the network.
    """

    def __init__(self, file: ModelFile) -> None:
        self._file = file
        self._numbers = {
            tensor.name: number for number, tensor in enumerate(file.proto.graph.initializer)
        }

    def array(self, tensor: onnx.TensorProto) -> Array:
        """Return the values of a constant."""
        number = self._numbers.get(tensor.name)
        raw = None if number is None else self._file.weights.get(number)
        if raw is not None and number is not None:  # reading may have changed its type
            tensor.data_type = self._file.proto.graph.initializer[number].data_type
        return array_from_tensor(tensor, self._file.folder, raw)

    def complete(self, proto: onnx.ModelProto) -> None:
        """Put the data into the constants of a model derived from the network."""
        for graph in models.graphs_of(proto.graph):
            for tensor in graph.initializer:
                number = self._numbers.get(tensor.name)
                raw = None if number is None else self._file.weights.get(number)
                if raw is not None or tensor.data_location:
                    tensor.CopyFrom(with_data(tensor, tensor.name, self._file.folder, raw))
        for node in proto.graph.node:
            for item in node.attribute:
                if item.HasField("t") and item.t.data_location:
                    item.t.CopyFrom(with_data(item.t, item.t.name, self._file.folder))


def write_folder(source: Source, proto: onnx.ModelProto, folder: Path) -> None:
    """Write a folder with a network, and with the other files of the model.

    Args:
        source: the model.
        proto: its network, with all data.
        folder: an empty folder.
    """
    layout = source.layout
    if layout.folder.is_dir() and layout.decoder.suffix.lower() != _GGUF:
        _copy_files(layout.folder, folder)
    if layout.described is None:
        place = layout.decoder.relative_to(layout.folder)
        if not (layout.folder / "genai_config.json").is_file():
            place = place.with_name(f"{_stem(layout)}.onnx")
    else:
        place = Path("model.onnx")
        if layout.decoder.suffix.lower() == _GGUF:
            _describe(layout, folder)
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    models.save(proto, path, external=True)


def _stem(layout: Layout) -> str:
    """Return the name of the decoder's file without its variant."""
    for role, variants in files_of(layout.folder).items():
        if layout.decoder in variants.values():
            return role
    return layout.decoder.stem


def _copy_files(source: Path, target: Path) -> None:
    """Copy the files of a model that hold no weights: configurations, the tokenizer."""
    for path in sorted(source.iterdir()):
        name = path.name.lower()
        weights = name.endswith((*_WEIGHTS, _INDEX)) or ".onnx" in name
        if path.is_file() and not weights and path.stat().st_size <= _LARGEST_COPY:
            shutil.copyfile(path, target / path.name)


def _describe(layout: Layout, folder: Path) -> None:
    """Write what a GGUF file says beside its weights, as transformers does."""
    config: dict[str, Any] = {
        "architectures": ["ForCausalLM"],
        "model_type": layout.described.architecture.family if layout.described else "",
        "max_position_embeddings": layout.context or None,
        "eos_token_id": sorted(layout.eos) or None,
        "bos_token_id": layout.bos,
    }
    _write_json(folder / "config.json", config)
    if not Tokenizer.is_in(layout.folder, layout.keys):
        return
    tokenizer = Tokenizer(layout.folder, layout.keys)
    tokenizer.save(folder)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    known = {name: value for name, value in values.items() if value is not None}
    path.write_text(json.dumps(known, indent=2), "utf-8")
