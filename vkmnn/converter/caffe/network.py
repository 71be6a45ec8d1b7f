"""A network of Caffe's as a model of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkmnn.base.budget import Meter
from vkmnn.converter.caffe import (  # noqa: F401 - they register readers
    activation,
    arithmetic,
    convolution,
    detection,
    movement,
    normalisation,
    pooling,
    recurrent,
)
from vkmnn.converter.caffe.files import Blob, CaffeFile
from vkmnn.converter.caffe.nodes import READERS, CaffeLayer
from vkmnn.converter.caffe.schema import Message
from vkmnn.converter.caffe.upgrade import layers_of
from vkmnn.converter.nodes import FLOAT, Reading, Scope, finish_model
from vkmnn.converter.onnx.model_file import ModelFile
from vkmnn.errors import ModelError
from vkmnn.ir import Dim, GraphState

_DATA = {
    "AnnotatedData", "Data", "DenseImageData", "HDF5Data", "ImageData", "MemoryData", "VideoData",
    "WindowData",
}  # fmt: skip
"""Layers that read files: their results are inputs."""

_ENDS = {"SoftmaxWithLoss": "Softmax", "SigmoidCrossEntropyLoss": "Sigmoid"}
"""Losses, and the functions that replace them if nothing else reads their scores."""

_DROPPED = {
    "Accuracy", "ContrastiveLoss", "DetectionEvaluate", "EuclideanLoss", "HDF5Output", "HingeLoss",
    "InfogainLoss", "MultiBoxLoss", "MultinomialLogisticLoss", "Silence", "SmoothL1Loss",
}  # fmt: skip
"""Layers without a role in inference."""

STRUCTURAL = frozenset({"Input", *_DATA, *_ENDS, *_DROPPED})
"""Layers without nodes."""

_UNREAD = {
    "Filter", "Im2col", "PSROIPooling", "PowerFile", "Proposal", "Python", "Region", "Reorg",
}  # fmt: skip
"""Layers of Caffe's and of forks that are listed as refused."""

_TEST = 1
_MOST_AXES = 32


def to_onnx(
    file: CaffeFile, meter: Meter, shapes: Mapping[str, tuple[Dim, ...]]
) -> tuple[ModelFile, list[GraphState]]:
    """Return an ONNX model of a network in phase TEST, and its states.

    Args:
        file: the network and its weights.
        meter: counts the layers.
        shapes: shapes of inputs that replace the file's.

    Raises:
        ModelError: the network contradicts itself.
        UnsupportedOpError: unsupported layers, all of which are listed.
    """
    reading = Reading("Caffe", meter)
    network = _Network(file, shapes)
    reading.count(len(network.layers))
    for number, proto in enumerate(network.layers):
        op = network.layer(number, proto)
        with reading.operator(op):
            network.read(op)
    reading.check()
    return network.finished(), network.states


def known_layers() -> dict[str, bool]:
    """Return the known types of layers, and whether they are supported."""
    return {name: name not in _UNREAD for name in (*STRUCTURAL, *READERS, *_UNREAD)}


class _Network:
    """Layers needed for inference, and the tensors of blobs.

    A layer may write the blob that it reads. The last tensor of a blob has its name.
    """

    def __init__(self, file: CaffeFile, shapes: Mapping[str, tuple[Dim, ...]]) -> None:
        self.file, self.shapes = file, shapes
        self.scope = Scope()
        layers = [layer for layer in layers_of(file.net) if _is_kept(layer, file.net.state)]
        self._blobs = _shared(layers, file.blobs)
        self._sources: dict[str, tuple[Message, int]] = {}
        for layer in layers:
            if layer.type == "Input" or layer.type in _DATA:
                self._sources |= {top: (layer, number) for number, top in enumerate(layer.top)}
        rest = [
            layer
            for layer in layers
            if layer.type not in _DROPPED and layer.type != "Input" and layer.type not in _DATA
        ]
        self.layers = _ended(rest)
        self.current: dict[str, str] = {}
        self.inputs: dict[str, tuple[int, Sequence[int | str | None]]] = {}
        self._last = {top: number for number, one in enumerate(self.layers) for top in one.top}
        self.scope.reserve([*self._sources, *self._last])
        self._unread: dict[str, str] = {}
        self._refused: set[str] = set()
        self.states: list[GraphState] = []

    def layer(self, number: int, proto: Message) -> CaffeLayer:
        """Return a layer with its tensors."""
        inputs = [self._tensor(blob, proto) for blob in proto.bottom]
        outputs = [
            blob
            if self._last[blob] == number and blob not in self.inputs
            else self.scope.fresh(blob)
            for blob in proto.top
        ]
        if len(set(proto.top)) != len(proto.top):
            raise ModelError("it writes a blob twice", op=proto.type, node=proto.name)
        blobs = self._blobs.get(proto.name, [])
        return CaffeLayer(self.scope, proto, inputs, outputs, blobs, self.file, self.states)

    def read(self, op: CaffeLayer) -> None:
        """Write a layer's nodes; of layers behind one that is refused, check only the type.

        Raises:
            UnreadableError: layers of its type, or this use of one, are not supported.
            ModelError: the layer contradicts itself.
        """
        for blob in op.proto.bottom:
            self._unread.pop(blob, None)
        for blob, name in zip(op.proto.top, op.outputs, strict=True):
            self.current[blob] = self._unread[blob] = name
        behind = not self._refused.isdisjoint(op.inputs)
        self._refused.update(op.outputs)
        if op.type == "Python":
            python = op.proto.python_param
            raise op.unreadable(
                f"it runs the class {python.module}.{python.layer} of Python code, which is not in "
                "the file"
            )
        if behind and op.type in READERS:
            return
        READERS.read(op)
        self._refused.difference_update(op.outputs)

    def _tensor(self, blob: str, proto: Message) -> str:
        """Return the current tensor of a blob; an input if a data layer produces it."""
        if blob in self.current:
            return self.current[blob]
        if blob not in self._sources:
            raise ModelError(
                f"it reads the blob '{blob}', which no layer before it writes",
                op=proto.type,
                node=proto.name,
            )
        source, number = self._sources[blob]
        shape = self.shapes.get(blob) or _input_shape(source, number, self.layers, self._blobs)
        named = [f"{blob}_{axis}" if dim is None else dim for axis, dim in enumerate(shape)]
        self.inputs[blob] = FLOAT, named
        self.scope.types[blob] = FLOAT
        self.scope.shapes[blob] = tuple(dim if isinstance(dim, int) else None for dim in shape)
        self.current[blob] = blob
        return blob

    def finished(self) -> ModelFile:
        """Return the model: its outputs are the blobs that nothing reads."""
        outputs = list(self._unread.values())
        if not outputs:
            raise ModelError("the network computes nothing: no blob is an output")
        inputs = {one.input: (FLOAT, one.initial.shape) for one in self.states}
        outputs += [one.output for one in self.states]
        name = self.file.net.name or self.file.name
        return finish_model(self.scope, self.inputs | inputs, outputs, name, "Caffe")


def _is_kept(layer: Message, state: Message) -> bool:
    """Return whether a layer belongs to the network in the phase TEST."""
    if layer.include:
        return any(_meets(rule, state) for rule in layer.include)
    return not any(_meets(rule, state) for rule in layer.exclude)


def _meets(rule: Message, state: Message) -> bool:
    return (
        (not rule.HasField("phase") or rule.phase == _TEST)
        and (not rule.HasField("min_level") or state.level >= rule.min_level)
        and (not rule.HasField("max_level") or state.level <= rule.max_level)
        and set(rule.stage) <= set(state.stage)
        and not set(rule.not_stage) & set(state.stage)
    )


def _ended(layers: list[Message]) -> list[Message]:
    """Replace losses by their activation if nothing else reads the scores, else drop them."""
    read = {blob for layer in layers if layer.type not in _ENDS for blob in layer.bottom}
    found = []
    for layer in layers:
        kind = _ENDS.get(layer.type)
        if kind is not None:
            if not layer.bottom or layer.bottom[0] in read:
                continue
            ending = type(layer)()
            ending.CopyFrom(layer)
            ending.type = kind
            del ending.bottom[1:]
            del ending.top[1:]
            if not ending.top:
                ending.top.append(layer.name)
            layer = ending
        found.append(layer)
    return found


def _shared(layers: Sequence[Message], blobs: Mapping[str, list[Blob]]) -> dict[str, list[Blob]]:
    """Return the weights by layer; a layer without any has those of its parameters' names."""
    found = dict(blobs)
    owners: dict[str, Blob] = {}
    for layer in layers:
        own = found.get(layer.name, [])
        owners = {
            spec.name: blob for spec, blob in zip(layer.param, own, strict=False) if spec.name
        } | owners
        names = [spec.name for spec in layer.param]
        if not own and names and all(name in owners for name in names):
            found[layer.name] = [owners[name] for name in names]
    return found


def _input_shape(
    source: Message, number: int, layers: Sequence[Message], blobs: Mapping[str, list[Blob]]
) -> list[int | None]:
    """Return the declared shape of a data layer; None for open sizes."""
    if source.type == "Input":
        return _stated(source, number)
    memory = source.memory_data_param
    stated = [
        memory.batch_size
        or source.data_param.batch_size
        or source.image_data_param.batch_size
        or source.hdf5_data_param.batch_size,
    ]
    if number == 0:
        crop = source.transform_param.crop_size
        channels = memory.channels or _channels(source.top[0], layers, blobs)
        stated += [channels, memory.height or crop, memory.width or crop]
    return [size or None for size in stated]


def _stated(source: Message, number: int) -> list[int | None]:
    """Return the shape that an Input layer states: one for each of its tops, or one for all."""
    shapes = source.input_param.shape
    if len(shapes) not in (1, len(source.top)):
        raise ModelError(
            f"it states {len(shapes)} shapes for {len(source.top)} inputs",
            op="Input",
            node=source.name,
        )
    shape = list(shapes[number if len(shapes) > 1 else 0].dim)
    if len(shape) > _MOST_AXES or min(shape, default=1) < 1:
        raise ModelError(f"an input of shape {shape}", op="Input", node=source.name)
    return list(shape)


def _channels(blob: str, layers: Sequence[Message], blobs: Mapping[str, list[Blob]]) -> int:
    """Return how many channels the first convolution of a blob reads; 0 if there is none."""
    for layer in layers:
        if blob in layer.bottom and layer.type == "Convolution":
            weights = blobs.get(layer.name)
            if weights and len(weights[0].shape) == 4:
                return weights[0].shape[1] * int(layer.convolution_param.group)
    return 0
