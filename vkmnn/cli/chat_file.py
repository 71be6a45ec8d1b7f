"""Conversations in files: JSON that `/load` reads again, and Markdown for readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vkmnn._version import __version__
from vkmnn.base.config_file import read_text
from vkmnn.base.whole_files import replacing
from vkmnn.cli.chat_state import Conversation
from vkmnn.errors import InvalidInputError, ModelFileError, nearest

_ROLES = ("system", "user", "assistant")
_FORM = 'it holds {"messages": [{"role": "user", "content": "…"}, …]}, as /save writes it'


def _json(talk: Conversation, model: str) -> str:
    whole = {"vkmnn": __version__, "model": model, "messages": talk.prompt()}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _markdown(talk: Conversation, model: str) -> str:
    parts = [f"# Conversation with {model}"]
    parts += [f"## {one['role'].title()}\n\n{one['content']}" for one in talk.prompt()]
    return "\n\n".join(parts) + "\n"


FORMATS: Mapping[str, Callable[[Conversation, str], str]] = {
    ".json": _json,
    ".md": _markdown,
    ".markdown": _markdown,
}
"""Writers by the suffix of the file."""


def save_conversation(path: Path, talk: Conversation, model: str) -> None:
    """Write a conversation, the whole file or nothing.

    Raises:
        InvalidInputError: the suffix is unknown, or the file cannot be written.
    """
    write = FORMATS.get(path.suffix.lower())
    if write is None:
        raise InvalidInputError(
            f"'{path}' has no known suffix", hint=nearest(path.suffix, FORMATS, "suffixes")
        )
    try:
        with replacing(path) as file:
            file.write(write(talk, model).encode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"'{path}' cannot be written: {error}", hint="check the path and its permissions"
        ) from error


def load_conversation(path: Path) -> Conversation:
    """Read a conversation: an object with `messages`, or the list of messages itself.

    Raises:
        InvalidInputError: the file cannot be read, or holds no conversation.
    """
    try:
        found = json.loads(read_text(path))
    except ModelFileError as error:
        raise InvalidInputError(error.message, hint="check the path") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"'{path}' is not JSON: {error}", hint=_FORM) from error
    messages = found.get("messages") if isinstance(found, dict) else found
    if not isinstance(messages, list):
        raise InvalidInputError(f"'{path}' holds no list of messages", hint=_FORM)
    for number, one in enumerate(messages):
        if not _is_message(one, number):
            raise InvalidInputError(f"message {number} in '{path}' is not valid", hint=_FORM)
    kept = [{"role": one["role"], "content": one["content"]} for one in messages]
    first = kept.pop(0)["content"] if kept and kept[0]["role"] == "system" else ""
    return Conversation(first, kept)


def _is_message(one: Any, number: int) -> bool:
    """Return whether a value is a message; only the first one may be the system prompt."""
    if not isinstance(one, dict) or not isinstance(one.get("content"), str):
        return False
    return one.get("role") in (_ROLES if number == 0 else _ROLES[1:])
