"""The messages and commands of a chat, from a terminal or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

from vkmnn.cli.chat_history import History
from vkmnn.cli.console import err, interrupted, note, show_error
from vkmnn.errors import InvalidInputError

MAX_CHARACTERS = 1 << 24
"""Maximum characters of a message."""

PROMPT, MORE = "> ", "... "
"""Prompts of a message, and of its further lines."""

_QUOTES = '"""'


@dataclass(frozen=True, slots=True)
class Entry:
    """What the user entered.

    Attributes:
        text: the text.
        quoted: whether it was in quotes, where nothing is a command.
    """

    text: str
    quoted: bool = False

    @property
    def is_command(self) -> bool:
        """Whether it is a command: one slash, then a name."""
        return not self.quoted and self.text.startswith("/") and not self.text.startswith("//")

    @property
    def message(self) -> str:
        """The message; outside quotes, two slashes stand for one at its start."""
        doubled = not self.quoted and self.text.startswith("//")
        return self.text[1:] if doubled else self.text


def read_entry(line: Callable[[str], str]) -> Entry:
    """Read an entry, of several lines if they are in triple quotes or end with a backslash.

    Args:
        line: returns the next line after a prompt.

    Raises:
        EOFError: the input is over.
        InvalidInputError: the entry is too long.
    """
    first = line(PROMPT)
    start = first.strip()
    if start.startswith(_QUOTES):
        return Entry(_joined(_quoted(start[len(_QUOTES) :], line)).strip("\n"), True)
    return Entry(_joined(_continued(first, line)).strip())


def _quoted(text: str, line: Callable[[str], str]) -> Iterator[str]:
    while not text.rstrip().endswith(_QUOTES):
        yield text
        try:
            text = line(MORE)
        except EOFError:
            note(f"the input ends before the closing {_QUOTES}")
            return
    yield text.rstrip().removesuffix(_QUOTES)


def _continued(text: str, line: Callable[[str], str]) -> Iterator[str]:
    while text.rstrip().endswith("\\"):
        yield text.rstrip().removesuffix("\\")
        try:
            text = line(MORE)
        except EOFError:
            return
    yield text


def _joined(lines: Iterator[str]) -> str:
    kept, count = [], 0
    for one in lines:
        count += len(one) + 1
        if count > MAX_CHARACTERS:
            raise InvalidInputError(
                f"the message has more than {MAX_CHARACTERS:,} characters", hint="shorten it"
            )
        kept.append(one)
    return "\n".join(kept)


class Piped:
    """Messages from a pipe or a file, without prompts; an empty line ends them.

    Attributes:
        lasting: whether Ctrl-C ends only an answer.
        ending: how the user ends the chat.
    """

    lasting: ClassVar[bool] = False
    ending: ClassVar[str] = "an empty line ends it"

    def read(self) -> Entry | None:
        """Return the next entry; None at the end."""
        try:
            entry = read_entry(self._line)
        except EOFError:
            return None
        return entry if entry.text.strip() else None

    def _line(self, prompt: str) -> str:
        text = sys.stdin.readline(MAX_CHARACTERS + 1)
        if not text:
            raise EOFError
        return text.removesuffix("\n")


class Terminal:
    """Lines that are typed, with editing and history where Python has `readline`.

    Args:
        history: the lines of earlier chats.
        names: names that Tab completes.

    Attributes:
        lasting: whether Ctrl-C ends only an answer.
        ending: how the user ends the chat.
    """

    lasting: ClassVar[bool] = True
    ending: ClassVar[str] = "/help lists the commands, Ctrl-D ends the chat"

    def __init__(self, history: History, names: Collection[str]) -> None:
        self._history = history
        self._readline = _with_readline(history.lines(), names)
        self._prompt = PROMPT
        self._pressed = False  # Ctrl-C at an empty prompt

    def read(self) -> Entry | None:
        """Return the next entry; None at the end.

        Raises:
            typer.Exit: Ctrl-C was pressed twice at an empty prompt.
        """
        while True:
            try:
                entry = read_entry(self._line)
            except EOFError:
                err.print()
                return None
            except KeyboardInterrupt:
                self._drop()
                continue
            except InvalidInputError as error:
                show_error(error)
                continue
            self._pressed = False
            if entry.text.strip():
                return entry

    def _line(self, prompt: str) -> str:
        self._prompt = prompt
        if sys.stdout.isatty():
            text = input(prompt)
        else:  # otherwise `input` would write the prompt among the answers
            err.print(prompt, end="")
            text = input()
        self._history.add(text)
        return text

    def _drop(self) -> None:
        """Discard what is typed; end the chat if nothing is, for the second time."""
        err.print()
        typed = self._readline is not None and bool(self._readline.get_line_buffer())
        if typed or self._prompt == MORE:
            self._pressed = False
            return
        if self._pressed:
            raise interrupted("the chat is over")
        self._pressed = True
        note("press Ctrl-C again, or Ctrl-D, to end the chat")


def _with_readline(lines: list[str], names: Collection[str]) -> ModuleType | None:
    """Prepare `readline` and return it; None where Python lacks it, as on Windows."""
    try:
        import readline
    except ImportError:
        return None

    def complete(text: str, number: int) -> str | None:
        fits = [name for name in names if text.startswith("/") and name.startswith(text)]
        return fits[number] if number < len(fits) else None

    readline.clear_history()
    for one in lines:
        readline.add_history(one)
    readline.set_completer_delims(" \t\n")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    return readline
