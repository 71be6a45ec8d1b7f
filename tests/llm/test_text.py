"""Tokens, text and conversations; and which tokens are chosen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.llm.tiny import TEMPLATE, TEXT, write_tokenizer
from vkmnn import InvalidInputError, MissingExtraError, ModelFileError
from vkmnn.llm import extras
from vkmnn.llm.sampling import Sampler, Sampling, drafted
from vkmnn.llm.text import Detokenizer, Stops, Tokenizer

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer(folder)


@pytest.mark.parametrize("text", [*TEXT, "日本語 🎉 and more", ""])
def test_pieces_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    pieces = Detokenizer(tokenizer)
    told = [pieces.add(token) for token in tokens]
    assert "".join(told) + pieces.rest() == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in told)


def test_half_a_character_is_told_at_the_end(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("a🎉")[:-1]
    pieces = Detokenizer(tokenizer)
    assert "".join(pieces.add(token) for token in tokens) == "a"
    assert "\N{REPLACEMENT CHARACTER}" in pieces.rest()


def test_texts_end_before_a_stop() -> None:
    for pieces in (["abc", "STO", "P", "def"], ["abcSTOPdef"], list("abcSTOPdef")):
        stops = Stops(["STOP", "never"])
        told = ""
        for piece in pieces:
            told += stops.add(piece)
            if stops.found:
                break
        assert (told, stops.found, stops.rest()) == ("abc", "STOP", "")
    stops = Stops(["STOP"])
    assert stops.add("xST") == "x"
    assert stops.add("Y") == "STY"
    assert stops.add("S") + stops.rest() == "S"


def test_conversations_are_written_by_the_template(tokenizer: Tokenizer) -> None:
    text = tokenizer.conversation([{"role": "user", "content": "hi"}])
    assert text == "<|user|>hi\n<|assistant|>"
    with pytest.raises(InvalidInputError, match="a role and a content"):
        tokenizer.conversation([{"content": "hi"}])


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ raise_exception('no system, please') }}", "no system, please"),
        ("{% for", "fails"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "fails"),
        ("{{ messages.append(1) }}", "fails"),
        (None, "no chat template"),
    ],
)
def test_templates_are_not_trusted(tmp_path: Path, template: str | None, error: str) -> None:
    write_tokenizer(tmp_path, template)
    with pytest.raises(InvalidInputError, match=error):
        Tokenizer(tmp_path).conversation([{"role": "user", "content": "hi"}])


def test_a_template_in_a_file_of_its_own(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "{{ 'old' }}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!", "utf-8")
    assert Tokenizer(tmp_path).conversation([{"role": "user", "content": "hi"}]) == "hi!"
    (tmp_path / "chat_template.jinja").unlink()
    config = {"chat_template": [{"name": "tools", "template": "t"},
                                {"name": "default", "template": TEMPLATE}]}  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    assert Tokenizer(tmp_path).conversation([{"role": "user", "content": "x"}]).startswith("<|user")


def test_a_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(ModelFileError, match="cannot be read"):
        Tokenizer(tmp_path)


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'vkmnn\[llm\]'") as error:
        extras.need("no_such_package_at_all", "reading tokens")
    assert isinstance(error.value, ImportError)


def counts(sampling: Sampling, logits: list[float], draws: int = 2000) -> np.ndarray:
    sampler = Sampler(sampling)
    picked = [sampler.pick(np.array(logits, np.float32), ()) for _ in range(draws)]
    return np.bincount(picked, minlength=len(logits)) / draws


def test_draws_follow_the_probabilities() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    np.testing.assert_allclose(counts(Sampling(1.0, seed=1), logits), np.exp(logits), atol=0.04)
    sharp = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    np.testing.assert_allclose(
        counts(Sampling(0.5, seed=2), logits), sharp / sharp.sum(), atol=0.04
    )
    two = counts(Sampling(1.0, top_k=2, seed=3), logits)
    np.testing.assert_allclose(two, [0.625, 0.375, 0, 0], atol=0.04)
    np.testing.assert_allclose(counts(Sampling(1.0, top_p=0.6, seed=4), logits), two, atol=0.06)
    assert counts(Sampling(1.0, top_p=0.5, seed=4), logits)[0] == 1
    assert Sampler(Sampling()).pick(np.array([0.0, 3.0, 3.0]), ()) == 1


@pytest.mark.parametrize("top_p", [1.0, 0.999, 0.5])
@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_draws_are_those_of_a_sorted_vocabulary(top_p: float, spread: float) -> None:
    # Rounded: many tokens are as likely as others.
    logits = np.random.default_rng(3).standard_normal(30_000).round(3).astype(np.float32) * spread
    order = np.argsort(-logits, kind="stable")
    weights = np.exp(logits[order].astype(np.float64))
    sums = np.cumsum(weights / weights.sum())
    sums = sums[: np.searchsorted(sums, top_p) + 1]
    sampler, numbers = Sampler(Sampling(1.0, top_p=top_p, seed=5)), np.random.default_rng(5)
    for _ in range(20):
        place = np.searchsorted(sums, numbers.random() * sums[-1], side="right")
        assert sampler.pick(logits, ()) == order[place]


def test_what_is_there_becomes_less_likely() -> None:
    sampler = Sampler(Sampling(repetition_penalty=2.0))
    assert sampler.pick(np.array([1.0, 1.5, -1.0], np.float32), [1]) == 0
    assert sampler.pick(np.array([-1.0, -1.5], np.float32), [0]) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.5}, {"repetition_penalty": 0},
     {"temperature": float("nan")}, {"seed": -1}],
)  # fmt: skip
def test_ranges(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=f"{next(iter(wrong))} is "):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_guesses_are_what_followed_before() -> None:
    assert drafted([1, 2, 3, 4, 1, 2], 3) == [3, 4, 1]
    assert drafted([1, 2, 9, 1, 2, 7, 1, 2], 2) == [7, 1]
    assert drafted([1, 2, 3], 4) == []
    assert drafted([5, 5, 5], 4) == [5]
    assert drafted([1], 4) == drafted([1, 2, 1, 2, 1, 2], 0) == []
