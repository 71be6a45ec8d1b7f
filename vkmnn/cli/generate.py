"""`vkmnn generate`: stream text from a language model."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vkmnn import llm
from vkmnn.cli.console import bytes_text, document, interrupted, note, wants_json
from vkmnn.converter.foreign import likely_kind
from vkmnn.errors import ModelFileError, VkmnnError, plural
from vkmnn.llm.layout import is_model_folder
from vkmnn.schedule_config import OnOverflow, PrecisionName
from vkmnn.sources.locate import GGUF


@dataclass(frozen=True, slots=True)
class Where:
    """A model, its device and options."""

    model: str
    device: str
    precision: PrecisionName
    capacity: int | None
    variant: str | None
    revision: str | None
    on_overflow: OnOverflow = "warn"
    kv_cache_dtype: llm.KvCacheDtype = "f32"

    def load(self) -> llm.LanguageModel:
        """Load the model.

        Raises:
            ModelFileError: a file was given where a folder is due.
        """
        _refuse_file(Path(self.model))
        return llm.load(
            self.model,
            self.device,
            capacity=self.capacity,
            variant=self.variant,
            revision=self.revision,
            precision=self.precision,
            on_overflow=self.on_overflow,
            kv_cache_dtype=self.kv_cache_dtype,
        )


def _refuse_file(path: Path) -> None:
    """Refuse a path that is neither a folder nor a GGUF file, with the step that helps."""
    if not path.is_file() or path.suffix.lower() in (GGUF, ".zip"):
        return
    with path.open("rb") as file:
        kind = likely_kind(file.read(4096), path)
    parent = path.absolute().parent
    if kind is not None and path.suffix != ".onnx":
        raise ModelFileError(
            f"'{path}' is {kind.name}, not the folder of a language model", hint=kind.advice
        )
    if not is_model_folder(parent) or not (parent / "config.json").is_file():
        raise ModelFileError(
            f"'{path}' is a file, not the folder of a language model",
            hint=f"a single network runs by `vkmnn run {path}`",
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A text that has been printed.

    Attributes:
        text: the text.
        made: the result of the model; None if the text was interrupted before its first token.
        interrupted: whether Ctrl-C ended it.
        seconds: how long it took.
    """

    text: str
    made: llm.Generated | None
    interrupted: bool
    seconds: float

    def speed(self) -> str:
        """Return the speed of prompt and text, in one line."""
        made = self.made or llm.Generated()
        new = made.prompt_tokens - made.cached_tokens
        return (
            f"prefill {plural(new, 'token')}, {made.prefill_rate:.0f} tok/s · "
            f"{plural(len(made.tokens), 'token')}, {made.decode_rate:.1f} tok/s · "
            f"{self.seconds:.1f} s"
        )

    def line(self, model: llm.LanguageModel) -> str:
        """Return speed and memory, in one line."""
        memory = model.memory()
        return (
            f"{self.speed()} · weights {bytes_text(memory['weights'])}, caches "
            f"{bytes_text(memory['caches'])}"
        )

    def facts(self, model: llm.LanguageModel) -> dict[str, Any]:
        """Return the keys of the command's document."""
        facts: dict[str, Any] = {"text": self.text, "tokens": 0, "interrupted": self.interrupted}
        if self.made is not None:
            facts |= {
                "tokens": len(self.made.tokens),
                "prompt_tokens": self.made.prompt_tokens,
                "cached_tokens": self.made.cached_tokens,
                "prefill_per_s": self.made.prefill_rate,
                "decode_per_s": self.made.decode_rate,
                "seconds": self.seconds,
                "memory": model.memory(),
            }
        return facts


def generate_text(where: Where, prompt: str, max_tokens: int | None, **how: Any) -> None:
    """Print a model's continuation of a prompt."""
    text = sys.stdin.read() if prompt == "-" else prompt
    with where.load() as model:
        answer = stream(model, text, max_tokens, how)
        if answer.made is not None:
            note(answer.line(model))
        facts = answer.facts(model)
        document("generate", {"model": where.model, "device": model.device.name, **facts})
        if answer.interrupted:
            raise interrupted(f"{plural(facts['tokens'], 'token')} written")


def stream(
    model: llm.LanguageModel, prompt: Any, max_tokens: int | None, how: Mapping[str, Any]
) -> Answer:
    """Print a text as it arrives; Ctrl-C ends it.

    Args:
        model: the model.
        prompt: a text or messages.
        max_tokens: maximum tokens of the text; None for as many as fit.
        how: options of sampling.
    """
    start = time.perf_counter()
    parts: list[str] = []
    made: llm.Generated | None = None
    stopped = False
    try:
        for result, piece in model.pieces(prompt, max_tokens, **how):
            made = result
            parts.append(piece)
            _write(piece)
    except KeyboardInterrupt:
        stopped = True
    except VkmnnError:
        if any(parts):
            _write("\n")
        raise
    _write("\n")
    return Answer("".join(parts), made, stopped, time.perf_counter() - start)


def _write(piece: str) -> None:
    if not wants_json():
        sys.stdout.write(piece)
        sys.stdout.flush()
