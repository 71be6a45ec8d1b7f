"""Constrained decoding: texts match, whatever the schema, and hostile grammars harm nobody."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkmnn
from vkmnn import InvalidInputError
from vkmnn.runtime.device import enumerate_devices

pytest.importorskip("tokenizers")
pytest.importorskip("llguidance")
pytest.importorskip("jsonschema")

import jsonschema

from tests.llm.schemas import random_schema
from tests.llm.served import tool_folder
from vkmnn.llm import Grammar, LanguageModel
from vkmnn.llm import grammar as grammar_module
from vkmnn.llm.grammar import Constraint, check, schema_text
from vkmnn.llm.tools import (
    STYLES,
    CallBegins,
    CallGoesOn,
    CallReader,
    Text,
    calls_grammar,
    free_grammar,
)

SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    with vkmnn.llm.load(tool_folder(tmp_path_factory.mktemp("tiny")), capacity=1500) as made:
        yield made


def written(model: LanguageModel, seed: int, schema: Any) -> Iterator[str]:
    """Generate a value of a schema, a token at a time; yield it at the end."""
    grammar, text, reason = Grammar.schema(schema), "", ""
    for made, piece in model.pieces("json:", 1400, grammar=grammar, seed=seed, **SAMPLED):
        text, reason = text + piece, made.finish_reason
        yield ""
    assert reason == "stop", (seed, schema, text)
    yield text


def test_values_are_valid_by_any_schema(model: LanguageModel) -> None:
    """Eight texts at a time, each with a schema of its own."""
    for first in range(0, 24, 8):
        schemas = [random_schema(first + n) for n in range(8)]
        going = {n: written(model, first + n, schema) for n, schema in enumerate(schemas)}
        texts: dict[int, str] = {}
        while going:
            for n, steps in list(going.items()):
                text = next(steps)
                if text:
                    texts[n] = text
                    del going[n]
        for n, schema in enumerate(schemas):
            checker = jsonschema.FormatChecker()
            validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
            validator.validate(json.loads(texts[n]))


def test_texts_match_expressions_and_grammars(model: LanguageModel) -> None:
    pattern = r"[0-9]{3}-[a-c]+/é"
    made = model.generate("x", 60, grammar=Grammar.regex(pattern), seed=1, **SAMPLED)
    assert re.fullmatch(pattern, made.text)
    assert made.finish_reason == "stop"
    source = 'start: "(" start ")" | "x"'
    made = model.generate("x", 200, grammar=Grammar.lark(source), seed=2, **SAMPLED)
    assert re.fullmatch(r"\(*x\)*", made.text)
    assert made.text.count("(") == made.text.count(")")
    greedy = model.generate("x", 40, grammar=Grammar.json())
    assert isinstance(json.loads(greedy.text), dict)
    texts = model.generate(["a", "b", "c"], 60, grammar=Grammar.regex(pattern), **SAMPLED)
    assert all(re.fullmatch(pattern, one.text) for one in texts)


def test_the_constraint_follows_steps_that_are_repeated(model: LanguageModel) -> None:
    tokens = model.tokens_of('{"a": 1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    compiler = model.tokenizer.compiler(frozenset({0}))
    one, other = (compiler.start(Grammar.schema(schema)) for _ in range(2))
    logits = np.zeros(320, np.float32)
    for count in (0, 3, 2, 2, len(tokens) - 1, 1, len(tokens) - 1):
        again = compiler.start(Grammar.schema(schema))
        np.testing.assert_array_equal(
            one.guide(logits, tokens[:count]), again.guide(logits, tokens[:count])
        )
    assert one.is_complete(tokens)
    assert not other.is_complete(tokens[:3])


def test_a_grammar_that_fails_ends_its_text_only(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = next(one for one in "abcdefgh" if len(model.generate(one, 30).tokens) == 30)
    want = model.generate(prompt, 30).text
    guide = Constraint.guide

    def fails(self: Constraint, logits: Any, made: Any) -> Any:
        if len(made) == 5:
            raise InvalidInputError("the grammar is too complex")
        return guide(self, logits, made)

    monkeypatch.setattr(Constraint, "guide", fails)
    plain = model.pieces(prompt, 30)
    bad = model.pieces("a", 30, grammar=Grammar.regex("[a-z]{20}"))
    text, errors = "", list[str]()
    for _, piece in plain:
        text += piece
        try:
            next(bad, None)
        except InvalidInputError as error:
            errors.append(error.message)
    assert errors == ["the grammar is too complex"]
    assert text == want


def chain(count: int) -> dict[str, Any]:
    links = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{count}": {"type": "string"}}}


def nested(count: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    for _ in range(count):
        made = {"type": "array", "items": made}
    return made


def both(count: int) -> dict[str, Any]:
    parts = [{"anyOf": [{"properties": {f"{n}{m}": {}}} for m in range(8)]} for n in range(count)]
    return {"allOf": parts}


@pytest.mark.parametrize(
    "schema",
    [chain(5000), nested(300), both(20), {"enum": ["a" * 9000]}, {"enum": ["abcdefgh"] * 40_000},
     {"type": "string", "pattern": "(" * 5000}, {"if": {}, "then": {}}, {"not": {}},
     {"type": "array", "uniqueItems": True}, {"$ref": "http://127.0.0.1:1/x"},
     {"$ref": "file:///etc/passwd"}, {"type": "nothing"},
     {"type": "integer", "minimum": 2, "maximum": 1}, {"type": "string", "format": "what"},
     {"oneOf": [{"type": "number"}, {"type": "integer"}]}, 3, [], False],
    ids=lambda value: json.dumps(value)[:40],
)  # fmt: skip
def test_schemas_that_are_hostile_or_not_supported_are_refused(schema: Any) -> None:
    start = time.process_time()
    with pytest.raises(InvalidInputError):
        check(Grammar.schema(schema))
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "schema",
    [{"type": "string", "pattern": "^(a|b)*a(a|b){40}$"}, {"type": "string", "pattern": "^(a+)+$"},
     {"type": "string", "maxLength": 10**9}, {"type": "array", "maxItems": 10**9},
     {"$ref": "#", "x": 1}, {"type": "integer", "multipleOf": 1_000_000_007},
     {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}],
    ids=lambda value: json.dumps(value)[:40],
)  # fmt: skip
def test_costly_schemas_take_bounded_time(schema: Any, model: LanguageModel) -> None:
    start = time.process_time()
    with suppress(InvalidInputError):
        model.generate("x", 20, grammar=Grammar.schema(schema), seed=1, **SAMPLED)
    assert time.process_time() - start < 30


def test_what_is_not_supported_is_named(model: LanguageModel) -> None:
    many = {f"name {n}": {"type": "string"} for n in range(2500)}
    many_grammar = Grammar.schema({"type": "object", "properties": many})
    with pytest.raises(InvalidInputError, match="the JSON schema cannot be followed"):
        model.generate("x", 9, grammar=many_grammar)
    for make in (Grammar.regex, Grammar.lark):
        with pytest.raises(InvalidInputError, match="16384 characters at most"):
            make("a" * 20_000)
        with pytest.raises(InvalidInputError, match="is not supported"):
            check(make("(" * 9000))
    with pytest.raises(InvalidInputError, match="not supported: no text matches it"):
        model.generate("x", 9, grammar=Grammar.schema({"$ref": "#"}))
    with pytest.raises(InvalidInputError, match=r'the JSON schema is not supported: .*"not"'):
        check(Grammar.schema({"not": {}}))
    with pytest.raises(InvalidInputError, match="more than 64 deep"):
        Grammar.schema(chain(5000))
    check(Grammar.schema(chain(60)))
    grammar = Grammar.schema({"type": "string"})
    deep = replace(grammar, text=grammar.text.replace('"string"', "[" * 99 + '"string"' + "]" * 99))
    with pytest.raises(InvalidInputError, match="not supported"):
        check(deep)


def test_the_process_that_checks_may_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """What overflows the stack ends that process only; the next check starts another."""
    monkeypatch.setattr(grammar_module, "MAX_DEPTH", 10**6)
    with pytest.raises(InvalidInputError, match="too complex"):
        check(Grammar.schema(chain(3000)))
    check(Grammar.schema({"type": "string"}))


def test_objects_have_no_properties_that_they_do_not_list() -> None:
    inner = {"properties": {"a": {}}}
    closed = json.loads(schema_text({**inner, "$defs": {"b": inner}}))
    assert closed["additionalProperties"] is False
    assert closed["$defs"]["b"]["additionalProperties"] is False
    for open_one in ({**inner, "additionalProperties": True}, {**inner, "required": ["b"]},
                     {**inner, "anyOf": [{}]}, {"allOf": [inner, inner]}):  # fmt: skip
        assert json.loads(schema_text(open_one)).get("additionalProperties") is not False


# --- calls of functions --------------------------------------------------------------------------

HERMES, NAMED, LIST, PHI, GRANITE, LLAMA = STYLES
CALLS = [
    (HERMES, ('Well.\n<tool_call>\n{"name": "f", "arguments": {"a": "}{\\"", "b": [{}]}}\n'
              '</tool_call>\n<tool_call>\n{"arguments": {"x": 1}, "name": "g"}\n</tool_call>'),
     ["Well.\n", ("f", '{"a": "}{\\"", "b": [{}]}'), ("g", '{"x": 1}')]),
    (HERMES, '<tool_call>{"name": "g"}</tool_call>done', [("g", "{}"), "done"]),
    (HERMES, '<tool_call>{"name": "g", "arguments": "{\\"a\\": 1}"}', [("g", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "h"}</tool_call>', ['<tool_call>{"name": "h"}</tool_call>']),
    (HERMES, "<tool_call>\nhello</tool_call>", ["<tool_call>\nhello</tool_call>"]),
    (HERMES, "a <tool_ca b <tool_call", ["a <tool_ca b <tool_call"]),
    (HERMES, '<tool_call>{"name": "g", "arguments": {"a": 1', [("g", '{"a": 1')]),
    (HERMES, '<tool_call>{"name": "g", "argu', [("g", None)]),
    (LIST, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
     [("f", '{"a": 1}'), ("g", "{}")]),
    (NAMED, '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', [("f", '{"a": 1}'), ("g", "{}")]),
    (NAMED, '[TOOL_CALLS]f[CALL_ID]x1y2[ARGS]{"a": 1}', [("f", '{"a": 1}')]),
    (NAMED, '[TOOL_CALLS]h[ARGS]{"a": 1}', ['[TOOL_CALLS]h[ARGS]{"a": 1}']),
    (PHI, '<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>', [("f", "{}")]),
    (GRANITE, '<|tool_call|>[{"name": "f", "arguments": {}}]', [("f", "{}")]),
    (LLAMA, '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
     [("f", '{"a": 1}'), ("g", "{}")]),
    (LLAMA, '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', [("f", "{}")]),
    (LLAMA, '{"hello": 1}', ['{"hello": 1}']),
    (LLAMA, 'I say {"name": "f"}', ['I say {"name": "f"}']),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("style", "text", "want"), CALLS, ids=lambda value: str(value)[-30:])
def test_calls_are_found_in_pieces_of_any_size(
    style: Any, text: str, want: list[Any], size: int
) -> None:
    reader, made = CallReader(style, ["f", "g"]), list[Any]()
    pieces = [text[n : n + size] for n in range(0, len(text), size)]
    events = [event for piece in pieces for event in reader.add(piece)] + reader.finish()
    for event in events:
        if isinstance(event, CallBegins):
            made.append((event.name, None))
        elif isinstance(event, CallGoesOn):
            made[-1] = made[-1][0], (made[-1][1] or "") + event.text
        elif made and isinstance(made[-1], str):
            made[-1] += event.text
        else:
            assert isinstance(event, Text)
            made.append(event.text)
    assert made == want


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.begin.strip())
def test_texts_that_have_to_call_do(style: Any, parallel: bool, model: LanguageModel) -> None:
    arguments = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"],
                 "$defs": {"x": {"enum": [1, "two"]}}}  # fmt: skip
    functions = [{"name": "f", "parameters": arguments}, {"name": "g"}]
    grammar = calls_grammar(style, functions, {}, parallel)
    made = model.generate("x", 1400, grammar=grammar, seed=4, **SAMPLED)
    reader = CallReader(style, ["f", "g"])
    events = [*reader.add(made.text), *reader.finish()]
    names = [event.name for event in events if isinstance(event, CallBegins)]
    values = [json.loads(event.text) for event in events if isinstance(event, CallGoesOn)]
    assert len(names) == len(values) == reader.calls >= 1
    assert parallel or reader.calls == 1
    for name, value in zip(names, values, strict=True):
        assert value in ([{"a": 1}, {"a": "two"}] if name == "f" else [{}])
    assert not any(isinstance(event, Text) for event in events)
    assert made.finish_reason == "stop"


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.begin.strip())
def test_calls_are_right_once_they_have_begun(
    style: Any, marked: bool, model: LanguageModel
) -> None:
    """The constraint allows any text, and after the beginning of a call only its rest."""
    mark = style.begin.strip()
    special = {mark: 3} if marked else {}
    arguments = {"properties": {"a": {"enum": [1]}}, "required": ["a"]}
    functions = [{"name": "f", "parameters": arguments}]
    compiler = model.tokenizer.compiler(frozenset({0}))
    logits = np.zeros(320, np.float32)

    def follows(text: str, after: str) -> bool:
        constraint = compiler.start(free_grammar(style, functions, special, True))
        made: list[int] = []
        for part in filter(None, re.split(f"({re.escape(mark)})", text)):
            made += [3] if marked and part == mark else model.tokens_of(part)
        [token, *_] = [0] if after == "end" else model.tokens_of(after)
        return bool(np.isfinite(constraint.guide(logits, made)[token]))

    assert follows("Well", "!")
    assert follows("Well", "end")
    assert follows("Well", "{")
    begin = style.begin + ("[" if style.form == "list" else "")
    opening = f"f{style.args_mark}" if style.form == "named" else f'{{"name": "f", "{style.key}": '
    rest = "" if style.form == "named" else "}"
    closing = ("]" if style.form == "list" else "") + style.end
    for text in ["", *([] if style.bare else ["Well. "])]:
        assert follows(text + begin, opening[0])
        assert not follows(text + begin, "!")
        assert not follows(text + begin, "end")
        assert follows(f"{text}{begin}{opening}", "{")
        assert not follows(f'{text}{begin}{opening}{{"a": ', "2")
        assert follows(f'{text}{begin}{opening}{{"a": ', "1")
        assert follows(f'{text}{begin}{opening}{{"a": 1}}{rest}{closing}', "end")


def test_marks_that_are_special_tokens_stay_so() -> None:
    functions = [{"name": "f"}]
    special = {"": 0, "[TOOL_CALLS]": 3, "[ARGS]": 5}
    for make in (calls_grammar, free_grammar):
        text = make(NAMED, functions, special, True).text
        assert "<[3]>" in text
        assert '\\"f\\" <[5]> a0' in text
        assert "TOOL_CALLS" not in text
