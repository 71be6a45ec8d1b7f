"""The sampling options that a model's files recommend, and `min_p`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.llm import described, tiny
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.llm.layout import read_layout
from vkmnn.llm.sampling import Sampler, Sampling
from vkmnn.llm.sampling_defaults import sampling_defaults

SAMPLED = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def _defaults(folder: Path, kind: str, values: dict[str, Any]) -> dict[str, float]:
    """Return the defaults of a model whose file of options has these values."""
    if kind == "gguf":
        keys = {f"general.sampling.{name}": value for name, value in values.items()}
        described.write_file(folder / "m.gguf", "llama", "F32", **keys)
        return sampling_defaults(read_layout(folder / "m.gguf"))
    if kind == "genai":
        path = tiny.genai_folder(folder) / "genai_config.json"
        whole = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps({**whole, "search": values}), "utf-8")
    else:
        tiny.optimum_folder(folder)
        (folder / "generation_config.json").write_text(json.dumps(values), "utf-8")
    return sampling_defaults(read_layout(folder))


@pytest.mark.parametrize("kind", ["optimum", "genai"])
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {}),
        ({"do_sample": False, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"do_sample": True}, SAMPLED),
        (
            {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
            {**SAMPLED, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
        ),
        ({"do_sample": True, "top_k": -1, "top_p": 0.0}, {**SAMPLED, "top_k": 0}),
        ({"do_sample": True, "temperature": None}, SAMPLED),
    ],
)
def test_options_of_a_folder(
    tmp_path: Path, kind: str, values: dict[str, Any], wanted: dict[str, float]
) -> None:
    pytest.importorskip("tokenizers")
    found = _defaults(tmp_path, kind, values)
    assert found == wanted
    Sampling(**found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, {}),
        (
            {"temp": 0.5, "top_k": 20, "top_p": 0.75},
            {"temperature": 0.5, "top_k": 20, "top_p": 0.75},
        ),
        ({"min_p": 0.25}, {"temperature": 1.0, "min_p": 0.25}),
        ({"penalty_repeat": 1.5}, {"repetition_penalty": 1.5}),
    ],
)
def test_options_of_a_gguf_file(
    tmp_path: Path, values: dict[str, Any], wanted: dict[str, float]
) -> None:
    assert _defaults(tmp_path, "gguf", values) == wanted


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", "warm"),
        ("temperature", 1000),
        ("top_k", 2.5),
        ("top_p", 1.5),
        ("min_p", [0.1]),
        ("repetition_penalty", float("inf")),
        ("do_sample", 1),
    ],
)
def test_wrong_options_name_file_and_key(tmp_path: Path, key: str, value: Any) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(ModelFileError, match=rf"generation_config\.json.*'{key}'"):
        _defaults(tmp_path, "optimum", {"do_sample": True, key: value})


@pytest.mark.parametrize("others", [{}, {"top_k": 3}, {"top_p": 0.99}])
def test_min_p_leaves_only_probable_tokens(others: dict[str, Any]) -> None:
    logits = np.log(np.array([0.5, 0.04, 0.3, 0.16], np.float32))
    for min_p, wanted in ((0.0, {0, 1, 2, 3}), (0.2, {0, 2, 3}), (0.5, {0, 2}), (1.0, {0})):
        sampler = Sampler(Sampling(temperature=1.0, min_p=min_p, seed=3, **others))
        drawn = {sampler.sample(logits, []) for _ in range(500)}
        assert drawn == wanted - ({1} if others.get("top_k") == 3 else set())


def test_min_p_is_selected_on_the_device() -> None:
    assert not Sampling(temperature=1.0, min_p=0.1).needs_host
    assert not Sampling(temperature=1.0).needs_host
    for wrong in (-0.1, 1.5, True, "x", float("nan")):
        with pytest.raises(InvalidInputError, match="min_p"):
            Sampling(min_p=wrong)  # type: ignore[arg-type]


def test_texts_by_min_p(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with vkmnn.llm.load(tiny.optimum_folder(tmp_path), capacity=64) as model:
        assert model.sampling_defaults() == {}
        greedy = model.generate("the quick", 12).tokens
        assert model.generate("the quick", 12, temperature=3.0, seed=1).tokens != greedy
        assert model.generate("the quick", 12, temperature=3.0, seed=1, min_p=1).tokens == greedy
        with pytest.raises(InvalidInputError, match="min_p is 2"):
            model.generate("the quick", 12, min_p=2)
