"""Inputs for calibration and comparison: read, checked, and split into samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.errors import InvalidInputError, nearest, plural
from vkmnn.ir import Array, DType, TensorInfo
from vkmnn.ir.array_files import read_arrays

Sample = dict[str, Array]
Calibration = str | Path | Mapping[str, Array]

_HINT = (
    "numpy.savez('data.npz', **{name: array}); the first axis counts the samples, and one sample "
    "has the shape that the model declares"
)


def read_samples(data: Calibration, inputs: Sequence[TensorInfo]) -> list[Sample]:
    """Return the samples of calibration data.

    Args:
        data: a .npz file, a .npy file for a model with one input, or arrays by the names of
            inputs. An array [S·batch, …] with the rank of its input is cut along its first axis,
            into pieces of the declared batch, of one where that is dynamic; an array with one
            axis more, [S, …], holds one whole input per entry. An array with a single sample
            serves all.
        inputs: inputs of the model.

    Raises:
        InvalidInputError: a file that cannot be read, an input that is missing or unknown, values
            of another type, that do not fit the shape, or that are not finite.
    """
    arrays = as_arrays(data, inputs)
    names = [info.name for info in inputs]
    for name in arrays:
        if name not in names:
            raise InvalidInputError(
                f"the calibration data has '{name}', and the model has no such input",
                hint=f"inputs: {', '.join(names)}",
            )
    pieces = {info.name: _pieces(info, arrays) for info in inputs}
    count = max((len(found) for found in pieces.values()), default=0)
    for name, found in pieces.items():
        if len(found) not in (1, count):
            raise InvalidInputError(
                f"the calibration data has {plural(len(found), 'sample')} of input '{name}', and "
                f"{count} of another",
                hint="give every input the same number of samples, or one sample for all",
            )
    samples = [
        {name: found[index if len(found) > 1 else 0] for name, found in pieces.items()}
        for index in range(count)
    ]
    for sample in samples[:1]:
        _check_named(sample, inputs)
    return samples


Sizes = Mapping[str, int | Sequence[int]]
"""Sizes by the names of dimensions, and whole shapes by the names of inputs."""


def random_sample(inputs: Sequence[TensorInfo], sizes: Sizes, seed: int) -> Sample:
    """Return random inputs: normal numbers for floats, 0 or 1 for integers.

    Args:
        inputs: inputs of the model.
        sizes: sizes of named dimensions, and shapes of inputs; others default to 1.
        seed: seed of the numbers.

    Raises:
        InvalidInputError: an input of unknown rank, or of strings.
    """
    named = {dim for info in inputs for dim in info.shape or () if isinstance(dim, str)}
    shapes = {info.name: sizes[info.name] for info in inputs if info.name in sizes}
    for name in sizes:
        if name not in named and name not in shapes:
            raise InvalidInputError(
                f"no input has a dimension '{name}'",
                hint=nearest(name, sorted(named), "dimensions with a name"),
            )
    rng = np.random.default_rng(seed)
    made: Sample = {}
    for info in inputs:
        if info.shape is None or info.dtype is DType.OBJECT:
            what = "the rank" if info.shape is None else "numbers"
            raise InvalidInputError(
                f"nothing can be generated for input '{info.name}': the model does not say {what}",
                hint="give calibration data, or leave out the comparison",
            )
        dims = _dims(info, shapes.get(info.name), sizes)
        if info.dtype.numpy.kind in "fV":
            made[info.name] = rng.standard_normal(dims).astype(info.dtype.numpy)
        else:
            made[info.name] = rng.integers(0, 2, dims).astype(info.dtype.numpy)
    return made


def _dims(info: TensorInfo, given: int | Sequence[int] | None, sizes: Sizes) -> tuple[int, ...]:
    """Return the shape of a random input."""
    if isinstance(given, Sequence):
        return tuple(given)
    dims = []
    for dim in info.shape or ():
        size = sizes.get(dim, 1) if isinstance(dim, str) else dim
        dims.append(size if isinstance(size, int) else 1)
    return tuple(dims)


def as_arrays(data: Calibration, inputs: Sequence[TensorInfo]) -> dict[str, Array]:
    """Return the arrays of a .npz or .npy file, or of a mapping in the types of the inputs.

    Raises:
        InvalidInputError: the file cannot be read, or values in lists are no numbers.
    """
    if isinstance(data, str | Path):
        return _read(Path(data), inputs)
    types = {info.name: info.dtype.numpy for info in inputs}
    rows: Mapping[str, Any] = data
    try:
        return {
            name: one if isinstance(one, np.ndarray) else np.asarray(one, types.get(name))
            for name, one in rows.items()
        }
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"the calibration data is no array: {error}", hint=_HINT) from error


def _read(path: Path, inputs: Sequence[TensorInfo]) -> dict[str, Array]:
    try:
        arrays = read_arrays(path)
    except FileNotFoundError as error:
        raise InvalidInputError(f"no such file: '{path}'", hint="check the path") from error
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"'{path}' cannot be read: {error}", hint=_HINT) from error
    if isinstance(arrays, dict):
        return arrays
    if len(inputs) != 1:
        raise InvalidInputError(
            f"'{path}' holds one array, and the model has {plural(len(inputs), 'input')}",
            hint=_HINT,
        )
    return {inputs[0].name: arrays}


def _pieces(info: TensorInfo, arrays: Mapping[str, Array]) -> list[Array]:
    """Return the samples of one input."""
    if info.name not in arrays:
        raise InvalidInputError(
            f"the calibration data has nothing for input '{info.name}'",
            hint=f"it holds: {', '.join(arrays) or 'nothing'}; {_HINT}",
        )
    array = np.asarray(arrays[info.name])
    if array.dtype != info.dtype.numpy:
        raise InvalidInputError(
            f"the calibration data of input '{info.name}' is of {array.dtype}, and the input of "
            f"{info.dtype.value}",
            hint=f"array.astype('{info.dtype.value}')",
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = array.size - int(np.isfinite(array).sum())
        raise InvalidInputError(
            f"{bad} of the {array.size} calibration values of input '{info.name}' are NaN or "
            "infinite",
            hint="no range can be computed from these; remove those samples",
        )
    found = _cut(array, info)
    if not found or not found[0].size:
        raise InvalidInputError(
            f"the calibration data of input '{info.name}' is empty: {list(array.shape)}", hint=_HINT
        )
    return found


def _cut(array: Array, info: TensorInfo) -> list[Array]:
    shape = info.shape
    if shape is None or array.ndim == len(shape) + 1:
        found = list(array) if array.ndim else []
    elif array.ndim == len(shape) and shape:
        step = shape[0] if isinstance(shape[0], int) else 1
        whole = len(array) // step if step else 0
        if not step or whole * step != len(array):
            raise _misfit(array, info)
        found = [array[index * step : (index + 1) * step] for index in range(whole)]
    elif array.ndim == 0 and shape == ():
        found = [array]
    else:
        raise _misfit(array, info)
    for dims in {piece.shape for piece in found}:
        if shape is not None and any(
            isinstance(want, int) and want != have for want, have in zip(shape, dims, strict=True)
        ):
            raise _misfit(array, info)
    return [np.asarray(piece) for piece in found]


def _check_named(sample: Sample, inputs: Sequence[TensorInfo]) -> None:
    """Raise InvalidInputError if one named dimension has two sizes."""
    sizes: dict[str, tuple[int, str]] = {}
    for info in inputs:
        for dim, have in zip(info.shape or (), sample[info.name].shape, strict=False):
            if isinstance(dim, str):
                size, first = sizes.setdefault(dim, (have, info.name))
                if size != have:
                    raise InvalidInputError(
                        f"dimension '{dim}' is {have} in the calibration data of input "
                        f"'{info.name}', and {size} in that of '{first}'",
                        hint=_HINT,
                    )


def _misfit(array: Array, info: TensorInfo) -> InvalidInputError:
    shape = [dim if dim is not None else "?" for dim in info.shape or ()]
    text = ", ".join(map(str, shape))
    return InvalidInputError(
        f"the calibration data of input '{info.name}' has the shape {list(array.shape)}, and the "
        f"input [{text}]",
        hint=_HINT,
    )
