"""Detection of a model's task from its files or from the shapes of its outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vkmnn.base.config_file import read_config, read_text
from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.pipelines.description import Description, describe
from vkmnn.pipelines.heads.detection import head_of
from vkmnn.pipelines.heads.signature import Output, Signature
from vkmnn.pipelines.heads.yolo import prototypes
from vkmnn.pipelines.networks import Loaded
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.signatures import signature_of
from vkmnn.pipelines.texts.inputs import TEXT_VECTORS, takes_text


@dataclass(frozen=True, slots=True)
class Guess:
    """A task, the reason for it, and whether a file states it."""

    task: str
    reason: str
    said: bool = False


ULTRALYTICS: Mapping[str, str] = {
    "detect": "object-detection",
    "segment": "instance-segmentation",
    "classify": "image-classification",
    "pose": "pose-estimation",
    "obb": "object-detection",
}
"""Tasks by ultralytics' metadata."""

ARCHITECTURES: Sequence[tuple[str, str]] = (
    ("ForImageClassification", "image-classification"),
    ("ForObjectDetection", "object-detection"),
    ("ForSemanticSegmentation", "image-segmentation"),
    ("ForUniversalSegmentation", "image-segmentation"),
    ("ForDepthEstimation", "depth-estimation"),
    ("ForImageSuperResolution", "image-to-image"),
    ("ForImageMatting", "image-matting"),
    ("VitPoseForPoseEstimation", "pose-estimation"),
    ("SamModel", "mask-generation"),
    ("CLIPModel", "zero-shot-image-classification"),
    ("SiglipModel", "zero-shot-image-classification"),
    ("ForMaskedImageModeling", "image-feature-extraction"),
    ("ForSequenceClassification", "text-classification"),
    ("MarianMTModel", "translation"),
    ("M2M100ForConditionalGeneration", "translation"),
    *(
        (f"{kind}ForConditionalGeneration", "text2text-generation")
        for kind in ("T5", "Bart", "Pegasus", "LongT5", "BlenderbotSmall", "Blenderbot")
    ),
    ("VitsModel", "text-to-speech"),
    ("WhisperForConditionalGeneration", "automatic-speech-recognition"),
)
"""Tasks by the suffixes of names in `architectures` of config.json."""

CARD_TAGS: Mapping[str, str] = {
    "image-classification": "image-classification",
    "object-detection": "object-detection",
    "image-segmentation": "image-segmentation",
    "depth-estimation": "depth-estimation",
    "image-to-image": "image-to-image",
    "text-to-image": "text-to-image",
    "text-to-speech": "text-to-speech",
    "mask-generation": "mask-generation",
    "keypoint-detection": "pose-estimation",
    "image-feature-extraction": "image-feature-extraction",
    "zero-shot-image-classification": "zero-shot-image-classification",
    "text-classification": "text-classification",
    "feature-extraction": "feature-extraction",
    "automatic-speech-recognition": "automatic-speech-recognition",
    "translation": "translation",
    "summarization": "summarization",
    "text2text-generation": "text2text-generation",
    "voice-activity-detection": "voice-activity-detection",
    "sentence-similarity": "feature-extraction",
}
"""Tasks by `pipeline_tag` of a model card."""

_GENERAL = "text2text-generation"
"""A task of architectures that serve for several: a card says more."""
_TAG = re.compile(r"^pipeline_tag:\s*['\"]?([\w-]+)", re.MULTILINE)
_MOST_CARD = 1 << 20
INDEX = "model_index.json"
"""The file that describes the folders of a pipeline of diffusers."""


class UnknownTaskError(InvalidInputError):
    """The task of a network cannot be determined."""

    tasks: Sequence[str] = ("classify", "detect", "segment", "pose", "depth", "upscale", "embed")
    likely = "classify"


def said_by_folder(model: Any) -> Guess | None:
    """Return the task that a folder's files name, or the file beside a voice; else None.

    Raises:
        ModelFileError: one of the files is damaged.
    """
    if not isinstance(model, str | Path):
        return None
    if not Path(model).is_dir():
        voice = voice_file(Path(model))
        return None if voice is None else Guess("text-to-speech", str(voice), True)
    if is_painter(model):
        return Guess("text-to-image", str(Path(model) / INDEX), True)
    return _said(describe(Path(model), {}))


def voice_file(path: Path) -> Path | None:
    """Return the description of one of piper's voices, NAME.onnx.json; None for other networks."""
    beside = path.with_name(f"{path.name}.json")
    if path.suffix != ".onnx" or not beside.is_file():
        return None
    return beside if "phoneme_id_map" in read_config(beside) else None


def is_painter(model: Any) -> bool:
    """Return whether a model is a folder of a pipeline as diffusers writes it."""
    return isinstance(model, str | Path) and (Path(model) / INDEX).is_file()


def guess_task(loaded: Loaded, options: Options) -> Guess:
    """Return the task of an image or text network.

    Raises:
        InvalidInputError: no file states it, and the outputs match no known task.
    """
    said = _said(loaded.about)
    if said is not None:
        return said
    if takes_text(loaded):
        return _of_text(loaded)
    if hears_voices({arg.name for arg in loaded.inputs}):
        return Guess("voice-activity-detection", "its inputs, a sound, its rate and a state")
    classes = len(loaded.about.labels()[0])
    signature = signature_of(loaded, options, classes, lambda one: _by_shapes(one) is not None)
    found = _by_shapes(signature)
    if found is not None:
        return found
    shapes = ", ".join(f"{arg.name} {arg.shape}" for arg in loaded.outputs)
    raise UnknownTaskError(
        f"cannot determine the task of '{loaded.about.name}'; its outputs are {shapes}",
        hint=f"name the task: {', '.join(UnknownTaskError.tasks)}",
    )


def _of_text(loaded: Loaded) -> Guess:
    """Return the task of a network of tokens: one table of logits classifies a text."""
    first = loaded.outputs[0]
    if "logit" in first.name and first.shape is not None and len(first.shape) == 2:
        return Guess("text-classification", "its output, scores of a text")
    if any(word in one.name for one in loaded.outputs for word in TEXT_VECTORS):
        return Guess("feature-extraction", "its output, vectors of a text")
    names = ", ".join(f"{arg.name} {arg.shape}" for arg in loaded.outputs)
    raise InvalidInputError(
        f"nothing says what '{loaded.about.name}' does with a text; its outputs are {names}",
        hint="name the task: text-classification, feature-extraction; vkmnn.llm.load generates",
    )


def hears_voices(inputs: Collection[str]) -> bool:
    """Return whether inputs are those of Silero's networks: a rate, and a state or two."""
    return (
        "sr" in inputs
        and len(inputs) < 5
        and ("state" in inputs or ("h" in inputs and "c" in inputs))
    )


def _by_shapes(signature: Signature) -> Guess | None:
    return next((Guess(task, why) for task, why, matches in SHAPES if matches(signature)), None)


def _said(about: Description) -> Guess | None:
    """Return the task that the files state."""
    if "character" in about.properties:
        return Guess("optical-character-recognition", "the characters in its metadata", True)
    word = about.properties.get("task", "")
    if word in ULTRALYTICS:
        return Guess(ULTRALYTICS[word], "the model's metadata", True)
    named = _by_architecture(about)
    if named is not None and named.task != _GENERAL:
        return named
    return _by_card(about) or named


def _by_architecture(about: Description) -> Guess | None:
    """Return the task that config.json names."""
    named = about.config.texts("architectures") if about.config.is_list("architectures") else []
    for name in named:
        for end, task in ARCHITECTURES:
            if name.endswith(end):
                return Guess(task, str(about.config.path), True)
    if "pretrained_cfg" in about.config:  # timm's models are classifiers
        return Guess("image-classification", str(about.config.path), True)
    return None


def _by_card(about: Description) -> Guess | None:
    """Return the task that the model's card names."""
    card = about.folder / "README.md" if about.folder else None
    if card is None or not card.is_file():
        return None
    try:
        tag = _TAG.search(read_text(card, _MOST_CARD))
    except ModelFileError:
        tag = None
    return Guess(CARD_TAGS[tag[1]], str(card), True) if tag and tag[1] in CARD_TAGS else None


# --- by the shapes of outputs ---------------------------------------------------------------------


def _named(*words: str) -> Callable[[Signature], bool]:
    return lambda signature: signature.named(*words) is not None


def _scores(signature: Signature) -> bool:
    """One table of scores [n, classes], alone or with features."""
    found = [one for one in signature.outputs if _is_scores(one)]
    return bool(found) and len(signature.outputs) <= 2


def _is_scores(one: Output) -> bool:
    inner = one.shape[1:]
    wide = [side for side in inner if side != 1]
    return len(inner) in (1, 3) and len(wide) == 1 and inner[0] != 1 and (wide[0] or 2) > 1


def _vectors(signature: Signature) -> bool:
    """A table named as an embedding, or ArcFace's for images of 112 pixels."""
    named = signature.named("embed", "feature", "pooler_output", "last_hidden_state")
    faces = signature.size == (112, 112) and _scores(signature) and not signature.classes
    return named is not None or faces


def _detects(signature: Signature) -> bool:
    return head_of(signature) is not None


def _faces(signature: Signature) -> bool:
    """Scores, boxes and five points for each of three grids."""
    last = sorted(one.shape[-1] or 0 for one in signature.outputs if one.shape)
    return last in ([1] * 3 + [4] * 3 + [10] * 3, [1] * 6 + [4] * 3 + [10] * 3)


def _things(signature: Signature) -> bool:
    """A table of boxes, with prototypes of masks."""
    ranks = sorted(one.rank for one in signature.outputs)
    return ranks == [3, 4] and prototypes(signature) is not None


def _simcc(signature: Signature) -> bool:
    """Two tables [n, points, ..], whose lengths are multiples of the width and height."""
    if len(signature.outputs) != 2 or any(one.rank != 3 for one in signature.outputs):
        return False
    if signature.named("simcc"):
        return True
    first, second = (one.shape for one in signature.outputs)
    if signature.size is None or first[1] != second[1] or not (first[2] and second[2]):
        return False
    height, width = signature.size
    return (
        first[2] % width == 0
        and second[2] % height == 0
        and (first[2] // width == second[2] // height)
    )


def _maps(signature: Signature) -> list[Output]:
    """Return the outputs with four axes."""
    return [one for one in signature.outputs if one.rank == 4]


def _heat(signature: Signature) -> bool:
    """Heat maps [n, points, ..] at a quarter of a portrait-format input size."""
    found = _maps(signature)
    if len(found) != 1 or signature.size is None or len(signature.outputs) != 1:
        return False
    quarter = tuple(side // 4 for side in signature.size)
    tall = signature.size[0] > signature.size[1]
    return found[0].shape[2:] == quarter and found[0].shape[1] != 1 and tall


def _queries(signature: Signature) -> bool:
    """Classes and masks of queries: MaskFormer, Mask2Former."""
    return signature.named("masks_queries", "pred_masks") is not None


def _depth(signature: Signature) -> bool:
    """A map of floats [n, rows, columns]."""
    one = signature.outputs[0] if len(signature.outputs) == 1 else None
    if one is None or one.rank != 3 or one.integer or None in one.shape[1:]:
        return False
    return signature.size is not None and one.shape[1:] == signature.size


def _pictures(signature: Signature) -> bool:
    """An image: three channels, or one at a multiple of the input size."""
    found = _maps(signature)
    if len(found) != 1 or len(signature.outputs) != 1 or signature.classes:
        return False
    sides, size = found[0].shape, signature.size
    if signature.named("logit", "class", "seg"):
        return False
    if sides[1] == 3 or sides[3] == 3:
        return size is None or max(one or size[0] for one in sides[1:]) >= size[0]
    if size is None or sides[1] != 1 or None in sides[2:]:
        return False
    return all((have or 0) > want for have, want in zip(sides[2:], size, strict=True))


def _classes(signature: Signature) -> bool:
    """Scores of several classes, or the class index, for each pixel."""
    if any(one.integer and one.rank in (3, 4) for one in signature.outputs):
        return True
    return any((one.shape[1] or 2) > 1 and one.shape[2] != 1 for one in _maps(signature))


SHAPES: Sequence[tuple[str, str, Callable[[Signature], bool]]] = (
    ("zero-shot-image-classification", "its output logits_per_image", _named("logits_per_image")),
    ("face-detection", "its outputs, which match a face detector", _faces),
    ("pose-estimation", "its outputs, two coordinate vectors per point", _simcc),
    ("image-segmentation", "its query masks", _queries),
    ("instance-segmentation", "its outputs, a table and mask prototypes", _things),
    ("object-detection", "its outputs, which match a detector", _detects),
    ("depth-estimation", "the name of its output", _named("depth", "disparity")),
    ("image-matting", "the name of its output", _named("alpha", "matte", "pha", "foreground")),
    ("pose-estimation", "the name of its output", _named("heatmap", "keypoint")),
    ("image-feature-extraction", "its output, a vector", _vectors),
    ("image-classification", "its single table of scores", _scores),
    ("pose-estimation", "its output, a heat map per point", _heat),
    ("depth-estimation", "its output, a number per pixel", _depth),
    ("image-to-image", "its output, an image", _pictures),
    ("image-segmentation", "its output, scores per pixel", _classes),
)
"""Tasks by the shapes of outputs, in the order in which they are tried."""
