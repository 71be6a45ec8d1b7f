"""The task of a model, from its files or from the shapes of its outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from vkmnn.base.config_file import read_text
from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.pipelines.description import Description
from vkmnn.pipelines.heads.detection import head_of
from vkmnn.pipelines.heads.signature import Output, Signature
from vkmnn.pipelines.networks import Loaded
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.signatures import signature_of


@dataclass(frozen=True, slots=True)
class Guess:
    """A task, why, and whether a file says so."""

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
"""Tasks by the words of ultralytics' metadata."""

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
)
"""Tasks by the ends of names in `architectures` of config.json."""

CARD_TAGS: Mapping[str, str] = {
    "image-classification": "image-classification",
    "object-detection": "object-detection",
    "image-segmentation": "image-segmentation",
    "depth-estimation": "depth-estimation",
    "image-to-image": "image-to-image",
    "mask-generation": "mask-generation",
    "keypoint-detection": "pose-estimation",
    "image-feature-extraction": "image-feature-extraction",
    "zero-shot-image-classification": "zero-shot-image-classification",
}
"""Tasks by `pipeline_tag` of a model card."""

_TAG = re.compile(r"^pipeline_tag:\s*['\"]?([\w-]+)", re.MULTILINE)
_MOST_CARD = 1 << 20


def guess_task(loaded: Loaded, options: Options) -> Guess:
    """Return the task of a network that takes pictures.

    Raises:
        InvalidInputError: nothing says it, and its outputs are like no known ones.
    """
    said = _said(loaded.about)
    if said is not None:
        return said
    classes = len(loaded.about.labels()[0])
    signature = signature_of(loaded, options, classes, lambda one: _by_shapes(one) is not None)
    found = _by_shapes(signature)
    if found is not None:
        return found
    shapes = ", ".join(f"{arg.name} {arg.shape}" for arg in loaded.outputs)
    raise InvalidInputError(
        f"nothing says what '{loaded.about.name}' is for; its outputs are {shapes}",
        hint="name the task: --task classify, detect, segment, depth, pose, upscale, embed …",
    )


def _by_shapes(signature: Signature) -> Guess | None:
    return next((Guess(task, why) for task, why, matches in SHAPES if matches(signature)), None)


def _said(about: Description) -> Guess | None:
    """Return the task that files name."""
    word = about.properties.get("task", "")
    if word in ULTRALYTICS:
        return Guess(ULTRALYTICS[word], "the model's metadata", True)
    named = about.config.texts("architectures") if about.config.is_list("architectures") else []
    for name in named:
        for end, task in ARCHITECTURES:
            if name.endswith(end):
                return Guess(task, str(about.config.path), True)
    if "pretrained_cfg" in about.config:  # timm's models classify
        return Guess("image-classification", str(about.config.path), True)
    card = about.folder / "README.md" if about.folder else None
    if card is not None and card.is_file():
        try:
            tag = _TAG.search(read_text(card, _MOST_CARD))
        except ModelFileError:
            tag = None
        if tag and tag[1] in CARD_TAGS:
            return Guess(CARD_TAGS[tag[1]], str(card), True)
    return None


def _scores(signature: Signature) -> bool:
    """One table of scores [n, classes], alone or beside features."""
    found = [one for one in signature.outputs if _is_scores(one)]
    return bool(found) and len(signature.outputs) <= 2


def _is_scores(one: Output) -> bool:
    inner = one.shape[1:]
    wide = [side for side in inner if side != 1]
    return len(inner) in (1, 3) and len(wide) == 1 and inner[0] != 1 and (wide[0] or 2) > 1


def _detects(signature: Signature) -> bool:
    return head_of(signature) is not None


SHAPES: Sequence[tuple[str, str, Callable[[Signature], bool]]] = (
    ("image-classification", "its single table of scores", _scores),
    ("object-detection", "its outputs, which are like a detector's", _detects),
)
"""Tasks by what outputs look like, in the order in which they are tried."""
