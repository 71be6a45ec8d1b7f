"""Tokens, text and conversations; and the choice of tokens."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.llm.tiny import TEMPLATE, TEXT, write_tokenizer
from vkmnn import InvalidInputError, MissingExtraError, ModelFileError
from vkmnn.base import extras
from vkmnn.llm import templates
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


def test_stops_are_found_as_by_looking_everywhere() -> None:
    """Pieces, stop texts that overlap and share prefixes, all characters."""
    random = np.random.default_rng(3)
    for number in range(1500):
        letters = "ab" if number % 2 else "abc\U0010ffff"

        def some(most: int, letters: str = letters) -> str:
            return "".join(random.choice([*letters], random.integers(most)))

        given = [some(7) for _ in range(random.integers(5))]
        stops, told, seen = Stops(given), "", ""
        for _ in range(8):
            piece = some(6)
            seen += piece
            told += stops.add(piece)
            places = [(seen.find(stop), len(stop)) for stop in given if stop and stop in seen]
            if places:
                place, length = min(places)
                assert (told, stops.found) == (seen[:place], seen[place : place + length])
                break
            assert stops.found is None
            held = seen[len(told) :]
            assert seen.startswith(told)
            assert all(not seen.endswith(stop[:n]) for stop in given
                       for n in range(len(held) + 1, len(stop)))  # fmt: skip
            assert not held or any(stop.startswith(held) for stop in given)
        else:
            assert told + stops.rest() == seen


def test_long_stops_cost_nothing_until_they_match() -> None:
    def states(stops: Stops) -> int:
        found, left = 0, [stops._root]
        while left:
            found += 1
            left += left.pop().longer.values()
        return found

    stops = Stops(["a" * 1_000_000, "b" * 1_000_000])
    assert stops.add("abacus" * 3) == "abacus" * 3
    assert states(stops) == 3
    assert stops.add("a" * 5000) == ""
    assert states(stops) == 5002
    assert stops.add("c") == "a" * 5000 + "c"
    many = Stops([f"{'a' * n}b" for n in range(3000)])  # ends of each other, all the way
    assert many.add("a" * 2999) + many.add("b") == ""
    assert many.found == "a" * 2999 + "b"


def test_conversations_are_written_by_the_template(tokenizer: Tokenizer) -> None:
    text = tokenizer.conversation([{"role": "user", "content": "hi"}])
    assert text == "<|user|>hi\n<|assistant|>"
    with pytest.raises(InvalidInputError, match="a role and a content"):
        tokenizer.conversation([{"content": "hi"}])
    with pytest.raises(InvalidInputError, match="does not know the role 'usr'"):
        tokenizer.conversation([{"role": "usr", "content": "hi"}])


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ raise_exception('no system, please') }}", "no system, please"),
        ("{% for", "fails"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "fails"),
        ("{{ messages.append(1) }}", "fails"),
        (None, "no chat template"),
        ("{{ 1 / 0 }}", "fails: ZeroDivisionError"),
        ("{{ 2.0 ** 100000 }}", "fails: OverflowError"),
        ("{{ range(10 ** 9) }}", "fails: OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails: RecursionError"),
        ("{{" + "(" * 50000 + "1" + ")" * 50000 + "}}", "fails: RecursionError"),
        ("{% include 'x' %}", "fails: TypeError"),
        ("{{ '\\ud800' }}", "not Unicode"),
        *(
            (template, "fails: (MemoryError|it ended its process)")
            for template in (
                "{{ 'a' * 10 ** 10 }}",
                "{{ 'x'.ljust(10 ** 12) }}",
                "{{ '%1000000000d' | format(1) }}",
                "{{ '{:>1000000000}'.format(1) }}",
            )
            if sys.platform == "linux"
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_templates_are_not_trusted(tmp_path: Path, template: str | None, error: str) -> None:
    write_tokenizer(tmp_path, template)
    tokenizer = Tokenizer(tmp_path)
    with pytest.raises(InvalidInputError, match=error):
        tokenizer.encode(tokenizer.conversation([{"role": "user", "content": "hi"}]))


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("content", ["endless", "power", "late"])
def test_templates_without_end(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are ended by processor time, or by the clock; the next conversation is written."""
    if content == "late":  # as on a machine without limits of processor time
        monkeypatch.setattr(templates, "CPU_S", 1000)
        monkeypatch.setattr(templates, "WALL_S", 1.0)
    source = (
        "{% set how = messages[0].content %}"
        "{% if how == 'power' %}{{ 10 ** (10 ** (8 * messages | length)) }}"
        "{% elif how != 'hi' %}" + ENDLESS * 9 + "{% endif %}{{ how }}"
    )
    write_tokenizer(tmp_path, source)
    tokenizer = Tokenizer(tmp_path)
    with pytest.raises(InvalidInputError, match="takes more than"):
        tokenizer.conversation([{"role": "user", "content": content}])
    monkeypatch.undo()
    assert tokenizer.conversation([{"role": "user", "content": "hi"}]) == "hi"


def test_the_process_of_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees no environment, is restarted if it has ended, and ends with its template."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    template = templates.ChatTemplate("{{ text }}")
    assert template.write({"text": "one"}) == "one"
    first = template._worker._process
    assert first is not None
    environment = Path(f"/proc/{first.pid}/environ")
    if environment.exists():
        assert b"secret" not in environment.read_bytes()
    assert template.write({"text": "two"}) == "two"
    assert template._worker._process is first
    first.kill()
    first.wait()
    assert template.write({"text": "three"}) == "three"
    second = template._worker._process
    assert second is not None
    assert template.write({"text": "four"}, 3) is None
    with pytest.raises(InvalidInputError, match="not JSON"):
        template.write({"text": object()})
    del template
    gc.collect()
    assert first.poll() is not None
    assert second.poll() is not None


def test_old_sandboxes_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jinja2.__version__", "3.1.5")
    with pytest.raises(MissingExtraError, match=r"3\.1\.6"):
        templates.ChatTemplate("x").write({})


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ m | tojson }}", """{"b": "it's <é>", "a": 1}"""),
        ("{{ m | tojson(sort_keys=True, separators=(',', ':')) }}", """{"a":1,"b":"it's <é>"}"""),
        ("{{ [m.a] | tojson(indent=1, ensure_ascii=True) }}", "[\n 1\n]"),
        ("a{% generation %}{{ m.a }}{% endgeneration %}b", "a1b"),
        ("{{ strftime_now('%Y') | int > 2000 }}", "True"),
    ],
)
def test_templates_have_what_transformers_gives_them(template: str, text: str) -> None:
    variables = {"m": {"b": "it's <é>", "a": 1}}
    assert templates.ChatTemplate(template).write(variables) == text


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


@pytest.mark.parametrize(
    "part",
    [{"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken":
      {"id": "zz", "type_id": 0}}], "pair": [], "special_tokens": {}}},
     {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}},
     {"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}},
     {"added_tokens": [[[]]]}],
    ids=str,
)  # fmt: skip
def test_damaged_tokenizers(part: dict[str, object], tmp_path: Path) -> None:
    """The package raises plain Exceptions, and panics."""
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **part}), "utf-8")
    with pytest.raises((ModelFileError, InvalidInputError)):
        Tokenizer(tmp_path).encode("some text")


def test_odd_tokens_and_texts(tokenizer: Tokenizer) -> None:
    for tokens in ([2**63], [-1], ["a"], [1.5]):
        with pytest.raises(InvalidInputError):
            tokenizer.decode(tokens)  # type: ignore[arg-type]
    for text in ("\ud800", "a" * 5000 + "\ud800", b"text", None):
        with pytest.raises(InvalidInputError):
            tokenizer.encode(text)  # type: ignore[arg-type]


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'vkmnn\[llm\]'") as error:
        extras.need("no_such_package_at_all", "reading tokens")
    assert isinstance(error.value, ImportError)


def counts(sampling: Sampling, logits: list[float], draws: int = 2000) -> np.ndarray:
    sampler = Sampler(sampling)
    picked = [sampler.sample(np.array(logits, np.float32), ()) for _ in range(draws)]
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
    assert Sampler(Sampling()).sample(np.array([0.0, 3.0, 3.0]), ()) == 1


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
        assert sampler.sample(logits, ()) == order[place]


def test_what_is_there_becomes_less_likely() -> None:
    sampler = Sampler(Sampling(repetition_penalty=2.0))
    assert sampler.sample(np.array([1.0, 1.5, -1.0], np.float32), [1]) == 0
    assert sampler.sample(np.array([-1.0, -1.5], np.float32), [0]) == 1


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
