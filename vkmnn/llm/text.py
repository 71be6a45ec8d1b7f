"""Text to tokens and back, and conversations to text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.llm.extras import need
from vkmnn.llm.layout import read_json

Message = Mapping[str, Any]
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """The tokenizer of a folder: `tokenizer.json`, with what tokenizer_config.json adds.

    Raises:
        ModelFileError: there is none, or it cannot be read.
        MissingExtraError: `tokenizers` is not installed.
    """

    def __init__(self, folder: Path) -> None:
        tokenizers = need("tokenizers", "reading tokens")
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelFileError(
                f"'{folder}' has no tokenizer.json",
                hint="save one beside the model: AutoTokenizer.from_pretrained(…)"
                ".save_pretrained(folder), or pass tokens instead of text",
            )
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exceptions
            raise ModelFileError(f"'{path}' cannot be read: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._config = read_json(folder / "tokenizer_config.json")
        self._template = _template_of(folder, self._config)

    @property
    def has_template(self) -> bool:
        """Whether the folder says how conversations are written."""
        return self._template is not None

    @property
    def eos(self) -> frozenset[int]:
        """The tokens that tokenizer_config.json says end a text."""
        text = self._special("eos_token")
        token = self._tokenizer.token_to_id(text) if text else None
        return frozenset() if token is None else frozenset({token})

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return the tokens of a text.

        Args:
            text: what to cut.
            special: add what the model's texts begin with.
        """
        if not isinstance(text, str):
            raise InvalidInputError(f"a text is a str, not {type(text).__name__}")
        return [int(one) for one in self._tokenizer.encode(text, add_special_tokens=special).ids]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens, without special ones."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def conversation(self, messages: Sequence[Message]) -> str:
        """Return a conversation as the model's text, up to where its answer begins.

        Args:
            messages: dictionaries with `role` and `content`, in their order.

        Raises:
            InvalidInputError: the folder has no template, or the template refuses the messages.
            MissingExtraError: `jinja2` is not installed.
        """
        for message in messages:
            if not isinstance(message.get("role"), str):
                raise InvalidInputError(
                    "a message is a dictionary with a role and a content",
                    hint='[{"role": "user", "content": "…"}]',
                )
        if self._template is None:
            raise InvalidInputError(
                "the model's folder has no chat template", hint="pass a text instead of messages"
            )
        sandbox = need("jinja2.sandbox", "writing a conversation")
        jinja2 = need("jinja2", "writing a conversation")

        def refuse(reason: str) -> None:
            raise InvalidInputError(f"the chat template refuses the messages: {reason}")

        try:
            environment = sandbox.ImmutableSandboxedEnvironment(
                trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
            )
            environment.globals["raise_exception"] = refuse
            template = environment.from_string(self._template)
            return str(
                template.render(
                    messages=[dict(message) for message in messages],
                    add_generation_prompt=True,
                    bos_token=self._special("bos_token"),
                    eos_token=self._special("eos_token"),
                )
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise InvalidInputError(f"the chat template fails: {error}") from error

    def _special(self, name: str) -> str:
        value = self._config.get(name) or ""
        return str(value.get("content", "") if isinstance(value, dict) else value)


def _template_of(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default") or next(iter(named.values()), None)
    return found if isinstance(found, str) else None


class Detokenizer:
    """Text of tokens as they come: a character is told once all of its tokens are there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = self._told = 0

    def add(self, token: int) -> str:
        """Return the text that a token completes."""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._start : self._told])
        text = self._tokenizer.decode(self._tokens[self._start :])
        if len(text) <= len(before) or text.endswith(_UNFINISHED):
            return ""
        self._start, self._told = self._told, len(self._tokens)
        return text[len(before) :]

    def rest(self) -> str:
        """Return what has not been told: a character whose last tokens never came."""
        before = self._tokenizer.decode(self._tokens[self._start : self._told])
        return self._tokenizer.decode(self._tokens[self._start :])[len(before) :]


class Stops:
    """Ends a text at the first of several strings, and holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None

    def add(self, text: str) -> str:
        """Return the text that is sure to belong to the result."""
        text = self._held + text
        places = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if places:
            place, self.found = min(places)
            self._held = ""
            return text[:place]
        keep = max(
            (n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])),
            default=0,
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """Return what was held back, at the end; nothing after a stop."""
        held, self._held = self._held, ""
        return held
