"""Calls of functions in generated texts: how families of models write and read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vkmnn.llm.grammar import Grammar, lark, schema_text

MAX_CALLS = 16
"""Maximum calls of an answer that has to consist of calls."""


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """How a family of models writes calls of functions.

    Attributes:
        marks: texts in the chat template that tell the family.
        begin: text before a call or a list of them.
        end: text after it.
        form: "object", {"name": …, "arguments": …}; "list", a list of them; or "named", the name
            before an object of arguments.
        key: the key of the arguments.
        bare: whether an answer may also be a call without `begin`.
        separator: text between two calls.
        id_length: characters of a call's id, which the template checks; 0 for any.
    """

    marks: tuple[str, ...]
    begin: str
    end: str
    form: str = "object"
    key: str = "arguments"
    bare: bool = False
    separator: str = "\n"
    id_length: int = 0

    @property
    def args_mark(self) -> str:
        """Text between the name and the arguments of the form "named"."""
        return "[ARGS]"


HERMES = ToolStyle(("<tool_call>",), "<tool_call>\n", "\n</tool_call>")
STYLES: Sequence[ToolStyle] = (
    HERMES,  # Qwen 2.5 and 3, Hermes, SmolLM 3
    ToolStyle(("[TOOL_CALLS]", "[ARGS]"), "[TOOL_CALLS]", "", "named", separator="", id_length=9),
    ToolStyle(("[TOOL_CALLS]",), "[TOOL_CALLS]", "", "list", separator=", ", id_length=9),
    ToolStyle(("<|tool_call|>", "<|/tool_call|>"), "<|tool_call|>", "<|/tool_call|>", "list",
              separator=", "),  # Phi 4
    ToolStyle(("<|tool_call|>",), "<|tool_call|>", "", "list", separator=", "),  # Granite
    ToolStyle(('"parameters"', "ipython"), "<|python_tag|>", "", key="parameters", bare=True,
              separator="; "),  # Llama 3
)  # fmt: skip
"""Known families; the first whose marks are all in the template is the model's."""


def style_of(template: str) -> ToolStyle | None:
    """Return the style that a chat template tells its model to use; None if it knows no tools."""
    if "tools" not in template:
        return None
    fits = (one for one in STYLES if all(mark in template for mark in one.marks))
    return next(fits, HERMES)


# --- grammar -------------------------------------------------------------------------------------

_ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}
_NO_ARGUMENTS: Mapping[str, Any] = {
    **_ANY_ARGUMENTS,
    "properties": {},
    "additionalProperties": False,
}


def calls_grammar(
    style: ToolStyle,
    functions: Sequence[Mapping[str, Any]],
    special: Mapping[str, int],
    parallel: bool,
    other: str | None = None,
) -> Grammar:
    """Return the grammar of an answer that consists of calls.

    Args:
        style: how the model writes them.
        functions: the functions that may be called: `name` and the schema `parameters`.
        special: special tokens by their texts.
        parallel: whether there may be several calls.
        other: a JSON schema, as text, for answers that are none; None if there have to be calls.

    Raises:
        InvalidInputError: a schema is too large.
    """
    rules = [_call(style, number, one, special) for number, one in enumerate(functions)]
    names = " | ".join(f"f{number}" for number in range(len(functions)))
    begin, end = _literal(style.begin, special), _literal(style.end, special)
    if style.form == "list":
        calls = f'{begin} "[" {_repeated("call", style, parallel)} "]" {end}'
    elif style.bare:
        calls = _repeated("call", style, parallel)
    else:
        calls = _repeated("marked", style, parallel)
        rules.append(f"marked: {begin} call {end}")
    if other is not None:
        rules.append(f"other: %json {other}")
    start = "start: calls | other" if other is not None else "start: calls"
    source = "\n".join([start, f"calls: {calls}", f"call: {names}", *rules])
    return lark(source, "JSON schema of the functions")


def free_grammar(
    style: ToolStyle,
    functions: Sequence[Mapping[str, Any]],
    special: Mapping[str, int],
    parallel: bool,
) -> Grammar:
    """Return the grammar of any text, in which calls are right once they have begun.

    Arguments are those of `calls_grammar`, which raises the same errors.
    """
    rules = [_call(style, number, one, special) for number, one in enumerate(functions)]
    rules.append("call: " + " | ".join(f"f{number}" for number in range(len(functions))))
    mark, end = style.begin.strip(), _literal(style.end, special)
    after = _quoted(style.begin[len(mark) :])
    if style.bare:
        begin, calls = _literal(style.begin, special), _repeated("call", style, parallel)
        first = "{" if mark in special else "{" + mark[0]
        start = f'start: {begin}? {calls} | /[^{first} \\t\\r\\n]{_ANY_TEXT}/ | ""'
    else:
        calls = "call"
        if style.form == "list":
            calls = f'"[" {_repeated("call", style, parallel)} "]"'
        if mark in special:
            rules.append(f"opened: TEXT <[{special[mark]}]> {after}")
        else:
            rules += [f"opening[lazy]: TEXT {_quoted(mark)}", f"opened: opening {after}"]
        rules += [f"unit: opened {calls} {end}", f"TEXT: /{_ANY_TEXT}/"]
        several = parallel and style.form != "list"
        start = "start: unit* TEXT" if several else "start: TEXT | unit"
    return lark("\n".join([start, *rules]), "JSON schema of the functions")


_ANY_TEXT = r"(.|\n)*"


def _repeated(rule: str, style: ToolStyle, parallel: bool) -> str:
    more = f"({_quoted(style.separator)} {rule}){{0,{MAX_CALLS - 1}}}"
    return f"{rule} {more}" if parallel else rule


def _call(
    style: ToolStyle, number: int, function: Mapping[str, Any], special: Mapping[str, int]
) -> str:
    given = function.get("parameters")
    arguments = schema_text(_NO_ARGUMENTS if given is None else given or _ANY_ARGUMENTS)
    name = json.dumps(function["name"])
    if style.form == "named":
        head = f"{_quoted(function['name'])} {_literal(style.args_mark, special)} a{number}"
    else:
        opening = '{"name": ' + name + ', "' + style.key + '": '
        head = f'{_quoted(opening)} a{number} "}}"'
    return f"f{number}: {head}\na{number}: %json {arguments}"


def _literal(text: str, special: Mapping[str, int]) -> str:
    """Return a text in Lark's syntax, with special tokens as such."""
    for name, number in special.items():
        before, found, after = text.partition(name) if name else (text, "", "")
        if found:
            parts = (_literal(before, special), f"<[{number}]>", _literal(after, special))
            return " ".join(part for part in parts if part)
    return _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text) if text else ""


_LONGEST_NAME = 256
_ID_MARK = "[CALL_ID]"
"""Text between the name and an id, which some models of the form "named" write."""

# --- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """A part of an answer that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A call of a function; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class CallGoesOn:
    """More of the arguments of the last call, JSON."""

    text: str


Event = Text | CallBegins | CallGoesOn


class CallReader:
    """Finds calls in a text that arrives in pieces.

    What looks like a call but is none, or calls an unknown function, is text.

    Args:
        style: how the model writes calls.
        names: the functions that may be called.
    """

    def __init__(self, style: ToolStyle, names: Sequence[str]) -> None:
        self._style = style
        self._names = frozenset(names)
        self._begin = style.begin.strip()
        self._end = style.end.strip()
        self._skips = " \n\r\t,;[]" if style.form == "list" else " \n\r\t;"
        self._waiting = ""  # text that may be the beginning of something
        self._raw = ""  # of what may be a call, while its name is not known
        self._object: _Object | None = None
        self._inside = False  # between `begin` and `end`
        self._told = False  # text other than space has been returned
        self.calls = 0

    def add(self, text: str) -> list[Event]:
        """Add generated text; return what it completes."""
        self._waiting += text
        made: list[Event] = []
        while self._waiting:
            before = self._waiting, self._object
            made += self._call() if self._object else self._between(False)
            if before == (self._waiting, self._object):
                break
        return [one for one in made if not isinstance(one, Text) or one.text]

    def finish(self) -> list[Event]:
        """Return the rest, at the end of the text."""
        made: list[Event] = []
        if self._object is not None and not self._object.named:
            made.append(self._as_text(self._raw + self._waiting))
        elif self._object is None:
            made += self._between(True)
            rest, self._waiting = self._waiting, ""
            if not self._inside or rest.strip(self._skips):
                made.append(self._as_text(self._raw + rest))
        self._waiting = self._raw = ""
        self._object = None
        return [one for one in made if not isinstance(one, Text) or one.text]

    def _as_text(self, text: str) -> Text:
        if self.calls and not text.strip():
            return Text("")
        self._told = self._told or bool(text.strip())
        return Text(text)

    def _between(self, last: bool) -> list[Event]:
        """Read text outside of calls, up to the next one."""
        if self._inside:
            return self._inside_marks()
        text = self._waiting
        place = text.find(self._begin)
        if self._style.bare and not self._told and text.lstrip().startswith("{"):
            place = text.index("{")
            self._waiting = text[place:]
            self._open(text[:place])
            return []
        if place >= 0:
            self._waiting = text[place + len(self._begin) :]
            self._inside, self._raw = True, self._begin
            return [self._as_text(text[:place])]
        kept = 0 if last else _overlap(text, self._begin)
        if self._style.bare and not self._told and not text.strip() and not last:
            return []
        self._waiting = text[len(text) - kept :]
        return [self._as_text(text[: len(text) - kept])]

    def _inside_marks(self) -> list[Event]:
        """Read what is between the marks, up to the next call or the end mark."""
        text, style = self._waiting, self._style
        rest = text.lstrip(self._skips) if not text.startswith(self._begin) else text
        for mark, inside in ((self._begin, True), (self._end, False)):
            if mark and rest.startswith(mark):
                self._waiting, self._inside = rest[len(mark) :], inside
                self._raw = mark if inside else ""
                return []
        if rest.startswith("{"):
            self._waiting = rest
            self._open(self._raw + text[: len(text) - len(rest)])
            return []
        if not rest or self._begin.startswith(rest) or self._end.startswith(rest):
            return []
        if style.form == "named":
            head, mark, arguments = rest.partition(style.args_mark)
            name = head.partition(_ID_MARK)[0].strip()
            if mark and name in self._names and not arguments.lstrip():
                return []
            if mark and name in self._names:
                self._waiting = arguments.lstrip()
                self._open(self._raw, name)
                self.calls += 1
                return [CallBegins(name)]
            if not mark and len(rest) < _LONGEST_NAME and "\n" not in rest:
                return []
        self._inside, told = False, self._raw + text
        self._waiting = self._raw = ""
        return [self._as_text(told)]

    def _open(self, before: str, name: str = "") -> None:
        self._object = _Object(self._style.key, name)
        self._raw = before

    def _call(self) -> list[Event]:
        """Read a part of a call."""
        assert self._object is not None
        one, text = self._object, self._waiting
        named = one.named
        used, arguments = one.add(text)
        self._waiting = text[used:]
        made: list[Event] = []
        if not named:
            self._raw += text[:used]
            if one.named and one.name in self._names:
                self.calls += 1
                made.append(CallBegins(one.name))
                self._raw = ""
            elif one.named or one.over:
                made.append(self._as_text(self._raw))
                self._object, self._inside, self._raw = None, False, ""
                return made
        if one.named and arguments:
            made.append(CallGoesOn(arguments))
        if one.over:
            if one.named and not one.has_arguments:
                made.append(CallGoesOn("{}"))
            self._object, self._raw = None, ""
            self._inside = True
        return made


def _overlap(text: str, mark: str) -> int:
    """Return how many of the last characters may be the beginning of a mark."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)


class _Object:
    """Reads a JSON object character by character: its name, and its arguments as they are written.

    Args:
        key: the key of the arguments.
        name: the name, if it came before; the object is then the arguments.

    Attributes:
        name: the name of the function, once `named`.
        named: whether it is known.
        has_arguments: whether there are arguments.
        over: whether the object is complete, or is none.
    """

    def __init__(self, key: str, name: str = "") -> None:
        self._keys = {key, "arguments", "parameters"}
        self.name, self.named = name, bool(name)
        self.has_arguments = self.over = False
        self._whole = bool(name)
        self._depth = 0
        self._quoted = self._escaped = False
        self._key: str | None = None  # None while a key is read
        self._part = ""  # of a key, or of a value that is not told as it is written
        self._held = ""  # arguments before the name

    def add(self, text: str) -> tuple[int, str]:
        """Read characters; return how many belong to the object, and the arguments among them."""
        arguments: list[str] = []
        count = 0
        for character in text:
            count += 1
            arguments.append(self._read(character))
            if self.over:
                break
        made = self._held + "".join(arguments)
        self._held = "" if self.named else made
        return count, made if self.named else ""

    def _read(self, character: str) -> str:
        """Read a character; return the part of the arguments that it completes."""
        was_quoted, depth = self._quoted, self._depth
        self._move(character)
        self.over = self._depth <= 0
        if self._whole:
            self.has_arguments = True
            return character
        if depth == 1 and not was_quoted:
            if character == ":" and self._key is None:
                self._key, self._part = _string(self._part), ""
                return ""
            if character in ",}":
                return self._value()
        if depth and self._key in self._keys:
            return self._argument(character)
        self._part += character if depth else ""
        return ""

    def _move(self, character: str) -> None:
        """Follow quotes and brackets."""
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped = character == "\\"
            self._quoted = character != '"'
        elif character == '"':
            self._quoted = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1

    def _argument(self, character: str) -> str:
        """Read a character of the arguments; a string that contains them is read as a whole."""
        if not self._part:
            if character.isspace():
                return ""
            self.has_arguments = True
            self._part = character
            return "" if character == '"' else character
        if self._part[0] != '"':
            return character
        self._part += character
        return ""

    def _value(self) -> str:
        """Read the end of a value; return the arguments if they were in a string."""
        key, part = self._key, self._part.strip()
        self._key, self._part = None, ""
        if key == "name" and not self.named:
            self.name, self.named = _string(part), True
        return _string(part) if key in self._keys and part.startswith('"') else ""


def _string(text: str) -> str:
    """Return the string that JSON stands for; "" if it is none."""
    try:
        made = json.loads(text)
    except ValueError:
        return ""
    return made if isinstance(made, str) else ""
