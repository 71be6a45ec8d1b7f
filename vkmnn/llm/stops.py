"""Texts before which a generated text ends, found in time that grows with the text alone."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence


class _Prefix:
    """What some stop texts begin with: those from `low` to `high` of the sorted ones.

    Attributes:
        length: of the prefix.
        shorter: the longest end of it that is a prefix, too; None for the empty one.
        complete: the length of the longest stop text that it ends with; 0 for none.
        longer: the prefixes that a character more makes, as far as a text has reached them.
    """

    __slots__ = ("complete", "high", "length", "longer", "low", "shorter")

    def __init__(self, low: int, high: int, length: int) -> None:
        self.low, self.high, self.length = low, high, length
        self.shorter: _Prefix | None = None
        self.complete = 0
        self.longer: dict[str, _Prefix] = {}


class Stops:
    """Ends a text at the first of several strings, and holds back what may become one.

    An automaton (Aho and Corasick's) reads each character once; its states are made when a text
    reaches them, so that long stop texts cost nothing before they match.

    Args:
        stops: the strings; empty ones do not count.

    Attributes:
        found: the string that ended the text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted({stop for stop in stops if stop})
        self._state = self._root = _Prefix(0, len(self._stops), 0)
        self._held: deque[str] = deque()
        self.found: str | None = None

    def add(self, text: str) -> str:
        """Return the text that is sure to belong to the result."""
        if not self._stops:
            return text
        held = self._state.length
        ends: list[tuple[int, int]] = []  # of stop texts: where they begin, their length
        for place, character in enumerate(text, held + 1):
            self._state = self._after(self._state, character)
            if complete := self._state.complete:
                ends.append((place - complete, complete))
        self._held.append(text)
        if not ends:
            return self._released(held + len(text) - self._state.length)
        start, length = min(ends)
        whole = "".join(self._held)
        self.found = whole[start : start + length]
        self._held.clear()
        self._state = self._root
        return whole[:start]

    def rest(self) -> str:
        """Return what was held back, at the end; nothing after a stop."""
        held = "".join(self._held)
        self._held.clear()
        self._state = self._root
        return held

    def _released(self, count: int) -> str:
        """Take this many characters off what is held."""
        parts = []
        while count:
            part = self._held.popleft()
            parts.append(part[:count])
            if len(part) > count:
                self._held.appendleft(part[count:])
            count -= len(parts[-1])
        return "".join(parts)

    def _after(self, state: _Prefix, character: str) -> _Prefix:
        """Return the longest prefix that a text ends with after one more character."""
        new: list[_Prefix] = []
        place: _Prefix | None = state
        while place is not None:
            known = place.longer.get(character)
            if known is None and (made := self._made(place, character)) is not None:
                new.append(made)
            if known is not None:
                break
            place = place.shorter
        else:
            known = self._root
        for made in reversed(new):  # each is an end of the one before
            made.shorter = known
            exact = len(self._stops[made.low]) == made.length
            made.complete = made.length if exact else known.complete
            known = made
        return known

    def _made(self, place: _Prefix, character: str) -> _Prefix | None:
        """Make the prefix with a character more, if a stop text begins like this."""
        at = place.length

        def next_of(stop: str) -> str:
            return stop[at : at + 1]

        low = bisect_left(self._stops, character, place.low, place.high, key=next_of)
        if low == place.high or next_of(self._stops[low]) != character:
            return None
        after = chr(ord(character) + 1) if ord(character) < 0x10FFFF else None
        high = place.high
        if after is not None:
            high = bisect_left(self._stops, after, low, place.high, key=next_of)
        made = place.longer[character] = _Prefix(low, high, at + 1)
        return made
