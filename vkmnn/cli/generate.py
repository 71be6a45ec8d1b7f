"""`vkmnn generate` and `vkmnn chat`: text from a language model, as it comes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vkmnn import llm
from vkmnn.cli.console import bytes_text, err, note
from vkmnn.errors import InvalidInputError
from vkmnn.schedule_config import PrecisionName


@dataclass(frozen=True, slots=True)
class Where:
    """A model, and where it runs."""

    model: str
    device: str
    precision: PrecisionName
    capacity: int | None
    variant: str | None
    revision: str | None

    def load(self) -> llm.LanguageModel:
        """Load the model."""
        return llm.load(
            self.model,
            self.device,
            capacity=self.capacity,
            variant=self.variant,
            revision=self.revision,
            precision=self.precision,
        )


def generate_text(where: Where, prompt: str, max_tokens: int | None, **how: Any) -> None:
    """Print what a model writes after a prompt."""
    text = sys.stdin.read() if prompt == "-" else prompt
    with where.load() as model:
        _tell(model, text, max_tokens, how)


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
            messages.append({"role": "assistant", "content": answer})


def _lines() -> Iterator[str]:
    """Yield what the user types, up to an empty line or the end."""
    while True:
        if sys.stdin.isatty():
            err.print("> ", end="")
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line


def _tell(model: llm.LanguageModel, prompt: Any, max_tokens: int | None, how: Any) -> str:
    """Print a text as it comes, then how fast it came; return it."""
    start = time.perf_counter()
    text = ""
    made: llm.Generated | None = None
    for result, piece in model.pieces(prompt, max_tokens, **how):
        made = result
        sys.stdout.write(piece)
        sys.stdout.flush()
        text += piece
    sys.stdout.write("\n")
    sys.stdout.flush()
    if made is not None:
        memory = model.memory()
        new = made.prompt_tokens - made.cached_tokens
        note(
            f"prefill {new} tokens, {made.prefill_rate:.0f} tok/s · {len(made.tokens)} tokens, "
            f"{made.decode_rate:.1f} tok/s · {time.perf_counter() - start:.1f} s · weights "
            f"{bytes_text(memory['weights'])}, caches {bytes_text(memory['caches'])}"
        )
    return text
