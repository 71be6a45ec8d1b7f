"""A Caffe layer, and the registry of functions that write ONNX nodes for layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from vkmnn.converter.caffe.files import Blob, CaffeFile
from vkmnn.converter.caffe.schema import Message
from vkmnn.converter.nodes import FLOAT, Readers, Scope, SourceOp
from vkmnn.errors import ModelFileError
from vkmnn.ir import Array, GraphState

Size = int | None


class CaffeLayer(SourceOp):
    """A layer of a network.

    Attributes:
        proto: the layer, in today's form.
        blobs: its weights; empty where the file has none for it.
        file: the file of the layer.
        states: tensors that sessions keep between runs; layers add to them.
    """

    def __init__(
        self,
        scope: Scope,
        proto: Message,
        inputs: Sequence[str],
        outputs: Sequence[str],
        blobs: Sequence[Blob],
        file: CaffeFile,
        states: list[GraphState],
    ) -> None:
        super().__init__(scope, proto.type, proto.name or proto.type, inputs, outputs)
        self.proto, self.blobs = proto, blobs
        self.file, self.states = file, states

    def weights(self, number: int, shape: Sequence[Size], what: str) -> Array:
        """Return a blob in a shape that the network states.

        Args:
            number: the number of the layer's blob.
            shape: its sizes; None for one that is known only from the blob.
            what: its kind, for messages.

        Raises:
            ModelFileError: there are no weights for the layer.
            ModelError: the blob has another shape.
        """
        if not self.blobs:
            raise ModelFileError(
                f"the layer has weights, but {self.file.missing}",
                op=self.type,
                node=self.name,
                hint=self.file.hint or "give the weights that belong to the network",
            )
        if number >= len(self.blobs):
            raise self.damaged(f"the weights have {len(self.blobs)} blobs for it: no {what}")
        blob = self.blobs[number]
        known = prod(size for size in shape if size is not None)
        free = blob.values.size // max(known, 1)
        wanted = [free if size is None else size for size in shape]
        # Old files state four sizes for anything, the first of them ones.
        if [size for size in blob.shape if size != 1] != [size for size in wanted if size != 1]:
            stated = " x ".join("?" if size is None else str(size) for size in shape) or "1"
            held = " x ".join(map(str, blob.shape)) or "1"
            raise self.damaged(
                f"its {what} are {held} in the weights, {stated} by the network",
                "the weights belong to another network",
            )
        return blob.values.reshape(wanted)

    def weight(self, number: int, shape: Sequence[Size], what: str) -> str:
        """Add a blob as a constant and return its name; as `weights`."""
        return self.scope.constant(self.weights(number, shape, what), self.name)

    def number(self, value: float) -> str:
        """Add a constant of one float and return its name."""
        return self.constant(value, np.float32)

    def axis(self, value: int, rank: int, beyond: int = 0) -> int:
        """Return the number of an axis, which may be counted from the end.

        Args:
            value: the axis.
            rank: how many there are.
            beyond: how many more count.

        Raises:
            ModelError: the axis does not exist.
        """
        if not -rank <= value < rank + beyond:
            raise self.damaged(f"axis {value} of a tensor of {rank} axes")
        return value + rank if value < 0 else value

    def sizes(self, name: str, axes: int = 0) -> tuple[Size, ...]:
        """Return a tensor's sizes as far as they are known.

        Args:
            name: the tensor.
            axes: how many it has to have at least.

        Raises:
            UnreadableError: not even their number is known.
            ModelError: there are fewer.
        """
        shape = self.shape_of(name)
        if shape is None:
            raise self.unreadable("an input whose number of axes is not known")
        if len(shape) < axes:
            raise self.damaged(f"it takes tensors of {axes} axes or more, not of {len(shape)}")
        return shape

    def picture(self, name: str) -> tuple[int, int]:
        """Return the height and the width of a tensor of four axes.

        Raises:
            UnreadableError: they are not known.
        """
        shape = self.sizes(name)
        if len(shape) != 4:
            raise self.damaged(f"it takes tensors of 4 axes, not of {len(shape)}")
        height, width = shape[2:]
        if height is None or width is None:
            raise self.unreadable(
                "it needs to know the height and width of its input; open the network with "
                "input_shapes"
            )
        return height, width

    def state(self, what: str, output: str, initial: Array) -> str:
        """Return an input that holds a tensor's value of the previous run."""
        name = self.scope.fresh(f"state/{self.name}/{what}")
        self.scope.types[name], self.scope.shapes[name] = FLOAT, initial.shape
        self.states.append(GraphState(name, output, initial))
        return name

    def scaled(self, x: str, factor: float, summand: float = 0.0) -> str:
        """Return a tensor times a factor, plus a summand."""
        if factor != 1:
            x = self.make("Mul", x, self.number(factor))
        return self.make("Add", x, self.number(summand)) if summand else x


READERS: Readers[CaffeLayer] = Readers("Caffe")
reads = READERS.reads
