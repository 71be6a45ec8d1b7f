"""Text to tokens and back, and conversations to text."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from vkmnn.base.config_file import Section, read_config, read_text
from vkmnn.base.extras import need
from vkmnn.errors import InvalidInputError, ModelFileError, VkmnnError
from vkmnn.llm.grammar import Compiler, Grammar
from vkmnn.llm.stops import Stops
from vkmnn.llm.templates import ChatTemplate
from vkmnn.llm.vocabulary import has_vocabulary, read_vocabulary

__all__ = ["Detokenizer", "Message", "Stops", "TextTooLongError", "Tokenizer"]

Message = Mapping[str, Any]

PIECE = 16384
"""Characters of a long text that are tokenised at a time, in some ten milliseconds."""

_SHORT = 2048
"""Longer texts are tokenised by the package's batch call, which lets other threads run."""

_CUT = 16
"""Maximum tokens that cutting a text may add per piece."""

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


def _letters() -> dict[str, int]:
    """Return the bytes by the letters that stand for them in vocabularies of GPT-2's kind."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [one for one in range(256) if one not in plain]
    return {**{chr(one): one for one in plain},
            **{chr(256 + n): one for n, one in enumerate(others)}}  # fmt: skip


_BYTES = _letters()


class Conversation(TypedDict, total=False):
    """Optional arguments of `Tokenizer.conversation`."""

    tools: Sequence[Mapping[str, Any]]
    more: Mapping[str, Any] | None


class TextTooLongError(InvalidInputError):
    """A text has more tokens than fit."""

    def __init__(
        self,
        message: str,
        hint: str = "load the model with a larger capacity, or shorten the prompt",
    ) -> None:
        super().__init__(message, hint=hint)


class Tokenizer:
    """The tokenizer of a model: `tokenizer.json` and tokenizer_config.json, or a vocabulary.

    Args:
        folder: the folder with the files.
        keys: keys of a GGUF file, which has a vocabulary instead of them.

    Attributes:
        template: the chat template; None if the model has none.

    Raises:
        ModelFileError: the folder has no tokenizer, or it cannot be read.
        MissingExtraError: `tokenizers` is not installed.
    """

    def __init__(self, folder: Path, keys: Mapping[str, Any] | None = None) -> None:
        if keys:
            self._tokenizer, self._config = read_vocabulary(folder, keys)
        else:
            self._tokenizer, self._config = _read_folder(folder)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.template, self._tool_template = _templates_of(folder, self._config)
        self._compiling = threading.Lock()
        self._compilers: dict[frozenset[int], Compiler] = {}

    @staticmethod
    def is_in(folder: Path, keys: Mapping[str, Any]) -> bool:
        """Return whether a folder, or a GGUF file with these keys, has a tokenizer."""
        return has_vocabulary(keys) if keys else (folder / "tokenizer.json").is_file()

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, from which it can be read again."""
        self._tokenizer.save(str(folder / "tokenizer.json"))
        config = {f"{name}_token": self._config.special(f"{name}_token") for name in ("bos", "eos")}
        config["chat_template"] = self._config.text("chat_template")
        known = {name: one for name, one in config.items() if one}
        (folder / "tokenizer_config.json").write_text(json.dumps(known, indent=2), "utf-8")

    @property
    def tool_template(self) -> str:
        """The source of the chat template for conversations with tools; "" without one."""
        template = self._tool_template or self.template
        return template.source if template else ""

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return self.template is not None

    @property
    def eos(self) -> frozenset[int]:
        """The end tokens of tokenizer_config.json."""
        text = self._config.special("eos_token")
        token = self._tokenizer.token_to_id(text) if text else None
        return frozenset() if token is None else frozenset({token})

    def encode(self, text: str, special: bool = True, most: int | None = None) -> list[int]:
        """Return the tokens of a text.

        Args:
            text: the text.
            special: add the special tokens with which the model's texts begin.
            most: the most tokens that fit; None for any number.

        Raises:
            InvalidInputError: it is not a text.
            TextTooLongError: it has more tokens than fit.
        """
        *_, tokens = self.encode_steps(text, special, most)
        return tokens

    def encode_steps(self, text: str, special: bool, most: int | None) -> Iterator[list[int]]:
        """Yield an empty list after each piece of a long text, then the tokens; as `encode`.

        A text is refused by its number of characters, or as soon as its first pieces have more
        tokens than fit: the tokens of the whole text may take a hundred times its memory.
        """
        if not isinstance(text, str):
            raise InvalidInputError(f"a text is a str, not {type(text).__name__}")
        if most is not None and len(text) > PIECE:
            self.check_characters(len(text), most)
            count = 0
            for start in range(0, len(text), PIECE):
                count += len(self._ids(text[start : start + PIECE], False)) - _CUT
                if count > most:
                    raise TextTooLongError(
                        f"the first {min(start + PIECE, len(text))} of {len(text)} characters have "
                        f"some {count} tokens, and there is room for {most}"
                    )
                yield []
        tokens = self._ids(text, special)
        if most is not None and len(tokens) > most:
            raise TextTooLongError(
                f"the prompt has {len(tokens)} tokens, and there is room for {most}"
            )
        yield tokens

    def encode_pair(self, first: Any, second: Any) -> tuple[list[int], list[int], list[int]]:
        """Return the tokens of two texts that belong together.

        Returns:
            The tokens; the number of the text of each, as BERT's networks take it; and the places
            of the second text's tokens.

        Raises:
            InvalidInputError: one is not a text.
        """
        for text in (first, second):
            if not isinstance(text, str) or not _is_unicode(text):
                raise InvalidInputError("a pair consists of two texts")
        with _typed(InvalidInputError, "the tokenizer fails at the texts"):
            made = self._tokenizer.encode(first, second)
        places = [place for place, number in enumerate(made.sequence_ids) if number == 1]
        return list(made.ids), list(made.type_ids), places

    def compiler(self, eos: frozenset[int]) -> Compiler:
        """Return the compiler of grammars for these tokens.

        Args:
            eos: tokens that end a text.

        Raises:
            InvalidInputError: grammars are not possible with this kind of tokenizer.
            MissingExtraError: `llguidance` is not installed.
        """
        with self._compiling:
            if eos not in self._compilers:
                self._compilers[eos] = Compiler(self._tokenizer.to_str(), eos)
            return self._compilers[eos]

    def has_compiled(self, grammar: Grammar, eos: frozenset[int]) -> bool:
        """Return whether the compiler is ready and has compiled a grammar."""
        compiler = self._compilers.get(eos)
        return compiler is not None and compiler.has(grammar)

    def text_of(self, token: int) -> str:
        """Return the text of a token in the vocabulary; "" if there is none."""
        return str(self._tokenizer.id_to_token(token) or "")

    @cached_property
    def special(self) -> Mapping[str, int]:
        """The special tokens, which are not text, by their names."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {one.content: number for number, one in added.items() if one.special}

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for, which may be part of a character."""
        text = self.text_of(token)
        if token in self._added:
            return text.encode()
        if self._byte_level:
            return bytes(_BYTES.get(one, 63) for one in text)
        match = _BYTE_TOKEN.fullmatch(text)
        return bytes([int(match[1], 16)]) if match else text.replace(_SPACE, " ").encode()

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self._tokenizer.get_added_tokens_decoder())

    @cached_property
    def _byte_level(self) -> bool:
        """Whether the letters of tokens stand for bytes, as in GPT-2's vocabulary."""
        return "ByteLevel" in json.dumps(json.loads(self._tokenizer.to_str())["decoder"])

    def prepare(self) -> None:
        """Prepare lazily loaded parts before the first long text and the first conversation."""
        self.max_characters(1)
        if self.template is not None:
            self.template.start()

    def max_characters(self, tokens: int) -> int:
        """Return the maximum characters that this number of tokens may have, at least `PIECE`."""
        return max(PIECE, tokens * self._longest)

    def check_characters(self, count: int, tokens: int) -> None:
        """Raise TextTooLongError if `count` characters cannot fit into `tokens` tokens."""
        if count > PIECE and count > self.max_characters(tokens):
            raise TextTooLongError(
                f"the prompt has {count} characters, and there is room for {tokens} tokens of "
                f"{self._longest} characters at most"
            )

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)), default=1)

    def _ids(self, text: str, special: bool) -> list[int]:
        """Tokenise a text."""
        encode = self._fast if len(text) > _SHORT else self._one
        if not text.isascii() and not _is_unicode(text):
            raise InvalidInputError("the text is not Unicode: it has a lone surrogate")
        with _typed(InvalidInputError, "the tokenizer fails at the text"):
            return list(encode(text, special).ids)

    def _one(self, text: str, special: bool) -> Any:
        return self._tokenizer.encode(text, add_special_tokens=special)

    def _fast(self, text: str, special: bool) -> Any:
        """Encode without positions, and without holding Python's lock."""
        encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        return encode([text], add_special_tokens=special)[0]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens, without special ones."""
        try:  # no context manager: this runs twice per token
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))
        except BaseException as error:
            if not _is_failure(error):
                raise
            raise InvalidInputError(f"the tokenizer cannot decode the tokens: {error}") from error

    def conversation(
        self,
        messages: Sequence[Any],
        most: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """Render a conversation as the model's prompt, up to the start of its answer.

        Args:
            messages: dictionaries with `role` and `content`, in their order.
            most: the most tokens that fit; None for any number.
            tools: functions that the model may call, as OpenAI's API describes them.
            more: further variables of the template, `enable_thinking` for example.

        Raises:
            InvalidInputError: the folder has no template, a role is unknown, or the template
                refuses the messages.
            TextTooLongError: the text is too long.
            MissingExtraError: `jinja2` is not installed.
        """
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise InvalidInputError(
                    "a message is a dictionary with a role and a content",
                    hint='[{"role": "user", "content": "…"}]',
                )
            if message.get("content") is None and not message.get("tool_calls"):
                raise InvalidInputError(
                    f"a message of the role '{message['role'][:40]}' has no content",
                    hint='[{"role": "user", "content": "…"}]',
                )
        if self.template is None:
            raise InvalidInputError(
                "the model's folder has no chat template", hint="pass a text instead of messages"
            )
        limit = None
        if most is not None:
            limit = self.max_characters(most)
            self.check_characters(characters_of(messages), most)
            if len(messages) > most:
                raise TextTooLongError(f"{len(messages)} messages do not fit into {most} tokens")
        variables = {
            **(more or {}),
            **({"tools": list(tools)} if tools else {}),
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": True,
            "bos_token": self._config.special("bos_token"),
            "eos_token": self._config.special("eos_token"),
        }
        template = self._tool_template if tools and self._tool_template else self.template
        for message in messages:
            template.check_role(message["role"])
        text = template.write(variables, limit)
        if text is None:
            raise TextTooLongError(f"the conversation has more than {limit} characters")
        return text


def _read_folder(folder: Path) -> tuple[Any, Section]:
    """Return the tokenizer from tokenizer.json and tokenizer_config.json."""
    tokenizers = need("tokenizers", "reading tokens")
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelFileError(
            f"'{folder}' has no tokenizer.json",
            hint="save one next to the model: AutoTokenizer.from_pretrained(…)"
            ".save_pretrained(folder), or pass tokens instead of text",
        )
    with _typed(ModelFileError, f"'{path}' cannot be read"):
        found = tokenizers.Tokenizer.from_file(str(path))
    return found, read_config(folder / "tokenizer_config.json")


@contextmanager
def _typed(kind: type[VkmnnError], what: str) -> Iterator[None]:
    """Convert errors of the package to errors of `kind`."""
    try:
        yield
    except BaseException as error:
        if not _is_failure(error):
            raise
        raise kind(f"{what}: {error}") from error


def _is_failure(error: BaseException) -> bool:
    """Return whether an error is the package's: an Exception, or a panic of its Rust code."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def characters_of(prompt: Any) -> int:
    """Return the number of characters in a prompt: a text, or messages."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(
        len(value)
        for message in prompt
        if isinstance(message, Mapping)
        for value in message.values()
        if isinstance(value, str)
    )


def _templates_of(folder: Path, config: Section) -> tuple[ChatTemplate | None, ChatTemplate | None]:
    """Return the chat template, and the one for conversations with tools if it is another."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return ChatTemplate(read_text(path)), None
    if not config.is_list("chat_template"):
        source = config.text("chat_template")
        return (ChatTemplate(source) if source else None), None
    named = config.named("chat_template", "name", "template")  # several, by name
    source, tools = named.get("default") or next(iter(named.values()), ""), named.get("tool_use")
    return (ChatTemplate(source) if source else None), (ChatTemplate(tools) if tools else None)


class Detokenizer:
    """Turns tokens into text as they arrive; a character appears once its tokens are complete.

    Args:
        tokenizer: the tokenizer.
        kept: special tokens that are part of the text; others are left out.
    """

    def __init__(self, tokenizer: Tokenizer, kept: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._kept = kept
        self._tokens: list[int] = []
        self._start = self._told = 0

    def add(self, token: int) -> str:
        """Return the text that a token completes."""
        if token in self._kept:
            text = self.rest() + self._tokenizer.text_of(token)
            self._tokens.clear()
            self._start = self._told = 0
            return text
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._start : self._told])
        text = self._tokenizer.decode(self._tokens[self._start :])
        if len(text) <= len(before) or text.endswith(_UNFINISHED):
            return ""
        self._start, self._told = self._told, len(self._tokens)
        return text[len(before) :]

    def rest(self) -> str:
        """Return the text not yet returned: a character whose tokens are incomplete."""
        before = self._tokenizer.decode(self._tokens[self._start : self._told])
        return self._tokenizer.decode(self._tokens[self._start :])[len(before) :]
