"""`vkmnn generate` and `vkmnn chat`: stream text from a language model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vkmnn import llm
from vkmnn.cli.console import bytes_text, document, err, interrupted, note, wants_json
from vkmnn.converter.foreign import likely_kind
from vkmnn.errors import InvalidInputError, ModelFileError, plural
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


def generate_text(where: Where, prompt: str, max_tokens: int | None, **how: Any) -> None:
    """Print a model's continuation of a prompt."""
    text = sys.stdin.read() if prompt == "-" else prompt
    with where.load() as model:
        facts = _tell(model, text, max_tokens, how)
        document("generate", {"model": where.model, "device": model.device.name, **facts})
        if facts["interrupted"]:
            raise interrupted(f"{plural(facts['tokens'], 'token')} written")


def chat_with(where: Where, system: str | None, max_tokens: int | None, **how: Any) -> None:
    """Answer line after line of the input."""
    with where.load() as model:
        if not model.tokenizer.has_template:
            raise InvalidInputError(
                "the model's folder has no chat template",
                hint="`vkmnn generate` continues any text",
            )
        variant = model.layout.variant or "fp32"
        note(
            f"{model.name} ({variant}) on {model.device.name} · room for {model.capacity:,} "
            "tokens · an empty line ends it"
        )
        messages: list[dict[str, str]] = []
        if system:
            messages.append({"role": "system", "content": system})
        for line in _lines():
            messages.append({"role": "user", "content": line})
            answer = _tell(model, messages, max_tokens, how)
            messages.append({"role": "assistant", "content": answer["text"]})
            if answer["interrupted"]:
                raise interrupted("the chat is over")


def _lines() -> Iterator[str]:
    """Yield the user's lines, up to an empty line or the end of input."""
    while True:
        if sys.stdin.isatty():
            err.print("> ", end="")
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line


def _tell(
    model: llm.LanguageModel, prompt: Any, max_tokens: int | None, how: Any
) -> dict[str, Any]:
    """Print a text as it arrives, then its speed; return both."""
    start = time.perf_counter()
    text = ""
    made: llm.Generated | None = None
    stopped = False
    try:
        for result, piece in model.pieces(prompt, max_tokens, **how):
            made = result
            _write(piece)
            text += piece
    except KeyboardInterrupt:
        stopped = True
    _write("\n")
    facts: dict[str, Any] = {"text": text, "tokens": 0, "interrupted": stopped}
    if made is not None:
        memory = model.memory()
        new = made.prompt_tokens - made.cached_tokens
        seconds = time.perf_counter() - start
        count = len(made.tokens)
        note(
            f"prefill {plural(new, 'token')}, {made.prefill_rate:.0f} tok/s · "
            f"{plural(count, 'token')}, {made.decode_rate:.1f} tok/s · {seconds:.1f} s · weights "
            f"{bytes_text(memory['weights'])}, caches {bytes_text(memory['caches'])}"
        )
        facts |= {
            "tokens": count,
            "prompt_tokens": made.prompt_tokens,
            "cached_tokens": made.cached_tokens,
            "prefill_per_s": made.prefill_rate,
            "decode_per_s": made.decode_rate,
            "seconds": seconds,
            "memory": memory,
        }
    return facts


def _write(piece: str) -> None:
    if not wants_json():
        sys.stdout.write(piece)
        sys.stdout.flush()
