"""`vkmnn.mnn.llm`: MNN's calls of language models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import vkmnn
from tests.llm import tiny
from vkmnn import InvalidInputError

pytest.importorskip("tokenizers")
pytest.importorskip("huggingface_hub")

from vkmnn.mnn import llm

PROMPT = [5, 9, 200, 17, 33, 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.genai_folder(tmp_path_factory.mktemp("genai"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[llm.Llm]:
    made = llm.create(folder)
    made.set_config({"backend_type": "cpu", "max_new_tokens": 6, "sampler_type": "greedy"})
    made.load()
    yield made
    made.close()


def test_tokens_and_logits(model: llm.Llm, folder: Path) -> None:
    with vkmnn.llm.load(folder, "cpu") as own:
        want = own.generate(PROMPT, 6).tokens
    assert model.generate(PROMPT) == want
    context = model.context
    assert (context.prompt_len, context.gen_seq_len) == (len(PROMPT), len(want))
    assert context.output_tokens == want
    assert model.stoped()
    model.reset()
    logits = model.forward(PROMPT)
    assert logits.shape[:2] == [1, 1]
    assert int(np.argmax(logits)) == want[0]
    assert int(np.argmax(model.forward(want[:1]))) == want[1]
    model.reset()
    assert int(np.argmax(model.forward(PROMPT))) == want[0]
    model.reset()


def test_texts(model: llm.Llm, capsys: pytest.CaptureFixture[str]) -> None:
    text = model.apply_chat_template("hello")
    assert text == model.apply_chat_template({"role": "user", "content": "hello"})
    assert "hello" in text
    tokens = model.tokenizer_encode("hello")
    assert model.tokenizer_decode(tokens) == "hello"
    answer = model.response("hello", stream=True)
    assert capsys.readouterr().out == answer == model.context.generate_str
    assert model.response([{"role": "user", "content": "hello"}]) == answer
    model.set_config({"use_template": False})
    assert model.response(text) == answer or model.context.prompt_len
    model.set_config({"use_template": True, "reuse_kv": True})
    model.response("hello")
    first = model.context.prompt_len
    model.response("hello")
    assert model.context.prompt_len > first
    model.set_config({"reuse_kv": False})
    model.reset()
    model.response("hello")
    assert model.context.prompt_len == first


def test_what_is_refused(model: llm.Llm, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no setting 'colour'"):
        model.set_config({"colour": 1})
    with pytest.raises(NotImplementedError, match="LoRA"):
        model.apply_lora("a.mnn")
    with pytest.raises(NotImplementedError, match="texts alone"):
        model.tokenizer_encode({"text": "<img>a</img>", "images": []})
    with pytest.raises(InvalidInputError, match="embedding_model=True"):
        model.txt_embedding("hello")
    with pytest.raises(InvalidInputError, match=r"call load\(\) first"):
        llm.create(folder).response("hello")
    (tmp_path / "config.json").write_text(json.dumps({"llm_model": "llm.mnn"}))
    with pytest.raises(NotImplementedError, match="as MNN exports one"):
        llm.create(tmp_path / "config.json")


def test_embeddings(tmp_path: Path) -> None:
    folder = tiny.embedding_folder(tmp_path)
    model = llm.create(folder / "config.json", embedding_model=True)
    model.set_config({"backend_type": "cpu"})
    model.load()
    with vkmnn.llm.load_embedding(folder, "cpu") as own:
        np.testing.assert_allclose(model.txt_embedding("hello"), own.embed("hello"), atol=1e-5)
    model.close()
