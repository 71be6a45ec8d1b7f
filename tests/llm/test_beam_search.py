"""Beam search: the best sequences of an exhaustive search, and of decoders without caches."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.llm import tiny
from tests.onnxruntime_oracle import open_oracle
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array
from vkmnn.llm.beam_search import BeamOptions, BeamSearch

_END = 0
WORDS = 5


def logits_of(there: tuple[int, ...]) -> Array:
    """Return a fixed random table by the tokens so far."""
    rng = np.random.default_rng(hash_of(there))
    return rng.standard_normal(WORDS).astype(np.float32) * 2


def hash_of(there: tuple[int, ...]) -> int:
    return sum((one + 1) * 7**place for place, one in enumerate(there))


def searched(options: BeamOptions, most: int, guide: Any = None) -> tuple[int, ...]:
    search = BeamSearch(options, most, {_END}, guide)
    while not search.done:
        search.advance(np.stack([logits_of(there) for there in search.tokens]))
    return search.best()


def score_of(tokens: tuple[int, ...], penalty: float) -> float:
    total = 0.0
    for place, token in enumerate(tokens):
        row = logits_of(tokens[:place]).astype(np.float64)
        total += row[token] - np.log(np.exp(row).sum())
    return float(total / len(tokens) ** penalty)


@pytest.mark.parametrize("penalty", [1.0, 2.0, 0.0])
def test_many_beams_find_the_best_sequence(penalty: float) -> None:
    most = 3
    ended = [one for length in range(1, most + 1)
             for one in itertools.product(range(WORDS), repeat=length)
             if _END not in one[:-1] and (one[-1] == _END or length == most)]  # fmt: skip
    best = max(ended, key=lambda one: score_of(one, penalty))
    assert searched(BeamOptions(60, penalty, "never"), most) == best


def test_one_beam_is_greedy() -> None:
    tokens: tuple[int, ...] = ()
    while len(tokens) < 6 and _END not in tokens:
        tokens = (*tokens, int(logits_of(tokens).argmax()))
    assert searched(BeamOptions(1, 1.0, True), 6) == tokens


def test_early_stopping_and_guides() -> None:
    """With `True`, the search ends with as many sequences as beams, though better ones follow."""
    runs = {}
    for early in (True, False, "never"):
        search = BeamSearch(BeamOptions(2, 1.0, early), 12, {_END}, None)
        runs[early] = 0
        while not search.done:
            search.advance(np.stack([logits_of(there) for there in search.tokens]))
            runs[early] += 1
    assert runs[True] <= runs[False] <= runs["never"] <= 12

    def guide(chances: Array, there: Any) -> Array:
        made = chances.copy()
        made[[_END, 3]] = -np.inf
        assert len(there) < 4
        return made

    found = searched(BeamOptions(3), 4, guide)
    assert len(found) == 4
    assert not {_END, 3} & set(found)
    with pytest.raises(InvalidInputError, match="num_beams=0"):
        BeamOptions(0)


def _uncached(folder: Path, source: list[int], options: BeamOptions, most: int) -> tuple[int, ...]:
    """Search with a decoder that reads each sequence from its start."""
    encoder = open_oracle(folder / "encoder_model.onnx")
    decoder = open_oracle(folder / "decoder_model.onnx")
    mask = np.ones((1, len(source)), np.int64)
    (hidden,) = encoder.run(None, {"input_ids": np.array([source]), "attention_mask": mask})
    search = BeamSearch(options, most, {319}, None)
    while not search.done:
        rows = []
        for there in search.tokens:
            feeds = {"input_ids": np.array([[0, *there]]), "encoder_attention_mask": mask,
                     "encoder_hidden_states": hidden}  # fmt: skip
            rows.append(decoder.run(None, feeds)[0][0, -1])
        search.advance(np.stack(rows))
    return search.best()


@pytest.mark.parametrize(
    ("device", "kv_cache_dtype"), [("cpu", "f32"), ("auto", "f32"), ("auto", "i8")]
)
def test_cached_beams_are_those_without_caches(
    tmp_path: Path, device: str, kv_cache_dtype: vkmnn.llm.KvCacheDtype
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    folder = tiny.seq2seq_folder(tmp_path, merged=False)
    sources = ([5, 9, 200], [17, 33, 4, 4, 80, 3, 12])
    with vkmnn.llm.load_seq2seq(
        folder, device, capacity=64, kv_cache_dtype=kv_cache_dtype
    ) as model:
        for source, beams in ((sources[0], 3), (sources[1], 3), (sources[0], 2)):
            options = BeamOptions(beams, 1.0, "never")
            made = model.searched(source, [0], 9, options)
            want = _uncached(folder, source, options, 9)
            assert made.tokens == [one for one in want if one != 319]
            assert made.finish_reason == ("stop" if want[-1] == 319 else "length")
        greedy = model.generate(sources[0], 9).tokens
        assert model.searched(sources[0], [0], 9, BeamOptions(1)).tokens == greedy
