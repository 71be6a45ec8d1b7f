"""The models that a server serves, by the names that requests use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar

from vkmnn import llm
from vkmnn.base.config_file import read_config
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.inference_session import InferenceSession
from vkmnn.llm.decoder import MAX_BATCH
from vkmnn.llm.layout import is_model_folder, read_layout
from vkmnn.pipelines import Pipeline, pipeline
from vkmnn.pipelines.guessing import is_painter, said_by_folder
from vkmnn.schedule_config import OnDeviceLost, OnOverflow, PrecisionName
from vkmnn.serve.joining import Batching
from vkmnn.serve.leases import Leases
from vkmnn.serve.limits import HttpError
from vkmnn.serve.networks import Network
from vkmnn.sources.locate import GGUF, locate
from vkmnn.sources.names import title_of

Spoken = llm.LanguageModel | llm.EmbeddingModel | Pipeline
"""Models that OpenAI's API serves."""

Model = Spoken | Network
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


class Caches(NamedTuple):
    """Caches of language models: the tokens of a text, and how keys and values are stored."""

    capacity: int | None = None
    kv_cache_dtype: llm.KvCacheDtype = "f32"


@dataclass(slots=True)
class Models:
    """Models by name and kind; requests cannot add any."""

    language: dict[str, llm.LanguageModel] = field(default_factory=dict)
    embedding: dict[str, llm.EmbeddingModel] = field(default_factory=dict)
    versions: dict[str, dict[str, Network]] = field(default_factory=dict)
    pipelines: dict[str, Pipeline] = field(default_factory=dict)
    leases: Leases = field(default_factory=Leases)

    @property
    def networks(self) -> dict[str, Network]:
        """The latest version of each network by its name."""
        return {name: there[latest_of(there)] for name, there in self.versions.items()}

    @property
    def texts_at_once(self) -> int:
        """The number of texts that every language model generates at a time."""
        models = list(self.language.values())  # another thread may load one
        return min((model.texts_at_once for model in models), default=MAX_BATCH)

    @property
    def spoken(self) -> dict[str, Spoken]:
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
        return self._taken(_one(name, self.language, "language model"))

    def embedding_model(self, name: object) -> tuple[str, llm.EmbeddingModel]:
        """Return an embedding model and its name; as `language_model`."""
        return self._taken(_one(name, self.embedding, "embedding model"))

    def network(self, name: object, version: str | None = None) -> Network:
        """Return another network, by default in its latest version; raises as `language_model`."""
        if name in self.spoken:
            text = f"'{name}' is not a network: /v1/models tells how it is served"
            raise HttpError(404, "model_not_found", text)
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

    def add(self, name: str, model: Spoken) -> None:
        """Add a model that OpenAI's API serves."""
        there: dict[str, Any] = self.pipelines
        if isinstance(model, llm.LanguageModel):
            there = self.language
        elif isinstance(model, llm.EmbeddingModel):
            there = self.embedding
        there[name] = model

    def replace(self, name: str, versions: Mapping[str, Model]) -> None:
        """Serve other versions of a model; none to serve it no longer."""
        kinds: tuple[dict[str, Any], ...] = (
            self.language, self.embedding, self.versions, self.pipelines,
        )  # fmt: skip
        for there in kinds:
            there.pop(name, None)
        for model in versions.values():
            if isinstance(model, Network):
                self.add_network(model)
            else:
                self.add(name, model)

    def pipeline(self, name: object, task: str) -> tuple[str, Any]:
        """Return a pipeline of a task and its name; as `language_model`."""
        there = {key: one for key, one in self.pipelines.items() if one.task == task}
        return self._taken(_one(name, there, f"model for {task}"))

    def _taken(self, found: tuple[str, Kind]) -> tuple[str, Kind]:
        self.leases.take(found[1])
        return found

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
    caches = Caches(capacity, kv_cache_dtype)
    running = running or Running()
    try:
        for spec in specs:
            _load(models, spec, device, caches, variant, options, running)
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
    caches: Caches,
    variant: str | None,
    options: Options,
    running: Running,
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
    else:
        spoken = open_spoken(found.path, found.variant, device, caches, options)
        models.add(name, spoken)


def is_spoken(path: Path) -> bool:
    """Return whether a file or folder is for OpenAI's API: a language model, encoder or pipeline.

    Raises:
        ModelFileError: a file of the folder is damaged.
    """
    if path.is_file():
        return path.suffix.lower() == GGUF
    if (path / "genai_config.json").is_file() or any(path.glob(f"*{GGUF}")) or is_painter(path):
        return True
    if not is_described_by_hugging_face(path):
        return False
    said = said_by_folder(path)
    return (said is not None and said.task in TASKS) or is_model_folder(path)


def is_described_by_hugging_face(folder: Path) -> bool:
    """Return whether the config.json of a folder, if any, is a model's of Hugging Face."""
    path = folder / "config.json"
    return path.is_file() and "model_type" in read_config(path)


def open_spoken(
    path: Path, variant: str | None, device: str | int, caches: Caches, options: Options
) -> Spoken:
    """Open a language model, an encoder, or the pipeline that a folder names.

    Raises:
        VkmnnError: it cannot be loaded.
    """
    if (said := said_by_folder(path)) is not None and said.task in TASKS:
        return pipeline(said.task, str(path), device=device, precision=options["precision"])
    made: llm.EmbeddingModel | llm.LanguageModel
    if read_layout(path, variant).kind == "embedding":
        made = llm.load_embedding(path, device, variant=variant, **options)
    else:
        made = llm.load(path, device, variant=variant, **caches._asdict(), **options)
    try:
        if isinstance(made, llm.EmbeddingModel) or made.has_tokenizer:
            made.tokenizer.prepare()
    except BaseException:
        made.close()
        raise
    return made
