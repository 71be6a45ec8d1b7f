"""Language models: from a folder or a name on the hub to text, on any Vulkan device."""

from __future__ import annotations

from pathlib import Path

from vkmnn.base.budget import Budget
from vkmnn.llm.decoder import Decoder
from vkmnn.llm.decoder import KvCacheDtype as KvCacheDtype
from vkmnn.llm.embedding import EmbeddingModel
from vkmnn.llm.generation import Generated
from vkmnn.llm.grammar import Grammar
from vkmnn.llm.language_model import LanguageModel, TextSession, checked_kind
from vkmnn.llm.layout import read_layout
from vkmnn.llm.seq2seq import Seq2SeqModel
from vkmnn.schedule_config import OnDeviceLost, OnOverflow, PrecisionName, ScheduleConfig
from vkmnn.sources.locate import model_folder
from vkmnn.sources.names import title_of

__all__ = [
    "EmbeddingModel",
    "Generated",
    "Grammar",
    "LanguageModel",
    "Seq2SeqModel",
    "TextSession",
    "load",
    "load_embedding",
    "load_seq2seq",
]


def load(
    model: str | Path,
    device: str | int = "auto",
    *,
    capacity: int | None = None,
    variant: str | None = None,
    revision: str | None = None,
    precision: PrecisionName = "high",
    budget: Budget | None = None,
    on_device_lost: OnDeviceLost = "raise",
    on_overflow: OnOverflow = "warn",
    kv_cache_dtype: KvCacheDtype = "f32",
) -> LanguageModel:
    """Load a language model: `vkmnn.llm.load("folder").generate("Once upon a time")`.

    Args:
        model: a folder as onnxruntime-genai, Optimum or onnx-community have them; a folder with
            config.json and safetensors; a GGUF file, the first of several, or a folder of them; or
            a model of the hub, `owner/name`, which is downloaded.
        device: "auto", an index, part of a name, a UUID, or "cpu"; see `ScheduleConfig`.
        capacity: maximum tokens of a text, prompt included; None for the model's context, at most
            4,096.
        variant: "q4", "fp16" and so on, "fp32" for the file without a suffix; if there are several
            GGUF files, the end of a name, "Q4_K_M"; None selects the one that suits a GPU best.
        revision: a commit, tag or branch of a hub's model.
        precision: "fp32" or "fp16"; see `ScheduleConfig`.
        budget: limits of loading and planning; see `Budget`.
        on_device_lost: "raise" DeviceLostError, after which the model cannot answer any more (see
            `LanguageModel.lost`); or "rebuild": reopen the device, run the tokens of the texts
            that are being generated again, and continue them.
        on_overflow: "warn", "high", "raise" or "ignore"; see `ScheduleConfig`.
        kv_cache_dtype: how keys and values are stored between tokens: "f32"; "f16" for half the
            memory; or "i8", bytes with a scale for every row, for a quarter and 4 bytes a row.

    Raises:
        ModelFileError: the folder does not exist, or its layout is not known.
        InvalidInputError: the variant does not exist, or the device cannot pack caches.
        MissingExtraError: a package of the extra `llm` is missing.
        VkmnnError: as `InferenceSession`.
    """
    found = model_folder(model, revision, variant)
    layout = read_layout(found.path, found.variant)
    checked_kind(layout, "decoder", "see vkmnn.llm.load_seq2seq and load_embedding")
    config = ScheduleConfig(
        device=device,
        precision=precision,
        on_device_lost=on_device_lost,
        on_overflow=on_overflow,
    )
    name = title_of(model)
    decoder = Decoder(layout, config, capacity, budget, kv_cache_dtype)
    return LanguageModel(layout, decoder, name)


def load_embedding(
    model: str | Path,
    device: str | int = "auto",
    *,
    variant: str | None = None,
    revision: str | None = None,
    precision: PrecisionName = "high",
    on_device_lost: OnDeviceLost = "raise",
    on_overflow: OnOverflow = "warn",
) -> EmbeddingModel:
    """Load an encoder: `vkmnn.llm.load_embedding("folder").embed(["a text", "another"])`.

    Args:
        model: a folder or a hub's model, as for `load`, like the other arguments.
        device: the device.
        variant: the variant.
        revision: the revision.
        precision: "fp32" or "fp16".
        on_device_lost: "raise" DeviceLostError, or "rebuild" and run once more.
        on_overflow: as for `load`.

    Raises:
        VkmnnError: as `load`.
    """
    found = model_folder(model, revision, variant)
    layout = read_layout(found.path, found.variant)
    checked_kind(layout, "embedding", "vkmnn.llm.load reads decoders")
    name = title_of(model)
    config = ScheduleConfig(
        device=device,
        precision=precision,
        on_device_lost=on_device_lost,
        on_overflow=on_overflow,
    )
    return EmbeddingModel(layout, config, name)


def load_seq2seq(
    model: str | Path,
    device: str | int = "auto",
    *,
    capacity: int = 512,
    variant: str | None = None,
    revision: str | None = None,
    precision: PrecisionName = "high",
    on_device_lost: OnDeviceLost = "raise",
    on_overflow: OnOverflow = "warn",
    kv_cache_dtype: KvCacheDtype = "f32",
) -> Seq2SeqModel:
    """Load an encoder with its decoder: `vkmnn.llm.load_seq2seq("t5").generate("a text")`.

    Args:
        model: a folder or a hub's model, as for `load`, like the other arguments.
        device: the device.
        capacity: maximum tokens of a result.
        variant: the variant.
        revision: the revision.
        precision: "fp32" or "fp16".
        on_device_lost: "raise" DeviceLostError, or "rebuild" and run once more.
        on_overflow: as for `load`.
        kv_cache_dtype: as for `load`; of the decoder's own keys and values.

    Raises:
        VkmnnError: as `load`.
    """
    found = model_folder(model, revision, variant)
    layout = read_layout(found.path, found.variant)
    checked_kind(layout, "seq2seq", "vkmnn.llm.load reads decoders")
    name = title_of(model)
    config = ScheduleConfig(
        device=device,
        precision=precision,
        on_device_lost=on_device_lost,
        on_overflow=on_overflow,
    )
    return Seq2SeqModel(layout, config, name, capacity, kv_cache_dtype)
