"""Names of nodes and tensors."""

from __future__ import annotations

from dataclasses import field

from vkmnn.base.records import dataclass


@dataclass(slots=True)
class Names:
    """Used names, and generation of new ones."""

    taken: set[str] = field(default_factory=set)
    _counts: dict[str, int] = field(default_factory=dict)

    def new(self, base: str) -> str:
        """Return `base`, or `base_1`, `base_2`, … if it is used, and mark it as used."""
        name = base
        while name in self.taken:
            self._counts[base] = self._counts.get(base, 0) + 1
            name = f"{base}_{self._counts[base]}"
        self.taken.add(name)
        return name
