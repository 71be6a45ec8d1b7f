"""Inputs for `vkmnn run` and similar commands: files, or made-up values of fitting shapes."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vkmnn.cli.console import shape_text
from vkmnn.errors import InvalidInputError
from vkmnn.inference_session import NodeArg
from vkmnn.ir import Array

Dims = Sequence[int | str | None]
Filler = Callable[[np.random.Generator, tuple[int, ...], str], Array]

# What numpy raises for files that are not archives of arrays, or that claim to hold too much.
_BAD_ARCHIVE = (
    *(OSError, ValueError, EOFError, AttributeError, TypeError, MemoryError),
    zipfile.BadZipFile,
)
_USAGE = "--input NAME=VALUE, where VALUE is a .npy or .npz file, random, ones or zeros"


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


@dataclass(slots=True)
class Sizes:
    """What the user says about shapes: those of whole inputs, and of symbolic dimensions."""

    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)


def parse_sizes(texts: Sequence[str], inputs: Mapping[str, Dims | None]) -> Sizes:
    """Read `--shape` options: `x=1,3,224,224` for an input, `N=4` for a symbolic dimension.

    Args:
        texts: the options.
        inputs: shape of every input of the model.

    Raises:
        InvalidInputError: no such input or dimension, or no whole numbers.
    """
    symbols = {dim for dims in inputs.values() for dim in dims or () if isinstance(dim, str)}
    sizes = Sizes()
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            dims = tuple(int(part) for part in value.split(",") if part.strip())
        except ValueError:
            dims = (-1,)
        if any(dim < 0 for dim in dims):
            raise InvalidInputError(
                f"--shape {text}: '{value}' is not a list of sizes",
                hint="for example --shape x=1,3,224,224 or --shape N=4",
            )
        if name in inputs:
            sizes.inputs[name] = dims
        elif name in symbols and len(dims) == 1:
            sizes.symbols[name] = dims[0]
        else:
            known = [f"{key} {shape_text(shape)}" for key, shape in inputs.items()]
            raise InvalidInputError(
                f"--shape {text}: there is no input and no dimension '{name}'",
                hint=f"inputs: {', '.join(known)}",
            )
    return sizes


def settle(
    inputs: Mapping[str, Dims | None], sizes: Sizes, assume: int | None = None
) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Return the static shape of every input that has one, and what was assumed for that.

    Args:
        inputs: shape of every input as the model declares it.
        sizes: what the user says; sizes of symbols also follow from its shapes of inputs.
        assume: size of a dimension that nobody gave; None leaves out the inputs that have such.

    Raises:
        InvalidInputError: a shape does not fit what the model declares.
    """
    symbols = dict(sizes.symbols)
    for name, given in sizes.inputs.items():
        for want, have in zip(inputs[name] or (), given, strict=False):
            if isinstance(want, str):
                symbols.setdefault(want, have)
    shapes: dict[str, tuple[int, ...]] = {}
    assumed: list[str] = []
    for name, declared in inputs.items():
        if name in sizes.inputs:
            shapes[name] = sizes.inputs[name]
            continue
        if declared is None:
            continue
        dims = [symbols.get(dim) if isinstance(dim, str) else dim for dim in declared]
        if None in dims and assume is not None:
            dims = [assume if dim is None else dim for dim in dims]
            assumed.append(f"{name} {shape_text(declared)} is taken as {shape_text(dims)}")
        if None not in dims:
            shapes[name] = tuple(dim for dim in dims if dim is not None)
    return shapes, assumed


def make_feeds(
    args: Sequence[NodeArg], texts: Sequence[str], shapes: Sequence[str], seed: int
) -> tuple[dict[str, Array], list[str]]:
    """Return an array for every input, and notes on what was assumed.

    Args:
        args: the model's inputs.
        texts: `--input` options.
        shapes: `--shape` options.
        seed: of random values.

    Raises:
        InvalidInputError: an option makes no sense, or a file cannot be read.
    """
    inputs = {arg.name: arg.shape for arg in args}
    chosen = _parse_values(texts, inputs)
    feeds = {name: array for name, array in chosen.items() if not isinstance(array, str)}
    sizes = parse_sizes(shapes, inputs)
    for name, array in feeds.items():
        sizes.inputs.setdefault(name, array.shape)
    settled, notes = settle(inputs, sizes, assume=1)
    rng = np.random.default_rng(seed)
    for arg in args:
        if arg.name in feeds:
            continue
        if arg.name not in settled:
            raise InvalidInputError(
                f"the model does not say the rank of input '{arg.name}'",
                hint=f"give its shape, --shape {arg.name}=1,2,3, or a file",
            )
        if arg.dtype == "object":
            feeds[arg.name] = _text(arg, settled[arg.name])
            continue
        filler = FILLERS[str(chosen.get(arg.name, "random"))]
        feeds[arg.name] = filler(rng, settled[arg.name], arg.dtype)
    return {arg.name: feeds[arg.name] for arg in args}, notes


def _text(arg: NodeArg, shape: tuple[int, ...]) -> Array:
    if arg.type != "tensor(string)":
        raise InvalidInputError(
            f"no {arg.type} can be made up for input '{arg.name}'",
            hint="run the model from Python: vkmnn.InferenceSession(model).run(None, feeds)",
        )
    return np.full(shape, "text", object)


def _parse_values(texts: Sequence[str], inputs: Mapping[str, object]) -> dict[str, Array | str]:
    """Return the array, or the name of the filler, for each input that the options name."""
    values: dict[str, Array | str] = {}
    for text in texts:
        # Names may hold "=", and so may paths: the model's own names decide.
        name = next((name for name in inputs if text.startswith(f"{name}=")), None)
        if name is not None:
            value = text[len(name) + 1 :]
            values[name] = value if value in FILLERS else _array_for(name, Path(value))
        elif text in FILLERS:
            values.update(dict.fromkeys(inputs, text))
        elif Path(text).suffix == ".npz" and "=" not in text:
            arrays = _read_npz(Path(text))
            _check_names(arrays, inputs)
            values.update(arrays)
        elif Path(text).suffix == ".npy" and len(inputs) == 1 and "=" not in text:
            values[next(iter(inputs))] = _read_npy(Path(text))
        else:
            _check_names([text.partition("=")[0]], inputs)
            raise InvalidInputError(f"cannot make sense of --input {text}", hint=_USAGE)
    return values


def _check_names(names: Sequence[str] | Mapping[str, Array], inputs: Mapping[str, object]) -> None:
    for name in names:
        if name not in inputs:
            raise InvalidInputError(
                f"the network has no input '{name}'", hint=f"inputs: {', '.join(inputs)}"
            )


def _array_for(name: str, path: Path) -> Array:
    if path.suffix not in (".npy", ".npz"):
        raise InvalidInputError(f"cannot make sense of --input {name}={path}", hint=_USAGE)
    if path.suffix == ".npy":
        return _read_npy(path)
    arrays = _read_npz(path)
    if name not in arrays and len(arrays) != 1:
        raise InvalidInputError(
            f"'{path}' has no array '{name}'", hint=f"it holds: {', '.join(arrays)}"
        )
    return arrays.get(name, next(iter(arrays.values())))


def _read_npy(path: Path) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise _unreadable(path, error) from error
    return array


def _read_npz(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except _BAD_ARCHIVE as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InvalidInputError:
    if isinstance(error, FileNotFoundError):
        return InvalidInputError(f"no such file: '{path}'", hint="check the path")
    return InvalidInputError(
        f"'{path}' cannot be read: {error}", hint="write it with numpy.save or numpy.savez"
    )
