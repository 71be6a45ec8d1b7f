"""`vkmnn chat`: a conversation on a terminal, or with messages from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer

from vkmnn import llm
from vkmnn.cli.chat_commands import COMMANDS, After, run_command
from vkmnn.cli.chat_history import History, history_file
from vkmnn.cli.chat_input import Entry, Piped, Terminal
from vkmnn.cli.chat_state import Chat, Conversation
from vkmnn.cli.console import interrupted, note, show_error
from vkmnn.cli.generate import Where, stream
from vkmnn.errors import InvalidInputError, VkmnnError


@dataclass(frozen=True, slots=True)
class Start:
    """How a chat begins.

    Attributes:
        system: the system prompt; "" for none.
        options: options of generation; those that are None have the model's defaults.
        stats: whether statistics follow every answer.
        history: whether typed lines are kept for the next chat.
    """

    system: str
    options: Mapping[str, Any]
    stats: bool
    history: bool


def chat_with(where: Where, start: Start) -> None:
    """Answer message after message of the input.

    Raises:
        InvalidInputError: the model has no chat template, or an option is out of its range.
    """
    with where.load() as model:
        if not model.tokenizer.has_template:
            raise InvalidInputError(
                "the model's folder has no chat template",
                hint="`vkmnn generate` continues any text",
            )
        chat = Chat(model, Conversation(start.system), start.options, start.stats)
        reader = _reader(start.history)
        variant = model.layout.variant or "fp32"
        note(
            f"{model.name} ({variant}) on {model.device.name} · room for {model.capacity:,} "
            f"tokens · {reader.ending}"
        )
        while (entry := reader.read()) is not None and _done(chat, entry, reader.lasting):
            pass
        if chat.failed and not reader.lasting:
            raise typer.Exit(1)


def _reader(history: bool) -> Terminal | Piped:
    if not sys.stdin.isatty():
        return Piped()
    return Terminal(History(history_file() if history else None), COMMANDS)


def _done(chat: Chat, entry: Entry, lasting: bool) -> bool:
    """Carry out an entry and return whether the chat goes on; errors end the entry only.

    Args:
        chat: the chat.
        entry: a message or a command.
        lasting: whether Ctrl-C ends only the answer, and a lost device not the chat.
    """
    try:
        before = list(chat.conversation.messages)
        after = run_command(chat, entry.text) if entry.is_command else _asked(chat, entry)
        if after is After.ANSWER and _answer(chat, before) and not lasting:
            raise interrupted("the chat is over")
        return after is not After.END
    except VkmnnError as error:
        if chat.model.lost and not lasting:
            raise
        chat.failed = True
        show_error(error)
    except KeyboardInterrupt:  # outside an answer, which handles it
        if not lasting:
            raise interrupted("the chat is over") from None
        if not entry.is_command:
            chat.conversation.messages[:] = before
    return True


def _asked(chat: Chat, entry: Entry) -> After:
    chat.conversation.messages.append({"role": "user", "content": entry.message})
    return After.ANSWER


def _answer(chat: Chat, before: list[dict[str, str]]) -> bool:
    """Answer the last message, and return whether Ctrl-C ended the answer.

    Args:
        chat: the chat.
        before: the messages before the command, to which an error returns.
    """
    talk = chat.conversation
    try:
        answer = stream(chat.model, talk.prompt(), chat.max_tokens, chat.how())
    except BaseException:
        talk.messages[:] = before
        raise
    chat.count(answer)
    if answer.made is not None and chat.stats:
        note(answer.line(chat.model))
    if answer.interrupted and not answer.text:
        talk.messages[:] = before
        note("stopped before the first word: the conversation is as before")
        return True
    talk.messages.append({"role": "assistant", "content": answer.text})
    if answer.interrupted:
        note("stopped; this part stays in the conversation (/retry answers again, /undo drops it)")
    elif (text := _cut(chat, answer.made)) is not None:
        note(text)
    return answer.interrupted


def _cut(chat: Chat, made: llm.Generated | None) -> str | None:
    """Return a note on an answer that ends by its length; None for others."""
    if made is None or made.finish_reason != "length":
        return None
    if chat.max_tokens is not None and len(made.tokens) >= chat.max_tokens:
        return f"the answer ends after {chat.max_tokens:,} tokens (/set max-tokens N for more)"
    return f"the {chat.model.capacity:,} tokens of the context are full (/undo or /clear)"
