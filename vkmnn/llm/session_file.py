"""Files of text sessions: tokens with their caches, as an .npz."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.whole_files import replacing
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.ir import Array
from vkmnn.ir.array_files import read_arrays

_ABOUT = "vkmnn:about"
_MAX_TOKEN = 2**31 - 1


def write_session(path: str | Path, tokens: Sequence[int], caches: Mapping[str, Array]) -> None:
    """Write a session: a reader sees the old file or the whole new one.

    Raises:
        InvalidInputError: the file cannot be written; nothing is left behind.
    """
    about = np.frombuffer(json.dumps({"tokens": list(tokens)}).encode(), np.uint8)
    arrays: dict[str, Any] = {**caches, _ABOUT: about}
    try:
        with replacing(Path(path)) as file:
            np.savez(file, **arrays)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInputError(
            f"the session cannot be written to '{path}': {reason}",
            hint="name a file in a folder of your own, on a disk with room for the caches",
        ) from error


def read_session(path: str | Path, vocabulary: int | None) -> tuple[list[int], dict[str, Array]]:
    """Return the tokens of a file, and its caches by name.

    Args:
        path: a file written by `write_session`.
        vocabulary: how many tokens the model knows; None where that is not known.

    Raises:
        ModelFileError: the file is missing, damaged, or of another kind.
    """
    try:
        caches = read_arrays(path, stored=True)
        if not isinstance(caches, dict):
            raise ValueError("it is a single array")
        if _ABOUT not in caches:
            raise ValueError(f"it has no '{_ABOUT}'")
        about = json.loads(caches.pop(_ABOUT).tobytes())
        tokens = about["tokens"] if isinstance(about, dict) and "tokens" in about else None
        checked = _checked_tokens(tokens, vocabulary or _MAX_TOKEN + 1)
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(path, str(error) or type(error).__name__) from error
    return checked, caches


def _checked_tokens(tokens: object, vocabulary: int) -> list[int]:
    """Return a list of tokens; raise ValueError if it is not one."""
    if not isinstance(tokens, list) or not tokens:
        raise ValueError("it has no list of tokens")
    for token in tokens:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise ValueError(f"{str(token)[:40]} is not a token of 0 to {vocabulary - 1}")
    return tokens


def _refused(path: str | Path, reason: str) -> ModelFileError:
    return ModelFileError(
        f"'{path}' is not a saved session: {reason}", hint="`save` of a session writes such files"
    )
