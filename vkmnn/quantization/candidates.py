"""Quantised forms of a model, which differ in the nodes that stay in float."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from vkmnn.base.records import dataclass
from vkmnn.quantization import model as models
from vkmnn.quantization import tools
from vkmnn.quantization.accuracy import Reference, measure
from vkmnn.quantization.equalise import equalised
from vkmnn.quantization.packing import CachedPack, Pack, pack_weights
from vkmnn.quantization.remaining import split_nodes
from vkmnn.quantization.report import FloatNode, Progress
from vkmnn.quantization.sample_list import Samples
from vkmnn.quantization.scheme import Scheme

if TYPE_CHECKING:
    import onnx

_TRIED = 16
"""Samples on which equalised ranges of channels are tried, at most."""
_WIDE = 1e4  # from here on, steps of 8 bits are too large
_MOVING = frozenset(
    {
        *("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather"),
        *("MaxPool", "Relu", "Clip", "Pad", "Expand", "Tile", "SpaceToDepth", "DepthToSpace"),
    }
)
"""Operators that pass values on: whether they are quantised follows from their inputs."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A node that can be quantised, and the bytes of its weights in float."""

    name: str
    op: str
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A quantised model, and its nodes."""

    proto: onnx.ModelProto
    quantized: tuple[str, ...]
    in_float: tuple[FloatNode, ...]


class Quantiser(ABC):
    """Creates quantised forms of one model.

    Args:
        proto: the float model, with its data and with names of nodes.
        scheme: how weights and activations are stored.
    """

    def __init__(self, proto: onnx.ModelProto, scheme: Scheme) -> None:
        self.proto, self.scheme = proto, scheme

    @abstractmethod
    def make(self, left: Mapping[str, str], progress: Progress) -> Candidate:
        """Return the model with all nodes quantised but some.

        Args:
            left: names of nodes that stay in float, and why.
            progress: called with the steps.
        """

    def layers(self, full: Candidate) -> list[Layer]:
        """Return the nodes that were quantised and compute something, in their order."""
        quantized = set(full.quantized)
        graphs = list(models.graphs_of(self.float_model.graph))
        sizes = {
            tensor.name: prod(tensor.dims) * (4 if tensor.data_type == 1 else 2)
            for graph in graphs
            for tensor in graph.initializer
            if tensor.data_type in models.FLOAT_TYPES
        }
        return [
            Layer(node.name, node.op_type, sum(sizes.get(name, 0) for name in node.input))
            for graph in graphs
            for node in graph.node
            if node.name in quantized and (node.op_type not in _MOVING or _reads(node, sizes))
        ]

    @property
    def float_model(self) -> onnx.ModelProto:
        """The model whose nodes are quantised."""
        return self.proto


def _reads(node: onnx.NodeProto, sizes: Collection[str]) -> bool:
    return node.op_type == "Gather" and node.input[0] in sizes


class WeightQuantiser(Quantiser):
    """Quantises weights, in blocks or by channels; activations stay in float."""

    def __init__(self, proto: onnx.ModelProto, scheme: Scheme, pack: Pack) -> None:
        super().__init__(proto, scheme)
        self._pack = CachedPack(pack)

    def make(self, left: Mapping[str, str], progress: Progress) -> Candidate:
        """Return the model with packed weights."""
        import onnx

        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        excluded = {**dict.fromkeys(self.scheme.exclude, "excluded"), **left}
        quantized, in_float = pack_weights(proto, self.scheme, self._pack, progress, excluded)
        return Candidate(proto, tuple(quantized), tuple(in_float))


class StaticQuantiser(Quantiser):
    """Quantises weights and activations, by ranges that are measured once.

    Args:
        proto: the float model.
        scheme: how.
        samples: the samples for calibration.
        folder: a folder for models, since the tools pass these as files.
        progress: called after each sample.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        scheme: Scheme,
        samples: Samples,
        folder: Path,
        progress: Progress,
    ) -> None:
        super().__init__(proto, scheme)
        self._folder, self._external = folder, models.is_large(proto)
        plain, ready = folder / "float.onnx", folder / "ready.onnx"
        progress("preparing", 0, 1)
        models.save(proto, plain, self._external)
        tools.prepare(plain, ready, self._external)
        self._prepared = models.load(ready)
        models.save(self._prepared, ready, self._external)
        masks = tools.ranges(ready, folder, samples[0], self._external)
        self._left = _around_masks(self._prepared, masks) | self._excluded()
        ranges = tools.calibrate(ready, folder, scheme, samples, self._external, progress)
        self._ready, self._ranges = ready, ranges
        if scheme.per_channel and not self._external:
            self._equalise(samples)

    def _equalise(self, samples: Samples) -> None:
        """Equalise the ranges of channels if that makes the model more accurate."""
        few = samples.spread(_TRIED)
        proto = equalised(self._prepared, few, tools.opened)
        if proto is None:
            return
        with tools.opened(self._ready) as run:
            reference = Reference(run, few, _silent)
        before = self._ready, self._ranges, self._prepared
        error = self._error(reference)
        self._ready, self._prepared = self._folder / "equal.onnx", proto
        models.save(proto, self._ready, external=False)
        self._ranges = tools.calibrate(
            self._ready, self._folder, self.scheme, samples, False, _silent
        )
        if self._error(reference) >= error:
            self._ready, self._ranges, self._prepared = before

    def _error(self, reference: Reference) -> float:
        made = self.make({}, _silent)
        outputs = measure(made.proto, reference, self._folder).outputs
        return max((one.rms for one in outputs if one.rms is not None), default=0.0)

    @property
    def float_model(self) -> onnx.ModelProto:
        """The model after constants and normalisations have been folded."""
        return self._prepared

    def _excluded(self) -> dict[str, str]:
        """Return the excluded nodes; folded ones have another name, but the same output."""
        names = self.scheme.exclude
        outputs = {
            name for node in self.proto.graph.node if node.name in names for name in node.output
        }
        return {
            node.name: "excluded"
            for node in self._prepared.graph.node
            if node.name in names or outputs & {*node.output}
        }

    def make(self, left: Mapping[str, str], progress: Progress) -> Candidate:
        """Return the model with quantised weights and activations."""
        progress("quantising", 0, 1)
        excluded = {**self._left, **left}
        done = self._folder / "quantized.onnx"
        tools.quantize_static(
            self._ready, done, self.scheme, list(excluded), self._ranges, self._external
        )
        proto = models.load(done)
        quantized, in_float = split_nodes(proto, excluded, tools.quantizable())
        return Candidate(proto, tuple(quantized), tuple(in_float))


def _silent(what: str, done: int, total: int) -> None:
    """Ignore progress."""


def _around_masks(proto: onnx.ModelProto, ranges: Mapping[str, float]) -> dict[str, str]:
    """Return the nodes around values so large that 8 bits could represent nothing else."""
    wide = {name: largest for name, largest in ranges.items() if not largest < _WIDE}
    found = {}
    for node in proto.graph.node:
        largest = [wide[name] for name in (*node.input, *node.output) if name in wide]
        if largest:
            found[node.name] = (
                f"values of up to {max(largest):.1g}, as in masks, would leave no steps for others"
            )
    return found
