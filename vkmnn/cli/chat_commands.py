"""The commands of a chat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rich.text import Text

from vkmnn.cli.chat_file import load_conversation, save_conversation
from vkmnn.cli.chat_state import DEFAULT, SETTINGS, Chat, shown_name
from vkmnn.cli.console import bytes_text, err, note
from vkmnn.errors import InvalidInputError, nearest, plural


class After(Enum):
    """What follows a command."""

    NEXT = "the next entry"
    ANSWER = "an answer to the last message"
    END = "the end of the chat"


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Attributes:
        run: carries it out with the text after its name.
        purpose: its effect, in a few words.
        argument: what follows the name; in brackets if it may be left out, "" for nothing.
    """

    run: Callable[[Chat, str], After]
    purpose: str
    argument: str = ""


def run_command(chat: Chat, text: str) -> After:
    """Carry out a command.

    Raises:
        InvalidInputError: there is no such command, or its argument is wrong.
    """
    name, *rest = text.split(maxsplit=1)
    name = _ALIASES.get(name.lower(), name.lower())
    argument = rest[0].strip() if rest else ""
    command = COMMANDS.get(name)
    if command is None:
        raise InvalidInputError(
            f"there is no command '{name}'",
            hint=f"{nearest(name, COMMANDS, 'commands')} (// begins a message with a slash)",
        )
    wanted = command.argument
    if (argument and not wanted) or (not argument and wanted and not wanted.startswith("[")):
        raise InvalidInputError(
            f"{name} {f'needs {wanted}' if wanted else 'takes no argument'}",
            hint=f"{name} {wanted}".strip(),
        )
    return command.run(chat, argument)


def _help(chat: Chat, argument: str) -> After:
    rows = {f"{name} {one.argument}".strip(): one.purpose for name, one in COMMANDS.items()}
    _show([*rows.items(), *_KEYS.items()])
    return After.NEXT


def _clear(chat: Chat, argument: str) -> After:
    chat.conversation.messages.clear()
    note("a new conversation")
    return After.NEXT


def _system(chat: Chat, argument: str) -> After:
    if argument:
        chat.conversation.system = "" if argument == '""' else argument
    note(f"system prompt: {chat.conversation.system or 'none'}")
    return After.NEXT


def _save(chat: Chat, argument: str) -> After:
    path = Path(argument).expanduser()
    save_conversation(path, chat.conversation, chat.model.name)
    note(f"{plural(len(chat.conversation.prompt()), 'message')} saved in '{path}'")
    return After.NEXT


def _load(chat: Chat, argument: str) -> After:
    chat.conversation = load_conversation(Path(argument).expanduser())
    note(f"{plural(len(chat.conversation.prompt()), 'message')} loaded")
    return After.NEXT


def _undo(chat: Chat, argument: str) -> After:
    if not chat.conversation.undo():
        raise InvalidInputError("there is no message to undo")
    note(f"the last message is removed; {len(chat.conversation.messages)} remain")
    return After.NEXT


def _retry(chat: Chat, argument: str) -> After:
    if not chat.conversation.reopen():
        raise InvalidInputError("there is no message to answer again")
    chat.retries += 1
    if not chat.values["temperature"]:
        note("temperature 0 gives the same answer (/set temperature 0.7)")
    return After.ANSWER


def _set(chat: Chat, argument: str) -> After:
    if argument:
        name, *rest = argument.replace("=", " ", 1).split(maxsplit=1)
        if not rest:
            raise InvalidInputError("/set needs a value", hint=f"/set {name} {DEFAULT} resets it")
        chat.change(name, rest[0].strip())
    _show((f"{shown_name(name)} {_value(chat.values[name])}", one.purpose)
          for name, one in SETTINGS.items())  # fmt: skip
    return After.NEXT


def _stats(chat: Chat, argument: str) -> After:
    memory = chat.model.memory()
    rows = {"answers": f"{chat.answers:,} with {plural(chat.tokens, 'token')}"}
    made = None if chat.last is None else chat.last.made
    if chat.last is not None and made is not None:
        rows["last answer"] = chat.last.speed()
        used = made.prompt_tokens + len(made.tokens)
        rows["context"] = f"{used:,} of {chat.model.capacity:,} tokens"
    rows["memory"] = (
        f"weights {bytes_text(memory['weights'])}, caches {bytes_text(memory['caches'])}"
    )
    _show(rows.items())
    return After.NEXT


def _exit(chat: Chat, argument: str) -> After:
    return After.END


COMMANDS: Mapping[str, Command] = {
    "/help": Command(_help, "list the commands"),
    "/clear": Command(_clear, "begin a new conversation; the system prompt stays"),
    "/system": Command(_system, 'set or show the system prompt; "" removes it', "[TEXT]"),
    "/save": Command(_save, "write the conversation as .json or .md", "FILE"),
    "/load": Command(_load, "continue a conversation saved as .json", "FILE"),
    "/undo": Command(_undo, "remove the last message and its answer"),
    "/retry": Command(_retry, "answer the last message again"),
    "/set": Command(_set, "change or list settings", "[NAME VALUE]"),
    "/stats": Command(_stats, "show speed, length and memory"),
    "/exit": Command(_exit, "end the chat"),
}
_ALIASES: Mapping[str, str] = {"/quit": "/exit", "/bye": "/exit", "/?": "/help"}
_KEYS: Mapping[str, str] = {
    '"""': "begin and end a message of several lines",
    "\\": "at the end of a line: the message continues",
    "//": "begin a message with a slash",
    "Ctrl-C": "stop the answer; pressed twice at an empty prompt, end the chat",
    "Ctrl-D": "end the chat",
}


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return DEFAULT if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _show(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and texts on standard error, which has no answers."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        err.print(Text(f"  {name:<{width}}  {text}"), soft_wrap=not err.is_terminal)
