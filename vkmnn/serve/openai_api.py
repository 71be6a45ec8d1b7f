"""OpenAI's API: chat, completions and embeddings."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vkmnn.errors import VkmnnError
from vkmnn.llm import Generated, LanguageModel
from vkmnn.serve.limits import HttpError, Limits, body_of, field
from vkmnn.serve.metrics import Metrics
from vkmnn.serve.models import Models
from vkmnn.serve.streamed import Streamed
from vkmnn.serve.turns import Job, Turns

_NUMBER = (int, float)
_POLL_S = 0.25
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
}
"""Fields that would change the result, with the values that are understood."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for text, checked."""

    model: LanguageModel
    name: str
    tokens: list[int]
    how: dict[str, Any]
    stream: bool
    usage: bool
    chat: bool

    @property
    def most(self) -> int | None:
        """How many tokens at most."""
        most: int | None = self.how["max_tokens"]
        return most


class OpenAiApi:
    """The routes under /v1."""

    def __init__(self, models: Models, limits: Limits, turns: Turns, metrics: Metrics) -> None:
        self._models = models
        self._limits = limits
        self._turns = turns
        self._metrics = metrics
        self._numbers = itertools.count(1)
        self._since = int(time.time())

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        names = [*self._models.language, *self._models.embedding]
        wanted = request.path_params.get("name")
        made = [{"id": n, "object": "model", "created": self._since, "owned_by": "vkmnn"}
                for n in names]  # fmt: skip
        if wanted is None:
            return JSONResponse({"object": "list", "data": made})
        if wanted not in names:
            raise HttpError(404, "model_not_found", "there is no such model")
        return JSONResponse(made[names.index(wanted)])

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._generate(request, chat=True)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._generate(request, chat=False)

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        body = await _json(request, self._limits)
        model = self._models.embedding_model(body.get("model"))
        texts = field(body, "input", (str, list))
        texts = [texts] if isinstance(texts, str) else texts
        if not texts or not all(isinstance(text, str) for text in texts):
            raise HttpError(400, "invalid_input", "'input' is a text, or a list of texts")
        vectors = await run_in_threadpool(model.embed, texts)
        count = await run_in_threadpool(model.count, texts)
        self._metrics.prompt_tokens.inc(count)
        coded = field(body, "encoding_format", (str,), "float") == "base64"
        data = [
            {"object": "embedding", "index": n, "embedding": _vector(vector, coded)}
            for n, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JSONResponse(
            {"object": "list", "data": data, "model": body["model"], "usage": usage}
        )

    # --- text ------------------------------------------------------------------------------------

    async def _generate(self, request: Request, chat: bool) -> Response:
        body = await _json(request, self._limits)
        asked = await self._asked(body, chat)
        model = asked.model

        def start() -> Any:
            return model.pieces(asked.tokens, **asked.how)

        job = self._turns.add(start)
        number = next(self._numbers)
        if asked.stream:
            response = Streamed(self._stream(asked, job, number))
            response.when_done(lambda: self._turns.cancel(job))
            return response
        try:
            result = await self._whole(request, job)
        finally:
            self._turns.cancel(job)
        self._count(result)
        made = _frame(asked, number, self._since)
        made["choices"] = [_choice(asked, result.text, result.finish_reason)]
        made["usage"] = _usage(result)
        return JSONResponse(made)

    async def _asked(self, body: Any, chat: bool) -> Asked:
        model = self._models.language_model(body.get("model"))
        for name, allowed in _REFUSED.items():
            value = body.get(name)
            if value is not None and value not in allowed:
                raise HttpError(400, "unsupported_field", f"'{name}' is not supported")
        if chat:
            prompt: Any = _messages(field(body, "messages", (list,), []))
        else:
            prompt = field(body, "prompt", (str, list), "")
            if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
                prompt = prompt[0]
            if isinstance(prompt, list) and not all(type(one) is int for one in prompt):
                raise HttpError(400, "unsupported_field", "one prompt a request, please")
        usual = None if chat else 16
        most = field(
            body, "max_completion_tokens", (int,), field(body, "max_tokens", (int,), usual)
        )
        limit = self._limits.max_tokens
        if most is not None and (most < 1 or (limit is not None and most > limit)):
            raise HttpError(
                400, "invalid_max_tokens", f"max_tokens is 1 to {limit or 'any number'}"
            )
        tokens = await run_in_threadpool(model.tokens_of, prompt)
        if not tokens:
            raise HttpError(400, "empty_prompt", "the prompt is empty")
        if len(tokens) > model.capacity:
            text = f"the prompt has {len(tokens)} tokens, and there is room for {model.capacity}"
            raise HttpError(400, "context_length_exceeded", text)
        stop = field(body, "stop", (str, list), [])
        if isinstance(stop, list) and not all(isinstance(one, str) for one in stop):
            raise HttpError(400, "invalid_type", "'stop' is a text or a list of texts")
        how = {
            "max_tokens": most if most is not None else limit,
            "temperature": field(body, "temperature", _NUMBER, 1.0),
            "top_p": field(body, "top_p", _NUMBER, 1.0),
            "top_k": field(body, "top_k", (int,), 0),
            "repetition_penalty": field(body, "repetition_penalty", _NUMBER, 1.0),
            "seed": field(body, "seed", (int,)),
            "stop": stop,
        }
        model.options(**how)  # says what is out of range
        options = field(body, "stream_options", (dict,), {})
        stream = bool(field(body, "stream", (bool,), False))
        usage = bool(options.get("include_usage"))
        return Asked(model, str(body["model"]), tokens, how, stream, usage, chat)

    async def _whole(self, request: Request, job: Job) -> Generated:
        """Wait for the whole text, unless the client goes."""
        result = None
        while True:
            try:
                event = await asyncio.wait_for(job.events.get(), _POLL_S)
            except (asyncio.TimeoutError, TimeoutError):
                if await request.is_disconnected():
                    raise HttpError(499, "client_gone", "the client has gone") from None
                continue
            if isinstance(event, VkmnnError):
                raise event
            if event is None:
                assert result is not None
                return result
            result = event[1]

    async def _stream(self, asked: Asked, job: Job, number: int) -> AsyncIterator[str]:
        """Yield server-sent events; a client that goes closes this, and the text ends."""
        result = None
        frame = _frame(asked, number, self._since, chunk=True)

        def said(choice: Any, **more: Any) -> str:
            return f"data: {json.dumps({**frame, 'choices': choice, **more})}\n\n"

        try:
            if asked.chat:
                yield said([{"index": 0, "delta": {"role": "assistant", "content": ""},
                             "finish_reason": None}])  # fmt: skip
            while (event := await job.events.get()) is not None:
                if isinstance(event, VkmnnError):
                    yield f"data: {json.dumps({'error': {'message': event.message}})}\n\n"
                    return
                piece, result = event
                if piece:
                    yield said([_piece(asked, piece, None)])
            reason = result.finish_reason if result else "stop"
            yield said([_piece(asked, "", reason)])
            if asked.usage and result is not None:
                yield said([], usage=_usage(result))
            yield "data: [DONE]\n\n"
        finally:
            self._turns.cancel(job)
            if result is not None:
                self._count(result)

    def _count(self, result: Generated) -> None:
        self._metrics.prompt_tokens.inc(result.prompt_tokens)
        self._metrics.generated_tokens.inc(len(result.tokens))


async def _json(request: Request, limits: Limits) -> Any:
    try:
        body = json.loads(await body_of(request, limits))
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "invalid_json", f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise HttpError(400, "invalid_json", "the body is not a JSON object")
    return body


def _messages(messages: list[Any]) -> list[dict[str, Any]]:
    """Return messages whose contents are texts."""
    made = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise HttpError(400, "invalid_messages", "a message has a role and a content")
        content = message.get("content") or ""
        if isinstance(content, list):
            if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
                raise HttpError(400, "unsupported_content", "contents are texts")
            content = "".join(str(part.get("text", "")) for part in content)
        if not isinstance(content, str):
            raise HttpError(400, "invalid_messages", "a content is a text")
        made.append({**message, "content": content})
    if not made:
        raise HttpError(400, "invalid_messages", "'messages' is empty")
    return made


def _frame(asked: Asked, number: int, since: int, chunk: bool = False) -> dict[str, Any]:
    kind = "text_completion" if not asked.chat else "chat.completion"
    return {
        "id": f"{'chatcmpl' if asked.chat else 'cmpl'}-{since:x}-{number}",
        "object": f"{kind}.chunk" if chunk and asked.chat else kind,
        "created": int(time.time()),
        "model": asked.name,
    }


def _choice(asked: Asked, text: str, reason: str) -> dict[str, Any]:
    said: dict[str, Any] = {"text": text}
    if asked.chat:
        said = {"message": {"role": "assistant", "content": text}}
    return {"index": 0, **said, "logprobs": None, "finish_reason": reason}


def _piece(asked: Asked, text: str, reason: str | None) -> dict[str, Any]:
    said: dict[str, Any] = {"text": text}
    if asked.chat:
        said = {"delta": {"content": text} if text else {}}
    return {"index": 0, **said, "logprobs": None, "finish_reason": reason}


def _usage(result: Generated) -> dict[str, Any]:
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": len(result.tokens),
        "total_tokens": result.prompt_tokens + len(result.tokens),
        "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
    }


def _vector(vector: Any, coded: bool) -> Any:
    numbers = np.asarray(vector, "<f4")
    return base64.b64encode(numbers.tobytes()).decode() if coded else numbers.tolist()
