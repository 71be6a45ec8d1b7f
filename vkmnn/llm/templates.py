"""Chat templates: untrusted programs from a model's folder, run in a separate process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vkmnn.base.extras import need
from vkmnn.errors import InvalidInputError, MissingExtraError
from vkmnn.llm.confined import Confined, Confinement

MEMORY_BYTES = 512 << 20
"""Address space of the template process; it starts with 30 MiB."""

CPU_S = 1
"""Processor seconds per conversation; ordinary ones take a millisecond."""

WALL_S = 20.0
"""Wall-clock seconds per conversation."""

MAX_CHARACTERS = 1 << 26
"""Maximum characters of a conversation, if the caller sets no limit."""

ROLES = ("system", "user", "assistant", "tool")
"""Roles of messages that every template is given."""

_SAFE = (3, 1, 6)


class ChatTemplate:
    """A template, and the process that runs it, which starts with the first conversation.

    Jinja's sandbox hides Python's objects from a template, but bounds neither its time nor its
    memory (docs/decisions/chat-templates.md). Calls from several threads take turns.

    Args:
        source: the template.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        instead = "write the conversation as a text, and pass that instead of messages"
        self._worker = Confined(_confinement, instead)

    def write(self, variables: Mapping[str, Any], most: int | None = None) -> str | None:
        """Return the text for some variables; None if it has more than `most` characters.

        Raises:
            InvalidInputError: the template refuses them, fails, or exceeds its time or memory.
            MissingExtraError: `jinja2` is not installed, or is a version with an unsafe sandbox.
        """
        asked = {
            "template": self.source,
            "variables": variables,
            "most": MAX_CHARACTERS if most is None else most,
        }
        try:
            line = json.dumps(asked).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"the messages are not JSON: {error}",
                hint="messages hold texts, numbers, lists and dictionaries",
            ) from error
        told = self._worker.ask(line)
        if "refused" in told:
            raise InvalidInputError(f"the chat template refuses the messages: {told['refused']}")
        if "failed" in told:
            raise InvalidInputError(f"the chat template fails: {told['failed']}")
        return None if "long" in told else str(told["text"])

    def check_role(self, role: str) -> None:
        """Refuse a role that is none of the usual ones, and that the template does not name.

        Templates often skip messages with other roles, and the model would not see them.

        Raises:
            InvalidInputError: the role is unknown.
        """
        if not knows_role(self.source, role):
            raise InvalidInputError(
                f"the chat template does not know the role '{role[:40]}'",
                hint=f"roles are {', '.join(ROLES)}",
            )

    def start(self) -> None:
        """Start the process, if it does not run."""
        self._worker.start()


def knows_role(source: str, role: str) -> bool:
    """Return whether a role is a usual one, or a text in the source of a template."""
    return role in ROLES or any(f"{quote}{role}{quote}" in source for quote in "'\"")


def _confinement() -> Confinement:
    jinja2 = need("jinja2", "writing a conversation")
    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit())
    if version < _SAFE:
        raise MissingExtraError(
            f"jinja2 {jinja2.__version__} has known escapes from its sandbox",
            hint="pip install 'jinja2>=3.1.6'",
        )
    markupsafe = need("markupsafe", "writing a conversation")
    folders = [str(Path(package.__file__).resolve().parents[1]) for package in (jinja2, markupsafe)]
    return Confinement("chat templates", folders, MEMORY_BYTES, CPU_S, WALL_S)
