"""Language models in files: an architecture with its weights."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vkmnn.base.config_file import Section, read_config
from vkmnn.base.records import dataclass
from vkmnn.converter.language.architecture import FAMILIES, Architecture
from vkmnn.converter.language.config import architecture_of
from vkmnn.converter.language.gguf import Gguf, read_gguf
from vkmnn.converter.language.keys import architecture_of_keys, section_of
from vkmnn.converter.language.names import plain_names
from vkmnn.converter.language.network import NetworkBuilder
from vkmnn.converter.language.safetensors import read_folder
from vkmnn.converter.language.stored import StoredTensor
from vkmnn.converter.onnx.model_file import ModelFile
from vkmnn.errors import ModelFileError

_FACTORS = ("rope_freqs", "rope_factors_short", "rope_factors_long")
MOST_POSITIONS = 1 << 18
"""Rows of the rotary tables if the length of texts is unknown."""
_MOST_FACTORS = 1 << 16
_PAIRED = ("llama", "smollm3", "granite")
"""Further architectures of GGUF files that hold the rotary halves of queries and keys in pairs."""


@dataclass(frozen=True, slots=True)
class LanguageSource:
    """A language model that is described, but not spelled out, by its files.

    Attributes:
        path: the folder, or the first GGUF file.
        format: "safetensors" or "GGUF".
        architecture: the structure of its layers.
        weights: tensors, by the names that GGUF files have.
        others: the types of tensors that are not read, by name.
        keys: keys of a GGUF file; empty for a folder.
        pairs: queries and keys hold their rotary halves in pairs.
        one_more: norms hold their factors less one.
    """

    path: Path
    format: str
    architecture: Architecture
    weights: Mapping[str, StoredTensor]
    others: Mapping[str, str]
    keys: Mapping[str, Any]
    pairs: bool = False
    one_more: bool = False

    @property
    def kind(self) -> str:
        """The type of most of the weights: "q4_k", "bf16" and so on."""
        sizes: Counter[str] = Counter()
        for one in self.weights.values():
            sizes[one.type.name.lower()] += one.nbytes
        return max(sizes, key=sizes.__getitem__, default="")

    @property
    def kinds(self) -> Counter[str]:
        """Number of tensors of each type."""
        return Counter(one.type.name for one in self.weights.values())

    def section(self) -> Section:
        """Return the keys of a GGUF file as a configuration, whose values are checked when read."""
        return section_of(self.path, self.keys)

    def network(self, positions: int | None = None) -> ModelFile:
        """Return the network as an ONNX model, whose weights are read when they are asked for.

        Args:
            positions: maximum tokens of a sequence; None for the trained maximum, or
                `MOST_POSITIONS`.

        Raises:
            ModelFileError: tensors are missing, or their shapes contradict the sizes.
            UnsupportedOpError: weights of unsupported types, all of which are listed.
        """
        return NetworkBuilder(
            self.architecture,
            self.weights,
            self.others,
            name=self.path.stem,
            producer=self.format,
            positions=positions or min(self.architecture.context or 4096, MOST_POSITIONS),
            pairs=self.pairs,
            one_more=self.one_more,
        ).build()


def is_described(folder: Path) -> bool:
    """Return whether a folder holds config.json with safetensors, from which a network is built."""
    there = os.path.isfile(folder / "config.json")  # noqa: PTH113 - any name will do
    return there and any(folder.glob("*.safetensors"))


def read_source(path: Path) -> LanguageSource:
    """Read the description of a language model.

    Args:
        path: a GGUF file, or a folder with config.json and safetensors.

    Raises:
        ModelFileError: a file is missing or damaged, or the family is not known.
    """
    return _of_folder(path) if path.is_dir() else _of_gguf(read_gguf(path))


def _of_folder(folder: Path) -> LanguageSource:
    config = read_config(folder / "config.json")
    _refuse_quantised(config)
    plan = architecture_of(config)
    tensors, others = read_folder(folder)
    names = plain_names([*tensors, *others])
    weights = {names[name]: one for name, one in tensors.items() if name in names}
    rest = {names[name]: one for name, one in others.items() if name in names}
    return LanguageSource(
        folder,
        "safetensors",
        plan,
        weights,
        rest,
        {},
        pairs=plan.traits.paired,
        one_more=FAMILIES[plan.family].one_more,
    )


def _refuse_quantised(config: Section) -> None:
    method = config.section("quantization_config").text("quant_method")
    if method and (method, config.text("model_type")) != ("mxfp4", "gpt_oss"):
        raise ModelFileError(
            f"'{config.path.parent}' holds weights quantised by {method[:60]}",
            hint="load the original model, or a GGUF file of it",
        )


def _of_gguf(file: Gguf) -> LanguageSource:
    weights = dict(file.tensors)
    factors = {}
    for name in _FACTORS:
        found = weights.pop(f"{name}.weight", None)
        if found is not None and len(found.shape) == 1 and found.shape[0] <= _MOST_FACTORS:
            factors[name] = tuple(float(one) for one in found.floats())
    plan = architecture_of_keys(file.path, file.keys, factors)
    if plan.family == "gpt_oss":  # it calls the norm before the experts after attention
        weights = {one.replace(".post_attention_norm.", ".ffn_norm."): tensor
                   for one, tensor in weights.items()}  # fmt: skip
    pairs = plan.traits.paired or file.keys.get("general.architecture") in _PAIRED
    return LanguageSource(file.path, "GGUF", plan, weights, file.others, file.keys, pairs=pairs)
