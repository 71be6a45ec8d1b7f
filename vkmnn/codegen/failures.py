"""Collected errors: places, source lines, and one exception for all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vkmnn.codegen.places import source_line
from vkmnn.errors import ShaderError, plural

_WIDEST = 160  # characters of a line of source that are shown


class BuildFailedError(ShaderError):
    """Every failure of a build; `failures` holds them one by one."""

    def __init__(self, failures: Sequence[ShaderError]) -> None:
        self.failures = list(failures)
        text = "\n".join(str(failure) for failure in failures)
        super().__init__(f"{plural(len(self.failures), 'error')}, nothing was written\n{text}")


def failures_of(error: ShaderError) -> list[ShaderError]:
    """Return the single errors in an error."""
    return error.failures if isinstance(error, BuildFailedError) else [error]


def raise_all(failures: Sequence[ShaderError]) -> None:
    """Raise the collected errors: nothing for none, the error itself for one."""
    if failures:
        raise failures[0] if len(failures) == 1 else BuildFailedError(failures)


def _snippet(folder: Path, file: str, line: int, message: str) -> str:
    """The line of source, with the first word that the message quotes underlined."""
    source = source_line(folder, file, line)
    if not source or not source.strip():
        return ""
    text = source.rstrip().expandtabs(4)
    text = text[:_WIDEST] + ("…" if len(text) > _WIDEST else "")
    snippet = f"\n  {line:>5} | {text}"
    for quoted in re.findall(r"'([^']+)'", message):
        found = re.search(rf"(?<!\w){re.escape(quoted)}(?!\w)", text)
        if found:
            under = " " * found.start() + "^" * len(quoted)
            return f"{snippet}\n        | {under}"
    return snippet


@dataclass(slots=True)
class Failures:
    """Errors by place and text, so that one mistake in 40 variants is reported once."""

    folder: Path
    found: dict[tuple[str, int, str, str | None], list[str]] = field(default_factory=dict)
    plain: list[ShaderError] = field(default_factory=list)

    def add(self, error: ShaderError, variant: str | None = None) -> None:
        """Record an error, of one variant if one is named; only a place lets errors be grouped."""
        for one in failures_of(error):
            if one.template is None or one.line is None:
                self.plain.append(one)
                continue
            message = one.message.removeprefix(f"{one.template}:{one.line}: ")
            message = message.removesuffix(f" [{variant}]")
            key = (one.template, one.line, message, one.hint)
            self.found.setdefault(key, []).extend([variant] if variant else [])

    def errors(self) -> list[ShaderError]:
        """Return the errors sorted by place, with variant names and a snippet."""
        result = list(self.plain)
        for (file, line, message, hint), variants in sorted(
            self.found.items(), key=lambda item: (*item[0][:3], item[0][3] or "")
        ):
            names = ", ".join(variants[:3])
            if len(variants) > 3:
                names += f" and {len(variants) - 3} more"
            first, *rest = message.split("\n")
            text = "\n".join([f"{first} [{names}]" if names else first, *rest])
            text += _snippet(self.folder, file, line, first)
            result.append(ShaderError(text, template=file, line=line, hint=hint))
        return result

    def check(self) -> None:
        """Raise `BuildFailedError` when there are any."""
        found = self.errors()
        if found:
            raise BuildFailedError(found)
