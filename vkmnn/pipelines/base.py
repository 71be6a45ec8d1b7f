"""Base classes: `Pipeline` for all pipelines, `PicturePipeline` for those on images."""

from __future__ import annotations

import glob
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from vkmnn.base.closing import Closing
from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.description import Description, label_names, read_labels
from vkmnn.pipelines.films import frames_of
from vkmnn.pipelines.image_processor import ImageProcessor
from vkmnn.pipelines.networks import Loaded, PictureNetwork, input_of
from vkmnn.pipelines.options import Check, Options, checked_settings
from vkmnn.pipelines.picture_input import PictureInput
from vkmnn.pipelines.pictures import Picture, read_picture
from vkmnn.pipelines.placing import Placed
from vkmnn.pipelines.reading_processors import processor_of
from vkmnn.pipelines.results.result import Result

if TYPE_CHECKING:
    pass

ResultT = TypeVar("ResultT", bound=Result[Any])
Settings = Mapping[str, Any]

_IN_FLIGHT = 2
"""Runs in flight while the next images are read."""


@dataclass(frozen=True, slots=True)
class _Group:
    """The images of one run, their placements, their inputs, and how many are not padding."""

    pictures: Sequence[Picture]
    placed: Sequence[Placed]
    feeds: Mapping[str, Array]
    count: int


class Pipeline(Closing, ABC):
    """One or several networks with pre- and postprocessing; created by `vkmnn.pipeline`.

    Args:
        options: the options.

    Attributes:
        task: the name of the task.
        own: names of the task's specific options.
        checks: checks of options whose names have another meaning in other tasks.
        sequential: whether results depend on the previous images, as for the frames of a video.
        settings: settings that calls may override: names and defaults.
        notes: sentences on guessed properties.
        about: the description of its network.
    """

    task: ClassVar[str] = ""
    own: ClassVar[tuple[str, ...]] = ()
    checks: ClassVar[Mapping[str, Check]] = {}
    sequential: ClassVar[bool] = False
    settings: Mapping[str, Any]
    about: Description

    @classmethod
    def variant(cls, loaded: Any) -> type[Pipeline]:
        """Return the class for a network: a task may have several."""
        del loaded
        return cls

    def __init__(self, options: Options) -> None:
        self.options = options
        self.notes: list[str] = []
        self.settings = {}
        self._exclusive = threading.Lock()

    def guess(self, what: str, flags: str) -> None:
        """Record a guess, and the options that override it."""
        self.note(f"{what}; choose with {flags}")

    def note(self, text: str) -> None:
        """Record a sentence that users should know, and tell it."""
        self.notes.append(text)
        self.options.tell(text)

    def names(self, classes: int, known: Mapping[int, Sequence[str]] | None = None) -> list[str]:
        """Return the labels: from the options or files, or of a data set with as many classes.

        Args:
            classes: the network's number of classes; 0 if unknown.
            known: the labels of data sets by number of classes.
        """
        given = self.options.labels
        if given is not None:
            names = read_labels(Path(given)) if isinstance(given, str | Path) else given
            return list(label_names(list(names)))
        found, _ = self.about.labels()
        if found:
            return list(found)
        guessed = (known or {}).get(classes)
        if guessed is not None:
            shown = ", ".join([name for name in guessed if name][:2])
            self.guess(f"no file names the classes: {shown}, … are assumed", "--labels FILE")
            return list(guessed)
        if classes > 1:
            self.guess(f"no file names the {classes} classes: numbers are shown", "--labels FILE")
        return []

    def chosen(self, given: Settings) -> Settings:
        """Return the settings of one call.

        Raises:
            InvalidInputError: a name is not known.
        """
        for name in given:
            if name not in self.settings:
                hint = nearest(name, self.settings, "settings")
                raise InvalidInputError(f"'{self.task}' has no setting '{name}'", hint=hint)
        return {**self.settings, **checked_settings(given, self.checks)}

    @abstractmethod
    def __call__(self, inputs: Any, **settings: Any) -> Any:
        """Return the result for an input, or a list of results for a list of inputs."""

    def alike(self, picture: Picture) -> Hashable:
        """Return a key; `together` can run images with equal keys at once."""
        del picture
        return None

    def together(self, pictures: Sequence[Picture]) -> list[Any]:
        """Return the result for each image; threads may call it at once.

        Args:
            pictures: images with equal keys (`alike`), at most as many as run at once.
        """
        with self._exclusive:
            return [self(one) for one in pictures]

    @abstractmethod
    def close(self) -> None:
        """Release device memory; the pipeline cannot be used afterwards."""

    @property
    @abstractmethod
    def device(self) -> str:
        """The name of the device."""

    def __repr__(self) -> str:
        """Return task and device."""
        return f"<vkmnn.pipeline '{self.task}' on {self.device}>"


class PicturePipeline(Pipeline, Generic[ResultT]):
    """A pipeline with one image network.

    Args:
        loaded: the network.
        options: the options.
    """

    usual: ClassVar[ImageProcessor] = ImageProcessor()
    """Default preprocessing, if no file describes one."""

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(options)
        self.about = loaded.about
        self.loaded = loaded
        self.network = PictureNetwork(loaded, self.choose_processor(loaded), options)

    @property
    def device(self) -> str:
        """The name of the device."""
        return self.network.session.device.name

    # --- preprocessing
    # ------------------------------------------------------------------------------

    def usual_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return the default processor for a network whose files describe none."""
        del loaded
        return self.usual

    def choose_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return the processor from the files, or else the default, with the options applied."""
        options, taken = self.options, input_of(loaded)
        found = processor_of(loaded.about)
        made = found[0] if found else self.usual_processor(loaded)
        if taken.is_raw:
            made = replace(made, scale=1.0, mean=(0.0,), std=(1.0,))
        elif found is None and taken.quantization is not None:
            made = _as_bytes(made, taken)
        if found is None and taken.channels == 1:
            made = _in_grey(made)
        wanted = options.size or taken.size
        if wanted is None and made.fit.size and (taken.height or taken.width):  # one side is open
            wanted = taken.height or made.fit.size[0], taken.width or made.fit.size[1]
        if options.size and taken.size and options.size != taken.size:
            raise InvalidInputError(
                f"the network takes only images of {taken.size[0]}×{taken.size[1]}",
                hint="leave out size, or export the network with dynamic sizes",
            )
        if wanted:
            made = _resized(made, wanted)
        if found is None and (None in (options.mean, options.std) or not wanted):
            self.guess(f"no file describes the preprocessing; images are {_described(made)}",
                       "--size, --mean, --std and --channels")  # fmt: skip
        changed: dict[str, Any] = {}
        if options.channels:
            changed["channels"] = options.channels
        if options.mean or options.std:
            changed |= _normalisation(options, made)
        return replace(made, **changed)

    # --- runs -----------------------------------------------------------------------------------

    def __call__(self, inputs: Any, **settings: Any) -> Any:
        """Return the result for an image, or a list of results for several images.

        Args:
            inputs: a path, bytes, a PIL image, an array [height, width, 3]; a list of these, a
                folder of images, or a pattern: "photos/*.jpg".
            settings: see `settings`.

        Raises:
            InvalidInputError: an image cannot be read, or a setting is not known.
        """
        chosen = self.chosen(settings)
        several = listed(inputs)
        if several is None:
            return next(self._flow([read_picture(inputs)], chosen))
        return list(self._flow(map(read_picture, several), chosen))

    @property
    def is_plain(self) -> bool:
        """Whether an image takes a single run without further inputs."""
        return type(self)._flow is PicturePipeline._flow

    def alike(self, picture: Picture) -> Hashable:
        """Return a key; `together` can run images with equal keys at once: their prepared size."""
        return self.network.processor.placed(picture).canvas if self.is_plain else None

    def together(self, pictures: Sequence[Picture]) -> list[ResultT]:
        """Return the result for each image; threads may call it at once."""
        if not self.is_plain:
            return super().together(pictures)
        chosen, most = self.chosen({}), self.network.batch or len(pictures)
        runs = []
        for start in range(0, len(pictures), most):
            group = self._prepared(list(pictures[start : start + most]), chosen)
            runs.append((self.network.submit(group.feeds), group))
        for future, _ in runs:
            future.exception()  # wait before taking the lock
        with self._exclusive:
            return [one for run in runs for one in self._finished(*run, chosen)]

    def stream(self, source: Any, **settings: Any) -> Iterator[ResultT]:
        """Yield the results for the frames of a video, a camera, or any iterable of images.

        The next frame is read while the device works on the current one.

        Args:
            source: the path of a video or an animated image, the number of a camera, or an iterable
                of images.
            settings: as for a call.

        Raises:
            MissingExtraError: videos and cameras take the package `av`.
        """
        return self._flow(frames_of(source), self.chosen(settings))

    def _flow(self, pictures: Iterable[Picture], chosen: Settings) -> Iterator[ResultT]:
        """Run images in groups, several of them in flight."""
        waiting: deque[tuple[Future[list[Array]], _Group]] = deque()
        for group in self._groups(pictures, chosen):
            waiting.append((self.network.submit(group.feeds), group))
            if len(waiting) > _IN_FLIGHT:
                yield from self._finished(*waiting.popleft(), chosen)
        while waiting:
            yield from self._finished(*waiting.popleft(), chosen)

    def _finished(
        self, future: Future[list[Array]], group: _Group, chosen: Settings
    ) -> list[ResultT]:
        outputs = dict(zip(self.network.outputs, future.result(), strict=True))
        return self.results(outputs, group.pictures, group.placed, chosen)[: group.count]

    def _groups(self, pictures: Iterable[Picture], chosen: Settings) -> Iterator[_Group]:
        """Yield groups of equally placed images, as many as the network or the options allow."""
        most = self.network.batch or self.options.batch
        group: list[Picture] = []
        for picture in pictures:
            if group and not self._alike(group[0], picture):
                yield self._prepared(group, chosen)
                group = []
            group.append(picture)
            if len(group) == most:
                yield self._prepared(group, chosen)
                group = []
        if group:
            yield self._prepared(group, chosen)

    def _alike(self, one: Picture, other: Picture) -> bool:
        processor = self.network.processor
        return processor.placed(one).canvas == processor.placed(other).canvas

    def _prepared(self, pictures: list[Picture], chosen: Settings) -> _Group:
        """Prepare a run; for a network with a fixed batch, the last image is repeated."""
        count = len(pictures)
        pictures = pictures + [pictures[-1]] * ((self.network.batch or count) - count)
        placed = [self.network.processor.placed(one) for one in pictures]
        return _Group(pictures, placed, self._feeds(pictures, placed, chosen), count)

    def _feeds(
        self, pictures: Sequence[Picture], placed: Sequence[Placed], chosen: Settings
    ) -> dict[str, Array]:
        more = self.options.take("feeds", {})
        arrays = {name: np.asarray(value) for name, value in dict(more).items()}
        return self.network.feeds(pictures, placed, {**arrays, **self.more_feeds(chosen, placed)})

    def feeds(self, pictures: Sequence[Any]) -> dict[str, Array]:
        """Return the network's inputs for images, as a call passes them; nothing runs.

        Args:
            pictures: what a call takes, at most as many as the network runs at once.

        Raises:
            InvalidInputError: an image cannot be read.
        """
        read = [self.part(read_picture(one)) for one in pictures]
        return dict(self._prepared(read, self.chosen({})).feeds)

    def part(self, picture: Picture) -> Picture:
        """Return the part of an image that runs at once: all of it, unless it runs in tiles."""
        return picture

    def more_feeds(self, chosen: Settings, placed: Sequence[Placed]) -> dict[str, Array]:
        """Return the values of the network's other inputs: prompts, for example."""
        del chosen, placed
        return {}

    @abstractmethod
    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[ResultT]:
        """Return the result for each image of a run."""

    def close(self) -> None:
        """Release device memory; the pipeline cannot be used afterwards."""
        self.network.close()


def listed(inputs: Any) -> list[Any] | None:
    """Return several inputs, a folder or a pattern as a list; None for a single input."""
    if isinstance(inputs, list | tuple):
        return list(inputs)
    if isinstance(inputs, str | Path) and "://" not in str(inputs) and Path(inputs).is_dir():
        from vkmnn.base.media import PICTURES, has_suffix

        found = sorted(one for one in Path(inputs).iterdir() if has_suffix(one, PICTURES))
        if not found:
            raise InvalidInputError(f"the folder '{inputs}' contains no images")
        return list(found)
    if isinstance(inputs, str) and glob.has_magic(inputs) and not Path(inputs).exists():
        found_by = sorted(glob.glob(inputs, recursive=True))  # noqa: PTH207 - absolute ones too
        if not found_by:
            raise InvalidInputError(f"'{inputs}' matches no images", hint="check the path")
        return list(found_by)
    if isinstance(inputs, np.ndarray) and inputs.ndim == 4:
        return list(inputs)
    return None


def _as_bytes(made: ImageProcessor, taken: PictureInput) -> ImageProcessor:
    """Return guessed preprocessing for quantised inputs: their values are the pixels' bytes."""
    kind = np.dtype(taken.dtype)
    if taken.quantization is None or kind.kind not in "ui" or kind.itemsize != 1:
        return made
    scale, zero = taken.quantization
    return replace(made, scale=scale, mean=((zero - int(np.iinfo(kind).min)) * scale,), std=(1.0,))


def _in_grey(made: ImageProcessor) -> ImageProcessor:
    """Return guessed preprocessing for a network with one channel: the averages of three."""
    mean, std, fill = (sum(one) / len(one) for one in (made.mean, made.std, made.fill))
    return replace(made, mean=(mean,), std=(std,), fill=(round(fill),), channels="grey")


def _resized(made: ImageProcessor, size: tuple[int, int]) -> ImageProcessor:
    """Return a processor for another input size; the cropped fraction stays the same."""
    fit = made.fit
    if fit.size == size:
        return made
    if fit.how in ("shortest", "cropped") and fit.size and fit.edge:
        edge = round(fit.edge * min(size) / min(fit.size))
        fit = replace(fit, edge=edge, longest=round(fit.longest * size[1] / fit.size[1]))
    return replace(made, fit=replace(fit, size=size))


def _normalisation(options: Options, made: ImageProcessor) -> dict[str, Any]:
    mean, std = options.mean or made.mean, options.std or made.std
    if max(map(abs, (*(options.mean or ()), *(options.std or ())))) <= 1:
        return {"mean": mean, "std": std, "scale": made.scale if made.scale != 1 else 1 / 255}
    return {"mean": mean, "std": std, "scale": 1.0}


_FITTED = {
    "stretch": "stretched to",
    "shortest": "scaled and cropped to",
    "letterbox": "scaled to fit, centred in",
    "corner": "scaled to fit, at the top left of",
    "edges": "scaled to",
    "longest": "scaled to fit",
    "multiple": "scaled to about",
    "padded": "padded to",
}
"""Words for ways of fitting an image."""


def _described(made: ImageProcessor) -> str:
    """Return a readable description of the preprocessing."""
    size = "×".join(map(str, made.fit.size)) if made.fit.size else "a size of its own"
    numbers = ["/".join(f"{one:.6g}" for one in pair) for pair in (made.mean, made.std)]
    scale = "pixel / 255" if abs(made.scale * 255 - 1) < 1e-6 else f"pixel × {made.scale:.6g}"
    return (
        f"{_FITTED.get(made.fit.how, made.fit.how)} {size}, {made.channels.upper()}, {scale}, "
        f"mean {numbers[0]}, std {numbers[1]}"
    )
