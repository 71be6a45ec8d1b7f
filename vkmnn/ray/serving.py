"""A deployment of Ray Serve: networks in joined runs, pictures by tasks, streamed texts."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from vkmnn.base.extras import need
from vkmnn.batch.flow import Failed
from vkmnn.batch.outputs import Row, finite
from vkmnn.batch.pool import checked_count
from vkmnn.errors import DeviceLostError, InvalidInputError, VkmnnError, nearest
from vkmnn.llm import LanguageModel, load
from vkmnn.llm.generation import Settings
from vkmnn.ray.devices import RESOURCE, AssignedDevice
from vkmnn.ray.rows import RowModel

TEXT = "text-generation"
"""The task of language models."""
_OPTIONS = (
    "prompt",
    "messages",
    "stream",
    "max_tokens",
    *sorted({*Settings.__annotations__} - {"grammar"}),
)


_THREADS = ThreadPoolExecutor(64, "vkmnn-serve")
"""Requests in progress wait there; asyncio's own pool has few threads on small machines."""


async def _threaded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in a thread, and wait for its result."""
    call = functools.partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, call)


def deployment(
    model: Any,
    task: str | None = None,
    *,
    batch: int = 16,
    wait_s: float = 0.005,
    device: str | int | None = None,
    serve_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return an application for `serve.run`.

    Each replica opens the model on a separate Vulkan device. A network answers JSON (values by
    input) with JSON (values by output); an image task answers the bytes of a picture;
    "text-generation" answers {"prompt" or "messages", …}, and streams with {"stream": true}.
    Handles have the methods `infer`, `generate` and `stream`.

    Args:
        model: as for `Predictor`; for texts, as for `vkmnn.llm.load`.
        task: a task on pictures; "text-generation"; None for the network itself.
        batch: most requests in one run.
        wait_s: time to wait for further requests, in seconds.
        device: as for `InferenceSession`; None for the one that Ray assigns.
        serve_options: options of `serve.deployment`, such as {"num_replicas": 2}.
        options: further options of the session, the pipeline or `vkmnn.llm.load`.

    Raises:
        InvalidInputError: an argument is not valid.
        MissingExtraError: Ray is not installed.
    """
    serve = need("ray.serve", "a deployment", "ray")
    checked_count("batch", batch)
    if not 0 <= wait_s <= 60:
        raise InvalidInputError(f"wait_s={wait_s!r} is no time from 0 to 60 seconds")
    given: dict[str, Any] = {
        "name": "vkmnn",
        "max_ongoing_requests": 2 * batch,  # Ray's default would fill no run
        **(serve_options or {}),
    }
    if device is None:
        actor = dict(given.get("ray_actor_options") or {})
        actor["resources"] = {RESOURCE: 1, **(actor.get("resources") or {})}
        given["ray_actor_options"] = actor
    if task == TEXT:
        return serve.deployment(**given)(TextReplica).bind(model, device, options)
    made = serve.deployment(**given)(RowReplica)
    return made.bind(model, task, (batch, float(wait_s)), device, options)


class RowReplica:
    """A network, or a task on pictures; created by `deployment`.

    Args:
        model: the model.
        task: the task on pictures, if any.
        joining: requests in one run at most, and seconds to wait for them.
        device: the device, or None for the assigned one.
        options: further options.
    """

    def __init__(
        self,
        model: Any,
        task: str | None,
        joining: tuple[int, float],
        device: str | int | None,
        options: Mapping[str, Any],
    ) -> None:
        self._takes_pictures = task is not None
        self._model = RowModel(model, task, joining[0], device, options)
        computed = self._model.outcomes

        async def together(rows: list[Any]) -> list[Row | Failed]:
            return list(await _threaded(lambda: list(computed(rows))))

        batched = need("ray.serve", "a deployment", "ray").batch
        self._together = batched(max_batch_size=joining[0], batch_wait_timeout_s=joining[1])(
            together
        )

    async def infer(self, row: Any) -> Any:
        """Return the outputs of values by input; or, for a picture, what the task says.

        Raises:
            VkmnnError: the row cannot be run.
        """
        if not self._takes_pictures and not isinstance(row, Mapping):
            raise InvalidInputError(
                f"a row is a dictionary of values by input, not {type(row).__name__}",
                hint=f"inputs: {', '.join(arg.name for arg in self._model.inputs)}",
            )
        outcome = await self._together(row)
        if isinstance(outcome, Failed):
            raise outcome.error
        return dict(outcome.arrays) if outcome.result is None else json.loads(outcome.result)

    async def __call__(self, request: Any) -> Any:
        """Answer a request over HTTP."""
        try:
            body = await request.body()
            made = await self.infer(body if self._takes_pictures else _json(body))
        except VkmnnError as error:
            return _refusal(error)
        if not self._takes_pictures:
            made = {name: finite(np.asarray(one).tolist()) for name, one in made.items()}
        return _answer(made)

    def check_health(self) -> None:
        """Tell Ray Serve to replace a replica whose device is lost.

        Raises:
            DeviceLostError: it is.
        """
        if self._model.lost:
            raise DeviceLostError("the replica's device is lost")


class TextReplica:
    """A language model; created by `deployment`.

    Args:
        model: the model.
        device: the device, or None for the assigned one.
        options: further options of `vkmnn.llm.load`.
    """

    def __init__(self, model: Any, device: str | int | None, options: Mapping[str, Any]) -> None:
        self._assigned = AssignedDevice() if device is None else None
        place = device if self._assigned is None else self._assigned.device
        self._model: LanguageModel = load(model, "auto" if place is None else place, **options)

    async def generate(self, prompt: Any, **settings: Any) -> str:
        """Return the text after a prompt; arguments are those of `LanguageModel.generate`.

        Raises:
            InvalidInputError: a value is out of its range, or the prompt does not fit.
        """
        made = await _threaded(self._model.generate, prompt, **_settings(settings))
        return str(made.text)

    async def stream(self, prompt: Any, **settings: Any) -> AsyncIterator[str]:
        """Yield the text after a prompt, piece by piece; as `generate`."""
        pieces = await _threaded(self._model.stream, prompt, **_settings(settings))
        async for piece in _unblocked(pieces):
            yield piece

    async def __call__(self, request: Any) -> Any:
        """Answer a request over HTTP; streams are server-sent events."""
        responses = need("starlette.responses", "a deployment", "ray")
        try:
            asked = _asked(_json(await request.body()))
            streams = asked.pop("stream", False)
            prompt = asked.pop("prompt") if "prompt" in asked else asked.pop("messages")
            if not streams:
                return _answer({"text": await self.generate(prompt, **asked)})
            pieces = await _threaded(self._model.stream, prompt, **_settings(asked))
        except VkmnnError as error:
            return _refusal(error)
        return responses.StreamingResponse(_events(pieces), media_type="text/event-stream")

    def check_health(self) -> None:
        """Tell Ray Serve to replace a replica whose device is lost.

        Raises:
            DeviceLostError: it is.
        """
        if self._model.lost:
            raise DeviceLostError("the replica's device is lost")


async def _unblocked(pieces: Iterator[str]) -> AsyncIterator[str]:
    """Yield what an iterator computes in other threads; it is closed if nobody reads on."""
    try:
        while (piece := await _threaded(next, pieces, None)) is not None:
            yield piece
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            await _threaded(close)


async def _events(pieces: Iterator[str]) -> AsyncIterator[str]:
    """Yield server-sent events: {"text": …} for each piece, then [DONE], or an error."""
    try:
        async for piece in _unblocked(pieces):
            yield f"data: {json.dumps({'text': piece})}\n\n"
        yield "data: [DONE]\n\n"
    except VkmnnError as error:
        yield f"data: {json.dumps(_described(error))}\n\n"


def _json(body: bytes) -> Mapping[str, Any]:
    """Return the object in a body.

    Raises:
        InvalidInputError: there is none.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the body is no JSON: {error}") from error
    if not isinstance(found, Mapping):
        raise InvalidInputError("the body is no JSON object", hint='for example {"x": [1, 2]}')
    return found


def _asked(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked request for a text.

    Raises:
        InvalidInputError: it has an unknown key, or not one prompt.
    """
    for name in body:
        if name not in _OPTIONS:
            raise InvalidInputError(f"'{name}' is not known", hint=nearest(name, _OPTIONS, "keys"))
    if ("prompt" in body) == ("messages" in body):
        raise InvalidInputError('the body needs "prompt" or "messages"')
    return dict(body)


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    known = ("max_tokens", *Settings.__annotations__)
    for name in given:
        if name not in known:
            raise InvalidInputError(f"'{name}' is not known", hint=nearest(name, known, "options"))
    return dict(given)


def _described(error: VkmnnError) -> dict[str, Any]:
    return {"error": {"type": type(error).__name__, "message": error.message, "hint": error.hint}}


def _answer(value: Any, status: int = 200) -> Any:
    responses = need("starlette.responses", "a deployment", "ray")
    return responses.JSONResponse(value, status)


def _refusal(error: VkmnnError) -> Any:
    return _answer(_described(error), 400 if isinstance(error, InvalidInputError) else 500)
