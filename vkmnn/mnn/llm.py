"""MNN.llm: language models by MNN's calls, on vkmnn.llm.

`create` takes what `vkmnn.llm.load` takes, or the config.json of such a folder. MNN's own folders,
with llm.mnn, are refused: vkmnn does not read MNN's attention ops.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.llm import EmbeddingModel, Generated, LanguageModel, load_embedding
from vkmnn.llm import load as load_language_model
from vkmnn.mnn.codes import ArgumentError, NotOfferedError
from vkmnn.mnn.config import schedule
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.refused import refuse


class LlmStatus(IntEnum):
    """How the last generation ended."""

    NOT_LOADED = -1
    RUNNING = 0
    NORMAL_FINISHED = 1
    MAX_TOKENS_FINISHED = 2
    USER_CANCEL = 3
    INTERNAL_ERROR = 4
    TIMEOUT = 5


# MNN's setting -> vkmnn's option of generation.
_SAMPLING = {
    "temperature": "temperature",
    "topK": "top_k",
    "top_k": "top_k",
    "topP": "top_p",
    "top_p": "top_p",
    "minP": "min_p",
    "min_p": "min_p",
    "penalty": "repetition_penalty",
    "repetition_penalty": "repetition_penalty",
    "seed": "seed",
}
_BACKENDS = ("backend_type", "precision", "power", "memory", "thread_num")
_KNOWN = frozenset(
    {
        *(*_SAMPLING, *_BACKENDS, "max_new_tokens", "reuse_kv", "use_template", "system_prompt"),
        *("sampler_type", "mixed_samplers", "capacity"),
    }
)
_DEFAULTS: dict[str, Any] = {
    "max_new_tokens": 512,
    "reuse_kv": False,
    "use_template": True,
    "system_prompt": "",
    "sampler_type": "mixed",
}
_ENDS = {"stop": LlmStatus.NORMAL_FINISHED, "length": LlmStatus.MAX_TOKENS_FINISHED}


class Context:
    """What the last call did: lengths, times and tokens."""

    def __init__(self) -> None:
        self.prompt_len = self.gen_seq_len = self.all_seq_len = 0
        self.load_us = self.prefill_us = self.decode_us = self.sample_us = 0
        self.vision_us = self.audio_us = 0
        self.pixels_mp = self.audio_input_s = 0.0
        self.current_token = 0
        self.history_tokens: list[int] = []
        self.output_tokens: list[int] = []
        self.generate_str = ""
        self.end_with = ""
        self.status = LlmStatus.NOT_LOADED

    def refresh(self) -> None:
        """Do nothing: the values are those of the last call."""

    def update(self, data_dict: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Set values by name.

        Raises:
            ArgumentError: there is no such value.
        """
        for name, value in {**(data_dict or {}), **kwargs}.items():
            if name not in self.__dict__:
                raise ArgumentError(f"a context has no value '{name}'")
            setattr(self, name, value)

    def _take(self, made: Generated, tokens: Sequence[int]) -> None:
        self.prompt_len, self.gen_seq_len = len(tokens), len(made.tokens)
        self.history_tokens = [*tokens, *made.tokens]
        self.all_seq_len, self.output_tokens = len(self.history_tokens), list(made.tokens)
        self.current_token = made.tokens[-1] if made.tokens else 0
        self.generate_str = made.text
        self.prefill_us = round(made.prefill_seconds * 1e6)
        self.decode_us = round(made.decode_seconds * 1e6)
        self.status = _ENDS.get(made.finish_reason, LlmStatus.RUNNING)

    def __repr__(self) -> str:
        return f"Context({self.__dict__})"


class Llm:
    """A language model; created by `create`, ready after `load`."""

    def __init__(self, source: str, settings: Mapping[str, Any], embedding: bool) -> None:
        self._source, self._embedding = source, embedding
        self._settings = {**_DEFAULTS, **settings}
        self._model: LanguageModel | EmbeddingModel | None = None
        self._context = Context()
        self._turns: list[dict[str, str]] = []
        self._text = ExitStack()  # the caches of `forward`, between calls
        self._sequence: Any = None

    def load(self) -> None:
        """Open the model.

        Raises:
            ModelFileError: there is none, or its layout is not known.
            NotOfferedError: it is one of MNN's own.
        """
        began = time.perf_counter()
        given = {key: self._settings[key] for key in _BACKENDS if key in self._settings}
        names = {"backend_type": "backend", "thread_num": "numThread"}
        config = schedule({names.get(key, key): _plain(value) for key, value in given.items()})
        self.close()
        if self._embedding:
            self._model = load_embedding(self._source, config.device)
        else:
            self._model = load_language_model(
                self._source,
                config.device,
                capacity=self._settings.get("capacity"),
                precision=config.precision,
            )
        self._context.load_us = round((time.perf_counter() - began) * 1e6)
        self._context.status = LlmStatus.RUNNING

    @property
    def context(self) -> Context:
        """What the last call did."""
        return self._context

    def set_config(self, config: Mapping[str, Any]) -> bool:
        """Change settings; those of the backend count for the next `load`.

        Raises:
            ArgumentError: an unknown setting.
        """
        self._settings.update(_checked(config))
        return True

    def _loaded(self) -> LanguageModel:
        if not isinstance(self._model, LanguageModel):
            raise InvalidInputError(
                "the model generates no text" if self._embedding else "the model is not loaded",
                hint="call txt_embedding" if self._embedding else "call load() first",
            )
        return self._model

    def apply_chat_template(self, prompt: Any) -> str:
        """Return a prompt in the model's form of conversations.

        Args:
            prompt: a text; a message {"role": …, "content": …}; or a list of messages.
        """
        return self._loaded().tokenizer.conversation(self._messages(prompt))

    def _messages(self, prompt: Any) -> list[dict[str, str]]:
        if isinstance(prompt, str):
            system = self._settings["system_prompt"]
            first = [{"role": "system", "content": system}] if system else []
            return [*first, {"role": "user", "content": prompt}]
        return [dict(prompt)] if isinstance(prompt, Mapping) else list(prompt)

    def tokenizer_encode(self, prompt: Any) -> list[int]:
        """Return the tokens of a text.

        Raises:
            NotOfferedError: the prompt has images or sounds.
        """
        if not isinstance(prompt, str):
            raise NotOfferedError("vkmnn.mnn.llm takes texts alone", hint="pass a text")
        return self._loaded().tokenizer.encode(prompt, True)

    def tokenizer_decode(self, token: int | Sequence[int]) -> str:
        """Return the text of a token, or of several."""
        tokens = [token] if isinstance(token, int) else list(token)
        return self._loaded().tokenizer.decode(tokens)

    def forward(self, input_ids: Sequence[int]) -> Var:
        """Return the logits [1, 1, vocabulary] after tokens, which follow those of earlier calls.

        `reset` starts anew.
        """
        model = self._loaded()
        if self._sequence is None:
            self._sequence = self._text.enter_context(model.sequence())
            self._sequence.restart([])
        logits = np.asarray(self._sequence.extend([int(one) for one in input_ids]), np.float32)
        self._context.all_seq_len = len(self._sequence.tokens)
        return Var(logits.reshape(1, 1, -1))

    def generate(self, input_ids: Sequence[int]) -> list[int]:
        """Return the tokens that follow tokens."""
        tokens = [int(one) for one in input_ids]
        made = self._loaded().generate(tokens, **self._options())
        self._context._take(made, tokens)
        return list(made.tokens)

    def response(self, prompt: Any, stream: bool = False) -> str:
        """Return the answer to a prompt.

        Args:
            prompt: a text, or messages. With the setting "use_template", which is on at first, a
                text is put into the model's form of conversations; with "reuse_kv", it continues
                the conversation of earlier calls.
            stream: also write the answer to stdout, piece by piece.
        """
        model = self._loaded()
        given: Any = prompt
        if not isinstance(prompt, str):
            given = self._messages(prompt)
        elif self._settings["use_template"] and model.tokenizer.has_template:
            given = (
                [*self._turns, self._messages(prompt)[-1]]
                if self._turns
                else self._messages(prompt)
            )
        tokens = model.tokens_of(given, model.capacity)
        made = Generated()
        for growing, piece in model.pieces(tokens, **self._options()):
            made = growing
            if stream:
                sys.stdout.write(piece)
                sys.stdout.flush()
        self._context._take(made, tokens)
        if self._settings["reuse_kv"] and isinstance(given, list):
            self._turns = [*given, {"role": "assistant", "content": made.text}]
        return made.text

    def _options(self) -> dict[str, Any]:
        settings = self._settings
        made = {"max_tokens": settings["max_new_tokens"]}
        if settings["sampler_type"] != "greedy":
            made |= {own: settings[key] for key, own in _SAMPLING.items() if key in settings}
        return made

    def generate_init(self, stream: Any = None, end_with: str | None = None) -> None:
        """Forget what the last call did."""
        loaded = self._context.load_us
        self._context = Context()
        self._context.load_us = loaded
        self._context.end_with = end_with or ""

    def stoped(self) -> bool:
        """Tell whether the last generation has ended."""
        return self._context.status > LlmStatus.RUNNING

    def reset(self) -> None:
        """Forget the conversation, and the tokens of `forward`."""
        self._turns = []
        self._sequence = None
        self._text.close()

    def txt_embedding(self, prompt: str) -> Var:
        """Return the vector of a text, for a model that was created as one for embeddings."""
        if not isinstance(self._model, EmbeddingModel):
            raise InvalidInputError(
                "the model makes no vectors of texts",
                hint="create it with embedding_model=True, and call load()",
            )
        return Var(np.asarray(self._model.embed(prompt), np.float32))

    def get_log(self) -> str:
        """Return nothing: vkmnn keeps no log of a model."""
        return ""

    def apply_lora(self, lora_path: str) -> int:
        """Refuse: vkmnn.llm does not apply LoRA weights.

        Raises:
            NotOfferedError: always.
        """
        return _no_lora()

    def select_module(self, module_index: int) -> bool:
        """Refuse; see `apply_lora`."""
        return _no_lora()

    def release_module(self, module_index: int) -> bool:
        """Refuse; see `apply_lora`."""
        return _no_lora()

    def close(self) -> None:
        """Release the device's memory."""
        self.reset()
        if self._model is not None:
            self._model.close()
            self._model = None


def _no_lora() -> NoReturn:
    raise NotOfferedError(
        "vkmnn.llm does not apply LoRA weights", hint="merge them into the model before"
    )


def _plain(value: Any) -> Any:
    return value.upper() if value in ("cpu", "vulkan", "opencl", "metal", "cuda") else value


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    for key in config:
        if key not in _KNOWN:
            raise ArgumentError(
                f"a language model has no setting '{key}'",
                hint=f"known are: {', '.join(sorted(_KNOWN))}",
            )
    return dict(config)


def _read(path: Path) -> dict[str, Any]:
    """Return MNN's settings in a configuration; none if it is a model's own.

    Raises:
        NotOfferedError: it names a model of MNN's.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    if "llm_model" in found or (path.parent / "llm.mnn").exists():
        raise NotOfferedError(
            f"'{path.parent}' is a language model as MNN exports one, which vkmnn does not read",
            hint="pass the folder or the hub's name of the model that it was exported from",
        )
    return {key: value for key, value in found.items() if key in _KNOWN - set(_BACKENDS)}


def create(config_path: str | Path, embedding_model: bool = False) -> Llm:
    """Return a language model, to be loaded by `load`.

    Args:
        config_path: a folder with a model, or its config.json; a GGUF file; a name of the hub.
        embedding_model: the model makes vectors of texts.

    Raises:
        NotOfferedError: it is a folder of MNN's own.
    """
    path = Path(config_path)
    file = path / "config.json" if path.is_dir() else path
    settings = _read(file) if file.suffix == ".json" else {}
    source = str(path.parent) if path.suffix == ".json" else str(config_path)
    return Llm(source, settings, embedding_model)


def __getattr__(name: str) -> NoReturn:
    """Raise for a missing name, with the reason."""
    refuse("llm", name)
