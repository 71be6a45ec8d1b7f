"""Stop texts, matched in time proportional to the generated text, whatever their length."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence


class _Prefix:
    """A prefix of the sorted stop texts `low` to `high` (exclusive): a state of the automaton.

    Attributes:
        length: characters of the prefix.
        shorter: its longest proper suffix that is a prefix as well; None for the empty prefix.
        complete: characters of the longest stop text that is a suffix of it; 0 for none.
        longer: the prefixes longer by one character that a text has reached, by that character.
    """

    __slots__ = ("complete", "high", "length", "longer", "low", "shorter")

    def __init__(self, low: int, high: int, length: int) -> None:
        self.low, self.high, self.length = low, high, length
        self.shorter: _Prefix | None = None
        self.complete = 0
        self.longer: dict[str, _Prefix] = {}


class Stops:
    """Ends a text before the first stop text, and holds back a possible start of one.

    An Aho–Corasick automaton reads each character once. Its states are created when a text reaches
    them, so that long stop texts cost nothing until they match.

    Args:
        stops: the stop texts; empty ones are ignored.

    Attributes:
        found: the stop text that ended the text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted({stop for stop in stops if stop})
        self._state = self._root = _Prefix(0, len(self._stops), 0)
        self._held: deque[str] = deque()
        self.found: str | None = None

    def add(self, text: str) -> str:
        """Add generated text; return the text that can no longer be part of a stop text."""
        if not self._stops:
            return text
        held = self._state.length
        ends: list[tuple[int, int]] = []  # of each stop text: where it begins, its length
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
        """Return the text held back, at the end; nothing after a stop text."""
        held = "".join(self._held)
        self._held.clear()
        self._state = self._root
        return held

    def _released(self, count: int) -> str:
        """Remove this many characters from the text held back, and return them."""
        parts = []
        while count:
            part = self._held.popleft()
            parts.append(part[:count])
            if len(part) > count:
                self._held.appendleft(part[count:])
            count -= len(parts[-1])
        return "".join(parts)

    def _after(self, state: _Prefix, character: str) -> _Prefix:
        """Return the state after one more character: the longest matching prefix."""
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
        for made in reversed(new):  # each is a suffix of the one before
            made.shorter = known
            exact = len(self._stops[made.low]) == made.length
            made.complete = made.length if exact else known.complete
            known = made
        return known

    def _made(self, place: _Prefix, character: str) -> _Prefix | None:
        """Extend the prefix by a character, if a stop text begins with it."""
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
