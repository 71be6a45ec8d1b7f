"""Loaded networks: a graph as its front end made it, and the optimised one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from vkmnn.base.budget import Meter
from vkmnn.base.records import dataclass
from vkmnn.core.shared_sizes import SharedSizes
from vkmnn.core.static import StaticShapes
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Dim, Graph, TensorInfo

if TYPE_CHECKING:
    import onnx
    from torch.export import ExportedProgram
    from torch.jit import ScriptModule

    from vkmnn.converter.onnx.model_file import ModelFile

    UserModel: TypeAlias = "str | Path | bytes | onnx.ModelProto | ExportedProgram | ScriptModule"
    Model: TypeAlias = "UserModel | ModelFile | Graph"


InputShapes: TypeAlias = Mapping[str, tuple[Dim, ...]]


@dataclass(frozen=True, slots=True)
class Network:
    """A loaded network, ready for any number of sessions.

    `source` is the graph from the front end, `graph` the optimised one. `meter` holds the budget,
    all of which every session may use. `static` is the state that sessions share if shapes are
    fixed. `optimise` turns `source`, or a graph like it, into `graph`; None if the file contains an
    optimised graph. `origin` is the ONNX model from which the network was converted, or its path,
    if evaluators may run that as a whole. `reload` reads the model again, with input shapes other
    than the file's.
    """

    source: Graph
    graph: Graph
    meter: Meter
    static: StaticShapes = field(default_factory=StaticShapes, repr=False)
    optimise: Callable[[Graph, Meter], Graph] | None = field(default=None, repr=False)
    origin: str | Path | bytes | None = field(default=None, repr=False)
    reload: Callable[[InputShapes], Network] | None = field(default=None, repr=False)

    @property
    def outputs(self) -> list[TensorInfo]:
        """The outputs; missing shapes and sizes are inferred from their ops.

        Of sizes that are open, only those that inputs name have a name.
        """
        names = {dim for info in self.graph.inputs for dim in info.shape or ()}
        found = []
        for info in self.graph.outputs:
            shape = self._shape_of(info.name)
            if shape is not None:
                inferred = tuple(
                    dim if isinstance(dim, int) or dim in names else None for dim in shape
                )
                info = replace(info, shape=_completed(info.shape, inferred))
            found.append(info)
        return found

    def _shape_of(self, name: str) -> tuple[Dim, ...] | None:
        """Return the shape of a tensor, which may have become a constant."""
        if name in self.graph.constants:
            return tuple(self.graph.constants[name].shape)
        known = self.graph.infos.get(name)
        return None if known is None else known.shape

    def settled(self) -> Network:
        """Return the network for further sessions, without weights that passes have replaced.

        It can no longer be optimised in another way, which nobody needs but callers that give
        inputs other sizes than the names which they share allow.
        """
        kept = None if isinstance(self.origin, bytes) else self.origin
        if SharedSizes(self.graph.inputs):
            return replace(self, origin=kept, reload=None)
        return replace(self, source=self.graph, optimise=None, origin=kept, reload=None)

    def with_shapes(self, shapes: InputShapes) -> Network:
        """Return the network with other shapes of inputs, read from its file again.

        Args:
            shapes: sizes, names or None for open ones, by input; None to leave all as they are.

        Raises:
            InvalidInputError: the file has changed, or was not kept.
            ConversionError: a converter has to know a size that is open.
        """
        if self.reload is None:
            raise InvalidInputError(
                "the input has another shape in the model, which cannot change for this network",
                hint="open the model with input_shapes={name: shape}",
            )
        return self.reload(shapes)


def with_sizes(info: TensorInfo, sizes: Mapping[str, int]) -> TensorInfo:
    """Return the description of a tensor with named dimensions fixed."""
    if info.shape is None or not sizes:
        return info
    shape: tuple[Dim, ...] = tuple(
        sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in info.shape
    )
    return replace(info, shape=shape)


def _completed(declared: tuple[Dim, ...] | None, inferred: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return a declared shape with the sizes that it leaves out."""
    if declared is None or len(declared) != len(inferred):
        return inferred if declared is None else declared
    pairs = zip(declared, inferred, strict=True)
    return tuple(known if size is None else size for size, known in pairs)
