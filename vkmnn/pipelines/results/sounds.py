"""Results about sounds: what is said in them, and when."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.results.result import Result


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a sound.

    Attributes:
        start: seconds from the beginning.
        end: likewise.
        text: its transcript; "" if the task has none.
    """

    start: float
    end: float
    text: str = ""

    def __str__(self) -> str:
        """Return the times and the text."""
        return f"{self.start:.2f}-{self.end:.2f} s {self.text}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return times and text, as transformers has them."""
        made: dict[str, Any] = {"timestamp": [round(self.start, 3), round(self.end, 3)]}
        return {**made, "text": self.text} if self.text else made


class Segments(Result[Segment]):
    """Parts of a sound, in order."""

    columns = ("text", "start", "end")

    @property
    def segments(self) -> list[Segment]:
        """The parts."""
        return self.items

    def rows(self) -> list[tuple[str, ...]]:
        """Return text and times of each."""
        return [(one.text or "-", f"{one.start:.2f}", f"{one.end:.2f}") for one in self.items]

    def arrays(self) -> dict[str, Array]:
        """Return starts and ends [n, 2] in seconds, and texts [n]."""
        times = [(one.start, one.end) for one in self.items]
        texts = np.array([one.text for one in self.items], str)
        return {"times": np.array(times, np.float64).reshape(-1, 2), "texts": texts}

    def subtitles(self, suffix: str) -> str:
        """Return it as a file of subtitles: ".srt", or ".vtt"."""
        mark = "," if suffix == ".srt" else "."
        blocks = [] if suffix == ".srt" else ["WEBVTT\n"]
        for number, one in enumerate(self.items, 1):
            times = f"{_clock(one.start, mark)} --> {_clock(one.end, mark)}"
            text = " ".join(one.text.split()).replace("-->", "->")
            blocks.append(f"{number}\n{times}\n{text}\n")
        return "\n".join(blocks)


class Transcript(Segments):
    """The transcript of a sound.

    Args:
        segments: its parts.
        language: the code of its language, "en" for example; "" if the model does not detect it.
    """

    suffix = ".srt"

    def __init__(self, segments: list[Segment], language: str = "") -> None:
        super().__init__(segments)
        self.language = language

    def text(self) -> str:
        """Return the whole text."""
        return " ".join(one.text.strip() for one in self.items if one.text.strip())

    def to_dict(self) -> dict[str, Any]:
        """Return the text and its parts ("chunks"), as transformers has them."""
        chunks = [one.to_dict() for one in self.items]
        return {"text": self.text(), "chunks": chunks, "language": self.language}


def _clock(seconds: float, mark: str) -> str:
    """Return hours, minutes, seconds and thousandths."""
    whole = round(max(seconds, 0.0) * 1000)
    hours, rest = divmod(whole, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02d}:{minutes:02d}:{rest // 1000:02d}{mark}{rest % 1000:03d}"
