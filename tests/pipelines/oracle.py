"""Writes what transformers and ultralytics make of a picture, for `test_processors.py`.

Run it where both are installed: python tests/pipelines/oracle.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.pipelines.networks import stripes

DATA = Path(__file__).resolve().parents[1] / "data" / "pipelines"
SHAPES = ((120, 200), (75, 48))

PROCESSORS: dict[str, dict[str, Any]] = {
    "ViTImageProcessor": {"size": {"height": 32, "width": 24}},
    "DeiTImageProcessor": {
        "size": {"height": 40, "width": 40}, "crop_size": {"height": 32, "width": 32}},
    "CLIPImageProcessor": {
        "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
    "SiglipImageProcessor": {"size": {"height": 32, "width": 32}},
    "BitImageProcessor": {
        "size": {"shortest_edge": 41}, "crop_size": {"height": 32, "width": 32}},
    "ConvNextImageProcessor": {"size": {"shortest_edge": 32}, "crop_pct": 0.875},
    "DetrImageProcessor": {"size": {"shortest_edge": 40, "longest_edge": 60}},
    "RTDetrImageProcessor": {"size": {"height": 48, "width": 48}},
    "DPTImageProcessor": {
        "size": {"height": 42, "width": 42}, "keep_aspect_ratio": True, "ensure_multiple_of": 14},
    "SegformerImageProcessor": {"size": {"height": 32, "width": 32}},
    "BeitImageProcessor": {
        "size": {"height": 36, "width": 36}, "crop_size": {"height": 32, "width": 32}},
    "MobileViTImageProcessor": {
        "size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}},
    "EfficientNetImageProcessor": {
        "size": {"height": 36, "width": 36}, "crop_size": {"height": 32, "width": 32}},
    "MobileNetV2ImageProcessor": {
        "size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}},
    "SamImageProcessor": {
        "size": {"longest_edge": 64}, "pad_size": {"height": 64, "width": 64}},
    "LevitImageProcessor": {
        "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
}  # fmt: skip


def write_processors() -> None:
    import transformers

    arrays, configs = {}, {}
    for name, options in PROCESSORS.items():
        processor = getattr(transformers, name)(**options)
        said = json.loads(processor.to_json_string())
        configs[name] = said
        for number, shape in enumerate(SHAPES):
            found = processor(stripes(*shape), return_tensors="np")["pixel_values"]
            arrays[f"{name}/{number}"] = np.asarray(found[0], np.float16)
    (DATA / "processors.json").write_text(json.dumps(configs, indent=1) + "\n")
    np.savez_compressed(DATA / "processors.npz", **arrays)


def write_letterboxes() -> None:
    from ultralytics.data.augment import LetterBox

    arrays = {}
    for number, shape in enumerate((*SHAPES, (33, 47), (64, 64), (300, 20))):
        made = LetterBox((64, 96), auto=False)(image=stripes(*shape))
        arrays[f"letterbox/{number}"] = made
    np.savez_compressed(DATA / "letterboxes.npz", **arrays)


def write_boxes() -> None:
    """Random tables through ultralytics' suppression, with overlaps of all degrees."""
    import torch
    from ultralytics.utils.nms import non_max_suppression
    from ultralytics.utils.ops import scale_boxes

    arrays = {}
    rng = np.random.default_rng(0)
    for number in range(4):
        table = np.zeros((1, 4 + 5, 84), np.float32)
        table[0, :2] = rng.uniform(10, 54, (2, 84))
        table[0, 2:4] = rng.uniform(8, 40, (2, 84))
        table[0, 4:] = rng.uniform(0, 1, (5, 84)) ** 3
        (found,) = non_max_suppression(torch.tensor(table), 0.25, 0.45 if number % 2 else 0.7)
        found[:, :4] = scale_boxes((64, 64), found[:, :4], (120, 200))
        arrays[f"table/{number}"], arrays[f"boxes/{number}"] = table, found.numpy()
    np.savez_compressed(DATA / "boxes.npz", **arrays)


def write_detr() -> None:
    """Logits and boxes through the post-processing of DETR and RT-DETR."""
    import torch
    import transformers

    arrays = {}
    rng = np.random.default_rng(1)
    for name, extra in (("DetrImageProcessor", 1), ("RTDetrImageProcessor", 0)):
        logits = rng.normal(-1, 2, (1, 12, 4 + extra)).astype(np.float32)
        boxes = rng.uniform(0.1, 0.6, (1, 12, 4)).astype(np.float32)

        class Outputs:
            pass

        outputs: Any = Outputs()
        outputs.logits, outputs.pred_boxes = torch.tensor(logits), torch.tensor(boxes)
        (found,) = getattr(transformers, name)().post_process_object_detection(
            outputs, threshold=0.5, target_sizes=torch.tensor([[120, 200]])
        )
        arrays |= {f"{name}/logits": logits, f"{name}/pred_boxes": boxes}
        arrays |= {f"{name}/{key}": value.numpy() for key, value in found.items()}
    np.savez_compressed(DATA / "detr.npz", **arrays)


def write_maps() -> None:
    """Logits through the post-processing of semantic segmentation and of depth."""
    import torch
    import transformers

    rng = np.random.default_rng(2)
    coarse = rng.normal(0, 2, (1, 5, 4, 4))
    logits = torch.nn.functional.interpolate(torch.tensor(coarse), (16, 16), mode="bicubic").float()

    class Outputs:
        pass

    outputs: Any = Outputs()
    outputs.logits = logits
    (found,) = transformers.SegformerImageProcessor().post_process_semantic_segmentation(
        outputs, target_sizes=[(60, 100)]
    )
    np.savez_compressed(DATA / "maps.npz", logits=logits.numpy(), classes=found.numpy())


if __name__ == "__main__":
    DATA.mkdir(parents=True, exist_ok=True)
    for write in (write_processors, write_letterboxes, write_boxes, write_detr, write_maps):
        write()
