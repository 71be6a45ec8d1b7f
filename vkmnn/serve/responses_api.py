"""OpenAI's API: responses, which continue earlier ones."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vkmnn.errors import VkmnnError
from vkmnn.serve.limits import Bodies, HttpError, Limits, as_http, field
from vkmnn.serve.messages import messages_of, text_of, tools_of
from vkmnn.serve.models import Models
from vkmnn.serve.response_events import Output, Written, usage_of
from vkmnn.serve.routes import Row
from vkmnn.serve.settings import MAX_TOP_LOGPROBS, format_of, max_tokens_of, settings_of
from vkmnn.serve.store import Store
from vkmnn.serve.streamed import Streamed, events_of
from vkmnn.serve.texts import Asked, Started, Texts, with_grammar

_REFUSED: Mapping[str, str] = {
    "background": "requests wait for their response",
    "conversation": "use 'previous_response_id'",
    "prompt": "the server keeps no templates",
}
_FLAGS = {"stream": False, "store": True, "parallel_tool_calls": True}
_LOGPROBS = "message.output_text.logprobs"


class Kept(Store):
    """Responses and their conversations.

    Args:
        most: maximum bytes.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most, "response")

    def add(self, identity: str, messages: Sequence[Any], response: Any) -> None:
        """Keep a response, and the messages up to its end."""
        self.put(identity, json.dumps(messages).encode(), json.dumps(response).encode())

    def get(self, identity: Any, param: str | None = None) -> tuple[list[Any], Any]:
        """Return the messages and the response; raises as `parts`."""
        messages, response = self.parts(identity, param)
        return json.loads(messages), json.loads(response)


class ResponsesApi:
    """The routes under /v1/responses."""

    def __init__(self, models: Models, limits: Limits, bodies: Bodies, texts: Texts) -> None:
        self._models = models
        self._limits = limits
        self._bodies = bodies
        self._texts = texts
        self._kept = Kept(limits.kept_bytes)

    def routes(self) -> list[Row]:
        """Return the rows of the route table."""
        path, example = "/v1/responses", {"model": "NAME", "input": "Hello"}
        return [
            Row(path, self.create, "POST", "the next message of a conversation, which is kept",
                example),
            Row(f"{path}/{{id}}", self.get, "GET", "a response that is kept"),
            Row(f"{path}/{{id}}", self.delete, "DELETE", "forget a response"),
        ]  # fmt: skip

    async def get(self, request: Request) -> Response:
        """GET /v1/responses/ID."""
        return JSONResponse(self._kept.get(request.path_params["id"])[1])

    async def delete(self, request: Request) -> Response:
        """DELETE /v1/responses/ID."""
        identity = request.path_params["id"]
        self._kept.remove(identity)
        return JSONResponse({"id": identity, "object": "response", "deleted": True})

    async def create(self, request: Request) -> Response:
        """POST /v1/responses."""
        body = await self._bodies.object_of(request)
        asked, written = await self._asked(request, body)
        if asked.stream:
            started = self._texts.start(asked)
            response = Streamed(self._events(started, written))
            response.when_done(lambda: self._texts.stop(started))
            return response
        output = Output(asked)
        started = self._texts.start(asked)
        async for part in self._texts.parts(request, started):
            output.add(part)
        return JSONResponse(self._finished(written, output))

    async def _asked(self, request: Request, body: Any) -> tuple[Asked, Written]:
        """Return the validated request, and the response as far as it is known."""
        name, model = self._models.language_model(body.get("model"))
        for refused, reason in _REFUSED.items():
            if body.get(refused):
                text = f"'{refused}' is not supported: {reason}"
                raise HttpError(400, "unsupported_field", text, param=refused)
        previous = body.get("previous_response_id")
        given = [] if previous is None else self._kept.get(previous, "previous_response_id")[0]
        given += _messages(field(body, "input", (str, list)))
        if len(given) > model.capacity:
            text = f"{len(given)} messages do not fit into {model.capacity} tokens"
            raise HttpError(400, "context_length_exceeded", text, param="input")
        instructions = field(body, "instructions", (str,))
        head = [] if instructions is None else [{"role": "system", "content": instructions}]
        template = model.tokenizer.tool_template
        tools = tools_of(body, template, self._limits)
        messages = messages_of([*head, *given], template, tools)
        form = format_of(field(body, "text", (dict,), {}).get("format"), "text.format")
        how = settings_of({**body, "max_tokens": None}, model, self._limits, None)
        most = field(body, "max_output_tokens", (int,))
        how["max_tokens"] = max_tokens_of(most, self._limits, "max_output_tokens")
        how["logprobs"] = _scores(body)
        stream, *_ = (field(body, name, (bool,), usual) for name, usual in _FLAGS.items())
        asked = Asked(model, name, [], how, 1, stream, False, tools)
        asked = with_grammar(asked, self._texts.grammar(model, form, tools))
        await self._texts.checked(request, asked)
        asked.prompts.append(await self._texts.tokens(request, model, messages, "input", tools))
        identity = f"resp_{secrets.token_hex(24)}"
        return asked, Written(asked, body, identity, int(time.time()), given)

    def _finished(self, written: Written, output: Output) -> dict[str, Any]:
        made = written.response(output.status, output.items, usage_of(written.asked, output))
        if written.kept:
            self._kept.add(written.identity, [*written.messages, *output.messages], made)
        return made

    async def _events(self, started: Started, written: Written) -> AsyncIterator[str]:
        """Yield the events of a streamed response."""
        output, number = Output(started.asked), 0

        def event(name: str, what: Mapping[str, Any]) -> str:
            nonlocal number
            made = events_of({"type": name, "sequence_number": number, **what}, name)
            number += 1
            return made

        empty = written.response("in_progress", [], None)
        yield event("response.created", {"response": empty})
        yield event("response.in_progress", {"response": empty})
        try:
            async for part in self._texts.parts(None, started):
                for name, what in output.add(part):
                    yield event(name, what)
        except VkmnnError as error:
            told = as_http(error)
            failed = {**empty, "status": "failed",
                      "error": {"code": told.code, "message": told.message}}  # fmt: skip
            yield event("response.failed", {"response": failed})
            return
        made = self._finished(written, output)
        yield event(f"response.{made['status']}", {"response": made})


def _scores(body: Any) -> int | None:
    count = field(body, "top_logprobs", (int,))
    if count is not None and not 0 <= count <= MAX_TOP_LOGPROBS:
        text = f"'top_logprobs' is 0 to {MAX_TOP_LOGPROBS}"
        raise HttpError(400, "invalid_value", text, param="top_logprobs")
    wanted = _LOGPROBS in field(body, "include", (list,), [])
    return (count or 0) if wanted else None


# --- items ---------------------------------------------------------------------------------------


def _messages(given: Any) -> list[dict[str, Any]]:
    """Return the input of a request as messages of a chat."""
    if given is None:
        raise HttpError(400, "invalid_input", "'input' is missing", param="input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    made: list[dict[str, Any]] = []
    for number, item in enumerate(given):
        param = f"input[{number}]"
        kind = item.get("type", "message") if isinstance(item, dict) else None
        read = _ITEMS.get(str(kind))
        if read is None:
            text = f"an item of the type '{str(kind)[:40]}' is not supported"
            raise HttpError(400, "unsupported_input", text, param=param)
        made += read(item, param)
    return _joined(made)


def _said(item: Any, param: str) -> list[dict[str, Any]]:
    if not isinstance(item.get("role"), str):
        text = "a message needs a role and content"
        raise HttpError(400, "invalid_messages", text, param=param)
    return [{"role": item["role"], "content": text_of(item.get("content"), f"{param}.content")}]


def _called(item: Any, param: str) -> list[dict[str, Any]]:
    name, arguments = item.get("name"), item.get("arguments", "{}")
    if not all(isinstance(one, str) for one in (name, arguments, item.get("call_id"))):
        text = "a call has a call_id, a name and arguments"
        raise HttpError(400, "invalid_messages", text, param=param)
    call = {"id": item["call_id"], "type": "function",
            "function": {"name": name, "arguments": arguments}}  # fmt: skip
    return [{"role": "assistant", "content": "", "tool_calls": [call]}]


def _returned(item: Any, param: str) -> list[dict[str, Any]]:
    if not isinstance(item.get("call_id"), str):
        text = "the output of a call has a call_id"
        raise HttpError(400, "invalid_messages", text, param=param)
    content = text_of(item.get("output"), f"{param}.output")
    return [{"role": "tool", "tool_call_id": item["call_id"], "content": content}]


def _nothing(item: Any, param: str) -> list[dict[str, Any]]:
    return []


_ITEMS = {
    "message": _said,
    "function_call": _called,
    "function_call_output": _returned,
    "reasoning": _nothing,
}


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join calls with the assistant's message before them."""
    made: list[dict[str, Any]] = []
    for message in messages:
        if "tool_calls" in message and made and made[-1]["role"] == "assistant":
            made[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
        else:
            made.append(message)
    return made
