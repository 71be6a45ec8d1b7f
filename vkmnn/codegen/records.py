"""Stored results for a whole template, so that an unchanged one is not rendered.

A record is keyed by the content of everything that determines it: the template, every include, its
entry in macro.json, Jinja and the generator itself. So it can be missing, but not stale.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vkmnn.codegen.cache import Cache, digest
from vkmnn.codegen.places import BUILTIN_FOLDER, TEMPLATE_SUFFIX
from vkmnn.codegen.variants import TemplateEntry


@dataclass(frozen=True, slots=True)
class Record:
    """A template's parts of the manifest, and the digests of its variants."""

    template: dict[str, Any]
    enums: dict[str, list[str]]
    variants: dict[str, Any]
    digests: dict[str, str]


@functools.cache
def _generator() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return digest(version("jinja2"), *(path.read_text(encoding="utf-8") for path in files))


def _includes(folder: Path) -> list[str]:
    parts: list[str] = []
    for root in (folder, BUILTIN_FOLDER):
        for path in sorted(root.rglob("*.j2")):
            if not path.name.endswith(TEMPLATE_SUFFIX):
                parts += [path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")]
    return parts


class Records:
    """The records of the templates in `folder`."""

    def __init__(self, folder: Path, cache: Cache) -> None:
        self._folder = folder
        self._cache = cache
        self._common = digest("record", _generator(), *_includes(folder))

    def key(self, entry: TemplateEntry) -> str:
        """Return the cache key of a template's record."""
        source = (self._folder / entry.file).read_text(encoding="utf-8")
        return digest(self._common, repr(entry), source) + ".json"

    def get(self, entry: TemplateEntry) -> Record | None:
        """Return the record, None if there is none."""
        fields = self._cache.record(self.key(entry))
        try:
            return Record(**fields) if fields else None
        except TypeError:
            return None

    def put(self, entry: TemplateEntry, record: Record) -> None:
        """Store the record of a template that was built without a failure."""
        fields = {name: getattr(record, name) for name in Record.__slots__}
        self._cache.put_record(self.key(entry), fields)
