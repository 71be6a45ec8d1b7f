"""Names and shapes of outputs, used to recognise heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from vkmnn.base.records import dataclass
from vkmnn.inference_session import NodeArg
from vkmnn.pipelines.arrays import Array

Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """An output: its name, its shape as far as it is known, and whether it is an integer tensor."""

    name: str
    shape: Shape
    integer: bool = False

    @property
    def is_open(self) -> bool:
        """Whether any size but the first is unknown."""
        return None in self.shape[1:]

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def like(self, *shape: int | None) -> bool:
        """Return whether the shape matches; None matches any size, known or not."""
        return self.rank == len(shape) and all(
            want is None or have == want for have, want in zip(self.shape, shape, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Signature:
    """Properties of a network used to find its head.

    Attributes:
        outputs: its outputs.
        size: height and width of its input, if known.
        classes: the number of class names in its files; 0 if unknown.
        properties: metadata of its file.
    """

    outputs: tuple[Output, ...]
    size: tuple[int, int] | None = None
    classes: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)

    def find(self, *shape: int | None, integer: bool | None = None) -> Output | None:
        """Return the first output of a given shape."""
        for one in self.outputs:
            if one.like(*shape) and integer in (None, one.integer):
                return one
        return None

    def named(self, *words: str) -> Output | None:
        """Return the first output whose name contains one of the words, in the words' order."""
        for word in words:
            for one in self.outputs:
                if word in one.name.lower():
                    return one
        return None


def is_channels_last(shape: Sequence[int | None]) -> bool:
    """Return whether the last of four axes has the channels: it is shorter than the others."""
    rows, columns, last = (side or _LONG for side in shape[1:])
    return last < min(rows, columns)


def channels_of(shape: Sequence[int | None]) -> int | None:
    """Return the channels of a map with four axes, in either order."""
    return shape[3] if is_channels_last(shape) else shape[1]


_LONG = 1 << 15


def declared_outputs(args: Iterable[NodeArg]) -> tuple[Output, ...]:
    """Return the outputs as the model declares them; those of unknown rank are omitted."""
    return tuple(
        Output(
            arg.name,
            tuple(one if isinstance(one, int) else None for one in arg.shape),
            arg.dtype not in ("float32", "float16", "float64", "bfloat16"),
        )
        for arg in args
        if arg.shape is not None
    )


def computed_outputs(outputs: Mapping[str, Array]) -> tuple[Output, ...]:
    """Return the outputs of a run."""
    return tuple(
        Output(name, array.shape, array.dtype.kind in "iu") for name, array in outputs.items()
    )
