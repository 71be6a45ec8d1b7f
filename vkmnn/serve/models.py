"""The models that a server serves, by the names that requests use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from vkmnn import llm
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.inference_session import InferenceSession
from vkmnn.llm.layout import read_layout
from vkmnn.pipelines import Pipeline, pipeline
from vkmnn.pipelines.guessing import said_by_folder
from vkmnn.schedule_config import OnDeviceLost, OnOverflow, PrecisionName
from vkmnn.serve.joining import Batching
from vkmnn.serve.limits import HttpError
from vkmnn.serve.networks import Network
from vkmnn.sources.locate import GGUF, locate
from vkmnn.sources.names import title_of

Model = llm.LanguageModel | llm.EmbeddingModel | Network | Pipeline
Kind = TypeVar("Kind")

TASKS = ("automatic-speech-recognition", "text-classification", "text-to-image")
"""Tasks whose folders are served by routes of their own, as `pipelines`."""


@dataclass(frozen=True, slots=True)
class Running:
    """How networks are run.

    Attributes:
        devices: where to open sessions; the device of the other models by default.
        instances: sessions on each device, which share the weights.
        batching: how requests are joined.
    """

    devices: Sequence[str | int] = ()
    instances: int = 1
    batching: Batching = field(default_factory=Batching)


class Options(TypedDict):
    """Options of every session."""

    precision: PrecisionName
    on_device_lost: OnDeviceLost
    on_overflow: OnOverflow


@dataclass(slots=True)
class Models:
    """Models by name and kind; requests cannot add any."""

    language: dict[str, llm.LanguageModel] = field(default_factory=dict)
    embedding: dict[str, llm.EmbeddingModel] = field(default_factory=dict)
    versions: dict[str, dict[str, Network]] = field(default_factory=dict)
    pipelines: dict[str, Pipeline] = field(default_factory=dict)

    @property
    def networks(self) -> dict[str, Network]:
        """The latest version of each network by its name."""
        return {name: there[latest_of(there)] for name, there in self.versions.items()}

    @property
    def spoken(self) -> dict[str, llm.LanguageModel | llm.EmbeddingModel | Pipeline]:
        """The models that OpenAI's API serves, by their names."""
        return {**self.language, **self.embedding, **self.pipelines}

    @property
    def all(self) -> dict[str, Model]:
        """Every model by its name; networks in their latest version."""
        return {**self.language, **self.embedding, **self.networks, **self.pipelines}

    @property
    def names(self) -> list[str]:
        """All names."""
        return list(self.all)

    @property
    def lost(self) -> list[str]:
        """The names of the models that cannot answer because their device is lost."""
        return [name for name, model in self.all.items() if getattr(model, "lost", False)]

    def language_model(self, name: object) -> tuple[str, llm.LanguageModel]:
        """Return a language model and its name; None selects the only one.

        Raises:
            HttpError: there is none of this name, or there are several and none is named.
        """
        return _one(name, self.language, "language model")

    def embedding_model(self, name: object) -> tuple[str, llm.EmbeddingModel]:
        """Return an embedding model and its name; as `language_model`."""
        return _one(name, self.embedding, "embedding model")

    def network(self, name: object, version: str | None = None) -> Network:
        """Return another network, by default in its latest version; raises as `language_model`."""
        there = _one(name, self.versions, "network")[1]
        version = version or latest_of(there)
        if version not in there:
            text = f"'{name}' has no version '{version[:40]}'; it has {', '.join(there)}"
            raise HttpError(404, "model_not_found", text)
        return there[version]

    def versions_of(self, name: str) -> list[str]:
        """Return the versions of a network, the latest last."""
        return sorted(self.versions[name], key=int)

    def add_network(self, network: Network) -> None:
        """Add a network."""
        self.versions.setdefault(network.name, {})[network.version] = network

    def pipeline(self, name: object, task: str) -> tuple[str, Any]:
        """Return a pipeline of a task and its name; as `language_model`."""
        there = {key: one for key, one in self.pipelines.items() if one.task == task}
        return _one(name, there, f"model for {task}")

    def close(self) -> None:
        """Release the device's memory."""
        for model in self.spoken.values():
            model.close()
        for there in self.versions.values():
            for network in there.values():
                network.close()


def latest_of(versions: Iterable[str]) -> str:
    """Return the highest of several versions."""
    return max(versions, key=int)


def _one(name: object, there: Mapping[str, Kind], kind: str) -> tuple[str, Kind]:
    if name is None and len(there) == 1:
        return next(iter(there.items()))
    if name is None and there:
        text = f"'model' is missing: there are {', '.join(there)}"
        raise HttpError(400, "missing_model", text, param="model")
    if not isinstance(name, str) or name not in there:
        what = f"called '{str(name)[:100]}'" if name is not None else "here"
        raise HttpError(404, "model_not_found", f"there is no {kind} {what}", param="model")
    return name, there[name]


def load_models(
    specs: Sequence[str],
    device: str,
    precision: PrecisionName = "high",
    capacity: int | None = None,
    variant: str | None = None,
    on_device_lost: OnDeviceLost = "rebuild",
    on_overflow: OnOverflow = "warn",
    running: Running | None = None,
    kv_cache_dtype: llm.KvCacheDtype = "f32",
) -> Models:
    """Load models: `model`, or `name=model`; each a folder, a model's file, or a hub's name.

    Raises:
        VkmnnError: one cannot be loaded, or two have one name.
    """
    options: Options = {
        "precision": precision,
        "on_device_lost": on_device_lost,
        "on_overflow": on_overflow,
    }
    models = Models()
    running = running or Running()
    try:
        for spec in specs:
            _load(models, spec, device, capacity, variant, options, running, kv_cache_dtype)
    except BaseException:
        models.close()
        raise
    return models


def open_sessions(
    path: Path, devices: Sequence[str | int], instances: int, options: Options
) -> list[InferenceSession]:
    """Open several sessions of a network on each of several devices.

    Networks that keep states between runs get one session, or states would be mixed.

    Raises:
        VkmnnError: as `InferenceSession`.
    """
    made: list[InferenceSession] = []
    try:
        for device in devices:
            made.append(InferenceSession(path, device, **options))
            if made[0].keeps_states:
                break
            made += [made[-1].another() for _ in range(instances - 1)]
    except BaseException:
        for session in made:
            session.close()
        raise
    return made


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
    options: Options,
    running: Running,
    kv_cache_dtype: llm.KvCacheDtype,
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
        sessions = open_sessions(
            found.path, running.devices or [device], running.instances, options
        )
        models.add_network(Network(name, "1", sessions, running.batching))
    elif (said := said_by_folder(found.path)) is not None and said.task in TASKS:
        precision = options["precision"]
        made = pipeline(said.task, str(found.path), device=device, precision=precision)
        models.pipelines[name] = made
    elif read_layout(found.path, found.variant).kind == "embedding":
        encoder = llm.load_embedding(where, device, variant=variant, **options)
        models.embedding[name] = encoder
        encoder.tokenizer.prepare()
    else:
        model = llm.load(
            where, device, capacity=capacity, variant=variant, kv_cache_dtype=kv_cache_dtype,
            **options,
        )  # fmt: skip
        models.language[name] = model
        if model.has_tokenizer:
            model.tokenizer.prepare()
