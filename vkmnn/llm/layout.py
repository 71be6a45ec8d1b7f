"""The layouts of models: folders of ONNX files, folders of safetensors, and GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkmnn.base.config_file import Section, read_config
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.llm.vocabulary import begin_of, ends_of
from vkmnn.sources.variants import gguf_variants, preferred, role_of

if TYPE_CHECKING:
    from vkmnn.converter.language import LanguageSource

_DECODERS = ("decoder_model_merged", "model", "decoder_with_past_model", "decoder_model")
_ENCODERS = ("encoder_model", "encoder")
_CONFIGS = ("config", "generation_config")
_HEADLESS = ("bert", "roberta", "nomic_bert", "xlm-roberta", "mpnet", "distilbert", "modernbert")


@dataclass(frozen=True, slots=True)
class Layout:
    """Files of a model's folder, and its configuration.

    Attributes:
        folder: the folder.
        kind: "decoder", "seq2seq" or "embedding".
        variant: the chosen variant, "" for the one without a suffix.
        variants: all variants of the decoder, or of the only network.
        decoder: its file.
        encoder: the encoder's file, for a seq2seq model.
        first: the decoder without caches, if it has a separate file.
        past: the names of caches as inputs, with `%d` or `*` for the layer, and of their outputs.
        config: config.json, or the `model` part of genai_config.json.
        search: the folder's sampling options.
        context: maximum tokens that the model was trained for; 0 if unknown.
        eos: tokens that end a text.
        bos: the token that a text begins with, if any.
        names: the usual names of inputs and outputs, by those of the network.
        described: the model if its files describe the network; None if they contain it.
    """

    folder: Path
    kind: str
    variant: str
    variants: Mapping[str, Path]
    decoder: Path
    encoder: Path | None
    first: Path | None
    past: Mapping[str, str]
    config: Section
    search: Section
    context: int
    eos: frozenset[int]
    bos: int | None
    names: Mapping[str, str] = field(default_factory=dict)
    described: LanguageSource | None = None

    @property
    def keys(self) -> Mapping[str, Any]:
        """The keys of a GGUF file; empty for a folder."""
        return {} if self.described is None else self.described.keys


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder holds a language model or an embedding model."""
    return (
        (folder / "genai_config.json").is_file()
        or bool(files_of(folder))
        or _is_described(folder)
        or bool(_gguf_files(folder))
    )


def read_layout(folder: Path, variant: str | None = None) -> Layout:
    """Read the layout of a folder, or of a GGUF file.

    Args:
        folder: the folder, or the file.
        variant: "q4", "fp16" and so on; "fp32" for the one without a suffix; None for the best.

    Raises:
        ModelFileError: the layout is unknown, or a file that it names is missing.
        InvalidInputError: the folder lacks the variant.
    """
    if folder.is_file():
        return _described(folder, {})
    if (folder / "genai_config.json").is_file():
        return _genai(folder, variant)
    found = files_of(folder)
    stem = next((stem for stem in _DECODERS if stem in found), None)
    if stem is None:
        if _is_described(folder):
            return _described(folder, {})
        if files := _gguf_files(folder):
            return _described(files[_chosen(files, variant, folder)], files)
        raise ModelFileError(
            f"'{folder}' holds no language model whose layout is known",
            hint="it has genai_config.json, or config.json with safetensors, or with model.onnx or "
            "decoder_model_merged.onnx, in itself or in a folder called onnx; or GGUF files",
        )
    return _exported(folder, found, stem, variant)


def files_of(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the networks of a folder by role, such as "decoder_model", then by variant."""
    found: dict[str, dict[str, Path]] = {}
    for place in (folder, folder / "onnx"):
        for path in sorted(place.glob("*.onnx")):
            if (role := role_of(path.name)) is not None:
                found.setdefault(role[0], {}).setdefault(role[1], path)
    return found


def _is_described(folder: Path) -> bool:
    from vkmnn.converter.language import is_described  # late: most folders hold networks

    return is_described(folder)


def _gguf_files(folder: Path) -> dict[str, Path]:
    """Return the GGUF files of a folder by the ends of their names; of split ones, the first."""
    names = [path.name for path in folder.glob("*.gguf")]
    return {variant: folder / name for variant, name in gguf_variants(names).items()}


def _described(path: Path, variants: Mapping[str, Path]) -> Layout:
    """Return the layout of a model whose network is built from its description."""
    from vkmnn.converter.language import read_source

    source = read_source(path)
    folder = path if path.is_dir() else path.parent
    if source.format == "GGUF":
        config, search = source.section(), Section(path, {})
        eos, bos = ends_of(source.keys), begin_of(source.keys)
    else:
        config, search = (read_config(folder / f"{name}.json") for name in _CONFIGS)
        sections = (search, config.section("text_config"), config)
        eos = _tokens("eos_token_id", sections)
        bos = min(_tokens("bos_token_id", sections), default=None)
    name = next((name for name, one in variants.items() if one == path), "")
    return Layout(
        folder=folder,
        kind="decoder",
        variant=name or source.kind,
        variants=variants or {name or source.kind: path},
        decoder=path,
        encoder=None,
        first=None,
        past={"past_key_values.*": "present.*"},
        config=config,
        search=search,
        context=source.architecture.context,
        eos=eos,
        bos=bos,
        described=source,
    )


def _chosen(variants: Mapping[str, Path], wanted: str | None, folder: Path) -> str:
    if wanted is None:
        return preferred(variants)
    name = "" if wanted == "fp32" else wanted
    if name not in variants:
        raise InvalidInputError(
            f"'{folder}' has no variant '{wanted}'",
            hint=f"it has {', '.join(v or 'fp32' for v in variants)}",
        )
    return name


def _genai(folder: Path, variant: str | None) -> Layout:
    whole = read_config(folder / "genai_config.json")
    model = whole.section("model")
    decoder = model.section("decoder")
    inputs, outputs = decoder.section("inputs").names(), decoder.section("outputs").names()
    if "filename" not in decoder:
        raise ModelFileError(
            f"'{whole.path}' names no decoder file",
            hint="models of several parts (pipelines) are not supported",
        )
    path = _file_of(folder, decoder, "filename")
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
        search=whole.section("search"),
        context=model.number("context_length"),
        eos=model.tokens("eos_token_id"),
        bos=min(model.tokens("bos_token_id"), default=None),
        names={v: k for k, v in {**inputs, **outputs}.items()},
    )


def _file_of(folder: Path, section: Section, key: str) -> Path:
    """Return the file of the folder that a key names; names outside the folder are refused."""
    name = section.text(key)
    path, shown = folder / name, name if len(name) <= 200 else f"{name[:200]}…"
    where = f"({section.name(key)} in {section.path.name})"
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ModelFileError(f"'{shown}' is not a file in '{folder}' {where}")
    try:
        found = path.is_file()
    except (OSError, ValueError) as error:  # no file can have this name
        raise ModelFileError(f"'{shown}' cannot be a file in '{folder}' {where}") from error
    if not found:
        raise ModelFileError(
            f"'{folder / shown}' is missing {where}", hint="download the folder again"
        )
    return path


def _exported(
    folder: Path, found: dict[str, dict[str, Path]], stem: str, variant: str | None
) -> Layout:
    config = read_config(folder / "config.json")
    generation = read_config(folder / "generation_config.json")
    chosen = _chosen(found[stem], variant, folder)
    encoder = next((found[name] for name in _ENCODERS if name in found), None)
    first = found.get("decoder_model", {}) if stem != "decoder_model" else {}
    sections = (generation, config.section("text_config"), config)  # the first one counts
    architectures = " ".join(config.texts("architectures"))
    headless = config.text("model_type") in _HEADLESS or architectures.endswith("Model")
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
        context=_context(sections),
        eos=_tokens("eos_token_id", sections),
        bos=min(_tokens("bos_token_id", sections), default=None),
    )  # fmt: skip


def _context(sections: tuple[Section, ...]) -> int:
    for name in ("max_position_embeddings", "n_positions", "max_target_positions", "n_ctx"):
        for section in sections:
            if name in section:
                return section.number(name)
    return 0


def _tokens(key: str, sections: tuple[Section, ...]) -> frozenset[int]:
    return next((section.tokens(key) for section in sections if key in section), frozenset())
