"""Texts that requests generate: several at a time, as parts that arrive or as whole answers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from vkmnn.errors import InvalidInputError
from vkmnn.llm import Generated, Grammar, LanguageModel
from vkmnn.llm.grammar import lark
from vkmnn.llm.sampling import Scored
from vkmnn.llm.text import PIECE, Conversation, characters_of
from vkmnn.llm.tools import (
    CallBegins,
    CallGoesOn,
    CallReader,
    Event,
    Text,
    calls_grammar,
    free_grammar,
)
from vkmnn.serve.limits import HttpError, Limits, as_http
from vkmnn.serve.messages import Tools
from vkmnn.serve.metrics import Metrics
from vkmnn.serve.settings import as_param
from vkmnn.serve.turns import Job
from vkmnn.serve.work import Work

_ID_BYTES = 12


@dataclass(frozen=True, slots=True)
class Asked:
    """A validated request for text.

    Attributes:
        model: the model.
        name: its name.
        prompts: the tokens of each prompt.
        how: arguments of `LanguageModel.pieces`.
        choices: texts to generate for each prompt.
        stream: whether to send parts as they arrive.
        usage: whether the stream ends with the numbers of tokens.
        tools: functions that may be called.
    """

    model: LanguageModel
    name: str
    prompts: list[list[int]]
    how: Mapping[str, Any]
    choices: int = 1
    stream: bool = False
    usage: bool = False
    tools: Tools | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What a step adds to one of several texts.

    Attributes:
        index: the number of the text.
        events: its text and calls.
        scores: scores of new tokens.
        result: the text so far.
        reason: why the text ends, if it does.
    """

    index: int
    events: Sequence[Event]
    scores: Sequence[Scored]
    result: Generated
    reason: str | None = None


@dataclass(slots=True)
class Call:
    """A call of a function in an answer."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """A whole text.

    Attributes:
        text: the text, without calls.
        calls: calls of functions.
        scores: scores of its tokens, if they were asked for.
        result: what was generated.
        reason: why it ends.
    """

    text: str = ""
    calls: list[Call] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)
    result: Generated = field(default_factory=Generated)
    reason: str = "stop"

    def add(self, part: Part, id_length: int = 0) -> None:
        """Append a part."""
        for event in part.events:
            if isinstance(event, Text):
                self.text += event.text
            elif isinstance(event, CallBegins):
                self.calls.append(Call(new_call_id(id_length), event.name))
            elif isinstance(event, CallGoesOn):
                self.calls[-1].arguments += event.text
        self.scores += part.scores
        self.result, self.reason = part.result, part.reason or self.reason


def new_call_id(length: int = 0) -> str:
    """Return an id of a call; a template may check its length."""
    return secrets.token_hex(length)[:length] if length else f"call_{secrets.token_hex(_ID_BYTES)}"


@dataclass(frozen=True, slots=True)
class Started:
    """Jobs that generate the texts of a request, and the queue of their events."""

    asked: Asked
    jobs: Sequence[Job]
    events: asyncio.Queue[Any]


class Texts:
    """Generates the texts of requests."""

    def __init__(self, limits: Limits, work: Work, metrics: Metrics) -> None:
        self._limits = limits
        self._work = work
        self._metrics = metrics

    # --- preparation -----------------------------------------------------------------------------

    async def tokens(
        self,
        request: Request,
        model: LanguageModel,
        prompt: Any,
        param: str,
        tools: Tools | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the tokens of a prompt; refuse one that cannot fit before it is tokenised.

        Args:
            request: the request.
            model: the model.
            prompt: a text, tokens, or messages.
            param: the field that has it, for errors.
            tools: functions that the conversation describes.
            more: further variables of the chat template.
        """
        given: Conversation = {} if more is None else {"more": more}
        if tools is not None and tools.known:
            given["tools"] = tools.described
        count = characters_of(prompt) + sum(len(str(one)) for one in given.get("tools", ()))
        try:
            if count <= PIECE:
                tokens = await run_in_threadpool(model.tokens_of, prompt, model.capacity, **given)
            else:
                model.tokenizer.check_characters(count, model.capacity)
                turns = self._work.tokenising
                job = turns.add(lambda: model.token_steps(prompt, model.capacity, **given))
                tokens = await turns.done(request, job)
        except InvalidInputError as error:
            told = as_http(error)
            raise HttpError(told.status, told.code, told.message, param=param) from error
        if not tokens:
            raise HttpError(400, "empty_prompt", "the prompt is empty", param=param)
        return tokens

    async def checked(self, request: Request, asked: Asked) -> None:
        """Check the arguments of `LanguageModel.pieces`, and compile the grammar."""
        model, how = asked.model, asked.how
        grammar = how.get("grammar")
        try:
            model.options(**{**how, "grammar": None})
        except InvalidInputError as error:
            raise as_param(error) from error
        if grammar is None or model.has_compiled(grammar):
            return
        turns = self._work.compiling

        def compile_it() -> Iterator[None]:
            model.options(grammar=grammar)
            yield None

        try:
            await turns.done(request, turns.add(compile_it))
        except InvalidInputError as error:
            param = "tools" if asked.tools is not None else "response_format"
            raise HttpError(400, "invalid_schema", error.message, param=param) from error

    @staticmethod
    def grammar(
        model: LanguageModel, form: Grammar | str | None, tools: Tools | None
    ) -> Grammar | None:
        """Return the grammar of an answer, by its format and the functions that may be called."""
        if tools is not None and tools.strict and not tools.required and form is None:
            special = model.tokenizer.special
            return free_grammar(tools.style, tools.callable, special, tools.parallel)
        if tools is None or not (tools.required or form is not None):
            return lark(f"start: %json {form}", "JSON schema") if isinstance(form, str) else form
        if not tools.required and isinstance(form, Grammar):
            text = "'response_format' of the type grammar cannot be combined with 'tools'"
            raise HttpError(400, "unsupported_field", text, param="response_format")
        other = form if isinstance(form, str) and not tools.required else None
        special = model.tokenizer.special
        return calls_grammar(tools.style, tools.callable, special, tools.parallel, other)

    # --- generation ------------------------------------------------------------------------------

    def start(self, asked: Asked) -> Started:
        """Queue the texts of a request; if there is no room for all, queue none."""
        turns, events = self._work.texts, asyncio.Queue[Any]()
        asked.model.share_prefixes(self._limits.prefix_bytes)
        jobs: list[Job] = []
        try:
            for index in range(len(asked.prompts) * asked.choices):
                prompt = asked.prompts[index // asked.choices]
                jobs.append(turns.add(_steps(asked, index), events, len(prompt)))
        except BaseException:
            for job in jobs:
                turns.cancel(job)
            raise
        return Started(asked, jobs, events)

    def stop(self, started: Started) -> None:
        """Drop texts that nobody waits for."""
        for job in started.jobs:
            self._work.texts.cancel(job)

    async def answers(self, request: Request, asked: Asked) -> list[Answer]:
        """Generate the texts of a request; drop them if the client disconnects."""
        started = self.start(asked)
        made = [Answer() for _ in started.jobs]
        id_length = asked.tools.style.id_length if asked.tools else 0
        async for part in self.parts(request, started):
            made[part.index].add(part, id_length)
        return made

    async def parts(self, request: Request | None, started: Started) -> AsyncGenerator[Part, None]:
        """Yield the parts of the texts as they arrive; see `Turns.each`."""
        tools, jobs = started.asked.tools, started.jobs
        readers = [_reader(tools) for _ in jobs]
        told = [0] * len(jobs)
        results: dict[int, Generated] = {}
        try:
            async with aclosing(self._work.texts.each(request, jobs, started.events)) as each:
                async for index, result, piece, count, over in each:
                    results[index] = result
                    scores = result.logprobs[told[index] : count]
                    events, reason = _read(readers[index], piece, over, result)
                    if events or reason:
                        told[index] = count
                        yield Part(index, events, scores, result, reason)
        finally:
            self.stop(started)
            for index, result in results.items():
                first = index % started.asked.choices == 0
                self._metrics.prompt_tokens.inc(result.prompt_tokens if first else 0)
                self._metrics.generated_tokens.inc(len(result.tokens))


def _steps(asked: Asked, index: int) -> Any:
    """Return what generates one of the texts: yields its number, result, piece, tokens and end."""
    how = dict(asked.how)
    if how.get("seed") is not None:
        how["seed"] += index
    prompt, model = asked.prompts[index // asked.choices], asked.model

    def steps() -> Iterator[tuple[int, Generated, str, int, bool]]:
        result = Generated()
        pieces: Any = model.pieces(prompt, kept=_kept(asked), **how)
        with closing(pieces):
            for result, piece in pieces:
                yield index, result, piece, len(result.tokens), False
        yield index, result, "", len(result.tokens), True

    return steps


def _kept(asked: Asked) -> frozenset[int]:
    """Return the special tokens that mark calls: they have to be part of the text."""
    if asked.tools is None:
        return frozenset()
    style = asked.tools.style
    marks = f"{style.begin} {style.end} {style.args_mark}"
    special = asked.model.tokenizer.special
    return frozenset(number for name, number in special.items() if name and name in marks)


def _reader(tools: Tools | None) -> CallReader | None:
    return None if tools is None else CallReader(tools.style, tools.names)


def _read(
    reader: CallReader | None, piece: str, over: bool, result: Generated
) -> tuple[Sequence[Event], str | None]:
    """Return what a piece of text adds, and why the text ends if it does."""
    reason = (result.finish_reason or "stop") if over else None
    if reader is None:
        return ([Text(piece)] if piece else []), reason
    events = [*reader.add(piece), *(reader.finish() if over else [])]
    if reason == "stop" and reader.calls:
        reason = "tool_calls"
    return events, reason


def with_grammar(asked: Asked, grammar: Grammar | None) -> Asked:
    """Return a request whose texts have to match a grammar."""
    return asked if grammar is None else replace(asked, how={**asked.how, "grammar": grammar})
