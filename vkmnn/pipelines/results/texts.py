"""Texts that a network writes."""

from __future__ import annotations

from typing import Any

from vkmnn.pipelines.results.result import Result


class Written(Result[str]):
    """A text that a network has written.

    Args:
        text: the text.
        key: its name in JSON, "translation_text" for example.
        is_whole: whether the network ended it; False if it ran out of tokens.
    """

    columns = ("text",)
    suffix = ".txt"

    def __init__(self, text: str, key: str, is_whole: bool) -> None:
        super().__init__([text])
        self._key = key
        self.is_whole = is_whole

    def text(self) -> str:
        """Return the text."""
        return self.items[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the text, named as transformers names it, and whether it is whole."""
        return {self._key: self.items[0], "is_whole": self.is_whole}
