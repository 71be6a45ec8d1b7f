"""The state of a chat: the conversation, the settings and counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vkmnn import llm
from vkmnn.cli.generate import Answer
from vkmnn.errors import InvalidInputError, nearest

_FLAGS: Mapping[str, bool] = {"on": True, "off": False}
DEFAULT = "default"


def _flag(text: str) -> bool:
    return _FLAGS[text.lower()]


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that `/set` changes.

    Attributes:
        read: reads it from text; raises ValueError or KeyError.
        wanted: what the text has to be.
        purpose: its effect.
    """

    read: Callable[[str], Any]
    wanted: str
    purpose: str


SETTINGS: Mapping[str, Setting] = {
    "temperature": Setting(float, "a number", "0: always the likeliest token"),
    "top_k": Setting(int, "a whole number", "sample from this many likeliest tokens; 0: from all"),
    "top_p": Setting(float, "a number", "sample from the likeliest tokens of this probability"),
    "min_p": Setting(float, "a number", "sample from tokens this probable beside the likeliest"),
    "repetition_penalty": Setting(float, "a number", "above 1: tokens repeat less"),
    "seed": Setting(int, "a whole number", "random seed"),
    "max_tokens": Setting(int, "a whole number", "maximum tokens of an answer"),
    "stats": Setting(_flag, "on or off", "statistics after every answer"),
}


def shown_name(name: str) -> str:
    """Return the name of a setting as users type it."""
    return name.replace("_", "-")


@dataclass
class Conversation:
    """Messages in turn, and the system prompt before them.

    Attributes:
        system: the system prompt; "" for none.
        messages: messages of "user" and "assistant".
    """

    system: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)

    def prompt(self) -> list[dict[str, str]]:
        """Return all messages for the model."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]

    def undo(self) -> bool:
        """Remove the last message of the user with its answer; return False if there is none."""
        place = self._last()
        del self.messages[max(place, 0) :]
        return place >= 0

    def reopen(self) -> bool:
        """Remove the answer to the last message; return False if there is no message."""
        place = self._last()
        del self.messages[place + 1 :]
        return place >= 0

    def _last(self) -> int:
        """Return the place of the user's last message; -1 if there is none."""
        places = [place for place, one in enumerate(self.messages) if one["role"] == "user"]
        return places[-1] if places else -1


class Chat:
    """A chat with a model.

    Args:
        model: the model.
        conversation: what has been said.
        options: options of generation by name; those that are None have the model's defaults.
        stats: whether statistics follow every answer.

    Attributes:
        values: settings by name; None for the default of `LanguageModel.generate`.
        last: the last answer, if any.
        answers: number of answers.
        tokens: number of tokens in all answers.
        retries: how often `/retry` has asked for another answer, which moves a fixed seed.
        failed: whether an entry failed.

    Raises:
        InvalidInputError: an option is out of its range.
    """

    def __init__(
        self,
        model: llm.LanguageModel,
        conversation: Conversation,
        options: Mapping[str, Any],
        stats: bool,
    ) -> None:
        self.model = model
        self.conversation = conversation
        self.last: Answer | None = None
        self.answers = self.tokens = self.retries = 0
        self.failed = False
        self._defaults: dict[str, Any] = {
            **dict.fromkeys(SETTINGS), **model.sampling_defaults(), "stats": True,
        }  # fmt: skip
        given = {name: value for name, value in options.items() if value is not None}
        self.values = {**self._defaults, **given, "stats": stats}
        self._check(self.values)

    @property
    def max_tokens(self) -> int | None:
        """Maximum tokens of an answer; None for as many as fit."""
        found: int | None = self.values["max_tokens"]
        return found

    @property
    def stats(self) -> bool:
        """Whether statistics follow every answer."""
        return bool(self.values["stats"])

    def how(self) -> dict[str, Any]:
        """Return the options of sampling for the next answer."""
        how = _sampling(self.values)
        if how["seed"] is not None:
            how["seed"] += self.retries
        return how

    def count(self, answer: Answer) -> None:
        """Add an answer to the counters."""
        self.last = answer
        self.answers += 1
        self.tokens += 0 if answer.made is None else len(answer.made.tokens)

    def change(self, name: str, text: str) -> None:
        """Set a value from text; "default" resets it.

        Raises:
            InvalidInputError: there is no setting of this name, or the value is out of its range.
        """
        key = name.lower().replace("-", "_")
        if key not in SETTINGS:
            names = [shown_name(one) for one in SETTINGS]
            raise InvalidInputError(
                f"there is no setting '{name}'", hint=nearest(name, names, "settings")
            )
        setting = SETTINGS[key]
        try:
            value = self._defaults[key] if text.lower() == DEFAULT else setting.read(text)
        except (ValueError, KeyError) as error:
            raise InvalidInputError(
                f"{shown_name(key)} is '{text}'", hint=f"give {setting.wanted}, or {DEFAULT}"
            ) from error
        self._check({**self.values, key: value})
        self.values[key] = value

    def _check(self, values: Mapping[str, Any]) -> None:
        most = values["max_tokens"]
        if most is not None and most < 1:
            raise InvalidInputError(f"max-tokens is {most}", hint="it must be 1 or more")
        self.model.options(most, **_sampling(values))


def _sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in values.items() if name not in ("max_tokens", "stats")}
