"""A node of a graph of TensorFlow, and the registry of functions that read nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vkmnn.converter.nodes import Readers, Scope, SourceOp
from vkmnn.converter.nodes.channels_last import to_first, to_last
from vkmnn.converter.nodes.folding import folded
from vkmnn.converter.nodes.same import same_padding
from vkmnn.converter.tensorflow.context import Context
from vkmnn.converter.tensorflow.files import TYPES
from vkmnn.converter.tensorflow.functions import Function, Node


class TfNode(SourceOp):
    """A node of a graph.

    Attributes:
        attrs: its attributes.
        model: the file that is read.
        node: the node of the file.
        prefix: begins the names of nodes of its function.
        elements: elements of vectors of sizes, and of single sizes, as far as they are known.
    """

    def __init__(
        self,
        model: Context,
        scope: Scope,
        node: Node,
        prefix: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
    ) -> None:
        super().__init__(scope, node.op, prefix + node.name, inputs, outputs)
        self.model, self.node, self.attrs = model, node, node.attrs
        self.elements = model.elements
        self.prefix = prefix
        self._first = len(scope.nodes)

    # --- attributes ------------------------------------------------------------------------------

    def integer(self, name: str, default: int = 0) -> int:
        """Return an attribute that is a whole number."""
        return int(self.attrs[name].i) if name in self.attrs else default

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is a truth value."""
        return bool(self.attrs[name].b) if name in self.attrs else default

    def real(self, name: str, default: float) -> float:
        """Return an attribute that is a float."""
        return float(self.attrs[name].f) if name in self.attrs else default

    def text(self, name: str, default: str = "") -> str:
        """Return an attribute that is a text."""
        return self.attrs[name].s.decode("utf-8", "replace") if name in self.attrs else default

    def listed(self, name: str) -> list[int]:
        """Return an attribute that is a list of whole numbers."""
        return list(self.attrs[name].list.i) if name in self.attrs else []

    def dtype(self, name: str) -> int:
        """Return an attribute that is an element type, as ONNX numbers it.

        Raises:
            UnreadableError: ONNX has none.
        """
        kind = TYPES.get(self.attrs[name].type if name in self.attrs else 0)
        if kind is None:
            raise self.unreadable("elements of a type that ONNX does not have")
        return kind

    def function(self, name: str) -> Function:
        """Return the function that an attribute names.

        Raises:
            ModelError: there is none.
        """
        called = self.attrs[name].func.name if name in self.attrs else ""
        return self.named_function(called)

    def named_function(self, name: str) -> Function:
        """Return a function of the model.

        Raises:
            ModelError: there is none.
        """
        found = self.model.function(name)
        if found is None:
            raise self.damaged(f"it runs the function '{name}', which does not exist")
        return found

    # --- operands --------------------------------------------------------------------------------

    def axis(self, value: int, rank: int) -> int:
        """Return the number of an axis, which may be counted from the end.

        Raises:
            ModelError: there is no such axis.
        """
        if not -rank <= value < rank:
            raise self.damaged(f"axis {value} of a tensor of {rank} axes")
        return value % rank

    def sizes(self, name: str) -> tuple[int | None, ...]:
        """Return a tensor's sizes as far as they are known.

        Raises:
            UnreadableError: not even their number is.
        """
        shape = self.shape_of(name)
        if shape is None:
            raise self.unreadable("an input of unknown rank")
        return shape

    def elements_of(self, name: str) -> list[int | None] | None:
        """Return the elements of a tensor of sizes as far as they are known; None if none are."""
        array = self.scope.constants.get(name)
        if array is not None and array.dtype.kind in "iu" and array.ndim < 2 and array.size <= 32:
            return [int(one) for one in array.reshape(-1)]
        return self.elements.get(name)

    def integers(self, number: int) -> list[int] | None:
        """Return an input whose elements are known as a list."""
        found = super().integers(number)
        if found is None and number < len(self.inputs):
            elements = self.elements.get(self.inputs[number]) or [None]
            found = [one for one in elements if one is not None]
            return found if len(found) == len(elements) else None
        return found

    def vector(self, number: int) -> str:
        """Return an input as a vector of integers of 64 bits; a constant where it is known."""
        found = self.integers(number)
        return super().vector(number) if found is None else self.constant(found)

    # --- results ----------------------------------------------------------------------------------

    def alias(self, name: str, output: str) -> None:
        """Give a tensor, or what stands in the place of one, a second name."""
        model = self.model
        if name in model.refused:
            model.refused.add(output)
        elif model.alias(name, output):
            self.scope.emit("Identity", [name], [output], self.name)

    def same(self, name: str, other: str) -> bool:
        """Return whether two tensors are known to be equal."""
        origins = self.model.origins
        if origins.get(name, name) == origins.get(other, other):
            return True
        counted = self.model.lengths.get(name)
        if counted is not None and counted == self.model.lengths.get(other):
            return True
        a, b = (self.scope.constants.get(one) for one in (name, other))
        return a is not None and b is not None and a.size == b.size == 1 and a.item() == b.item()

    def fold(self) -> None:
        """Compute the node at once where all that it reads are small constants."""
        made = self.scope.nodes[self._first :]
        if made and folded(self.scope, made, self.inputs, self.outputs):
            del self.scope.nodes[self._first :]

    # --- pictures --------------------------------------------------------------------------------

    @property
    def channels_last(self) -> bool:
        """Whether images are channels-last."""
        return not self.text("data_format", "NHWC").startswith("NC")

    def spatial(self, values: Sequence[int]) -> list[int]:
        """Return the entries for the spatial axes of a list with one per axis."""
        if len(values) not in (4, 5):
            raise self.damaged(f"it has {list(values)} for its axes")
        return list(values[1:-1] if self.channels_last else values[2:])

    def picture(self, number: int = 0, rank: int = 4) -> str:
        """Return an input with channels first."""
        name = self.inputs[number]
        return to_first(self, name, rank) if self.channels_last else name

    def finish_picture(self, name: str, rank: int = 4) -> None:
        """Make a tensor with channels first the output."""
        self.finish("Identity", to_last(self, name, rank) if self.channels_last else name)

    def padding(
        self, name: str, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> dict[str, Any]:
        """Return the pads of windows on a tensor with channels first, as ONNX's attributes."""
        kind = self.text("padding")
        if kind == "VALID":
            return {"pads": [0] * (2 * len(kernel))}
        if kind == "EXPLICIT":
            pads = self.listed("explicit_paddings")
            if len(pads) != 8:
                raise self.damaged(f"it has the pads {pads}")
            begins, ends = self.spatial(pads[::2]), self.spatial(pads[1::2])
            return {"pads": begins + ends}
        if kind != "SAME":
            raise self.damaged(f"it has the padding {kind!r}")
        shape = self.shape_of(name)
        sizes = (None,) * len(kernel) if shape is None else shape[2:]
        if len(sizes) != len(kernel):
            raise self.damaged(f"it takes pictures, not tensors of shape {shape}")
        return same_padding(sizes, kernel, strides, dilations)


Reader = Callable[[TfNode], None]
READERS: Readers[TfNode] = Readers("TensorFlow")
reads = READERS.reads
