"""The process that runs chat templates or checks grammars, with limits on its memory and time.

It runs as a file, with `-I -S` and the folders of the packages that it needs as arguments: it
imports nothing of vkmnn and sees no environment variables. For each request, it reads a line of
JSON and writes one.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
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


Answer = Callable[[dict[str, Any]], dict[str, Any]]


def write_conversations() -> Answer:
    """Prepare jinja2; return what renders conversations, and keeps the compiled template."""
    for late in ("jinja2.constants", "jinja2.ext"):
        importlib.import_module(late)
    kept: list[Writer] = []

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        try:
            if not kept or kept[0].source != asked["template"]:
                kept[:] = [Writer(asked["template"])]
            return kept[0].write(asked["variables"], asked["most"])
        except RefusedError as error:
            return {"refused": str(error)}

    answer({"template": _WARM_UP, "variables": {}, "most": 99})
    return answer


_STACK_BYTES = 1 << 20
"""Stack on which grammars are checked: less than that of any thread that compiles them later."""


def check_grammars() -> Answer:
    """Prepare llguidance; return what checks a grammar, and answers with `refused` if it is bad."""
    llguidance: Any = importlib.import_module("llguidance")
    threading.stack_size(_STACK_BYTES)

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        told: list[tuple[bool, list[str]]] = []
        limits = llguidance.LLParserLimits(**asked["limits"])

        def check() -> None:
            check = llguidance.LLMatcher.validate_grammar_with_warnings
            told.append(check(asked["grammar"], None, limits=limits))

        thread = threading.Thread(target=check)
        thread.start()
        thread.join()
        wrong, messages = told[0]
        return {"refused": messages[0][:1000]} if wrong else {"text": ""}

    return answer


WORK: Mapping[str, Callable[[], Answer]] = {
    "chat templates": write_conversations,
    "grammars": check_grammars,
}


def main() -> None:
    """Answer until the pipe is closed."""
    work, memory, seconds, *folders = sys.argv[1:]
    sys.path += folders
    answer = WORK[work]()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    bound(int(memory))
    for line in sys.stdin.buffer:
        allow(int(seconds))
        try:
            told = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - a template may raise anything
            told = {"failed": f"{type(error).__name__}: {str(error)[:1000]}"}
        sys.stdout.buffer.write(json.dumps(told).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
