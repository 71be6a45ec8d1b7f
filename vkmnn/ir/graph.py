"""The graph: named tensors, operators in topological order, constants."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from vkmnn.base.records import dataclass
from vkmnn.errors import ModelError
from vkmnn.ir.dtype import DType
from vkmnn.ir.op_type import OP_TYPES, OpAttrs

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    AttrsT = DefaultTypeVar("AttrsT", bound=OpAttrs, default=OpAttrs, covariant=True)
else:
    AttrsT = TypeVar("AttrsT", bound=OpAttrs, covariant=True)

Dim = int | str | None
Array = npt.NDArray[np.generic]

PACKING = 1
"""Version of packed constants; incremented when a packed form changes without a new name."""

USAGE, TRAINABLE = "mnn.usage", "mnn.trainable"
"""Keys of model properties: the purpose (such as "TRAIN"), and a JSON list of the constants that
training changes.
"""

QUANTIZATION, SIGNATURES = "tflite.quantization", "tflite.signatures"
"""Properties of models: quantisation of inputs and outputs, and signatures of a TFLite file.

Both are JSON; the former has scales, zero points and their axis by the names of inputs and outputs.
"""

MAX_PLANNED_SIZES = 64
"""Maximum number of size combinations that a session plans when it opens."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, element type and shape of a tensor.

    `shape` is None when even the rank is unknown; a dimension is an int, a symbol's name (`"N"`),
    or None when it is unknown and unnamed. After shape computation all dimensions are ints.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...] | None

    @property
    def is_static(self) -> bool:
        """True when every dimension is an int."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the shape of a static tensor.

        Raises:
            ModelError: the shape is not static.
        """
        # Planning asks several times per op. sum() runs in C, and returns an int only for ints.
        shape: Any = self.shape
        static: tuple[int, ...] = shape
        try:
            if type(sum(shape)) is int:
                return static
        except TypeError:
            pass
        if shape is not None and all(isinstance(dim, int) for dim in shape):
            return static  # probes are ints of a subclass, and so are their sums
        raise ModelError(f"tensor '{self.name}' has no static shape: {self.shape}")


@dataclass(slots=True)
class Op(Generic[AttrsT]):
    """One operator: type, attributes, input and output tensor names ("" = optional and absent).

    Code for a specific op type uses `Op[ConvolutionAttrs]`, for example; `Graph.validate` checks
    the class.

    `name` is unique in the graph; `source` lists the model's nodes it came from, for messages.
    """

    type: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attrs: AttrsT
    source: str = ""

    @property
    def kernel(self) -> str:
        """Registry key of kernels: the type, or a name that the attributes derive from it."""
        return self.attrs.kernel_of(self.type)


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Metadata from a model file; missing strings are empty.

    `properties` are exporter-specific: class names, strides, the version of a tokenizer.
    """

    producer: str = ""
    domain: str = ""
    version: int = 0
    description: str = ""
    graph_name: str = ""
    graph_description: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def check_attrs(op: Op) -> None:
    """Check that an op carries attributes of the class declared for its type.

    Raises:
        ModelError: they are of another class.
    """
    declared = OP_TYPES.get(op.type)
    if declared is not None and not isinstance(op.attrs, declared.attrs):
        raise ModelError(
            f"attributes are {type(op.attrs).__name__}, not {declared.attrs.__name__}",
            op=op.type,
            node=op.name,
            hint="build the op with the attribute class that OP_TYPES names",
        )


@dataclass(frozen=True, slots=True, eq=False)
class PackedForm:
    """A constant in the packed form that a device's kernels read, created ahead of sessions.

    Attributes:
        source: name of the constant in the graph.
        form: the packing and the floats' element; identifies the result together with the constant.
        packed: the words.
        device: the device that the form was chosen for.
    """

    source: Array
    form: str
    packed: Array
    device: str


@dataclass(frozen=True, slots=True, eq=False)
class GraphState:
    """State that a session keeps between runs: an output that becomes an input of the next run.

    Attributes:
        input: the input that receives the value.
        output: the output that provides the next value.
        initial: its value before the first run.
    """

    input: str
    output: str
    initial: Array


@dataclass(slots=True)
class Graph:
    """A network: ops in topological order over named tensors.

    `constants` maps tensor names to arrays; an op may read graph inputs, constants and outputs of
    earlier ops. `infos` holds the model's declarations of intermediate tensors (may be empty),
    `overridable` the constants that the model offers as inputs with a default value, `types` the
    ONNX types of inputs and outputs whose element type is OBJECT: "seq(tensor(float))".
    `planned_sizes` are the sizes of named dimensions that sessions plan when they open; `tuned`
    holds the fastest measured kernels, by choice, for each measured device. `packed` holds
    constants in packed form, which saves sessions the packing. `states` are inputs and outputs that
    sessions carry from one run to the next.
    """

    name: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    ops: list[Op] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    infos: dict[str, TensorInfo] = field(default_factory=dict)
    overridable: list[TensorInfo] = field(default_factory=list)
    metadata: ModelMetadata = field(default_factory=ModelMetadata)
    types: dict[str, str] = field(default_factory=dict)
    planned_sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tuned: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    packed: Sequence[PackedForm] = ()
    states: Sequence[GraphState] = ()

    def copy(self) -> Graph:
        """Return a copy that shares the arrays of constants."""
        return replace(
            self,
            inputs=list(self.inputs),
            outputs=list(self.outputs),
            ops=[replace(op, inputs=list(op.inputs), outputs=list(op.outputs)) for op in self.ops],
            constants=dict(self.constants),
            infos=dict(self.infos),
        )

    def with_input_shapes(self, shapes: Mapping[str, tuple[Dim, ...]]) -> Graph:
        """Return the graph with other input shapes; sizes inside it are recomputed."""

        def unsized(info: TensorInfo) -> TensorInfo:
            return replace(info, shape=None)

        return replace(
            self,
            inputs=[replace(info, shape=shapes.get(info.name, info.shape)) for info in self.inputs],
            outputs=[unsized(info) for info in self.outputs],
            infos={name: unsized(info) for name, info in self.infos.items()},
            planned_sizes={},
        )

    @property
    def is_for_training(self) -> bool:
        """Whether the model's file declares it as a training model."""
        return self.metadata.properties.get(USAGE) == "TRAIN"

    @property
    def trainable(self) -> frozenset[str]:
        """The constants that training updates (MNN's TrainableParam), from the model's file."""
        try:
            names = json.loads(self.metadata.properties.get(TRAINABLE, "[]"))
        except ValueError:
            return frozenset()
        listed = names if isinstance(names, list) else []
        return frozenset(name for name in listed if isinstance(name, str))

    @property
    def quantization(self) -> dict[str, tuple[float, int]]:
        """Scale and zero point of quantised inputs and outputs, according to the model's file."""
        try:
            listed = json.loads(self.metadata.properties.get(QUANTIZATION, "{}"))
            return {
                str(name): (float(scales[0]), int(zeros[0]))
                for name, (scales, zeros, _) in listed.items()
                if len(scales) == 1
            }
        except (ValueError, TypeError, AttributeError, IndexError):
            return {}

    def producers(self) -> dict[str, Op]:
        """Map each produced tensor to its op."""
        return {name: op for op in self.ops for name in op.outputs if name}

    def consumers(self) -> dict[str, list[Op]]:
        """Map each tensor to the ops that read it, in order, once per reading input."""
        readers: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in op.inputs:
                if name:
                    readers.setdefault(name, []).append(op)
        return readers

    def output_names(self) -> set[str]:
        """Return the names of the graph's outputs."""
        return {info.name for info in self.outputs}

    def unique_name(self, base: str) -> str:
        """Return `base`, or `base_1`, `base_2`, … if a tensor or op of that name exists."""
        taken = set(self._names())
        name, count = base, 0
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        return name

    def _names(self) -> Iterator[str]:
        yield from self.constants
        for info in self.inputs:
            yield info.name
        for op in self.ops:
            yield op.name
            yield from op.outputs

    def validate(self) -> None:
        """Check names, order, op types and arity.

        Raises:
            ModelError: an unknown op type, a wrong number of inputs, a tensor that is read before
                it is produced or produced twice, or an output that nothing produces.
        """
        known = set(self.constants) | {info.name for info in self.inputs}
        for op in self.ops:
            op_type = OP_TYPES.get(op.type)
            if op_type is None:
                raise ModelError(f"unknown op type '{op.type}'", op=op.type, node=op.name)
            if not op_type.min_inputs <= len(op.inputs) <= op_type.max_inputs:
                raise ModelError(
                    f"{op.type} takes {op_type.min_inputs} to {op_type.max_inputs} inputs, "
                    f"got {len(op.inputs)}",
                    op=op.type,
                    node=op.name,
                )
            check_attrs(op)
            for name in op.inputs:
                if name and name not in known:
                    raise ModelError(
                        f"input '{name}' is not produced by anything before",
                        op=op.type,
                        node=op.name,
                        hint="the graph is unsorted, has a cycle, or misses a tensor",
                    )
            for name in op.outputs:
                if name in known:
                    raise ModelError(f"tensor '{name}' is produced twice", op=op.type, node=op.name)
                if name:
                    known.add(name)
        for info in self.outputs:
            if info.name not in known:
                raise ModelError(f"output '{info.name}' is not produced by any op")
        self._validate_states()

    def _validate_states(self) -> None:
        inputs, outputs = ({info.name: info for info in one} for one in (self.inputs, self.outputs))
        for number, state in enumerate(self.states):
            info = inputs.get(state.input)
            if (
                info is None
                or info.dtype is not DType.from_numpy(state.initial.dtype)
                or info.shape != state.initial.shape
                or state.output not in outputs
            ):
                raise ModelError(f"state '{state.input}' is not an input and an output that fit")
            if any(state.input == other.input for other in self.states[:number]):
                raise ModelError(f"state '{state.input}' is declared twice")

    def without_states(self, infos: Sequence[TensorInfo]) -> list[TensorInfo]:
        """Return the inputs or outputs that are not states."""
        hidden = {name for state in self.states for name in (state.input, state.output)}
        return [info for info in infos if info.name not in hidden]
