"""`shaders.lock`: the variants of a folder of templates, by the digests of their sources.

`python -m vkmnn.codegen` writes it. The digest of a variant is that of its rendered source and its
options, not that of its SPIR-V.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from vkmnn.errors import ShaderError

LOCK_FILE = "shaders.lock"
MANIFEST_FILE = "manifest.json"
"""File beside packed modules with the digest of the lock they were built from."""
LOCK_SCHEMA = 1
"""Form of the lock that is understood here."""


class Lock:
    """Content of a folder's lock.

    Args:
        text: the file's content.
        path: the file, for messages.

    Raises:
        ShaderError: it is damaged, or of another version of vkmnn.
    """

    def __init__(self, text: str, path: Path) -> None:
        self.text = text
        try:
            content = json.loads(text)
            schema = content["schema"]
            if schema == LOCK_SCHEMA:
                self.enums: Mapping[str, list[str]] = content["enums"]
                self.templates: Mapping[str, dict[str, Any]] = content["templates"]
                self.variants: Mapping[str, str] = content["variants"]
                """The digest of each variant."""
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ShaderError(f"{path} is damaged", hint=_HINT) from None
        if schema != LOCK_SCHEMA:
            raise ShaderError(f"{path} is of another version of vkmnn", hint=_HINT)

    @cached_property
    def fingerprint(self) -> str:
        """The digest of the whole lock."""
        return fingerprint_of(self.text)

    def axes(self, template: str) -> Mapping[str, list[str | int]]:
        """Return the values of each axis of a template."""
        axes: Mapping[str, list[str | int]] = self.templates[template]["axes"]
        return axes

    def expand(self) -> Iterator[tuple[str, str, dict[str, str | int]]]:
        """Return (name, template, axis values) of every variant."""
        for template in self.templates:
            axes = self.axes(template)
            for values in itertools.product(*axes.values()):
                name = variant_name(template, values)
                if name in self.variants:
                    yield name, template, dict(zip(axes, values, strict=True))


PARAM = re.compile(r"(\w+)\s*:\s*(uint|int|float)\s*(?:\[\s*(\d+)\s*\])?\s*(?:=\s*(\S+))?")
"""A push constant in templates and the lock: name, type, count and default."""

_HINT = "write it again: `python -m vkmnn.codegen`, for a package with --shaders FOLDER"


def fingerprint_of(text: str) -> str:
    """Return the digest of a lock's text, by which packed shaders name it."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def camel(name: str) -> str:
    """Return the name of a template or an axis as part of a Python name: `ConvIm2col`."""
    return "".join(part.capitalize() for part in name.split("_"))


def variant_name(template: str, values: Iterable[str | int]) -> str:
    """Return `<template>_<axis values, lower case>`, e.g. `binary_add_f32`."""
    return "_".join([template, *(str(value).lower() for value in values)])


def read_lock(folder: Path) -> Lock | None:
    """Return the lock of a folder, None if there is none.

    Raises:
        ShaderError: it is damaged, or of another version of vkmnn.
    """
    path = folder / LOCK_FILE
    try:
        return Lock(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ShaderError(f"cannot read {path}: {error}", hint=_HINT) from None
