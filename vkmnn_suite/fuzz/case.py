"""One test of the fuzzer: a model and its feeds, stored in a single file.

The file is an ONNX model like any other; the feeds are serialised tensors in its metadata.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from vkmnn.errors import InvalidInputError, ModelError
from vkmnn.ir import Array

_FEED = "vkmnn.fuzz.feed"
_ORIGIN = "vkmnn.fuzz.origin"
_PRECISION = "vkmnn.fuzz.precision"

Feeds = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and the inputs of each run of one session.

    Attributes:
        model: the model to run.
        runs: feeds of the runs, in order; shapes may differ from run to run.
        origin: the origin of the model, for people.
        precision: "high", "normal" or "low".
    """

    model: onnx.ModelProto
    runs: tuple[Feeds, ...]
    origin: str = ""
    precision: str = "high"

    def save(self, path: Path) -> None:
        """Write the case to a file."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        del model.metadata_props[:]
        facts = {_ORIGIN: self.origin, _PRECISION: self.precision}
        for number, feeds in enumerate(self.runs):
            facts[f"{_FEED}.{number}"] = ""  # a run may have no inputs
            for name, array in feeds.items():
                tensor = numpy_helper.from_array(array, name)
                packed = base64.b64encode(tensor.SerializeToString()).decode("ascii")
                facts[f"{_FEED}.{number}.{name}"] = packed
        for key, value in facts.items():
            model.metadata_props.add(key=key, value=value)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model.SerializeToString(deterministic=True))

    @classmethod
    def load(cls, path: Path) -> Case:
        """Read a case.

        Raises:
            InvalidInputError: there is no such file.
            ModelError: the file holds no case.
        """
        try:
            model = onnx.ModelProto.FromString(path.read_bytes())
        except OSError as error:
            raise InvalidInputError(f"cannot read {path}: {error.strerror}") from error
        except DecodeError as error:
            raise ModelError(f"{path} is not an ONNX model") from error
        facts = {entry.key: entry.value for entry in model.metadata_props}
        if _PRECISION not in facts:
            raise ModelError(
                f"{path} holds no feeds",
                hint="give a file that `python -m vkmnn_suite.fuzz` has written",
            )
        runs: dict[int, dict[str, Array]] = {}
        for key, value in facts.items():
            if key.startswith(f"{_FEED}."):
                number, _, name = key[len(_FEED) + 1 :].partition(".")
                feeds = runs.setdefault(int(number), {})
                if name:
                    tensor = onnx.TensorProto.FromString(base64.b64decode(value))
                    feeds[name] = numpy_helper.to_array(tensor)
        ordered = tuple(runs[number] for number in sorted(runs))
        return cls(model, ordered, facts[_ORIGIN], facts[_PRECISION])
