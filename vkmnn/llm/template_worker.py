"""The process that runs chat templates, with limits on its memory and time.

It runs as a file, with `-I -S` and the folders of jinja2 and markupsafe as arguments: it imports
nothing of vkmnn and sees no environment variables. For each conversation, it reads a line of JSON
and writes one.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import time
from contextlib import suppress
from datetime import datetime
from typing import Any

_WARM_UP = (
    "{{ 'a b' | wordwrap(1) }}{{ 1 | pprint }}{{ strftime_now('%c') }}{{ raise_exception('') }}"
)
"""Triggers late imports of jinja2 and reads the time zone: files cannot be opened later."""


class RefusedError(Exception):
    """The template called `raise_exception`."""


class Writer:
    """A compiled template."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._template = _environment().from_string(source)

    def write(self, variables: dict[str, Any], most: int) -> dict[str, Any]:
        """Return the text, or None if it has more than `most` characters."""
        parts, size = [], 0
        for part in self._template.generate(**variables):
            parts.append(part)
            size += len(part)
            if size > most:
                return {"long": most}
        return {"text": "".join(parts)}


def _environment() -> Any:
    """Return a sandbox with the functions that transformers gives to templates."""
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`: marks the model's own text for training; only its content is used."""

        tags = {"generation"}  # noqa: RUF012 - as the base class has it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    environment.filters["tojson"] = _json
    return environment


def _json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write plain JSON; jinja2's own filter sorts keys and escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _refuse(reason: object) -> None:
    raise RefusedError(str(reason)[:1000])


def bound(memory: int) -> None:
    """Limit the process's memory, and let it open no further files."""
    with suppress(ImportError, ValueError, OSError):  # Windows, or the limit is lower already
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def allow(seconds: int) -> None:
    """Limit the further processor time, after which the system ends the process."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds + 1, hard))


def answer(writer: Writer | None, asked: dict[str, Any]) -> tuple[Writer | None, dict[str, Any]]:
    """Render a conversation; return the compiled template, for the next one, and the answer."""
    try:
        if writer is None or writer.source != asked["template"]:
            writer = Writer(asked["template"])
        return writer, writer.write(asked["variables"], asked["most"])
    except RefusedError as error:
        return writer, {"refused": str(error)}
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        return writer, {"failed": f"{type(error).__name__}: {str(error)[:1000]}"}


def main() -> None:
    """Answer until the pipe is closed."""
    memory, seconds, *folders = sys.argv[1:]
    sys.path += folders
    for late in ("jinja2.constants", "jinja2.ext"):
        importlib.import_module(late)
    answer(None, {"template": _WARM_UP, "variables": {}, "most": 99})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    bound(int(memory))
    writer = None
    for line in sys.stdin.buffer:
        allow(int(seconds))
        writer, told = answer(writer, json.loads(line))
        sys.stdout.buffer.write(json.dumps(told).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
