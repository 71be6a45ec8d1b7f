"""OpenAI's API: models, chat and completions."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vkmnn.errors import VkmnnError
from vkmnn.llm import EmbeddingModel, LanguageModel
from vkmnn.serve.answers import (
    ChatDeltas,
    CompletionParts,
    chat_choice,
    completion_choice,
    frame,
    usage_of,
)
from vkmnn.serve.audio_api import AudioApi
from vkmnn.serve.embeddings_api import EmbeddingsApi
from vkmnn.serve.images_api import ImagesApi
from vkmnn.serve.limits import Bodies, HttpError, Limits, as_http, field
from vkmnn.serve.messages import messages_of, tools_of
from vkmnn.serve.metrics import Metrics
from vkmnn.serve.models import Models
from vkmnn.serve.rerank_api import RerankApi
from vkmnn.serve.responses_api import ResponsesApi
from vkmnn.serve.routes import Row
from vkmnn.serve.settings import check_fields, choices_of, format_of, scores_of, settings_of
from vkmnn.serve.streamed import Streamed, events_of
from vkmnn.serve.texts import Asked, Part, Started, Texts, with_grammar
from vkmnn.serve.work import Work

_USUAL_TOKENS = 16
"""Tokens of a completion that names no maximum."""


class OpenAiApi:
    """The routes under /v1: models, chat and completions here, others in modules of their own."""

    def __init__(
        self, models: Models, limits: Limits, bodies: Bodies, work: Work, metrics: Metrics
    ) -> None:
        self._models = models
        self._limits = limits
        self._bodies = bodies
        self._texts = Texts(limits, work, metrics)
        self._others: Sequence[Any] = [
            ResponsesApi(models, limits, bodies, self._texts),
            EmbeddingsApi(models, limits, bodies, work, metrics),
            RerankApi(models, limits, bodies, work),
            AudioApi(models, limits, bodies, work),
            ImagesApi(models, limits, bodies, work),
        ]
        self._numbers = itertools.count(1)
        self._since = int(time.time())

    def routes(self) -> list[Row]:
        """Return the rows of the route table."""
        text = {"model": "NAME", "max_tokens": 16}
        said = [{"role": "user", "content": "Hello"}]
        return [
            Row("/v1/models", self.models, "GET", "the models of these routes"),
            Row("/v1/models/{name}", self.models, "GET", "one model"),
            Row("/v1/chat/completions", self.chat, "POST", "the next message of a conversation",
                {**text, "messages": said}),
            Row("/v1/completions", self.completions, "POST", "the continuation of a text",
                {**text, "prompt": "Hello"}),
            *(row for other in self._others for row in other.routes()),
        ]  # fmt: skip

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        made = {
            name: {"id": name, "object": "model", "created": self._since, "owned_by": "vkmnn",
                   **_details(model)}
            for name, model in self._models.spoken.items()
        }  # fmt: skip
        wanted = request.path_params.get("name")
        if wanted is None:
            return JSONResponse({"object": "list", "data": list(made.values())})
        if wanted not in made:
            raise HttpError(404, "model_not_found", "there is no such model", param="model")
        return JSONResponse(made[wanted])

    # --- chat ------------------------------------------------------------------------------------

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = await self._bodies.object_of(request)
        asked = await self._chat(request, body)
        identity = self._identity()
        if not asked.stream:
            answers = await self._texts.answers(request, asked)
            choices = [chat_choice(asked, index, one) for index, one in enumerate(answers)]
            return self._whole(frame(asked, True, identity), choices, usage_of(asked, answers))
        deltas = [ChatDeltas(asked, index) for index in range(asked.choices)]
        head = [[one.first()] for one in deltas]
        return self._streamed(asked, frame(asked, True, identity, chunk=True), head,
                              lambda part: deltas[part.index].of(part))  # fmt: skip

    async def _chat(self, request: Request, body: Any) -> Asked:
        name, model = self._models.language_model(body.get("model"))
        check_fields(body)
        given = field(body, "messages", (list,), [])
        if len(given) > model.capacity:
            text = f"{len(given)} messages do not fit into {model.capacity} tokens"
            raise HttpError(400, "context_length_exceeded", text, param="messages")
        template = model.tokenizer.tool_template
        tools = tools_of(body, template, self._limits)
        messages = messages_of(given, template, tools)
        form = format_of(body.get("response_format"), "response_format")
        how = settings_of(body, model, self._limits, None)
        how["logprobs"] = scores_of(body, chat=True)
        asked = Asked(model, name, [], how, choices_of(body, self._limits),
                      *_stream_of(body), tools)  # fmt: skip
        asked = with_grammar(asked, self._texts.grammar(model, form, tools))
        more = field(body, "chat_template_kwargs", (dict,))
        await self._texts.checked(request, asked)
        tokens = await self._texts.tokens(request, model, messages, "messages", tools, more)
        asked.prompts.append(tokens)
        return asked

    # --- completions -----------------------------------------------------------------------------

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = await self._bodies.object_of(request)
        name, model = self._models.language_model(body.get("model"))
        check_fields(body)
        prompts = _prompts(body)
        echo = field(body, "echo", (bool,), False)
        how = settings_of(body, model, self._limits, _USUAL_TOKENS, 0 if echo else 1)
        how["logprobs"] = scores_of(body, chat=False)
        how["prompt_logprobs"] = echo and how["logprobs"] is not None
        count = choices_of(body, self._limits)
        if len(prompts) * count > self._limits.choices:
            text = f"a request generates {self._limits.choices} texts at most"
            raise HttpError(400, "too_many_texts", text, param="prompt")
        form = format_of(body.get("response_format"), "response_format")
        asked = Asked(model, name, [], how, count, *_stream_of(body))
        asked = with_grammar(asked, self._texts.grammar(model, form, None))
        await self._texts.checked(request, asked)
        for prompt in prompts:
            asked.prompts.append(await self._texts.tokens(request, model, prompt, "prompt"))
        echoes = [_echo(model, one) if echo else None for one in prompts for _ in range(count)]
        identity = self._identity()
        if not asked.stream:
            answers = await self._texts.answers(request, asked)
            choices = [
                completion_choice(asked, index, one, echoes[index])
                for index, one in enumerate(answers)
            ]
            return self._whole(frame(asked, False, identity), choices, usage_of(asked, answers))
        parts = [CompletionParts(asked, index, one) for index, one in enumerate(echoes)]
        return self._streamed(asked, frame(asked, False, identity, chunk=True), [],
                              lambda part: parts[part.index].of(part))  # fmt: skip

    # --- responses -------------------------------------------------------------------------------

    def _identity(self) -> str:
        return f"{self._since:x}-{next(self._numbers)}"

    @staticmethod
    def _whole(made: dict[str, Any], choices: list[Any], usage: Any) -> Response:
        return JSONResponse({**made, "choices": choices, "usage": usage})

    def _streamed(
        self,
        asked: Asked,
        head: dict[str, Any],
        first: Sequence[list[Any]],
        choices_of_part: Callable[[Part], list[dict[str, Any]]],
    ) -> Response:
        """Return server-sent events: a chunk for each choice, and the usage if it is wanted."""
        started = self._texts.start(asked)
        events = self._chunks(started, head, first, choices_of_part)
        response = Streamed(events)
        response.when_done(lambda: self._texts.stop(started))
        return response

    async def _chunks(
        self,
        started: Started,
        head: dict[str, Any],
        first: Sequence[list[Any]],
        choices_of_part: Callable[[Part], list[dict[str, Any]]],
    ) -> AsyncIterator[str]:
        asked = started.asked
        more: dict[str, Any] = {"usage": None} if asked.usage else {}
        last: dict[int, Part] = {}
        try:
            for choices in first:
                yield events_of({**head, "choices": choices, **more})
            async for part in self._texts.parts(None, started):
                last[part.index] = part
                for choice in choices_of_part(part):
                    yield events_of({**head, "choices": [choice], **more})
        except VkmnnError as error:
            yield events_of(as_http(error).told("/v1"))
            return
        if asked.usage:
            ordered = [last[index] for index in sorted(last)]
            yield events_of({**head, "choices": [], "usage": usage_of(asked, ordered)})
        yield "data: [DONE]\n\n"


def _details(model: Any) -> dict[str, Any]:
    """Return what clients like to know about a model."""
    if isinstance(model, LanguageModel):
        return {"kind": "language", "max_model_len": model.capacity}
    if isinstance(model, EmbeddingModel):
        return {"kind": "embedding", "max_model_len": model.capacity}
    return {"kind": model.task}


def _stream_of(body: Any) -> tuple[bool, bool]:
    """Return whether to stream, and whether to end with the numbers of tokens."""
    options = field(body, "stream_options", (dict,), {})
    stream = bool(field(body, "stream", (bool,), False))
    return stream, bool(field(options, "include_usage", (bool,), False))


def _prompts(body: Any) -> list[Any]:
    """Return the prompts of a completion: texts, or lists of tokens."""
    given = field(body, "prompt", (str, list))
    if given is None or given == []:
        raise HttpError(400, "empty_prompt", "'prompt' is missing", param="prompt")
    prompts: list[Any] = given
    if isinstance(given, str) or all(type(one) is int for one in given):
        prompts = [given]
    kinds = {str if isinstance(one, str) else list if _is_tokens(one) else None for one in prompts}
    if len(kinds) != 1 or None in kinds:
        text = "'prompt' is a string, a list of tokens, or a list of either"
        raise HttpError(400, "invalid_type", text, param="prompt")
    return prompts


def _is_tokens(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(type(one) is int for one in prompt)


def _echo(model: LanguageModel, prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt)
