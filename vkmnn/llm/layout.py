"""What the files of a model's folder are: onnxruntime-genai's, Optimum's and the hub's layouts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vkmnn.errors import InvalidInputError, ModelFileError

PREFERRED = ("q4f16", "fp16", "q4", "", "quantized", "int8", "uint8", "bnb4", "q8")
"""Variants in the order in which they are taken; "" is the one without a suffix, fp32 mostly."""

_DECODERS = ("decoder_model_merged", "model", "decoder_with_past_model", "decoder_model")
_ENCODERS = ("encoder_model", "encoder")
_VARIANT = re.compile(r"(?P<stem>[a-z][a-z_]*?)(?:_(?P<variant>q4f16|q4|q8|q2|q2f16|q1|fp16|fp32|"
                      r"int8|uint8|int4|quantized|bnb4|optimized))?\.onnx")  # fmt: skip
_HEADLESS = ("bert", "roberta", "nomic_bert", "xlm-roberta", "mpnet", "distilbert", "modernbert")


@dataclass(frozen=True, slots=True)
class Layout:
    """A folder as it was read.

    Attributes:
        folder: where everything is.
        kind: "decoder", "seq2seq" or "embedding".
        variant: which variant was taken, "" for the one without a suffix.
        variants: all variants of the decoder, or of the only network.
        decoder: its file.
        encoder: the encoder's file, of a seq2seq model.
        first: a seq2seq decoder without caches, where it has a file of its own.
        past: the names of caches as inputs, with `%d` or `*` for the layer, and of their outputs.
        config: config.json, or the `model` part of genai_config.json.
        search: what the folder says about sampling.
        context: how many tokens the model was made for; 0 where nothing says it.
        eos: tokens that end a text. bos: what it begins with, if anything.
    """

    folder: Path
    kind: str
    variant: str
    variants: Mapping[str, Path]
    decoder: Path
    encoder: Path | None
    first: Path | None
    past: Mapping[str, str]
    config: Mapping[str, Any]
    search: Mapping[str, Any]
    context: int
    eos: frozenset[int]
    bos: int | None
    names: Mapping[str, str] = field(default_factory=dict)


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file; empty where there is no file.

    Raises:
        ModelFileError: it cannot be read, or holds something else.
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"'{path}' cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelFileError(f"'{path}' holds no JSON object")
    return found


def is_model_folder(folder: Path) -> bool:
    """Tell whether a folder holds a language model or an embedding model."""
    return (folder / "genai_config.json").is_file() or bool(files_of(folder))


def read_layout(folder: Path, variant: str | None = None) -> Layout:
    """Read what a folder holds.

    Args:
        folder: where it is.
        variant: "q4", "fp16" and so on; "fp32" for the one without a suffix; None for the best.

    Raises:
        ModelFileError: the layout is not known, or a file that it names is missing.
        InvalidInputError: there is no such variant.
    """
    if (folder / "genai_config.json").is_file():
        return _genai(folder, variant)
    found = files_of(folder)
    stem = next((stem for stem in _DECODERS if stem in found), None)
    if stem is None:
        raise ModelFileError(
            f"'{folder}' holds no language model whose layout is known",
            hint="it has genai_config.json, or config.json with model.onnx or "
            "decoder_model_merged.onnx, in itself or in a folder called onnx",
        )
    return _exported(folder, found, stem, variant)


def files_of(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the networks of a folder by what they are, then by variant."""
    found: dict[str, dict[str, Path]] = {}
    for place in (folder, folder / "onnx"):
        for path in sorted(place.glob("*.onnx")):
            match = _VARIANT.fullmatch(path.name)
            if match is not None:
                variant = match["variant"] or ""
                known = found.setdefault(match["stem"], {})
                known.setdefault("" if variant == "fp32" else variant, path)
    return found


def _chosen(variants: Mapping[str, Path], wanted: str | None, folder: Path) -> str:
    if wanted is None:
        return next((v for v in PREFERRED if v in variants), next(iter(variants)))
    name = "" if wanted == "fp32" else wanted
    if name not in variants:
        raise InvalidInputError(
            f"'{folder}' has no variant '{wanted}'",
            hint=f"it has {', '.join(v or 'fp32' for v in variants)}",
        )
    return name


def _genai(folder: Path, variant: str | None) -> Layout:
    whole = read_json(folder / "genai_config.json")
    model = whole.get("model", {})
    decoder = model.get("decoder", {})
    inputs, outputs = decoder.get("inputs", {}), decoder.get("outputs", {})
    if not isinstance(decoder, dict) or "filename" not in decoder:
        raise ModelFileError(
            f"'{folder / 'genai_config.json'}' names no file of a decoder",
            hint="models of several parts (pipelines) are not supported",
        )
    path = _inside(folder, decoder["filename"])
    variants = files_of(folder).get("model", {}) or {"": path}
    if variant is not None:
        variant = _chosen(variants, variant, folder)
        path = variants[variant]
    past = {
        inputs.get(f"past_{part}_names", f"past_key_values.%d.{part}"): outputs.get(
            f"present_{part}_names", f"present.%d.{part}"
        )
        for part in ("key", "value")
    }
    eos = model.get("eos_token_id", [])
    return Layout(
        folder=folder,
        kind="decoder",
        variant=variant or "",
        variants=variants,
        decoder=path,
        encoder=None,
        first=None,
        past={a.replace("%d", "*"): b.replace("%d", "*") for a, b in past.items()},
        config=model,
        search=whole.get("search", {}),
        context=int(model.get("context_length", 0) or 0),
        eos=_ids(eos),
        bos=_first_id(model.get("bos_token_id")),
        names={str(v): k for k, v in {**inputs, **outputs}.items() if isinstance(v, str)},
    )


def _inside(folder: Path, name: str) -> Path:
    """Return a file of the folder; a name that leads out of it is refused."""
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ModelFileError(f"'{name}' is not a file in '{folder}'")
    if not path.is_file():
        raise ModelFileError(f"'{path}' is missing", hint="download the folder again")
    return path


def _exported(
    folder: Path, found: dict[str, dict[str, Path]], stem: str, variant: str | None
) -> Layout:
    config = read_json(folder / "config.json")
    generation = read_json(folder / "generation_config.json")
    chosen = _chosen(found[stem], variant, folder)
    encoder = next((found[name] for name in _ENCODERS if name in found), None)
    first = found.get("decoder_model", {}) if stem != "decoder_model" else {}
    text = config.get("text_config", config)
    merged = {**config, **text, **{k: v for k, v in generation.items() if v is not None}}
    architectures = " ".join(map(str, config.get("architectures") or ()))
    headless = config.get("model_type") in _HEADLESS or architectures.endswith("Model")
    kind = "seq2seq" if encoder else "embedding" if headless else "decoder"
    return Layout(
        folder=folder,
        kind=kind,
        variant=chosen,
        variants=found[stem],
        decoder=found[stem][chosen],
        encoder=None if encoder is None else encoder[_chosen(encoder, None, folder)
                                                     if chosen not in encoder else chosen],
        first=first.get(chosen) or next(iter(first.values()), None),
        past={"past_key_values.*": "present.*"},
        config=config,
        search=generation,
        context=_context(merged),
        eos=_ids(merged.get("eos_token_id")),
        bos=_first_id(merged.get("bos_token_id")),
    )  # fmt: skip


def _context(config: Mapping[str, Any]) -> int:
    for name in ("max_position_embeddings", "n_positions", "max_target_positions", "n_ctx"):
        if isinstance(config.get(name), int):
            return int(config[name])
    return 0


def _ids(value: object) -> frozenset[int]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return frozenset(int(one) for one in value)
    return frozenset() if value is None else frozenset({int(str(value))})


def _first_id(value: object) -> int | None:
    return next(iter(sorted(_ids(value))), None)
