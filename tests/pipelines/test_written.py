"""Translations and summaries: the tokens of onnxruntime under the rules of the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vkmnn
from tests.llm import tiny
from tests.llm.test_seq2seq import greedy
from vkmnn.llm.beam_search import BeamOptions
from vkmnn.llm.text import Tokenizer
from vkmnn.pipelines.texts.generate import repeated

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")


def folder_of(folder: Path, **config: Any) -> Path:
    tiny.seq2seq_folder(folder, merged=False)
    base = {"model_type": "t5", "decoder_start_token_id": 0, "eos_token_id": 319}
    (folder / "config.json").write_text(json.dumps({**base, **config}))
    return folder


PAIRS = {"translation_en_to_de": {"prefix": "translate to German: ", "max_length": 6},
         "translation_en_to_fr": {"prefix": "translate to French: ", "max_length": 6},
         "summarization": {"prefix": "summarize: ", "max_length": 7}}  # fmt: skip


@pytest.mark.parametrize(
    ("task", "options", "prefix", "count", "key"),
    [
        ("translate", {"target": "fr"}, "translate to French: ", 6, "translation_text"),
        ("translation_en_to_de", {}, "translate to German: ", 6, "translation_text"),
        ("summarize", {}, "summarize: ", 7, "summary_text"),
        (None, {"max_tokens": 5}, "", 5, "generated_text"),
    ],
)
def test_prefixes_and_lengths_are_those_of_the_files(
    tmp_path: Path, task: str | None, options: dict[str, Any], prefix: str, count: int, key: str
) -> None:
    folder = folder_of(tmp_path, architectures=["T5ForConditionalGeneration"],
                       task_specific_params=PAIRS)  # fmt: skip
    text = "the quick brown fox"
    said: list[str] = []
    with vkmnn.pipeline(task, folder, device="cpu", tell=said.append, **options) as pipe:
        found, again = pipe([text, text])
    tokenizer = Tokenizer(folder)
    want = greedy(folder, tokenizer.encode(prefix + text), count)
    want = want[: want.index(319)] if 319 in want else want
    assert found.text() == tokenizer.decode(want).strip()
    assert again.to_dict() == found.to_dict()
    assert list(found.to_dict()) == [key, "is_whole"]
    assert said == []
    found.save(tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text("utf-8") == found.text() + "\n"


def test_rules_of_the_files(tmp_path: Path) -> None:
    """Forced first tokens, no padding, no early end, no repetitions; and what cannot be done."""
    text = "the quick brown fox"
    plain = folder_of(tmp_path / "plain")
    with vkmnn.pipeline("text2text", plain, device="cpu", max_tokens=12) as pipe:
        tokens = pipe.model.guided(text, max_tokens=12).tokens
    folder = folder_of(tmp_path / "ruled", forced_bos_token_id=9, pad_token_id=tokens[0],
                       no_repeat_ngram_size=2, min_length=9, num_beams=4)  # fmt: skip
    said: list[str] = []
    with vkmnn.pipeline("text2text", folder, device="cpu", tell=said.append) as pipe:
        made: list[Any] = []
        inner = pipe.model.guided

        def guided(source: Any, prompt: Any, *rest: Any, **named: Any) -> Any:
            made.append((list(prompt), inner(source, prompt, *rest, **named)))
            return made[-1][1]

        pipe.model.guided = guided
        pipe(text, max_tokens=40, num_beams=1)
    prompt, result = made[0]
    assert prompt == [0, 9]
    assert tokens[0] not in result.tokens
    pairs = list(zip(result.tokens, result.tokens[1:], strict=False))
    assert len(pairs) == len(set(pairs))
    assert len(result.tokens) + 2 >= 9
    assert said == []


def test_beams_of_the_files(tmp_path: Path) -> None:
    """The options of the search and the lengths are those of the files, as in transformers."""
    text = "the quick brown fox"
    folder = folder_of(tmp_path, num_beams=3, max_length=9, length_penalty=2.0,
                       early_stopping=True, no_repeat_ngram_size=2, forced_bos_token_id=9,
                       forced_eos_token_id=319)  # fmt: skip
    made: list[Any] = []
    with vkmnn.pipeline("text2text", folder, device="cpu") as pipe:
        inner = pipe.model.searched

        def searched(source: Any, prompt: Any, most: Any, options: Any, guide: Any) -> Any:
            result = inner(source, prompt, most, options, guide)
            made.append((list(prompt), most, options, result.tokens, result.finish_reason))
            return result

        pipe.model.searched = searched
        found = pipe(text)
        pipe(text, max_tokens=5, num_beams=2, early_stopping="never", length_penalty=0)
        for name, value in (("num_beams", 0), ("early_stopping", "soon"), ("length_penalty", "a")):
            with pytest.raises(vkmnn.InvalidInputError, match=name):
                pipe(text, **{name: value})
    prompt, most, options, tokens, reason = made[0]
    assert (prompt, most) == ([0, 9], 7)  # of 9 tokens, the prompt has 2
    assert options == BeamOptions(3, 2.0, True, 1)
    assert reason == "stop"
    pairs = list(zip([*prompt, *tokens], [*prompt, *tokens][1:], strict=False))
    assert len(pairs) == len(set(pairs))
    assert found.is_whole
    assert made[1][1:3] == (5, BeamOptions(2, 0.0, "never", 1))


def test_repetitions() -> None:
    assert repeated([1, 2, 3, 1, 2], 3) == [3]
    assert repeated([1, 2], 3) == []
    assert repeated([4, 4], 1) == [4, 4]
    assert repeated([4], 0) == []


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, task_specific_params=PAIRS, max_position_embeddings=12)
    with pytest.raises(vkmnn.InvalidInputError, match="no translation from"):
        vkmnn.pipeline("translate", folder, device="cpu", target="es")
    said: list[str] = []
    with vkmnn.pipeline("translate", folder, device="cpu", tell=said.append) as pipe:
        with pytest.raises(vkmnn.InvalidInputError, match="the model takes 12"):
            pipe("the quick brown fox " * 9)
        with pytest.raises(vkmnn.InvalidInputError, match="a text is a str"):
            pipe(3)
    assert "--set source=en" in said[0]


def test_tokens_of_languages(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    with vkmnn.pipeline("translate", folder, device="cpu", target="<|user|>") as pipe:
        assert pipe.forced({}) == [1]
    with pytest.raises(vkmnn.InvalidInputError, match="no token for the language 'xx_Latn'"):
        vkmnn.pipeline("translate", folder, device="cpu", target="xx_Latn")
    (tmp_path / "README.md").write_text("---\npipeline_tag: summarization\n---\n")
    with vkmnn.pipeline(None, folder, device="cpu") as pipe:
        assert pipe.task == "summarization"
