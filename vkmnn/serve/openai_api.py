"""OpenAI's API: chat, completions and embeddings."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import AsyncIterator, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vkmnn.errors import VkmnnError
from vkmnn.llm import Generated, LanguageModel
from vkmnn.llm.text import PIECE, characters_of
from vkmnn.serve.limits import Bodies, HttpError, Limits, as_http, field
from vkmnn.serve.metrics import Metrics
from vkmnn.serve.models import Models
from vkmnn.serve.routes import Row
from vkmnn.serve.streamed import Streamed
from vkmnn.serve.turns import Job
from vkmnn.serve.work import Work

_NUMBER = (int, float)
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
"""Fields that would change the result, with their supported values."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A validated request for text."""

    model: LanguageModel
    name: str
    tokens: list[int]
    how: dict[str, Any]
    stream: bool
    usage: bool
    chat: bool

    @property
    def most(self) -> int | None:
        """Maximum tokens to generate."""
        most: int | None = self.how["max_tokens"]
        return most


class OpenAiApi:
    """The routes under /v1."""

    def __init__(
        self, models: Models, limits: Limits, bodies: Bodies, work: Work, metrics: Metrics
    ) -> None:
        self._models = models
        self._limits = limits
        self._bodies = bodies
        self._work = work
        self._metrics = metrics
        self._numbers = itertools.count(1)
        self._since = int(time.time())

    def routes(self) -> list[Row]:
        """Return the rows of the route table."""
        text = {"model": "NAME", "max_tokens": 16}
        said = [{"role": "user", "content": "Hello"}]
        return [
            Row("/v1/models", self.models, "GET", "the language and embedding models"),
            Row("/v1/models/{name}", self.models, "GET", "one model"),
            Row("/v1/chat/completions", self.chat, "POST", "the next message of a conversation",
                {**text, "messages": said}),
            Row("/v1/completions", self.completions, "POST", "the continuation of a text",
                {**text, "prompt": "Hello"}),
            Row("/v1/embeddings", self.embeddings, "POST", "vectors of texts",
                {"model": "NAME", "input": ["Hello"]}),
        ]  # fmt: skip

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
        body = await self._body(request)
        name, model = self._models.embedding_model(body.get("model"))
        texts = field(body, "input", (str, list))
        texts = [texts] if isinstance(texts, str) else texts
        if not texts or not all(isinstance(text, str) for text in texts):
            raise HttpError(400, "invalid_input", "'input' is a string or a list of strings")
        if len(texts) > self._limits.texts:
            text = f"'input' has {len(texts)} texts, and {self._limits.texts} at most"
            raise HttpError(400, "too_many_texts", text)
        form = field(body, "encoding_format", (str,), "float")
        if form not in ("float", "base64") or body.get("dimensions") is not None:
            text = "'encoding_format' is float or base64, and 'dimensions' is not supported"
            raise HttpError(400, "unsupported_field", text)
        for text in texts:
            model.tokenizer.check_characters(len(text), model.capacity)
        parts: list[str] = []

        def steps() -> Generator[int, None, None]:
            count = 0
            for vector, tokens in model.each(texts):
                count += tokens
                parts.append(_embedding(len(parts), vector, form == "base64"))
                yield count

        turns = self._work.embedding
        count = await turns.done(request, turns.add(steps))
        self._metrics.prompt_tokens.inc(count)
        usage = {"prompt_tokens": count, "total_tokens": count}
        head = json.dumps({"object": "list", "model": name, "usage": usage})
        text = f'{head[:-1]}, "data": [{", ".join(parts)}]}}'
        return Response(text, media_type="application/json")

    # --- text ------------------------------------------------------------------------------------

    async def _generate(self, request: Request, chat: bool) -> Response:
        asked = await self._asked(request, await self._body(request), chat)
        model, turns = asked.model, self._work.texts

        def start() -> Any:
            return model.pieces(asked.tokens, **asked.how)

        job = turns.add(start)
        number = next(self._numbers)
        if asked.stream:
            response = Streamed(self._stream(asked, job, number))
            response.when_done(lambda: turns.cancel(job))
            return response
        result, _ = await turns.done(request, job)
        self._count(result)
        made = _frame(asked, number, self._since)
        made["choices"] = [_choice(asked, result.text, result.finish_reason)]
        made["usage"] = _usage(result)
        return JSONResponse(made)

    async def _body(self, request: Request) -> dict[str, Any]:
        async with self._bodies.received(request) as body:
            return await self._bodies.read(body)

    async def _asked(self, request: Request, body: Any, chat: bool) -> Asked:
        model_name, model = self._models.language_model(body.get("model"))
        for name, allowed in _REFUSED.items():
            value = body.get(name)
            if value is not None and value not in allowed:
                raise HttpError(400, "unsupported_field", f"'{name}' is not supported")
        if chat:
            messages = field(body, "messages", (list,), [])
            if len(messages) > model.capacity:
                text = f"{len(messages)} messages do not fit into {model.capacity} tokens"
                raise HttpError(400, "context_length_exceeded", text)
            prompt: Any = _messages(messages)
        else:
            prompt = field(body, "prompt", (str, list))
            if prompt is None:
                raise HttpError(400, "empty_prompt", "'prompt' is missing")
            if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
                prompt = prompt[0]
            if isinstance(prompt, list) and not all(type(one) is int for one in prompt):
                raise HttpError(
                    400,
                    "unsupported_field",
                    "a request has one prompt: a string or a list of tokens",
                )
        usual = None if chat else 16
        most = field(
            body, "max_completion_tokens", (int,), field(body, "max_tokens", (int,), usual)
        )
        limit = self._limits.max_tokens
        if most is not None and (most < 1 or (limit is not None and most > limit)):
            raise HttpError(
                400,
                "invalid_max_tokens",
                f"max_tokens is 1 to {limit}" if limit else "max_tokens is 1 or more",
            )
        how = {
            "max_tokens": most if most is not None else limit,
            "temperature": field(body, "temperature", _NUMBER, 1.0),
            "top_p": field(body, "top_p", _NUMBER, 1.0),
            "top_k": field(body, "top_k", (int,), 0),
            "repetition_penalty": field(body, "repetition_penalty", _NUMBER, 1.0),
            "seed": field(body, "seed", (int,)),
            "stop": self._stops(field(body, "stop", (str, list), [])),
        }
        model.options(**how)  # says what is out of range
        options = field(body, "stream_options", (dict,), {})
        stream = bool(field(body, "stream", (bool,), False))
        usage = bool(options.get("include_usage"))
        tokens = await self._tokens(request, model, prompt)
        if not tokens:
            raise HttpError(400, "empty_prompt", "the prompt is empty")
        return Asked(model, model_name, tokens, how, stream, usage, chat)

    def _stops(self, stop: Any) -> list[str]:
        limits, stops = self._limits, [stop] if isinstance(stop, str) else stop
        if not all(isinstance(one, str) for one in stops):
            raise HttpError(400, "invalid_type", "'stop' is a string or a list of strings")
        if len(stops) > limits.stop_texts or any(len(s) > limits.stop_characters for s in stops):
            text = (
                f"'stop' has {limits.stop_texts} texts of {limits.stop_characters} characters "
                "at most"
            )
            raise HttpError(400, "invalid_stop", text)
        return list(stops)

    async def _tokens(self, request: Request, model: LanguageModel, prompt: Any) -> list[int]:
        """Return the tokens of a prompt; refuse one that cannot fit before it is tokenised."""
        count = characters_of(prompt)
        if count <= PIECE:
            return await run_in_threadpool(model.tokens_of, prompt, model.capacity)
        model.tokenizer.check_characters(count, model.capacity)
        turns = self._work.tokenising
        job = turns.add(lambda: model.token_steps(prompt, model.capacity))
        tokens: list[int] = await turns.done(request, job)
        return tokens

    async def _stream(self, asked: Asked, job: Job, number: int) -> AsyncIterator[str]:
        """Yield server-sent events; closing the iterator cancels the text."""
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
                    yield f"data: {json.dumps(as_http(event).told('/v1'))}\n\n"
                    return
                result, piece = event
                if piece:
                    yield said([_piece(asked, piece, None)])
            reason = result.finish_reason if result else "stop"
            yield said([_piece(asked, "", reason)])
            if asked.usage and result is not None:
                yield said([], usage=_usage(result))
            yield "data: [DONE]\n\n"
        finally:
            self._work.texts.cancel(job)
            if result is not None:
                self._count(result)

    def _count(self, result: Generated) -> None:
        self._metrics.prompt_tokens.inc(result.prompt_tokens)
        self._metrics.generated_tokens.inc(len(result.tokens))


def _messages(messages: list[Any]) -> list[dict[str, Any]]:
    """Return validated messages, each with its content as one text."""
    made = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise HttpError(400, "invalid_messages", "a message needs a role and content")
        content = message.get("content") or ""
        if isinstance(content, list):
            if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
                raise HttpError(400, "unsupported_content", "content must be text")
            content = "".join(str(part.get("text", "")) for part in content)
        if not isinstance(content, str):
            raise HttpError(400, "invalid_messages", "content is text")
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


def _embedding(index: int, vector: Any, coded: bool) -> str:
    """Return a text's vector as JSON."""
    numbers = np.asarray(vector, "<f4")
    if not np.isfinite(numbers).all():  # JSON cannot represent it
        text = f"the vector of text {index} has numbers that are not finite"
        raise HttpError(500, "not_finite", text)
    made: Any = base64.b64encode(numbers.tobytes()).decode() if coded else numbers.tolist()
    return json.dumps({"object": "embedding", "index": index, "embedding": made})
