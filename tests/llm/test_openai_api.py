"""OpenAI's API: choices, scores, tools, formats, responses, sounds, images and rankings."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
import wave
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("llguidance")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")
pytest.importorskip("python_multipart")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")
pytest.importorskip("openai")

import openai

from tests.llm.served import Served, served, tool_folder
from tests.llm.tiny import TEMPLATE
from tests.pipelines.painters import painter_folder
from tests.pipelines.test_sounds import whisper
from tests.pipelines.test_texts import encoder
from vkmnn.serve import Access, Limits, Models, load_models

MESSAGES = [{"role": "user", "content": "hello"}]
ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}, "n": {"enum": [1]}},
    "required": ["city", "n"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "of a city", "parameters": ARGUMENTS}
TOOL = {"type": "function", "function": WEATHER}
OTHER = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "weather"}}
VALUES = [{"city": "Bern", "n": 1}, {"city": "Rome", "n": 1}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    folder = tmp_path_factory.mktemp("models")
    text, plain = tool_folder(folder / "tiny"), tool_folder(folder / "plain", TEMPLATE)
    heard = whisper(folder / "whisper")
    encoder(folder / "ranker", "logits", architectures=["BertForSequenceClassification"])
    painter = painter_folder(folder / "painter")
    paths = [str(text), str(plain), str(heard), str(folder / "ranker"), str(painter)]
    made = load_models(paths, "auto", capacity=1500)
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(models: Models) -> Iterator[Served]:
    with served(models) as made:
        yield made


@pytest.fixture
def client(server: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def chat(client: Any, **how: Any) -> Any:
    how = {"model": "tiny", "messages": MESSAGES, "max_tokens": 6, "temperature": 0, **how}
    return client.chat.completions.create(**how)


# --- choices, scores and settings ----------------------------------------------------------------


def test_choices_are_those_of_their_seeds(client: Any, models: Models) -> None:
    made = chat(client, n=3, temperature=1, seed=7)
    want = [models.language["tiny"].generate(MESSAGES, 6, temperature=1.0, seed=7 + n)
            for n in range(3)]  # fmt: skip
    assert [one.message.content for one in made.choices] == [one.text for one in want]
    assert [one.index for one in made.choices] == [0, 1, 2]
    assert made.usage.completion_tokens == sum(len(one.tokens) for one in want)
    assert made.usage.prompt_tokens == want[0].prompt_tokens
    chunks = list(chat(client, n=3, temperature=1, seed=7, stream=True,
                       stream_options={"include_usage": True}))  # fmt: skip
    texts = ["", "", ""]
    for chunk in chunks[:-1]:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [one.text for one in want]
    assert chunks[-1].usage == made.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )


def test_scores_of_a_chat(client: Any, models: Models) -> None:
    want = models.language["tiny"].generate(MESSAGES, 6, logprobs=2)
    made = chat(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert [one.logprob for one in made] == pytest.approx([s.chosen.logprob for s in want.logprobs])
    assert b"".join(bytes(one.bytes) for one in made).decode("utf-8", "replace") == want.text
    assert all(one.top_logprobs[0].logprob >= one.top_logprobs[1].logprob for one in made)
    assert all(one.top_logprobs[0].token == one.token for one in made)  # greedy
    chunks = chat(client, logprobs=True, top_logprobs=2, stream=True)
    told = [one for chunk in chunks for choice in chunk.choices if choice.logprobs
            for one in choice.logprobs.content]  # fmt: skip
    assert [one.token for one in told] == [one.token for one in made]


def test_completions_of_several_prompts(client: Any, models: Models) -> None:
    tiny = models.language["tiny"]
    want = [tiny.generate(one, 4).text for one in ("the quick", "a")]
    asked = {"model": "tiny", "max_tokens": 4, "temperature": 0}
    made = client.completions.create(prompt=["the quick", "a"], **asked)
    assert [one.text for one in made.choices] == want
    tokens = [tiny.tokens_of(one) for one in ("the quick", "a")]
    made = client.completions.create(prompt=tokens, echo=True, n=2, **asked)
    assert [one.text for one in made.choices] == [f"the quick{want[0]}"] * 2 + [f"a{want[1]}"] * 2
    assert made.usage.prompt_tokens == sum(map(len, tokens))
    made = client.completions.create(prompt="the quick", echo=True, logprobs=1, **asked)
    scores = made.choices[0].logprobs
    assert "".join(scores.tokens[: len(tokens[0])]) == "the quick"
    assert scores.token_logprobs[0] is scores.top_logprobs[0] is None
    again = tiny.generate([*tokens[0], *tiny.generate("the quick", 4).tokens], 0, logprobs=1,
                          prompt_logprobs=True).prompt_logprobs  # fmt: skip
    np.testing.assert_allclose(
        scores.token_logprobs[1:], [one.chosen.logprob for one in again[1:]], atol=1e-4
    )
    parts = client.completions.create(prompt="the quick", echo=True, stream=True, **asked)
    assert "".join(part.choices[0].text for part in parts) == f"the quick{want[0]}"
    asked["max_tokens"] = 0
    assert client.completions.create(prompt="the", echo=True, **asked).choices[0].text == "the"


def test_settings_reach_the_sampler(client: Any, models: Models) -> None:
    made = client.completions.create(model="tiny", prompt="x", max_tokens=3, logit_bias={"5": 100})
    assert made.choices[0].text == models.language["tiny"].tokenizer.decode([5]) * 3
    more = {"min_p": 1.0, "top_k": 50, "repetition_penalty": 1.5}
    how = {"presence_penalty": 1.5, "frequency_penalty": 0.5, "temperature": 1.0, "seed": 3}
    made = chat(client, extra_body=more, max_tokens=30, **how)
    want = models.language["tiny"].generate(MESSAGES, 30, **how, **more)
    assert made.choices[0].message.content == want.text


def test_a_model_samples_as_its_files_recommend(
    client: Any, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = models.language["tiny"]
    asked: list[Any] = []
    pieces = tiny.pieces
    monkeypatch.setattr(tiny, "sampling_defaults", lambda: {"temperature": 0.3, "min_p": 0.2})
    monkeypatch.setattr(tiny, "pieces", lambda *a, **k: asked.append(k) or pieces(*a, **k))
    client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2, top_p=0.5)
    assert {k: asked[0][k] for k in ("temperature", "min_p", "top_p")} == {
        "temperature": 0.3, "min_p": 0.2, "top_p": 0.5}  # fmt: skip


# --- tools and formats ---------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["tiny", "plain"])
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_calls_that_have_to_be(choice: Any, model: str, client: Any) -> None:
    asked = {"model": model, "tools": [TOOL], "tool_choice": choice, "max_tokens": 900,
             "temperature": 1, "seed": 5, "parallel_tool_calls": False}  # fmt: skip
    made = chat(client, **asked).choices[0]
    assert made.finish_reason == "tool_calls"
    assert made.message.content is None
    [call] = made.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) in VALUES
    deltas = [chunk.choices[0] for chunk in chat(client, stream=True, **asked)]
    calls = [call for one in deltas for call in one.delta.tool_calls or []]
    assert calls[0].function.name == "weather"
    assert calls[0].id
    assert {one.index for one in calls} == {0}
    assert "".join(one.function.arguments for one in calls) == call.function.arguments
    assert deltas[-1].finish_reason == "tool_calls"
    said = made.message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    after = chat(client, model=model, messages=[*MESSAGES, said, result], tools=[TOOL])
    assert after.usage.prompt_tokens > len("sunny")


def test_several_calls_and_none(client: Any) -> None:
    asked = {"tools": [TOOL, OTHER], "max_tokens": 1100, "temperature": 1, "seed": 1}
    made = chat(client, tool_choice="required", **asked).choices[0]
    names = [call.function.name for call in made.message.tool_calls]
    assert len(names) > 1
    assert set(names) <= {"weather", "now"}
    asked["max_tokens"] = 4
    strict = {"type": "function", "function": {**WEATHER, "strict": True}}
    made = chat(client, **{**asked, "tools": [strict]})
    assert made.usage.completion_tokens <= 4
    with_none = chat(client, tool_choice="none", **asked)
    assert with_none.usage.prompt_tokens == chat(client).usage.prompt_tokens


def test_the_template_shows_tools_and_their_results(models: Models) -> None:
    from vkmnn.serve.messages import messages_of, tools_of

    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"n": 1}'}}
    talk = [
        {"role": "developer", "content": "short"},
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "12"}]},
    ]
    for name in ("tiny", "plain"):
        tokenizer = models.language[name].tokenizer
        tools = tools_of({"tools": [TOOL]}, tokenizer.tool_template, Limits())
        assert tools is not None
        messages = messages_of(talk, tokenizer.tool_template, tools)
        known = tools.described if tools.known else ()
        text = tokenizer.conversation(messages, tools=known)
        assert '"name": "weather", "description": "of a city"' in text
        assert '"arguments": {"n": 1}' in text
        assert "12" in text
        assert "<|system|>" in text


@pytest.mark.parametrize("stream", [False, True])
def test_formats(stream: bool, client: Any) -> None:
    def text_of(form: Any, **how: Any) -> str:
        made = chat(client, response_format=form, temperature=1, stream=stream, **how)
        if not stream:
            return str(made.choices[0].message.content or "")
        return "".join(one.choices[0].delta.content or "" for one in made)

    how: Any = {"max_tokens": 200, "seed": 2}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": ARGUMENTS, "strict": True},
    }
    assert json.loads(text_of(form, **how)) in VALUES
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[ab]{3}"}
    assert set(text_of(grammar, **how)) <= {"a", "b"}
    both = text_of(form, tools=[OTHER], **how)
    assert not both or json.loads(both) in VALUES
    assert isinstance(json.loads(text_of({"type": "json_object"}, **how, logit_bias={})), dict)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
         "invalid_schema", "response_format"),
        ({"response_format": {"type": "json_schema"}}, "invalid_schema",
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "xml"}}, "unsupported_field", "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {
            "enum": ["x" * 20_000]}}}}, "invalid_schema", "response_format"),
        ({"tools": [{"type": "web_search"}]}, "invalid_tools", "tools[0]"),
        ({"tools": [TOOL, TOOL]}, "invalid_tools", "tools"),
        ({"tools": [TOOL] * 200}, "invalid_tools", "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "invalid_tools",
         "tools[0].function.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "invalid_tools", "tool_choice"),
        ({"tool_choice": "required"}, "invalid_tools", "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"if": {}}}}],
          "tool_choice": "required"}, "invalid_schema", "tools"),
        ({"messages": [{"role": "user", "content": "x " * 2000}]}, "context_length_exceeded",
         "messages"),
        ({"model": None}, "missing_model", "model"),
        ({"n": 0}, "invalid_value", "n"), ({"n": 10**9}, "invalid_value", "n"),
        ({"n": True}, "invalid_type", "n"), ({"best_of": 4}, "unsupported_field", "best_of"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 99}, "invalid_value", "top_logprobs"),
        ({"logit_bias": {"5": 101}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "invalid_value", "logit_bias"),
        ({"presence_penalty": 3}, "invalid_value", "presence_penalty"),
        ({"temperature": "hot"}, "invalid_type", "temperature"),
        ({"functions": [{}]}, "unsupported_field", "functions"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {
            "url": "data:image/png;base64,AAAA"}}]}]}, "unsupported_content",
         "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": 3}]}]}, "invalid_messages",
         "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": 7}]}, "invalid_messages",
         "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": 3, "function": {
            "name": "f", "arguments": "{}"}}]}]}, "invalid_messages", "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {
            "name": "f", "arguments": 1}}]}]}, "invalid_messages", "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "tool", "tool_call_id": ["a"], "content": "x"}]},
         "invalid_messages", "messages[0].tool_call_id"),
        ({"messages": [*MESSAGES, {"role": "usr", "content": "x"}]}, "invalid_messages",
         f"messages[{len(MESSAGES)}].role"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": "no"}}]},
         "invalid_tools", "tools[0].function.strict"),
        ({"tools": [{"type": "function", "function": {"name": "f", "description": 0}}]},
         "invalid_tools", "tools[0].function.description"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)  # fmt: skip
def test_refusals_name_the_field(
    body: dict[str, Any], code: str, param: str, server: Served
) -> None:
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 2, **body}
    answer = server.http.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-1E400"])
def test_numbers_are_finite(number: str, server: Served) -> None:
    """A response may repeat them, and JSON has no others."""
    body = f'{{"model": "tiny", "input": "x", "max_output_tokens": 1, "metadata": [{number}]}}'
    answer = server.http.post("/v1/responses", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def test_deep_json_is_refused(server: Served) -> None:
    deep: Any = {}
    for _ in range(400):
        deep = {"a": [deep]}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    for path, body in (("chat/completions", {"messages": MESSAGES, "tools": [tool]}),
                       ("responses", {"input": "x", "metadata": deep}),
                       ("rerank", {"documents": [deep]})):  # fmt: skip
        answer = server.http.post(f"/v1/{path}", json={"model": "plain", **body})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_deep")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * 90_000}}
    talk = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}]
    answer = server.http.post("/v1/chat/completions", json={"model": "plain", "messages": talk})
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


# --- responses -----------------------------------------------------------------------------------


def test_responses_continue(client: Any, models: Models) -> None:
    first = client.responses.create(model="tiny", input="hello", instructions="be short",
                                    max_output_tokens=4, temperature=0)  # fmt: skip
    asked = [{"role": "system", "content": "be short"}, *MESSAGES]
    want = models.language["tiny"].generate(asked, 4)
    assert first.output_text == want.text
    assert first.usage.input_tokens == want.prompt_tokens
    assert first.status in ("completed", "incomplete")
    second = client.responses.create(model="tiny", input=[{"role": "user", "content": [
        {"type": "input_text", "text": "more"}]}], previous_response_id=first.id,
        max_output_tokens=4, temperature=0)  # fmt: skip
    talk = [*MESSAGES, {"role": "assistant", "content": want.text},
            {"role": "user", "content": "more"}]  # fmt: skip
    assert second.output_text == models.language["tiny"].generate(talk, 4).text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as error:
        client.responses.create(model="tiny", input="x", previous_response_id=first.id)
    assert error.value.param == "previous_response_id"
    secret = client.responses.create(model="tiny", input="x", store=False, max_output_tokens=2)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(secret.id)


def test_events_of_responses(client: Any) -> None:
    tool = {"type": "function", **WEATHER}
    asked = {"model": "tiny", "input": "hello", "max_output_tokens": 900}
    short = client.responses.create(
        model="tiny", input="hello", max_output_tokens=5, temperature=0, stream=True
    )
    events = list(short)
    final = events[-1].response
    assert events[-1].type == f"response.{final.status}"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text
    calling = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    events = list(client.responses.create(**asked, **calling, stream=True))
    [call] = events[-1].response.output
    assert events[-1].type == "response.completed"
    assert json.loads(call.arguments) in VALUES
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    assert [event.sequence_number for event in events] == list(range(len(events)))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    after = client.responses.create(model="tiny", input=[result], tools=[tool], tool_choice="none",
                                    previous_response_id=events[-1].response.id,
                                    max_output_tokens=3)  # fmt: skip
    assert after.usage.input_tokens > 10
    made = client.responses.create(
        **asked, text={"format": {"type": "json_schema", "name": "x", "schema": ARGUMENTS}}
    )
    assert json.loads(made.output_text) in VALUES


def test_kept_responses_are_bounded() -> None:
    from vkmnn.serve.limits import HttpError
    from vkmnn.serve.responses_api import Kept

    kept = Kept(1000)
    for number in range(50):
        kept.add(str(number), ["x" * 100], {"id": number})
    assert kept.get("49")[1] == {"id": 49}
    assert sum(number in map(int, kept._all) for number in range(50)) < 10
    kept.add("huge", ["x" * 2000], {})
    for gone in ("0", "huge", None, 3):
        with pytest.raises(HttpError):
            kept.get(gone)


@pytest.mark.parametrize(
    "body",
    [{"input": None}, {"input": [3]}, {"input": [{"type": "item_reference", "id": "x"}]},
     {"input": "x", "background": True}, {"input": "x", "conversation": "c"},
     {"input": "x", "previous_response_id": {}}, {"input": "x", "max_output_tokens": 0},
     {"input": "x", "store": "no"}, {"input": "x", "parallel_tool_calls": 0},
     {"input": [{"role": "usr", "content": "x"}]},
     {"input": [{"type": "function_call_output", "output": "x"}]},
     {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]}],
    ids=str,
)  # fmt: skip
def test_refused_responses(body: dict[str, Any], server: Served) -> None:
    answer = server.http.post("/v1/responses", json={"model": "tiny", **body})
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"]


# --- sounds, images and rankings -----------------------------------------------------------------


def wav(seconds: float, rate: int = 16_000) -> bytes:
    data = io.BytesIO()
    times = np.arange(round(seconds * rate))
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        loud = np.linspace(0, 8000, times.size) * np.sin(times / 7)
        file.writeframes(loud.astype("<i2").tobytes())
    return data.getvalue()


def test_transcriptions(client: Any, models: Models) -> None:
    sound = wav(1)
    want = models.pipelines["whisper"](sound, language="de")
    create = client.audio.transcriptions.create
    asked = {"model": "whisper", "language": "de"}
    file = ("../../x.wav", sound)
    assert create(file=file, **asked).text == want.text()
    assert create(file=file, response_format="text", **asked).strip() == want.text().strip()
    assert create(file=file, response_format="srt", **asked) == want.subtitles(".srt")
    assert create(file=file, response_format="vtt", **asked) == want.subtitles(".vtt")
    whole = create(file=file, response_format="verbose_json", **asked)
    assert whole.language == "de"
    assert whole.duration == 1.0
    assert [one.text for one in whole.segments] == [one.text for one in want.segments]
    english = client.audio.translations.create(model="whisper", file=file)
    assert english.text == models.pipelines["whisper"](sound, translate=True).text()


@pytest.mark.parametrize(
    ("fields", "file", "status"),
    [
        ({}, None, 400), ({}, b"", 400), ({}, b"RIFF nonsense", 400), ({}, wav(40), 400),
        ({"response_format": "xml"}, wav(1), 400), ({"prompt": "x"}, wav(1), 400),
        ({"language": "xx"}, wav(1), 400), ({"stream": "true"}, wav(1), 400),
        ({}, wav(1)[:24] + bytes(4) + wav(1)[28:], 400), ({}, b"\x89PNG" + bytes(99), 400),
        ({"model": "tiny"}, wav(1), 404), ({str(n): "x" for n in range(99)}, wav(1), 400),
        ({"language": "x" * 100_000}, wav(1), 400),
    ],
)  # fmt: skip
def test_refused_sounds(fields: dict[str, str], file: Any, status: int, models: Models) -> None:
    with served(models, Limits(sound_s=30)) as server:
        files = None if file is None else {"file": ("x", file)}
        answer = server.http.post("/v1/audio/transcriptions", data=fields, files=files)
        assert answer.status_code == status, answer.text
        message = answer.json()["error"]["message"]
        assert " at 0x" not in message
        assert "longer than" not in message or len(file) > len(wav(30))


@pytest.mark.parametrize(
    "body",
    [b"", b"--x", b"junk", b"--x\r\n\r\n\r\n", b"--x\r\n" * 5000,
     b'--x\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n\xff\r\n--x--',
     *(b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + wav(1) + end
       for end in (b"\r\n--x", b"\r\n--x\r\nContent-Disposition: form-data; name=language"))],
    ids=len,
)  # fmt: skip
def test_damaged_forms(body: bytes, server: Served, caplog: pytest.LogCaptureFixture) -> None:
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    for headers in (kind, {"Content-Type": "multipart/form-data"}, {}):
        answer = server.http.post("/v1/audio/transcriptions", content=body, headers=headers)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["code"]
    assert not caplog.records  # clients could fill the log


PAINTED: dict[str, Any] = {"model": "painter", "prompt": "the cat", "size": "128x64", "n": 2}


def test_images(client: Any, server: Served, models: Models) -> None:
    """Two images as the pipeline paints them, in JSON and by their addresses."""
    pytest.importorskip("PIL")
    from PIL import Image

    painter = models.pipelines["painter"]
    more = {"extra_body": {"seed": 7, "steps": 2}}
    want = [painter("the cat", size=(64, 128), seed=seed, steps=2).pixels[0] for seed in (7, 8)]
    inside = client.images.generate(**PAINTED, response_format="b64_json", **more).data
    apart = client.images.generate(**PAINTED, response_format="url", **more).data
    files = [base64.b64decode(one.b64_json) for one in inside]
    np.testing.assert_array_equal([np.asarray(Image.open(io.BytesIO(x))) for x in files], want)
    for one, file in zip(apart, files, strict=True):
        assert one.url.startswith(f"{server.url}/v1/images/")
        answer = server.http.get(one.url)
        assert (answer.content, answer.headers["content-type"]) == (file, "image/png")
    assert [one.seed for one in inside] == [7, 8]
    free = {k: v for k, v in PAINTED.items() if k != "n"}
    seed = client.images.generate(**free, extra_body={"steps": 1}).data[0].seed
    assert client.images.generate(**free, extra_body={"steps": 1, "seed": seed}).data[0].b64_json


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"response_format": "xml"}, "response_format"), ({"size": "99999x9"}, "size"),
        ({"size": "big"}, "size"), ({"size": "127x64"}, "size"), ({"n": 99}, "n"),
        ({"prompt": ""}, "prompt"), ({"prompt": "the cat " * 99}, "prompt"),
        ({"prompt": None}, "prompt"), ({"extra_body": {"steps": 10**9}}, "steps"),
        ({"quality": "hd"}, "quality"), ({"style": "vivid"}, "style"),
        ({"extra_body": {"seed": "x"}}, "seed"), ({"background": "transparent"}, "background"),
    ],
    ids=str,
)  # fmt: skip
def test_refused_images(wrong: Any, param: str, client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.images.generate(**{**PAINTED, "response_format": "b64_json", **wrong})
    assert refused.value.param == param


def test_images_are_kept_within_limits_and_need_no_key(models: Models) -> None:
    pytest.importorskip("PIL")
    body = {**PAINTED, "n": 1, "response_format": "url", "steps": 1}
    keys = {"Authorization": "Bearer k"}
    with served(models, Limits(kept_bytes=30_000), Access(frozenset({"k"}))) as server:
        asked = [server.http.post("/v1/images/generations", json=body, headers=keys)
                 for _ in range(3)]  # fmt: skip
        places = [one.json()["data"][0]["url"] for one in asked]
        gone, last = server.http.get(places[0]), server.http.get(places[2])
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "image_not_found")
        assert last.status_code == 200
        assert server.http.get("/v1/images/x").status_code == 404
        assert server.http.get("/v1/models").status_code == 401
        large = server.http.post("/v1/images/generations", json={**body, "n": 3}, headers=keys)
        assert large.json()["error"]["param"] == "response_format"


def test_an_image_ends_with_its_client(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    painter: Any = models.pipelines["painter"]
    steps, begun = [0], threading.Event()
    predicted = painter.denoiser.predicted

    def slow(*given: Any) -> Any:
        steps[0] += 1
        begun.set()
        time.sleep(0.02)
        return predicted(*given)

    monkeypatch.setattr(painter.denoiser, "predicted", slow)
    with served(models) as server:
        body = {**PAINTED, "n": 9, "steps": 200}
        with server.waiting_client("/v1/images/generations", body):
            assert begun.wait(60)
        assert server.idle()
    assert steps[0] < 200


def test_rankings(server: Served, models: Models) -> None:
    documents = ["the lazy dog", {"text": "naïve café"}, "x " * 9000, "the quick brown fox"]
    texts = ["the lazy dog", "naïve café", "x " * 9000, "the quick brown fox"]
    asked = {"model": "ranker", "query": "a fox", "documents": documents, "top_n": 3}
    made = server.http.post("/v1/rerank", json=asked).json()
    pipe = models.pipelines["ranker"]
    scores = [float(pipe({"text": "a fox", "text_pair": one}, truncate=True).scores[-1])
              for one in texts]  # fmt: skip
    order = sorted(range(4), key=lambda n: -scores[n])[:3]
    assert [one["index"] for one in made["results"]] == order
    assert [one["relevance_score"] for one in made["results"]] == [scores[n] for n in order]
    assert [one["document"]["text"] for one in made["results"]] == [texts[n] for n in order]
    assert made["usage"]["total_tokens"] > 10
    for wrong in ({"documents": []}, {"documents": [1]}, {"query": ""}, {"top_n": 0},
                  {"documents": ["x"] * 5000}, {"query": ["x"]}):  # fmt: skip
        answer = server.http.post("/v1/rerank", json={**asked, **wrong})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"]


def test_models_say_what_they_are(client: Any) -> None:
    kinds = {one.id: one.kind for one in client.models.list()}
    assert kinds == {
        "tiny": "language", "plain": "language", "whisper": "automatic-speech-recognition",
        "ranker": "text-classification", "painter": "text-to-image",
    }  # fmt: skip
    assert client.models.retrieve("tiny").max_model_len == 1500
