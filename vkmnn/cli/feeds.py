"""Inputs for `vkmnn run` and similar commands: literals, files, or generated values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from vkmnn.cli.console import shape_text
from vkmnn.cli.literals import FILLERS, USAGE, Given, parse_value, read_npz
from vkmnn.errors import InvalidInputError, ShapeError, nearest
from vkmnn.inference_session import NodeArg
from vkmnn.ir import Array
from vkmnn.opening import unstated_inputs

Dims = Sequence[int | str | None]

PICTURE_SIZES = (640, 320, 224)
"""Common heights and widths of the images that networks read."""

_LINE_WIDTH = 320
_LINE_HEIGHT = 100  # below, an image is a line of text, which is wider than high
_CHANNEL_NAMES = re.compile(r"(num_?|n_?)?(c|ch|chan|channels?)", re.IGNORECASE)


@dataclass(slots=True)
class Sizes:
    """Shapes from the command line: of whole inputs, and of symbolic dimensions."""

    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Feeds:
    """One value per input, and its origin.

    Attributes:
        arrays: the values.
        sources: "given" or "random", "ones", "zeros", by input.
        notes: the assumptions, in whole sentences.
        guessed: whether the size of an image was guessed: another one may fit better.
    """

    arrays: dict[str, Array]
    sources: dict[str, str]
    notes: list[str]
    guessed: bool


def parse_sizes(texts: Sequence[str], inputs: Mapping[str, Dims | None]) -> Sizes:
    """Read `--shape` options: `x=1,3,224,224` for an input, `N=4` for a symbolic dimension.

    The name may be left out if the model has a single input.

    Args:
        texts: the options.
        inputs: shape of every input of the model.

    Raises:
        InvalidInputError: no such input or dimension, or no whole numbers.
    """
    symbols = {dim for dims in inputs.values() for dim in dims or () if isinstance(dim, str)}
    sizes = Sizes()
    for text in texts:
        name, equals, value = text.rpartition("=")
        inner = value.strip().strip("[]()")
        try:
            dims = tuple(int(part) for part in re.split(r"[,x×]", inner)) if inner else ()
        except ValueError:
            dims = (-1,)
        if any(dim < 0 for dim in dims) or not (equals or inner):
            raise InvalidInputError(
                f"--shape {text}: '{value}' is not a list of sizes",
                hint="for example --shape x=1,3,224,224 or --shape N=4",
            )
        known = ", ".join(f"{key} {shape_text(shape)}" for key, shape in inputs.items())
        if not equals and len(inputs) == 1:
            name = next(iter(inputs))
        elif not equals:
            first = next(iter(inputs), "x")
            raise InvalidInputError(
                f"--shape {text}: the model has {len(inputs)} inputs",
                hint=f"say which one: --shape {first}={value}; inputs: {known}",
            )
        if name in inputs:
            sizes.inputs[name] = dims
        elif name in symbols and len(dims) == 1:
            sizes.symbols[name] = dims[0]
        elif name in symbols:
            raise InvalidInputError(
                f"--shape {text}: '{name}' is a dimension, and takes one size",
                hint=f"inputs: {known}",
            )
        else:
            near = nearest(name, [*inputs, *symbols], "names")
            raise InvalidInputError(
                f"--shape {text}: there is no input and no dimension '{name}'",
                hint=near if near.startswith("did") else f"inputs: {known}",
            )
    return sizes


def settle(
    inputs: Mapping[str, Dims | None],
    sizes: Sizes,
    assume: int | None = None,
    picture: int = PICTURE_SIZES[0],
) -> tuple[dict[str, tuple[int, ...]], list[str], bool]:
    """Return the static shape of every input that has one, and the assumptions behind it.

    Args:
        inputs: shape of every input as the model declares it.
        sizes: the user's sizes; sizes of symbols also follow from the given shapes of inputs.
        assume: size for dimensions that are not given; None leaves out the inputs that have some.
        picture: height and width of inputs that look like images, if `assume` is given.

    Returns:
        The shapes, sentences on the assumptions, and whether an image was among the inputs.

    Raises:
        InvalidInputError: a shape does not fit the model's declaration.
    """
    symbols = dict(sizes.symbols)
    for name, given in sizes.inputs.items():
        for want, have in zip(inputs[name] or (), given, strict=False):
            if isinstance(want, str):
                symbols.setdefault(want, have)
    shapes: dict[str, tuple[int, ...]] = {}
    assumed: list[str] = []
    guessed = False
    for name, declared in inputs.items():
        if name in sizes.inputs:
            shapes[name] = sizes.inputs[name]
            continue
        if declared is None:
            continue
        dims: list[int | None] = [
            symbols.get(dim) if isinstance(dim, str) else dim for dim in declared
        ]
        if None in dims and assume is not None:
            seen = picture_shape(declared, dims, picture)
            guessed |= seen is not None
            dims = [assume if dim is None else dim for dim in seen or dims]
            for want, size in zip(declared, dims, strict=True):
                if isinstance(want, str) and size is not None:
                    symbols.setdefault(want, size)
            example = ",".join(map(str, dims)) if seen else "…"
            assumed.append(
                f"{name} was taken as {shape_text(dims)}; choose with -s {name}={example} "
                f"(the model says {shape_text(declared)})"
            )
        if None not in dims:
            shapes[name] = tuple(dim for dim in dims if dim is not None)
    return shapes, assumed, guessed


def picture_shape(
    declared: Dims, known: Sequence[int | None], size: int
) -> list[int | None] | None:
    """Return the shape of an input that looks like an image of open size; None for others.

    It has one, three or four channels, second or last, and two further axes.
    """
    rank = len(declared)
    if rank not in (3, 4):
        return None
    dims = list(known)
    for channel, rows, columns in ((rank - 3, rank - 2, rank - 1), (rank - 1, rank - 3, rank - 2)):
        name = declared[channel]
        if dims[channel] is None and isinstance(name, str) and _CHANNEL_NAMES.fullmatch(name):
            dims[channel] = 3
        if dims[channel] not in ((1, 3, 4) if rank == 4 else (3,)):
            continue
        height, width = dims[rows], dims[columns]
        if height is not None and width is not None:
            return None
        if height is not None and height < _LINE_HEIGHT:
            width = _LINE_WIDTH
        dims[rows] = height or width or size
        dims[columns] = width or height or size
        return dims
    return None


def picture_sizes(outputs: Sequence[NodeArg]) -> tuple[int, ...]:
    """Return heights and widths to try, the likeliest one first.

    A single table of scores is a classifier's, whose images are small; maps and boxes come from
    larger ones.
    """
    shapes = [output.shape for output in outputs]
    if len(shapes) == 1 and shapes[0] is not None and len(shapes[0]) == 2:
        return PICTURE_SIZES[::-1]
    return PICTURE_SIZES


def shapes_to_open(
    model: Path, shapes: Sequence[str], inputs: Sequence[str] = ()
) -> dict[str, tuple[int, ...]]:
    """Return the shapes that opening a model takes: of inputs for which its file states none.

    Args:
        model: the file.
        shapes: `--shape` options.
        inputs: `--input` options; arrays among them have a shape.

    Raises:
        InvalidInputError: an option makes no sense.
        ModelFileError: the file cannot be read.
    """
    names = unstated_inputs(model)
    if not names:
        return {}
    found = parse_sizes(shapes, dict.fromkeys(names)).inputs
    args = [NodeArg(name, "tensor(double)", None, "float64") for name in names]
    for name, given in _parse_values(inputs, args).items():
        if given.array is not None:
            found.setdefault(name, given.array.shape)
    return found


def make_feeds(
    args: Sequence[NodeArg],
    texts: Sequence[str],
    shapes: Sequence[str],
    seed: int,
    picture: int = PICTURE_SIZES[0],
) -> Feeds:
    """Return a value for every input.

    Args:
        args: the model's inputs.
        texts: `--input` options.
        shapes: `--shape` options.
        seed: seed of random values.
        picture: height and width of images where nothing says them.

    Raises:
        InvalidInputError: an option makes no sense, or a file cannot be read.
    """
    inputs = {arg.name: arg.shape for arg in args}
    chosen = _parse_values(texts, args)
    sizes = parse_sizes(shapes, inputs)
    for name, given in chosen.items():
        if given.array is not None:
            sizes.inputs.setdefault(name, given.array.shape)
    settled, notes, guessed = settle(inputs, sizes, assume=1, picture=picture)
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    sources: dict[str, str] = {}
    for arg in args:
        given = chosen.get(arg.name, Given("random"))
        if given.array is not None:
            arrays[arg.name], sources[arg.name] = given.array, "given"
            continue
        if arg.name not in settled and arg.type == "tensor(string)":
            settled[arg.name] = (1,)  # sessions do not report the rank of strings
        elif arg.name not in settled and given.fill is not None:
            settled[arg.name] = ()
        if arg.name not in settled:
            raise InvalidInputError(
                f"the model does not say the rank of input '{arg.name}'",
                hint=f"give its shape, --shape {arg.name}=1,2,3, or a file",
            )
        shape = settled[arg.name]
        if given.fill is not None:
            arrays[arg.name] = _filled(arg, shape, partial(np.full, shape, given.fill))
            sources[arg.name] = "given"
            continue
        sources[arg.name] = given.filler
        if arg.dtype == "object":
            arrays[arg.name] = _text(arg, shape)
            continue
        fill = partial(FILLERS[given.filler], rng, shape, arg.dtype)
        arrays[arg.name] = _filled(arg, shape, fill)
        if arg.name not in chosen and _decides(arg, arrays[arg.name]):
            value = arrays[arg.name].item()
            notes.append(f"{arg.name} was taken at random ({value}); choose with -i {arg.name}=…")
    return Feeds(arrays, sources, notes, guessed)


def _filled(arg: NodeArg, shape: tuple[int, ...], fill: Callable[[], Array]) -> Array:
    """Return a new array; refuse a shape that numpy has no memory for."""
    try:
        return fill()
    except (MemoryError, OverflowError, ValueError) as error:
        raise InvalidInputError(
            f"input '{arg.name}' cannot have the shape {shape_text(shape)}: {error}",
            hint="choose smaller sizes with --shape",
        ) from error


def _decides(arg: NodeArg, array: Array) -> bool:
    """Whether a value is a single number that probably matters: a rate, a length."""
    fixed = arg.shape is not None and all(isinstance(dim, int) for dim in arg.shape)
    return fixed and array.size == 1 and array.dtype.kind in "iub"


def fitting_feeds(
    outputs: Sequence[NodeArg],
    make: Callable[[int], Feeds],
    fits: Callable[[Feeds], None],
) -> Feeds:
    """Return feeds with guessed image sizes that the network accepts, if any.

    Args:
        outputs: the model's outputs.
        make: returns feeds with images of a size.
        fits: raises InvalidInputError or ShapeError for feeds that the network does not accept.
    """
    sizes = picture_sizes(outputs)
    first = made = make(sizes[0])
    for size in sizes[1:]:
        if not made.guessed:
            break
        try:
            fits(made)
        except (InvalidInputError, ShapeError):
            made = make(size)
        else:
            return made
    if made is not first:
        try:
            fits(made)
        except (InvalidInputError, ShapeError):
            return first
    return made


def _text(arg: NodeArg, shape: tuple[int, ...]) -> Array:
    if arg.type != "tensor(string)":
        raise InvalidInputError(
            f"no {arg.type} can be generated for input '{arg.name}'",
            hint="run the model from Python: vkmnn.InferenceSession(model).run(None, feeds)",
        )
    return np.full(shape, "text", object)


def _parse_values(texts: Sequence[str], args: Sequence[NodeArg]) -> dict[str, Given]:
    """Return the values that options give to the inputs they name."""
    by_name = {arg.name: arg for arg in args}
    values: dict[str, Given] = {}
    for text in texts:
        # Both names and paths may contain "=": the model's own names decide.
        name = max((one for one in by_name if text.startswith(f"{one}=")), key=len, default=None)
        if name is not None:
            values[name] = parse_value(by_name[name], text[len(name) + 1 :])
        elif text in FILLERS:
            values.update(dict.fromkeys(by_name, Given(text)))
        elif text.endswith(".npz") and "=" not in text:
            arrays = read_npz(text)
            for one in arrays:
                _known(one, by_name)
            values.update({one: Given(array=array) for one, array in arrays.items()})
        elif re.match(r"[^\s\[{\"'=]+=", text):
            _known(text.partition("=")[0], by_name)
        elif len(by_name) == 1:
            (arg,) = args
            values[arg.name] = parse_value(arg, text)
        else:
            parse_value(None, text)  # an image, a misspelt word
            first = next(iter(by_name), "x")
            if text in by_name:
                raise InvalidInputError(f"--input {text} has no value", hint=USAGE)
            if text.isidentifier():
                raise InvalidInputError(f"the network has no input '{text}'", hint=USAGE)
            raise InvalidInputError(
                f"--input {text}: the model has {len(by_name)} inputs",
                hint=f"say which one: --input {first}={text}; inputs: {', '.join(by_name)}",
            )
    return values


def _known(name: str, inputs: Mapping[str, object]) -> None:
    if name not in inputs:
        raise InvalidInputError(
            f"the network has no input '{name}'", hint=nearest(name, inputs, "inputs")
        )
