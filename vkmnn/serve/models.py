"""The models that a server serves, by the names that requests use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, TypeVar

from vkmnn import llm
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.inference_session import InferenceSession
from vkmnn.llm.layout import read_layout
from vkmnn.schedule_config import OnDeviceLost, OnOverflow, PrecisionName
from vkmnn.serve.limits import HttpError
from vkmnn.sources.locate import GGUF, locate
from vkmnn.sources.names import title_of

Model = llm.LanguageModel | llm.EmbeddingModel | InferenceSession
Kind = TypeVar("Kind")


class _Options(TypedDict):
    precision: PrecisionName
    on_device_lost: OnDeviceLost
    on_overflow: OnOverflow


@dataclass(slots=True)
class Models:
    """Models by name and kind; requests cannot add any."""

    language: dict[str, llm.LanguageModel] = field(default_factory=dict)
    embedding: dict[str, llm.EmbeddingModel] = field(default_factory=dict)
    networks: dict[str, InferenceSession] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, Model]:
        """Every model by its name."""
        return {**self.language, **self.embedding, **self.networks}

    @property
    def names(self) -> list[str]:
        """All names."""
        return list(self.all)

    @property
    def lost(self) -> list[str]:
        """The names of the models that cannot answer because their device is lost."""
        return [name for name, model in self.all.items() if model.lost]

    def language_model(self, name: object) -> tuple[str, llm.LanguageModel]:
        """Return a language model and its name; None selects the only one.

        Raises:
            HttpError: there is none of this name, or there are several and none is named.
        """
        return _one(name, self.language, "language model")

    def embedding_model(self, name: object) -> tuple[str, llm.EmbeddingModel]:
        """Return an embedding model and its name; as `language_model`."""
        return _one(name, self.embedding, "embedding model")

    def network(self, name: object) -> InferenceSession:
        """Return another network; raises as `language_model`."""
        return _one(name, self.networks, "network")[1]

    def close(self) -> None:
        """Release the device's memory."""
        for model in self.all.values():
            model.close()


def _one(name: object, there: Mapping[str, Kind], kind: str) -> tuple[str, Kind]:
    if name is None and len(there) == 1:
        return next(iter(there.items()))
    if name is None and there:
        text = f"'model' is missing: there are {', '.join(there)}"
        raise HttpError(400, "missing_model", text)
    if not isinstance(name, str) or name not in there:
        what = f"called '{str(name)[:100]}'" if name is not None else "here"
        raise HttpError(404, "model_not_found", f"there is no {kind} {what}")
    return name, there[name]


def load_models(
    specs: Sequence[str],
    device: str,
    precision: PrecisionName = "high",
    capacity: int | None = None,
    variant: str | None = None,
    on_device_lost: OnDeviceLost = "rebuild",
    on_overflow: OnOverflow = "warn",
) -> Models:
    """Load models: `model`, or `name=model`; each a folder, a model's file, or a hub's name.

    Raises:
        VkmnnError: one cannot be loaded, or two have one name.
    """
    options: _Options = {
        "precision": precision,
        "on_device_lost": on_device_lost,
        "on_overflow": on_overflow,
    }
    models = Models()
    try:
        for spec in specs:
            _load(models, spec, device, capacity, variant, options)
    except BaseException:
        models.close()
        raise
    return models


def _split(spec: str) -> tuple[str, str]:
    """Return the name of NAME=MODEL, or "", and the model; addresses and paths may hold a "="."""
    match = re.fullmatch(r"([^=/\\:#?]+)=(.+)", spec, re.DOTALL)
    return (match[1], match[2]) if match else ("", spec)


def _load(
    models: Models,
    spec: str,
    device: str,
    capacity: int | None,
    variant: str | None,
    options: _Options,
) -> None:
    name, where = _split(spec)
    try:
        found = locate(where, variant)
    except OSError as error:
        raise ModelFileError(f"'{where[:200]}' cannot be read: {error.args[-1]}") from error
    name = name or title_of(where)
    if name in models.names:
        raise InvalidInputError(f"two models are called '{name}'", hint="write NAME=MODEL")
    if found.path.is_file() and found.path.suffix.lower() != GGUF:
        models.networks[name] = InferenceSession(found.path, device, **options)
    elif read_layout(found.path, found.variant).kind == "embedding":
        encoder = llm.load_embedding(where, device, variant=variant, **options)
        models.embedding[name] = encoder
        encoder.tokenizer.prepare()
    else:
        model = llm.load(where, device, capacity=capacity, variant=variant, **options)
        models.language[name] = model
        if model.has_tokenizer:
            model.tokenizer.prepare()
