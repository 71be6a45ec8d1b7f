"""Predicted times on a server's GPU, compared with those of other engines on a real one."""

from __future__ import annotations

from functools import cache
from statistics import geometric_mean

import numpy as np
import pytest

from tests.model.test_plan import TWELVE_LAYERS, planned, transformer
from tests.model.yolov5s import yolov5s
from vkmnn.opening import load_network
from vkmnn.opening.network import Network
from vkmnn.opening.planned import plan_for
from vkmnn.schedule_config import PrecisionName

# Microseconds on an H200 at batch 1, in float32 and float16: PyTorch's CUDA graphs, and ncnn's
# Vulkan (docs/performance.md).
MEASURED = {
    "squeezenet": ((270, 280), (1_390, 2_540)),
    "mobilenet_v2": ((330, 310), (4_930, 3_000)),
    "resnet50": ((810, 810), (8_940, 6_230)),
    "yolov5s": ((670, 530), (9_230, 7_010)),
    "unet": ((450, 380), (4_610, 3_560)),
    "vit_b16": ((3_740, 1_340), (14_700, 18_400)),
    "bert_base": ((3_060, 720), (13_000, 8_200)),
    "gpt2": ((2_050, 740), (29_000, 36_100)),
}
LAYERED = {**TWELVE_LAYERS, "vit_b16": (197, True, 0, 0)}
COLUMNS = {"gpt2": 50_257, "bert_base": 768, "vit_b16": 1_000}
MEANS: dict[PrecisionName, float] = {"high": 0.66, "normal": 0.55}
"""Of PyTorch's times, at most; the aim was 0.70 and 0.55.

In float32 it was 0.54 until tiles were timed on an H100, where small ones took twice as long as
had been guessed; what was predicted then was too little.
"""
MOST: dict[PrecisionName, float] = {"high": 0.87, "normal": 0.75}
OF_NCNN: dict[PrecisionName, tuple[float, float]] = {
    "high": (1 / 7, 1 / 13),
    "normal": (1 / 10, 1 / 15),
}
"""Of ncnn's times, at most: of one network, and in the mean."""


@cache
def layered(name: str) -> Network:
    tokens, before, *_ = LAYERED[name]
    columns = COLUMNS[name]
    built = transformer(name, tokens, 768, 12, before=before, columns=columns, layers=12)
    return load_network(built)


def predicted_us(name: str, precision: PrecisionName) -> float:
    if name == "yolov5s":
        x = {"x": np.zeros((1, 3, 320, 320), np.float32)}
        made = plan_for(load_network(yolov5s(320)), "nvidia-h200", precision, x, places=False)
        return made.forecast.predicted_us
    if name not in LAYERED:
        return planned(name, "nvidia-h200", precision).forecast.predicted_us
    x = {"x": np.zeros((1, LAYERED[name][0], 768), np.float32)}
    made = plan_for(layered(name), "nvidia-h200", precision, x, places=False)
    return made.forecast.predicted_us


@pytest.mark.soak
@pytest.mark.parametrize("precision", MEANS)
def test_less_than_other_engines_took(precision: PrecisionName) -> None:
    place = list(MEANS).index(precision)
    times = {name: predicted_us(name, precision) for name in MEASURED}
    of_graphs = {name: times[name] / MEASURED[name][0][place] for name in times}
    of_ncnn = {name: times[name] / MEASURED[name][1][place] for name in times}
    assert max(of_graphs.values()) <= MOST[precision], of_graphs
    assert geometric_mean(of_graphs.values()) <= MEANS[precision], of_graphs
    most, mean = OF_NCNN[precision]
    assert max(of_ncnn.values()) <= most, of_ncnn
    assert geometric_mean(of_ncnn.values()) <= mean, of_ncnn
