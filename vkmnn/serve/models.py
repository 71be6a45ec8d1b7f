"""The models that a server has, by the names that requests use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vkmnn import llm
from vkmnn.errors import InvalidInputError
from vkmnn.inference_session import InferenceSession
from vkmnn.llm.hub import find_folder
from vkmnn.llm.layout import read_layout
from vkmnn.schedule_config import PrecisionName
from vkmnn.serve.limits import HttpError


@dataclass(slots=True)
class Models:
    """Models by name and kind; requests cannot add any."""

    language: dict[str, llm.LanguageModel] = field(default_factory=dict)
    embedding: dict[str, llm.EmbeddingModel] = field(default_factory=dict)
    networks: dict[str, InferenceSession] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """All names."""
        return [*self.language, *self.embedding, *self.networks]

    def language_model(self, name: object) -> llm.LanguageModel:
        """Return a language model.

        Raises:
            HttpError: there is none of this name.
        """
        if not isinstance(name, str) or name not in self.language:
            raise _unknown(name, self.language)
        return self.language[name]

    def embedding_model(self, name: object) -> llm.EmbeddingModel:
        """Return an embedding model; raises as `language_model`."""
        if not isinstance(name, str) or name not in self.embedding:
            raise _unknown(name, self.embedding)
        return self.embedding[name]

    def network(self, name: object) -> InferenceSession:
        """Return another network; raises as `language_model`."""
        if not isinstance(name, str) or name not in self.networks:
            raise _unknown(name, self.networks)
        return self.networks[name]

    def close(self) -> None:
        """Release the device's memory."""
        for text in self.language.values():
            text.close()
        for encoder in self.embedding.values():
            encoder.close()
        for network in self.networks.values():
            network.close()


def _unknown(name: object, there: object) -> HttpError:
    return HttpError(404, "model_not_found", f"there is no model '{str(name)[:100]}' of this kind")


def load_models(
    specs: Sequence[str],
    device: str,
    precision: PrecisionName = "high",
    capacity: int | None = None,
    variant: str | None = None,
) -> Models:
    """Load models: `model`, or `name=model`; each a folder, an ONNX file, or a hub's name.

    Raises:
        VkmnnError: one cannot be loaded, or two have one name.
    """
    models = Models()
    for spec in specs:
        name, _, where = spec.rpartition("=")
        path = Path(where)
        name = name or (path.stem if path.suffix == ".onnx" else Path(where.rstrip("/")).name)
        if name in models.names:
            raise InvalidInputError(f"two models are called '{name}'", hint="write NAME=MODEL")
        if path.is_file():
            models.networks[name] = InferenceSession(path, device, precision=precision)
            continue
        kind = read_layout(find_folder(where, None, variant), variant).kind
        if kind == "embedding":
            models.embedding[name] = llm.load_embedding(
                where, device, variant=variant, precision=precision
            )
        else:
            models.language[name] = llm.load(
                where, device, capacity=capacity, variant=variant, precision=precision
            )
    return models
