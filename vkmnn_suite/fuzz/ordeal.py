"""The trial of a malformed model: load, plan and run, on the numpy backend and a device."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import onnx

from vkmnn import errors
from vkmnn.errors import OutOfDeviceMemoryError, OutOfHostMemoryError, VkmnnError
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array

RAN, TYPED, UNTYPED = "ran", "typed", "untyped"

ON_HOST = "vkmnn.fuzz.on_host"
"""Key of the metadata of models whose nodes may run in onnx's reference evaluator."""

_MAX_ELEMENTS = 1 << 20
_UNKNOWN = (2, 3)
_PACKAGE = Path(errors.__file__).parent


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a model.

    Attributes:
        kind: RAN, TYPED (refused with a VkmnnError) or UNTYPED (with anything else).
        error: the class of the error.
        place: where an untyped error was raised, or the cause of a typed one that no check foresaw;
            empty otherwise.
        text: the error's message.
        seconds: processor time.
    """

    kind: str
    error: str = ""
    place: str = ""
    text: str = ""
    seconds: float = 0.0


def undergo(model: onnx.ModelProto | Path, devices: Sequence[str]) -> Outcome:
    """Load a model or a file, plan it and run it on each device; stop at the first error.

    Nodes that have no kernel are refused, but in models with the entry ON_HOST in their metadata.
    """
    on_host = not isinstance(model, Path) and any(
        entry.key == ON_HOST for entry in model.metadata_props
    )
    unsupported: Literal["cpu", "raise"] = "cpu" if on_host else "raise"
    start = time.process_time()
    kind, error, place, text = RAN, "", "", ""
    try:
        data = model if isinstance(model, Path) else model.SerializeToString()
        for device in devices:
            with InferenceSession(data, device, unsupported=unsupported) as session:
                feeds = _feeds(session)
                if feeds is not None:
                    session.run(None, feeds)
    except VkmnnError as found:
        kind, error, text = TYPED, type(found).__name__, str(found)
        short = isinstance(found, (OutOfDeviceMemoryError, OutOfHostMemoryError))
        place = _place(found.__cause__ or found) if found.unexpected and not short else ""
    except Exception as found:  # noqa: BLE001 - which one it is, is the question
        kind, error, text, place = UNTYPED, type(found).__name__, str(found), _place(found)
    return Outcome(kind, error, place, text[:2000], time.process_time() - start)


def _place(error: BaseException) -> str:
    """Return file, line and function of the innermost frame within vkmnn."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(_PACKAGE):
            return f"{path.relative_to(_PACKAGE).as_posix()}:{frame.lineno} {frame.name}"
    return "outside"


def _feeds(session: InferenceSession) -> dict[str, Array] | None:
    """Return arrays for the inputs; None if one would be large."""
    rng = np.random.default_rng(1)
    feeds: dict[str, Array] = {}
    for value in session.get_inputs():
        given = _UNKNOWN if value.shape is None else value.shape
        shape = [size if isinstance(size, int) else 2 for size in given]
        if prod(shape) > _MAX_ELEMENTS:
            return None
        dtype = np.dtype(value.dtype)
        whole = rng.integers(0, 3, shape)
        feeds[value.name] = (
            rng.standard_normal(shape) if dtype.kind == "f" else np.asarray(whole)
        ).astype(dtype)
    return feeds
