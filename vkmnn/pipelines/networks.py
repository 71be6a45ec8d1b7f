"""The networks of a pipeline: loaded, described, and run on images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, ModelFileError, plural
from vkmnn.inference_session import InferenceSession, NodeArg
from vkmnn.opening import Network, load_network
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.description import Description, describe
from vkmnn.pipelines.image_processor import ImageProcessor
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.picture_input import COMPANIONS, PictureInput, picture_input
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Placed
from vkmnn.sources.locate import locate

Model = Any
"""A path, serialised bytes, an onnx.ModelProto, or an InferenceSession."""

_MODELS = (".onnx", ".vkmnn", ".mnn", ".tflite", ".pb", ".caffemodel", ".ort")
PROBE = (320, 320)
"""Image size for probing networks of dynamic size."""
Outputs = Mapping[str, Array]

_PREFERRED = ("model.onnx", "onnx/model.onnx")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A network that has been read but not opened, to decide how to open it.

    Attributes:
        network: the network, without optimisation.
        about: what its files say.
        inputs: its inputs, as sessions describe them.
        outputs: its outputs.
    """

    network: Network
    about: Description
    inputs: Sequence[NodeArg]
    outputs: Sequence[NodeArg]


def local_file(model: str | Path) -> Path:
    """Return the local file of a network; Hub names and URLs are downloaded.

    Raises:
        ModelFileError: there is none, or several.
    """
    path = locate(str(model)).path
    if not path.is_dir():
        return path
    for name in _PREFERRED:
        if (path / name).is_file():
            return path / name
    found = sorted(
        file
        for folder in (path, path / "onnx")
        if folder.is_dir()
        for file in folder.iterdir()
        if file.suffix in _MODELS
    )
    if len(found) == 1:
        return found[0]
    names = ", ".join(file.name for file in found[:8]) or "no model"
    raise ModelFileError(f"'{path}' holds {names}", hint="give the path of one file")


def load(model: Model, options: Options) -> Loaded:
    """Read a network and its description.

    Raises:
        ModelError: the file is missing, damaged or not a model.
    """
    path = local_file(model) if isinstance(model, str | Path) else None
    network = load_network(
        model if path is None else path,
        options.budget,
        shapes=options.input_shapes,
        optimised=False,
        unsupported=options.unsupported,
    )
    graph = network.source
    about = describe(path, graph.metadata.properties, graph.name or "the model")
    by = graph.quantization

    def arg(info: Any) -> NodeArg:
        shape = None if info.shape is None else list(info.shape)
        kind = graph.types.get(info.name, info.dtype.onnx)
        return NodeArg(info.name, kind, shape, info.dtype.value, by.get(info.name))

    inputs = [arg(info) for info in graph.inputs]
    return Loaded(network, about, inputs, [arg(info) for info in network.outputs])


def open_session(
    loaded: Loaded, options: Options, graph: Any = None, **shapes: Any
) -> InferenceSession:
    """Open a session on a loaded network, or on a graph derived from it."""
    model: Any = loaded.network.source if graph is None else graph
    return InferenceSession(
        model,
        options.device,
        precision=options.precision,
        budget=options.budget,
        unsupported=options.unsupported,
        driver=options.driver,
        validation=options.validation,
        on_overflow=options.on_overflow,
        **shapes,
    )


def probed_outputs(loaded: Loaded, processor: ImageProcessor, options: Options) -> Outputs:
    """Return the outputs for a black image, to learn shapes that the model leaves dynamic."""
    pixels = np.zeros((*(processor.fit.size or PROBE), 3), np.uint8)
    network = PictureNetwork(loaded, processor, options)
    try:
        picture = Picture(pixels)
        placed = network.processor.placed(picture)
        count = network.batch or 1
        return network.run(network.feeds([picture] * count, [placed] * count, {}))
    finally:
        network.close()


class PictureNetwork:
    """An image network with its processor.

    Args:
        loaded: the network.
        processor: its preprocessing.
        options: device and settings of the session.

    Attributes:
        taken: its image input.
        processor: its preprocessing.
        session: the open session.
    """

    def __init__(self, loaded: Loaded, processor: ImageProcessor, options: Options) -> None:
        self.taken = input_of(loaded)
        if self.taken.channels == 1:
            processor = replace(processor, channels="grey")
        for name, values in (("mean", processor.mean), ("std", processor.std)):
            if len(values) not in (1, self.taken.channels):
                raise InvalidInputError(
                    f"there are {len(values)} numbers for {name}, but images have "
                    f"{plural(self.taken.channels, 'channel')}",
                    hint="give one number, or one per channel: --mean and --std",
                )
        self.processor = processor
        self.about = loaded.about
        self._others = [arg for arg in loaded.inputs if arg.name != self.taken.name]
        self._place = options.preprocess
        floats = np.dtype(self.taken.dtype).kind == "f"
        if not floats or (self._place == "auto" and self.taken.layout[0] != "n"):
            self._place = "host"
        if self._place == "host":
            self.session = open_session(loaded, options)
        else:
            from vkmnn.pipelines import front

            resizes = self._place == "device"
            if resizes and not front.can_resize(processor):
                raise InvalidInputError(
                    f'preprocess="device" has no filter "{processor.filter}"',
                    hint='use "auto", which resizes on the host',
                )
            graph = front.with_front(loaded.network.source, self.taken, processor, resizes)
            self.session = open_session(loaded, options, graph)
        self.outputs = [arg.name for arg in self.session.get_outputs()]

    @property
    def batch(self) -> int | None:
        """Images per run; None if any number is allowed."""
        return 1 if self._place == "device" else self.taken.batch

    def feeds(
        self, pictures: Sequence[Picture], placed: Sequence[Placed], more: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return the inputs of a run.

        Args:
            pictures: at most `batch` images, all placed equally.
            placed: their placements.
            more: values of other inputs.
        """
        feeds = {**self._companions(placed, more), **more}
        if self._place == "device":
            from vkmnn.pipelines import front

            whole = self.processor.ordered(pictures[0].pixels)[None]
            feeds |= front.placing_feeds(placed[0], self.taken.channels)
            return feeds | {front.PICTURES: np.ascontiguousarray(whole)}
        pixels = np.stack(
            [self.processor.pixels(one, where) for one, where in zip(pictures, placed, strict=True)]
        )
        if self._place == "auto":
            from vkmnn.pipelines.front import PICTURES

            return feeds | {PICTURES: pixels}
        return feeds | {self.taken.name: self._converted(pixels)}

    def _converted(self, pixels: Array) -> Array:
        if self.taken.is_raw:
            values = pixels.astype(self.taken.dtype, copy=False)
        else:
            values = self.taken.cast(self.processor.normalised(pixels))
        return self.taken.arranged(values)

    def _companions(self, placed: Sequence[Placed], more: Mapping[str, Array]) -> dict[str, Array]:
        others = [arg for arg in self._others if arg.name not in more]
        unknown = [arg for arg in others if arg.name not in COMPANIONS]
        if unknown:
            raise OtherInputsError(unknown)
        return {arg.name: COMPANIONS[arg.name](placed, arg) for arg in others}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network and return its outputs by name."""
        return dict(zip(self.outputs, self.session.run(None, feeds), strict=True))

    def submit(self, feeds: Mapping[str, Array]) -> Future[list[Array]]:
        """Start a run; its result is the list of outputs in order."""
        return self.session.submit(feeds)

    def close(self) -> None:
        """Release the session."""
        self.session.close()


class OtherInputsError(InvalidInputError):
    """A network has further inputs, whose values are not known.

    Args:
        args: the inputs.
    """

    def __init__(self, args: Sequence[NodeArg]) -> None:
        self.names = [arg.name for arg in args]
        listed = ", ".join(f"{arg.name} {arg.shape}" for arg in args)
        values = ", ".join(f"'{name}': array" for name in self.names)
        super().__init__(
            f"the network has other inputs, whose values are unknown: {listed}",
            hint=f"give them: feeds={{{values}}}",
        )


class NoPicturesError(InvalidInputError):
    """A network has no image input."""


def input_of(loaded: Loaded) -> PictureInput:
    """Return the image input.

    Raises:
        NoPicturesError: there is none.
    """
    taken = picture_input(loaded.inputs)
    if taken is None:
        shapes = ", ".join(f"{arg.name} {arg.shape}" for arg in loaded.inputs)
        raise NoPicturesError(
            f"'{loaded.about.name}' has no image input: {plural(len(loaded.inputs), 'input')} "
            f"({shapes})",
            hint="run it on arrays: vkmnn.load(model), or vkmnn run model -i x=x.npy",
        )
    return taken
