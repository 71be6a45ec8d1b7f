"""Tiny models of several families and layouts: the same tokens as in onnxruntime."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
from tests.llm import tiny
from vkmnn import InvalidInputError, VkmnnError
from vkmnn.llm import LanguageModel
from vkmnn.llm.sampling import Sampler, Sampling, scored
from vkmnn.llm.sequence import Sequence
from vkmnn.runtime.device import enumerate_devices

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")
pytest.importorskip("huggingface_hub")

from tests.llm.oracle import greedy

PROMPT = [5, 9, 200, 17, 33, 4, 4, 80, 3, 12, 250]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.genai_folder(tmp_path_factory.mktemp("genai"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LanguageModel]:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    with vkmnn.llm.load(folder, capacity=250) as made:
        yield made


@pytest.mark.parametrize(
    ("layout", "family"),
    [("optimum", "llama"), ("optimum", "qwen2"), ("optimum", "gemma"), ("optimum", "phi"),
     ("genai", "qwen2"), ("genai", "gpt-oss"), ("genai", "gemma2"), ("merged", "llama")],
)  # fmt: skip
def test_tokens_are_those_of_onnxruntime(layout: str, family: str, tmp_path: Path) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    shape = tiny.FAMILIES[family]
    if layout == "genai":
        path = tiny.genai_folder(tmp_path, shape) / "model.onnx"
    elif layout == "merged":
        name = "onnx/decoder_model_merged.onnx"
        path = tiny.optimum_folder(tmp_path, shape, make=tiny.merged_model, name=name) / name
    else:
        path = tiny.optimum_folder(tmp_path, shape) / "onnx" / "model.onnx"
    with vkmnn.llm.load(tmp_path, capacity=250) as model:
        made = model.generate(PROMPT, 60)
        before = model.counters()
        model.generate([7, *PROMPT], 4)
        assert model.counters()["plans"] == before["plans"]
    want = greedy(path, PROMPT, 60)
    ends = want.index(319) if 319 in want else 60
    assert made.tokens == want[:ends]
    assert made.prompt_tokens == len(PROMPT)


@pytest.mark.parametrize("family", ["llama", "gpt-oss", "gemma2"])
def test_caches_as_new_builders_declare_them(family: str, tmp_path: Path) -> None:
    """Caches of windows that onnxruntime would evict from, and heads whose width has a name."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    shape = tiny.FAMILIES[family]
    plain = tiny.genai_folder(tmp_path / "plain", shape) / "model.onnx"
    folder = tiny.genai_folder(tmp_path / "new", replace(shape, evicting=True))
    with vkmnn.llm.load(folder, capacity=250) as model:
        made = model.generate(PROMPT, 40)
    want = greedy(plain, PROMPT, 40)
    assert made.tokens == want[: want.index(319) if 319 in want else 40]


def test_two_hundred_tokens_without_planning(model: LanguageModel, folder: Path) -> None:
    want = greedy(folder / "model.onnx", PROMPT, 200)
    model.generate(PROMPT, 4)
    before = model.counters()
    made = model.generate([7, *PROMPT], 40)
    after = model.counters()
    for name in ("plans", "recordings", "allocations", "pipelines"):
        assert after[name] == before[name], name
    runs = 1 + made.runs
    assert after["submits"] - before["submits"] == runs
    assert made.runs == len(made.tokens) - (made.finish_reason == "length")
    assert 319 not in want
    assert model.generate(PROMPT, 200).tokens == want
    fast = model.generate(PROMPT, 200, speculate=7)
    assert fast.tokens == want
    assert fast.runs < 199


def test_prompts_of_any_length(model: LanguageModel, folder: Path) -> None:
    rng = np.random.default_rng(3)
    for length in (1, 2, 8, 9, 33, 130):
        prompt = rng.integers(0, 300, length).tolist()
        made = model.generate(prompt, 3)
        assert made.tokens == greedy(folder / "model.onnx", prompt, 3), length


def test_what_is_in_the_caches_is_not_run_again(model: LanguageModel) -> None:
    first = model.generate([40, *PROMPT], 5)
    again = model.generate([40, *PROMPT, *first.tokens, 3, 3], 2)
    assert again.cached_tokens >= 1 + len(PROMPT) + 4
    assert model.generate([40, *PROMPT], 5).tokens == first.tokens


def test_text_streams_and_stops(model: LanguageModel) -> None:
    whole = model.generate("the quick", 24)
    assert whole.text
    assert whole.finish_reason == "length"
    pieces = list(model.stream("the quick", 24))
    assert "".join(pieces) == whole.text == str(whole)
    assert len(pieces) > 1
    middle = whole.text[len(whole.text) // 2 :][:2]
    cut = model.generate("the quick", 24, stop=middle)
    assert cut.text == whole.text[: whole.text.index(middle)]
    assert cut.finish_reason == "stop"
    stream = model.stream("the quick", 24)
    next(stream)
    stream.close()  # whoever reads may stop, and the caches are free again
    assert model.generate("the quick", 24).text == whole.text


def test_more_texts_share_a_step_on_some_devices(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on GPUs with matrices; each gets the tokens that it gets alone."""
    monkeypatch.setattr("vkmnn.llm.decoder.texts_at_once", lambda *_: 16)
    prompts = [[5 + number, 9, 20, number] for number in range(11)]
    with vkmnn.llm.load(folder) as model:
        assert model.texts_at_once == 16
        together = [one.tokens for one in model.generate(prompts, 3)]
        pool = model._decoder._pool
        assert pool is not None
        assert pool._places == 16
        for number in (0, 10):
            assert together[number] == model.generate(prompts[number], 3).tokens


@pytest.mark.parametrize(
    "how",
    [{}, {"top_k": 9}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 20, "top_p": 0.9, "min_p": 0.02}],
    ids=str,
)
def test_the_device_draws_the_tokens_that_the_host_draws(
    model: LanguageModel, how: dict[str, Any]
) -> None:
    drawn = model.generate("the lazy", 24, temperature=1.0, seed=3, **how)
    by_host = model.generate("the lazy", 24, temperature=1.0, seed=3, logprobs=0, **how)
    assert by_host.logprobs
    assert drawn.tokens == by_host.tokens


def test_seeds_and_batches(model: LanguageModel) -> None:
    one = model.generate("the lazy", 12, temperature=1.0, seed=3)
    assert one.tokens == model.generate("the lazy", 12, temperature=1.0, seed=3).tokens
    assert one.tokens != model.generate("the lazy", 12, temperature=1.0, seed=4).tokens
    prompts = ["the quick", "one token after", "hello", "the quick"]
    batch = model.generate(prompts, 6)
    assert [r.tokens for r in batch] == [model.generate(p, 6).tokens for p in prompts]


def test_threads_wait_for_caches(model: LanguageModel) -> None:
    want = model.generate([[n, 5, 9] for n in range(8)], 4)
    made: list[list[list[int]]] = []

    def batch() -> None:
        made.append([r.tokens for r in model.generate([[n, 5, 9] for n in range(8)], 4)])

    threads = [threading.Thread(target=batch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert made == [[r.tokens for r in want]] * 3


def test_conversations(model: LanguageModel) -> None:
    messages = [{"role": "user", "content": "hello"}]
    text = model.tokenizer.conversation(messages)
    tokens = model.tokenizer.encode(text, special=False)
    assert model.generate(messages, 5).tokens == model.generate(tokens, 5).tokens


def test_sessions_go_on_and_are_kept(model: LanguageModel, tmp_path: Path) -> None:
    session = model.session()
    first = session.generate("the quick brown", 6)
    assert session.tokens == [*model.tokens_of("the quick brown"), *first.tokens]
    session.save(tmp_path / "kept.npz")
    more = session.generate(" fox", 6)
    assert session.tokens[-6:] == more.tokens
    again = model.session(tmp_path / "kept.npz")
    assert again.generate(" fox", 6).tokens == more.tokens
    assert again.tokens == session.tokens
    for one in (session, again):
        one.close()
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    with pytest.raises(vkmnn.ModelFileError, match="not a saved session"):
        model.session(tmp_path / "bad.npz")


def test_what_does_not_fit_says_so(model: LanguageModel) -> None:
    with pytest.raises(vkmnn.InvalidInputError, match="251 tokens, and there is room for 250"):
        model.generate([1] * 251, 1)
    full = model.generate([*PROMPT, *[8] * 233], 20)
    assert full.finish_reason == "length"
    assert len(full.tokens) == 250 - 244 + 1
    with pytest.raises(vkmnn.InvalidInputError, match="prompt is empty"):
        model.generate([], 1)
    with pytest.raises(vkmnn.InvalidInputError, match="top_p is 2"):
        model.generate([1], 1, top_p=2)
    with pytest.raises(vkmnn.InvalidInputError, match="max_tokens is -1"):
        model.generate([1], -1)
    with pytest.raises(vkmnn.InvalidInputError, match="not float"):
        model.generate(1.5)


def test_weights_of_four_bits(tmp_path: Path) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    tiny.genai_folder(tmp_path)
    path = tmp_path / "model_q4.onnx"
    onnx.save(tiny.four_bits(onnx.load(str(tmp_path / "model.onnx"))), str(path))
    with vkmnn.llm.load(tmp_path, variant="q4", capacity=100) as model:
        model.generate(PROMPT, 3)
        before = model.counters()
        made = model.generate(PROMPT[:9], 30)
        after = model.counters()
    assert made.tokens == greedy(path, PROMPT[:9], 30)
    for name in ("plans", "recordings", "allocations"):
        assert after[name] == before[name], name


def test_numpy_gives_the_same_tokens(folder: Path) -> None:
    with vkmnn.llm.load(folder, "cpu", capacity=40) as model:
        made = model.generate(PROMPT, 5)
    assert made.tokens == greedy(folder / "model.onnx", PROMPT, 5)


def test_a_network_that_has_no_caches_is_refused(tmp_path: Path) -> None:
    tiny.optimum_folder(tmp_path)
    path = tmp_path / "onnx" / "model.onnx"
    proto = onnx.load(str(path))
    for info in proto.graph.input:
        info.name = info.name.replace("past_key_values", "memory")
    for node in proto.graph.node:
        node.input[:] = [n.replace("past_key_values", "memory") for n in node.input]
    onnx.save(proto, str(path))
    with pytest.raises(vkmnn.ModelFileError, match="has no caches"):
        vkmnn.llm.load(tmp_path)


# --- scores, penalties, chunks and shared beginnings ---------------------------------------------


def test_scores_are_those_of_the_network(model: LanguageModel, folder: Path) -> None:
    made = model.generate(PROMPT, 12, logprobs=3)
    assert made.tokens == greedy(folder / "model.onnx", PROMPT, 12)
    whole = model.generate([*PROMPT, *made.tokens], 0, logprobs=3, prompt_logprobs=True)
    scores = whole.prompt_logprobs
    assert scores[0] is None
    assert [one.chosen.token for one in scores[1:] if one] == [*PROMPT[1:], *made.tokens]
    for one, other in zip(made.logprobs, scores[len(PROMPT) :], strict=True):
        assert other is not None
        assert one.chosen.token == one.likeliest[0].token == other.likeliest[0].token
        assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-3)
        numbers = [score.logprob for score in one.likeliest]
        assert numbers == sorted(numbers, reverse=True)
    batch = model.generate([PROMPT, PROMPT[1:]], 12, logprobs=3)
    assert batch[0].tokens == made.tokens
    assert [one.chosen.logprob for one in batch[0].logprobs] == pytest.approx(
        [one.chosen.logprob for one in made.logprobs], abs=1e-3
    )


def test_probabilities_add_up() -> None:
    logits = np.array([1.0, 3.0, 2.0, -np.inf], np.float32)
    made = scored(logits, 2, 4)
    assert [one.token for one in made.likeliest] == [1, 2, 0, 3]
    assert sum(np.exp(one.logprob) for one in made.likeliest) == pytest.approx(1)
    assert made.chosen.logprob == made.likeliest[1].logprob
    assert scored(logits, 0, 0).likeliest == ()


def test_penalties_count_generated_tokens_only() -> None:
    logits = np.array([1.0, 1.5, 1.4], np.float32)

    def best(there: list[int], **how: float) -> int:
        return Sampler(Sampling(**how), prompt=2).sample(logits, there)  # type: ignore[arg-type]

    assert best([1, 1], presence_penalty=2.0) == 1
    assert best([1, 1, 1], presence_penalty=0.2) == 2
    assert best([1, 1, 1, 2], frequency_penalty=0.3) == 1
    assert best([1, 1, 1, 1, 2], frequency_penalty=0.3) == 2
    assert best([1, 1, 1, 2], presence_penalty=0.6) == 0
    assert best([0, 0, 0, 0], presence_penalty=-2.0) == 0
    biased = Sampling(logit_bias={0: 0.6, 7: 3.0})
    assert Sampler(biased).sample(logits, []) == 0
    assert not Sampling(logit_bias={0: 1}).likeliest
    assert logits.tolist() == pytest.approx([1.0, 1.5, 1.4])


@pytest.mark.parametrize(
    "wrong",
    [{"presence_penalty": 3}, {"frequency_penalty": -2.5}, {"logit_bias": {0: 101}},
     {"logit_bias": {-1: 1}}, {"logit_bias": {"a": 1}}, {"logit_bias": {1: float("nan")}},
     {"repetition_penalty": 1e-320}, {"logit_bias": [1]}, {"grammar": "x"}, {"grammar": {}},
     {"logit_bias": dict.fromkeys(range(5000), 1)}, {"logprobs": -1}, {"logprobs": 10**6}],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_settings_out_of_range(wrong: dict[str, Any], model: LanguageModel) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        model.generate(PROMPT, 2, **wrong)
    with pytest.raises(TypeError, match="unexpected keyword argument 'what'"):
        model.generate(PROMPT, 2, what=1)  # type: ignore[call-arg]


def test_the_coldest_temperatures_are_greedy(model: LanguageModel) -> None:
    """Logits divided by them would overflow, here and on the device."""
    assert Sampling(temperature=1e-320).likeliest
    with np.errstate(all="raise"):
        made = model.generate(PROMPT, 4, temperature=1e-5, top_k=3, seed=1, min_p=0.1)
    assert made.tokens == model.generate(PROMPT, 4).tokens


def test_other_texts_go_on_between_the_chunks_of_a_prompt(model: LanguageModel) -> None:
    rng = np.random.default_rng(5)
    long = rng.integers(0, 300, 200).tolist()
    want = model.generate(PROMPT, 30).tokens
    short, other = model.pieces(PROMPT, 30), model.pieces(long, 5)
    made, _ = next(short)
    left = []
    for begun, _ in other:
        left.append(begun.prompt_left)
        next(short)
    assert left[: left.index(0)] == [200 - size for size in range(32, 200, 32)]
    for _ in short:
        pass
    assert made.tokens == want
    assert begun.tokens == model.generate(long, 5).tokens


def test_beginnings_are_shared_across_texts(folder: Path) -> None:
    rng = np.random.default_rng(6)
    system = rng.integers(0, 300, 100).tolist()
    ends = rng.integers(0, 300, (8, 5)).tolist()
    with vkmnn.llm.load(folder, capacity=250) as model:
        want = [model.generate([*system, *end], 4).tokens for end in ends]
        model.share_prefixes(1 << 20)
        for end in ends[:2]:  # the second time, the rows are kept
            model.generate([*end, *system], 1)
            model.generate([*system, *end], 4)
        assert model.memory()["prefixes"] > 0
        made = model.generate([[*system, *end] for end in ends], 4)
        assert [one.tokens for one in made] == want
        assert [one.cached_tokens for one in made].count(96) >= 6
        block = model.memory()["prefixes"] // 3
        model.share_prefixes(2 * block)
        for _ in range(3):
            for end in ends:
                assert model.generate([*end, *system], 1).tokens
        assert 0 < model.memory()["prefixes"] <= 2 * block


@pytest.mark.parametrize("method", ["rows", "restore"])
def test_texts_do_without_rows_that_cannot_be_copied(
    method: str, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(8)
    system = rng.integers(0, 300, 80).tolist()
    want = [model.generate([*system, end], 4).tokens for end in range(3)]

    def fail(*_: Any) -> None:
        raise VkmnnError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(Sequence, method, fail)
        model.share_prefixes(1 << 20)
        made = [model.generate([[*system, end] for end in range(3)], 4) for _ in range(3)]
        model.share_prefixes(0)
    assert [[one.tokens for one in batch] for batch in made] == [want] * 3
