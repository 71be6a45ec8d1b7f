"""Embeddings of images, and of text with CLIP and its successors; zero-shot classification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vkmnn.base.extras import need
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.inference_session import InferenceSession
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import PicturePipeline, Settings
from vkmnn.pipelines.heads.candidates import sigmoid, softmax
from vkmnn.pipelines.image_processor import IMAGENET_MEAN, IMAGENET_STD, ImageProcessor
from vkmnn.pipelines.networks import Loaded, Model, load, open_session
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.parts import CLIP, find_parts
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.results.labels import Label, Labels
from vkmnn.pipelines.results.maps import Embedding
from vkmnn.pipelines.vision.faces import normalised

_PICTURE_OUTPUTS = ("image_embeds", "image_embedding", "embed", "pooler_output", "feature")
_TEXT_OUTPUTS = ("text_embeds", "text_embedding", "embed", "pooler_output")
_LENGTH = 77
_SCALE = 100.0
"""CLIP's scale of cosines, if config.json lacks it: exp(logit_scale_init_value)."""


def vector_of(outputs: Mapping[str, Array], names: Sequence[str], count: int) -> Array:
    """Return one unit vector for each input: [count, n].

    A table per input (hidden states) is represented by its first row, the class token.
    """
    tables = {name: one for name, one in outputs.items() if one.ndim >= 2 and len(one) == count}
    chosen = [name for word in names for name in tables if word in name.lower()]
    flat = [name for name, one in tables.items() if one.size == count * max(one.shape[1:])]
    name = (chosen or flat or list(tables) or [""])[0]
    if not name:
        shapes = ", ".join(f"{key} {list(one.shape)}" for key, one in outputs.items())
        raise InvalidInputError(
            f"no output is one vector per input: {shapes}", hint="choose another task: --task"
        )
    array = tables[name]
    if array.ndim == 3 and array.shape[1] > 1:
        array = array[:, 0]
    if array.ndim == 4 and array.shape[2] * array.shape[3] > 1:
        array = array.mean((2, 3))
    return np.array([normalised(one.reshape(-1)) for one in array])


class Embed(PicturePipeline[Embedding]):
    """Embeds images: similar ones have similar vectors."""

    task = "image-feature-extraction"
    own: ClassVar[tuple[str, ...]] = ("feeds",)
    usual = ImageProcessor(
        Fit("shortest", (224, 224), 256), "bicubic", 1 / 255, IMAGENET_MEAN, IMAGENET_STD
    )

    def usual_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return ArcFace's processor for images of 112 pixels."""
        sides = {112, None}
        arg = loaded.inputs[0]
        if arg.shape is not None and set(arg.shape[2:]) <= sides and 112 in arg.shape:
            return ImageProcessor(Fit("stretch", (112, 112)), "bilinear", 1 / 255, (0.5,) * 3,
                                  (0.5,) * 3)  # fmt: skip
        return self.usual

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Embedding]:
        """Return the vector of each image."""
        vectors = vector_of(outputs, _PICTURE_OUTPUTS, len(pictures))
        return [Embedding(one, picture) for one, picture in zip(vectors, pictures, strict=True)]


class ZeroShot(PicturePipeline[Labels]):
    """Compares images with text labels: CLIP, SigLIP.

    Args:
        model: a folder with networks for images and text and a tokenizer.json; or one with a single
            network for both.
        options: the options; `labels` are the text labels.
    """

    task = "zero-shot-image-classification"
    own: ClassVar[tuple[str, ...]] = ("top", "template", "feeds")
    usual = ImageProcessor(
        Fit("shortest", (224, 224), 224), "bicubic", 1 / 255,
        (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711),
    )  # fmt: skip

    def __init__(self, model: Model, options: Options) -> None:
        folder = _folder_of(model)
        parts = find_parts(folder, CLIP, self.task)
        self._tokenizer = _tokenizer(folder)
        self._texts: InferenceSession | None = None
        whole = parts.get("pictures")
        loaded = load(whole if whole is not None else folder, options)
        if "texts" in parts:
            self._texts = open_session(load(parts["texts"], options), options)
        self._cached: tuple[tuple[str, ...], Array] | None = None
        super().__init__(loaded, options)
        config = self.about.config
        self._is_siglip = "siglip" in config.text("model_type")
        start = config.real("logit_scale_init_value", float(np.log(_SCALE)))
        self._scale = float(np.exp(start))
        self.settings = {
            "labels": options.labels,
            "top": options.take("top", 5),
            "template": options.take("template", "a photo of a {}"),
            "threshold": options.threshold or 0.0,
        }

    def _flow(self, pictures: Iterable[Picture], chosen: Settings) -> Iterator[Labels]:
        """Check the labels, and pass them to a network with inputs for both images and text."""
        if not chosen["labels"]:
            raise InvalidInputError(
                "there are no labels to choose from",
                hint='pass labels=["a cat", "a dog"], or --labels FILE',
            )
        yield from super()._flow(pictures, chosen)

    def _words(self, chosen: Settings) -> tuple[str, ...]:
        given = chosen["labels"]
        if isinstance(given, str | Path):
            from vkmnn.pipelines.description import read_labels

            return read_labels(Path(given))
        return tuple(map(str, given))

    def more_feeds(self, chosen: Settings, placed: Sequence[Placed]) -> dict[str, Array]:
        """Return tokens, if the network takes them together with the images."""
        if self._texts is not None:
            return {}
        names = {arg.name for arg in self.loaded.inputs}
        return {n: a for n, a in self._tokens(self._sentences(chosen)).items() if n in names}

    def _sentences(self, chosen: Settings) -> list[str]:
        return [str(chosen["template"]).format(word) for word in self._words(chosen)]

    def _tokens(self, sentences: Sequence[str]) -> dict[str, Array]:
        found = self._tokenizer.encode_batch(list(sentences))
        length = max((len(one.ids) for one in found), default=1)
        ids = np.zeros((len(found), length), np.int64)
        mask = np.zeros_like(ids)
        for row, seen, one in zip(ids, mask, found, strict=True):
            row[: len(one.ids)], seen[: len(one.ids)] = one.ids, one.attention_mask
            row[len(one.ids) :] = one.ids[-1] if one.ids else 0
        return {"input_ids": ids, "attention_mask": mask}

    def embed_texts(self, sentences: Sequence[str]) -> Array:
        """Return the unit vectors of sentences, [n, size].

        Raises:
            InvalidInputError: the network takes text only together with images.
        """
        key = tuple(sentences)
        if self._cached is not None and self._cached[0] == key:
            return self._cached[1]
        if self._texts is None:
            raise InvalidInputError("this network takes text only together with images")
        names = {arg.name for arg in self._texts.get_inputs()}
        feeds = {n: a for n, a in self._tokens(sentences).items() if n in names}
        outputs = [arg.name for arg in self._texts.get_outputs()]
        made = dict(zip(outputs, self._texts.run(None, feeds), strict=True))
        vectors = vector_of(made, _TEXT_OUTPUTS, len(sentences))
        self._cached = key, vectors
        return vectors

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Labels]:
        """Return the labels of each image, best match first."""
        words = self._words(chosen)
        table = outputs.get("logits_per_image")
        if table is None:
            vectors = vector_of(outputs, _PICTURE_OUTPUTS, len(pictures))
            table = vectors @ self.embed_texts(self._sentences(chosen)).T * self._scale
        scores = sigmoid(table) if self._is_siglip else softmax(table)
        made = []
        for row, picture in zip(scores, pictures, strict=True):
            best = np.argsort(-row, kind="stable")[: int(chosen["top"])]
            items = [Label(words[n], float(row[n]), int(n)) for n in best]
            found = Labels([one for one in items if one.score >= chosen["threshold"]], picture)
            found.scores = row
            made.append(found)
        return made

    def close(self) -> None:
        """Release both networks."""
        super().close()
        if self._texts is not None:
            self._texts.close()


def _folder_of(model: Model) -> Path:
    if not isinstance(model, str | Path):
        raise InvalidInputError("a model of images and text must be a folder", hint="pass its path")
    path = Path(model)
    return path if path.is_dir() else path.parent


def _tokenizer(folder: Path) -> Any:
    """Return the folder's tokenizer."""
    path = next((one for one in (folder / "tokenizer.json", folder.parent / "tokenizer.json")
                 if one.is_file()), None)  # fmt: skip
    if path is None:
        raise ModelFileError(
            f"'{folder}' has no tokenizer.json to tokenise the labels",
            hint="download the model's whole folder",
        )
    made = need("tokenizers", "text labels").Tokenizer.from_file(str(path))
    made.enable_truncation(_LENGTH)
    return made
