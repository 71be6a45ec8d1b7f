"""The value of an `--input` option: a word, a number, JSON, text, or a file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.media import PICTURES, SOUNDS
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.inference_session import NodeArg
from vkmnn.ir import Array
from vkmnn.ir.array_files import read_arrays

Filler = Callable[[np.random.Generator, tuple[int, ...], str], Array]

USAGE = (
    "NAME=VALUE, where VALUE is a number (0.5), JSON ([1, 2, 3]), text for inputs of strings, "
    "random, ones, zeros, or a file (.npy, .npz, @values.json, @text.txt)"
)
"""Syntax of `--input`."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf|nan)", re.IGNORECASE)
_WORDS = {"true": True, "false": False, "True": True, "False": False}


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Normal numbers for floats; 0 or 1 for integers, which are valid as tokens and as masks."""
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


FILLERS: Mapping[str, Filler] = {
    "random": _random,
    "ones": lambda rng, shape, dtype: np.ones(shape, dtype),
    "zeros": lambda rng, shape, dtype: np.zeros(shape, dtype),
}


@dataclass(frozen=True, slots=True)
class Given:
    """The value of an option: a filler's name, an array, or `fill`, a number for all elements."""

    filler: str = ""
    array: Array | None = None
    fill: Any = None


def parse_value(arg: NodeArg | None, text: str) -> Given:
    """Parse the text of a value.

    Args:
        arg: the input; None if it is unknown, which is eventually an error.
        text: the option without the input's name.

    Raises:
        InvalidInputError: it makes no sense, does not fit the input, or a file cannot be read.
    """
    option = f"--input {arg.name}={text}" if arg else f"--input {text}"
    if text in FILLERS:
        return Given(text)
    suffix = Path(text).suffix.lower()
    if text.startswith("@") and len(text) > 1:
        return _from_file(arg, text[1:], option)
    if suffix in (".npy", ".npz"):
        return _from_file(arg, text, option)
    is_text = arg is not None and arg.type == "tensor(string)"
    if suffix in PICTURES | SOUNDS and not is_text:
        what = "an image" if suffix in PICTURES else "a sound file"
        name = arg.name if arg else "NAME"
        raise InvalidInputError(
            f"--input: '{text}' is {what}, and the network takes arrays",
            hint=f"read and scale it in Python as the model expects, save it with numpy.save("
            f"'{name}.npy', array), and give --input {name}={name}.npy",
        )
    if text[:1] in "[{" and text:
        return Given(array=_array(arg, _json(text, option), option)) if arg else Given()
    if is_text:
        assert arg is not None
        return Given(fill=np.array(_unquoted(text), object))
    if _NUMBER.fullmatch(text) or text in _WORDS:
        return Given(fill=_number(arg, text, option)) if arg else Given()
    hint = nearest(text, FILLERS, "values")
    if arg is None and not hint.startswith("did"):
        return Given()
    near = arg is None or hint.startswith("did")
    raise InvalidInputError(
        f"{option}: '{text}' is neither a number, JSON, a known word nor a file of arrays",
        hint=hint if near else USAGE,
    )


def _unquoted(text: str) -> str:
    """Return a text without quotes left by the shell."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _number(arg: NodeArg | None, text: str, option: str) -> Array | None:
    if arg is None:
        return None
    value: Any = _WORDS.get(text)
    if value is None:
        value = int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    return _cast(arg, value, option)


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{option} is not valid JSON: {error}", hint="for example ids=[1, 2, 3]; quote it"
        ) from error


def _cast(arg: NodeArg, values: Any, option: str) -> Array:
    """Return values as an array of the input's type; raises if that would change them."""
    if arg.type == "tensor(string)":
        return np.array(values, object)
    if arg.dtype == "object":
        raise InvalidInputError(
            f"{option}: input '{arg.name}' is a {arg.type}, which cannot be typed",
            hint="run the model from Python: vkmnn.InferenceSession(model).run(None, feeds)",
        )
    dtype = np.dtype(arg.dtype)
    try:
        array = np.array(values)
    except ValueError:
        raise _unfit(arg, option, "lists within the list differ in length") from None
    if array.dtype.kind not in "iufb" and array.size:
        raise _unfit(arg, option, "not all values are numbers")
    if array.dtype.kind == "f" and dtype.kind in "iu" and array.size:
        raise _unfit(arg, option, "not all values are whole numbers")
    with np.errstate(over="ignore"):
        cast: Array = array.astype(dtype)
    changed = cast.astype(array.dtype) != array if dtype.kind in "iub" else np.isinf(cast)
    if (changed & np.isfinite(array)).any():
        raise _unfit(arg, option, "a value is out of range")
    return cast


def _unfit(arg: NodeArg, option: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"{option}: {reason}", hint=f"input '{arg.name}' is an array of {arg.dtype}"
    )


def _array(arg: NodeArg, values: Any, option: str) -> Array:
    """Return a list as an array of the input's rank: axes of size 1 are added in front."""
    array = _cast(arg, values, option)
    missing = len(arg.shape) - array.ndim if arg.shape is not None else 0
    if missing > 0 and arg.shape and all(dim in (1, None) or isinstance(dim, str)
                                         for dim in arg.shape[:missing]):  # fmt: skip
        array = array.reshape((1,) * missing + array.shape)
    return array


def _from_file(arg: NodeArg | None, name: str, option: str) -> Given:
    """Return the array, or the text, in a file."""
    path = Path(name)
    if path.suffix.lower() in (".npy", ".npz"):
        arrays = _arrays(path)
        if arg is None:
            return Given()
        if not isinstance(arrays, dict):
            return Given(array=arrays)
        if arg.name not in arrays and len(arrays) != 1:
            raise InvalidInputError(
                f"'{path}' has no array '{arg.name}'", hint=nearest(arg.name, arrays, "arrays")
            )
        return Given(array=arrays.get(arg.name, next(iter(arrays.values()))))
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, "text in UTF-8, or write arrays with numpy.save") from error
    if arg is None:
        return Given()
    if arg.type == "tensor(string)" and path.suffix.lower() != ".json":
        return Given(fill=np.array(text.rstrip("\n"), object))
    return Given(array=_array(arg, _json(text, f"--input {arg.name}=@{name}"), option))


def read_npz(name: str) -> dict[str, Array]:
    """Return the arrays of a .npz file.

    Raises:
        InvalidInputError: it cannot be read.
    """
    arrays = _arrays(Path(name))
    if not isinstance(arrays, dict):
        raise _unreadable(Path(name), ValueError("it is a single array"))
    return arrays


def _arrays(path: Path) -> Array | dict[str, Array]:
    try:
        return read_arrays(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(
    path: Path, error: Exception, hint: str = "write it with numpy.save or numpy.savez"
) -> InvalidInputError:
    if isinstance(error, FileNotFoundError):
        return InvalidInputError(f"no such file: '{path}'", hint="check the path")
    return InvalidInputError(f"'{path}' cannot be read: {error}", hint=hint)
