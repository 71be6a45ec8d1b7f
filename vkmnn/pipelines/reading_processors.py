"""Image processors from a model's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vkmnn.base.config_file import Section
from vkmnn.pipelines.description import Description
from vkmnn.pipelines.image_processor import IMAGENET_MEAN, IMAGENET_STD, ImageProcessor
from vkmnn.pipelines.placing import Fit
from vkmnn.pipelines.resampling import FILTERS, LINEAR

Size = tuple[int, int]
_LARGEST = 1 << 15
_KINDS = ("image_processor_type", "feature_extractor_type")
_HALF = (0.5, 0.5, 0.5)

# transformers' processors: defaults of the classes that the file does not state.
_RESAMPLE: Mapping[str, int] = {
    "ConvNext": 3, "CLIP": 3, "Bit": 3, "Blip": 3, "SiglipI": 3, "DPT": 3, "DeiT": 3,
    "Perceiver": 3, "Levit": 3, "EfficientNet": 0, "MobileNet": 2, "ViTMatte": 3, "Chinese": 3,
}  # fmt: skip
_FITS: Mapping[str, str] = {
    "Detr": "edges", "YolosI": "edges", "YolosF": "edges", "GroundingDino": "edges",
    "OwlV": "stretch", "RTDetr": "stretch", "Sam": "longest",
}  # fmt: skip
_PADDED = ("VitMatte", "Swin2SR")


def processor_of(about: Description) -> tuple[ImageProcessor, str] | None:
    """Return the processor that the files describe, and its file; None if none does."""
    for read in (_transformers, _ultralytics, _timm):
        found = read(about)
        if found is not None:
            return found
    return None


# --- preprocessor_config.json of transformers -----------------------------------------------------


def _transformers(about: Description) -> tuple[ImageProcessor, str] | None:
    said = about.processor
    keys = ("do_resize", "do_normalize", "do_rescale", "image_mean", "size", *_KINDS)
    if not any(key in said for key in keys):
        return None
    kind = next((said.text(key) for key in _KINDS if key in said), "")
    number = _first(_RESAMPLE, kind, 2)
    if "resample" in said:
        number = said.number("resample")
    if number not in FILTERS:
        raise said.wrong("resample", f"one of {', '.join(map(str, FILTERS))}")
    resizes = said.flag("do_resize", not kind.startswith(_PADDED))
    scale, mean, std = _normalisation(said, kind)
    if not scale or not all(std):
        raise said.wrong("rescale_factor" if not scale else "image_std", "numbers other than 0")
    made = ImageProcessor(
        _fit(said, kind) if resizes else _unresized(said, kind),
        FILTERS.get(number, "bilinear"),
        scale,
        mean,
        std,
        fill=tuple(min(max(round(one / scale), 0), 255) for one in mean),  # 0 once normalised
    )
    if said.flag("do_flip_channel_order"):
        made = replace(made, channels="bgr")
    return made, str(said.path)


def _first(table: Mapping[str, Any], kind: str, default: Any) -> Any:
    return next((value for key, value in table.items() if kind.lower().startswith(key.lower())),
                default)  # fmt: skip


def _normalisation(said: Section, kind: str) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Return factor, mean and deviation."""
    clip = kind.startswith(("CLIP", "Chinese", "Blip"))
    scale = said.real("rescale_factor", 1 / 255) if said.flag("do_rescale", True) else 1.0
    shift = 1.0 if said.flag("rescale_offset") else 0.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if said.flag("do_normalize", not kind.startswith(("RTDetr", "Swin2SR", "MobileViT"))):
        usual = _CLIP if clip else (_HALF, _HALF) if kind.startswith(("ViT", "VitMatte")) else None
        first, second = usual or (IMAGENET_MEAN, IMAGENET_STD)
        mean = tuple(said.reals("image_mean")) if said.is_list("image_mean") else first
        std = tuple(said.reals("image_std")) if said.is_list("image_std") else second
    if shift:
        mean = tuple(one + shift for one in mean)
    if kind.startswith("EfficientNet") and said.flag("include_top"):
        std = tuple(one * one for one in std)  # normalised a second time, without mean
    return scale, mean, std


_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def _fit(said: Section, kind: str) -> Fit:
    how = _first(_FITS, kind, "")
    sizes = _sizes(said, "size")
    crop = _sizes(said, "crop_size") if said.flag("do_center_crop", "crop_size" in said) else {}
    cut = _square(crop)
    if kind.startswith("ConvNext") or "crop_pct" in said:
        return _convnext(said, sizes)
    if kind.startswith("DPT") or said.flag("keep_aspect_ratio"):
        return _dpt(said, sizes)
    if how == "longest" or ("longest_edge" in sizes and "shortest_edge" not in sizes):
        edge = sizes.get("longest_edge", 1024)
        pad = _square(_sizes(said, "pad_size")) if said.flag("do_pad", how == "longest") else None
        return Fit("longest", pad or ((edge, edge) if how == "longest" else None), edge)
    if "shortest_edge" in sizes and (how == "edges" or "longest_edge" in sizes):
        return Fit("edges", None, sizes["shortest_edge"], sizes.get("longest_edge", 0))
    if "shortest_edge" in sizes:
        edge = sizes["shortest_edge"]
        multiple = said.number("size_divisibility") if "size_divisibility" in said else 1
        length = int(edge * 256 / 224) if kind.startswith("Levit") else edge
        return Fit("shortest", cut, length, multiple=1 if cut else max(multiple, 1))
    size = _square(sizes) or (224, 224)
    if cut is not None and cut != size:
        return Fit("cropped", cut, *size)
    return Fit("stretch", size)


def _unresized(said: Section, kind: str) -> Fit:
    crop = _square(_sizes(said, "crop_size")) if said.flag("do_center_crop") else None
    if crop is not None:
        return Fit("centre", crop)
    multiple = 32 if kind.startswith(_PADDED[0]) else 8 if kind.startswith(_PADDED[1]) else 1
    for key in ("size_divisibility", "size_divisor", "pad_size"):
        if key in said and not said.is_list(key):
            multiple = max(said.number(key), 1)
    return Fit("padded", None, multiple=multiple)


def _convnext(said: Section, sizes: Mapping[str, int]) -> Fit:
    """Below 384 pixels, the shortest edge is longer than the cropped square."""
    edge = sizes.get("shortest_edge") or (_square(sizes) or (384, 384))[0]
    if edge >= 384:
        return Fit("stretch", (edge, edge))
    share = said.real("crop_pct", 224 / 256)
    return Fit("shortest", (edge, edge), int(edge / share))


def _dpt(said: Section, sizes: Mapping[str, int]) -> Fit:
    size = _square(sizes) or (384, 384)
    multiple = said.number("ensure_multiple_of") or 1
    if said.flag("keep_aspect_ratio"):
        return Fit("multiple", size, multiple=multiple)
    height, width = (max(round(one / multiple), 1) * multiple for one in size)
    return Fit("stretch", (height, width))


def _sizes(said: Section, key: str) -> dict[str, int]:
    """Return edge lengths from a size: a number is the shortest edge, or both sides."""
    if key not in said:
        return {}
    if said.is_list(key):
        pair = [int(one) for one in said.reals(key)]
        return _bounded(said, key, {"height": pair[0], "width": pair[-1]} if pair else {})
    if said.is_object(key):
        part = said.section(key)
        names = ("height", "width", "shortest_edge", "longest_edge")
        sizes = {name: part.number(name) for name in names if name in part}
        return _bounded(said, key, sizes)
    whole = said.number(key)
    single = "shortest_edge" if said.flag("default_to_square", key != "size") is False else ""
    sizes = {single: whole} if single else {"height": whole, "width": whole}
    return _bounded(said, key, sizes)


def _bounded(said: Section, key: str, sizes: dict[str, int]) -> dict[str, int]:
    """Return sizes within the limits for images."""
    if not all(0 < one <= _LARGEST for one in sizes.values()):
        raise said.wrong(key, f"sizes from 1 to {_LARGEST}")
    return sizes


def _square(sizes: Mapping[str, int]) -> Size | None:
    if "height" in sizes and "width" in sizes:
        return sizes["height"], sizes["width"]
    edge = sizes.get("shortest_edge") or sizes.get("longest_edge")
    return (edge, edge) if edge else None


# --- metadata of ultralytics ----------------------------------------------------------------------


def _ultralytics(about: Description) -> tuple[ImageProcessor, str] | None:
    if "stride" not in about.properties or "names" not in about.properties:
        return None
    size = image_size(about.value("imgsz"))
    if about.properties.get("task") == "classify":
        edge = size or (224, 224)
        fit = Fit("shortest", edge, min(edge))
        return ImageProcessor(fit, "bilinear"), "the model's metadata (ultralytics)"
    return ImageProcessor(
        Fit("letterbox", size or (640, 640)), LINEAR, fill=(114,)
    ), "the model's metadata (ultralytics)"


def image_size(value: Any) -> Size | None:
    """Return a size from a number or a pair (height, width)."""
    pair = value if isinstance(value, list | tuple) else [value]
    if not pair or not all(type(one) is int and 0 < one <= 1 << 15 for one in pair):
        return None
    return pair[0], pair[-1]


# --- config.json of timm --------------------------------------------------------------------------


def _timm(about: Description) -> tuple[ImageProcessor, str] | None:
    said = about.config.section("pretrained_cfg") if "pretrained_cfg" in about.config else None
    if said is None or "input_size" not in said:
        return None
    sides = [int(one) for one in said.reals("input_size")]
    size = (sides[-2], sides[-1]) if len(sides) > 1 else (224, 224)
    share, mode = said.real("crop_pct", 0.875), said.text("crop_mode", "center")
    if mode == "squash":
        fit = Fit("cropped", size, int(size[0] / share), int(size[1] / share))
    else:
        fit = Fit("shortest", size, int(min(size) / share))
    mean, std = said.reals("mean") or IMAGENET_MEAN, said.reals("std") or IMAGENET_STD
    filter_name = said.text("interpolation", "bicubic")
    known = filter_name if filter_name in FILTERS.values() else "bicubic"
    made = ImageProcessor(fit, known, 1 / 255, tuple(mean), tuple(std))
    return made, str(about.config.path)
