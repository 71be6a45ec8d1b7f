"""A JSON reader with line numbers: `macro.json` is edited by hand, so its errors need locations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]

from vkmnn.errors import ShaderError

_SPACE = re.compile(r"\s*")
_SCALAR = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|true|false|null")


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value and the line on which it starts.

    `value` is a str, int, float, bool or None, a tuple of nodes (array), or a dict from key to
    node (object).
    """

    value: object
    line: int

    def plain(self) -> object:
        """Return the value as `json.loads` would, without lines."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.pos = 0

    def line(self) -> int:
        return self.text.count("\n", 0, self.pos) + 1

    def fail(self, message: str) -> ShaderError:
        return ShaderError(message, template=self.name, line=self.line())

    def peek(self) -> str:
        match = _SPACE.match(self.text, self.pos)
        self.pos = match.end() if match else self.pos
        return self.text[self.pos : self.pos + 1]

    def expect(self, char: str) -> None:
        found = self.peek()
        if found != char:
            raise self.fail(
                f"expected '{char}', found {found!r}" if found else "the file ends early"
            )
        self.pos += 1

    def string(self) -> str:
        self.expect('"')
        try:
            value, self.pos = scanstring(self.text, self.pos, True)
        except JSONDecodeError as error:
            raise self.fail(error.msg) from None
        return str(value)

    def value(self) -> Node:
        char = self.peek()
        line = self.line()
        if char == "{":
            return Node(self.object(), line)
        if char == "[":
            return Node(self.array(), line)
        if char == '"':
            return Node(self.string(), line)
        match = _SCALAR.match(self.text, self.pos)
        if not match:
            raise self.fail(f"expected a value, found {char!r}" if char else "the file ends early")
        self.pos = match.end()
        word = match.group()
        if match.group(1) is None:
            return Node({"true": True, "false": False, "null": None}[word], line)
        return Node(int(word) if re.fullmatch(r"-?\d+", word) else float(word), line)

    def array(self) -> tuple[Node, ...]:
        self.expect("[")
        items: list[Node] = []
        if self.peek() != "]":
            items.append(self.value())
            while self.peek() == ",":
                self.pos += 1
                items.append(self.value())
        self.expect("]")
        return tuple(items)

    def object(self) -> dict[str, Node]:
        self.expect("{")
        items: dict[str, Node] = {}
        if self.peek() != "}":
            self.member(items)
            while self.peek() == ",":
                self.pos += 1
                self.member(items)
        self.expect("}")
        return items

    def member(self, items: dict[str, Node]) -> None:
        self.peek()
        key = self.string()
        if key in items:
            raise self.fail(f"duplicate key '{key}' (first on line {items[key].line})")
        self.expect(":")
        items[key] = self.value()


def parse(text: str, name: str) -> Node:
    """Parse JSON text; raises `ShaderError` with `name` and the line of the first mistake."""
    reader = _Reader(text, name)
    node = reader.value()
    if reader.peek():
        raise reader.fail("text after the end of the JSON value")
    return node
