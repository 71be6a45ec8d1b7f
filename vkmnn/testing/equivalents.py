"""Mutants of the built-in kernels that no test can tell from the original, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Changes that make no difference.

    Args:
        file: the template or include.
        line: pattern of the GLSL line, to be found anywhere in it.
        change: pattern of the whole change, as "< → <=".
        reason: why nothing differs.
    """

    file: str
    line: str
    change: str
    reason: str

    def fits(self, file: str, line: str, change: str) -> bool:
        """Return whether a change is one of these."""
        return (
            file == self.file
            and re.fullmatch(self.change, change) is not None
            and re.search(self.line, line) is not None
        )


EQUIVALENTS: tuple[Equivalent, ...] = ()
