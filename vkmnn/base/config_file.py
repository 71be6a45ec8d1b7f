"""JSON configuration files of a model's folder, with type-checked access by key."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from vkmnn.errors import ModelFileError

T = TypeVar("T")

MAX_BYTES = 64 << 20
"""Maximum size of a file; tokenizer_config.json has a few MiB for large vocabularies."""

_LARGEST = 2**31 - 1
_LARGEST_REAL = 1e30
_NOTHING: list[dict[str, Any]] = []


class Section:
    """An object of a JSON file; errors name the file and the key.

    A missing or null key yields its default. Every method raises ModelFileError if the value has
    another type.

    Args:
        path: the file.
        values: the object.
        where: the key of the object with its parents; "" for the whole file.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], where: str = "") -> None:
        self.path = path
        self._values = values
        self._where = where

    def __contains__(self, key: str) -> bool:
        """Return whether a key has a value."""
        return self._values.get(key) is not None

    def with_defaults(self, values: Mapping[str, Any]) -> Section:
        """Return the section with default values for missing keys."""
        mine = {key: one for key, one in self._values.items() if one is not None}
        return Section(self.path, {**values, **mine}, self._where)

    def text(self, key: str, default: str = "") -> str:
        """Return a string."""
        return self._read(key, default, _text, "a text")

    def texts(self, key: str) -> list[str]:
        """Return a list of strings."""
        return self._read(key, [], lambda found: [_text(one) for one in _list(found)],
                          "a list of texts")  # fmt: skip

    def number(self, key: str) -> int:
        """Return an integer, 0 by default."""
        return self._read(key, 0, _number, f"a whole number from 0 to {_LARGEST}")

    def real(self, key: str, default: float = 0.0) -> float:
        """Return a finite number."""
        return self._read(key, default, _real, "a number")

    def limit(self, key: str, default: float) -> float:
        """Return a number that may be infinite."""
        return self._read(key, default, lambda found: _real(found, float("inf")), "a number")

    def reals(self, key: str) -> list[float]:
        """Return a list of finite numbers."""
        return self._read(key, [], lambda found: [_real(one) for one in _list(found)],
                          "a list of numbers")  # fmt: skip

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean."""
        return self._read(key, default, _flag, "true or false")

    def tokens(self, key: str) -> frozenset[int]:
        """Return a token or a list of tokens; -1 means none."""
        return self._read(key, frozenset(), _tokens, "a token or a list of tokens")

    def special(self, key: str) -> str:
        """Return the text of a special token: a string, or an object with its `content`."""
        if isinstance(self._values.get(key), dict):
            return self.section(key).text("content")
        return self.text(key)

    def section(self, key: str) -> Section:
        """Return a nested object."""
        return Section(self.path, self._read(key, {}, _object, "an object"), self.name(key))

    def names(self) -> dict[str, str]:
        """Return the object, checking that all its values are strings."""
        return {key: self.text(key) for key in self._values if key in self}

    def keys(self) -> list[str]:
        """Return the keys that have a value."""
        return [key for key in self._values if key in self]

    def named(self, key: str, name: str, value: str) -> dict[str, str]:
        """Return a list of objects as a dictionary from one string member to another."""
        found = self._read(key, _NOTHING, _objects, "a list of objects")
        parts = [Section(self.path, one, self.name(f"{key}[{n}]")) for n, one in enumerate(found)]
        return {part.text(name): part.text(value) for part in parts}

    def is_list(self, key: str) -> bool:
        """Return whether the value is a list."""
        return isinstance(self._values.get(key), list)

    def is_object(self, key: str) -> bool:
        """Return whether the value is an object."""
        return isinstance(self._values.get(key), dict)

    def wrong(self, key: str, wanted: str) -> ModelFileError:
        """Return the error for a value of the wrong kind."""
        return ModelFileError(
            f"'{self.path}' is not valid: '{self.name(key)}' is "
            f"{_shown(self._values.get(key))} instead of {wanted}",
            hint="download or export the folder again",
        )

    def name(self, key: str) -> str:
        """Return a key with its parents."""
        return f"{self._where}.{key}" if self._where else key

    def _read(self, key: str, default: T, check: Callable[[Any], T], wanted: str) -> T:
        if key not in self:
            return default
        try:
            return check(self._values[key])
        except (TypeError, UnicodeError) as error:
            raise self.wrong(key, wanted) from error


def read_config(path: Path) -> Section:
    """Return the object in a JSON file, empty if the file does not exist.

    Raises:
        ModelFileError: the file cannot be read, or holds no object.
    """
    if not path.is_file():
        return Section(path, {})
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"'{path}' cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelFileError(f"'{path}' holds no JSON object")
    return Section(path, found)


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """Return the text of a file.

    Raises:
        ModelFileError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            found = file.read(most + 1)
        if len(found) > most:
            raise ModelFileError(f"'{path}' has more than {most} bytes")
        return found.decode("utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise ModelFileError(f"'{path}' cannot be read: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # JSON can encode unpaired surrogates
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    for key in value:
        key.encode()
    return value


def _objects(value: Any) -> list[dict[str, Any]]:
    return [_object(one) for one in _list(value)]


def _real(value: Any, most: float = _LARGEST_REAL) -> float:
    if type(value) not in (int, float) or not abs(value) <= most:
        raise TypeError
    return float(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError
    return value


def _number(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= _LARGEST:
        raise TypeError
    return value


def _tokens(value: Any) -> frozenset[int]:
    given = value if isinstance(value, list) else [value]
    return frozenset(token for one in given if (token := _number(one, -1)) >= 0)


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)  # ASCII for any content
    return text if len(text) <= 60 else f"{text[:60]}…"
