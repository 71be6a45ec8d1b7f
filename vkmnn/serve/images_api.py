"""OpenAI's API: images for prompts."""

from __future__ import annotations

import base64
import io
import re
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vkmnn.serve.limits import Bodies, HttpError, Limits, field
from vkmnn.serve.models import Models
from vkmnn.serve.routes import Row
from vkmnn.serve.work import Work

TASK = "text-to-image"
_SIZE = re.compile(r"(\d{2,4})x(\d{2,4})")
_SIDES = (64, 2048)
_MOST_STEPS = 200
_CHARACTERS = 16384


class ImagesApi:
    """The route /v1/images/generations."""

    def __init__(self, models: Models, limits: Limits, bodies: Bodies, work: Work) -> None:
        self._models = models
        self._limits = limits
        self._bodies = bodies
        self._work = work

    def routes(self) -> list[Row]:
        """Return the rows of the route table."""
        example = {"model": "NAME", "prompt": "a red fox", "size": "512x512"}
        return [Row("/v1/images/generations", self.generations, "POST", "images for a prompt",
                    example)]  # fmt: skip

    async def generations(self, request: Request) -> Response:
        """POST /v1/images/generations."""
        body = await self._bodies.object_of(request)
        pipe = self._models.pipeline(body.get("model"), TASK)[1]
        prompt = field(body, "prompt", (str,))
        if not prompt or len(prompt) > _CHARACTERS:
            text = f"'prompt' is a text of {_CHARACTERS} characters at most"
            raise HttpError(400, "invalid_value", text, param="prompt")
        count = _within(body, "n", 1, 1, self._limits.choices)
        settings = _settings(body)
        first = field(body, "seed", (int,))
        seed = secrets.randbits(31) if first is None else first % (1 << 31)
        gone = threading.Event()
        if "progress" in pipe.settings:
            settings["progress"] = _watcher(gone)

        def steps() -> Iterator[list[str]]:
            made: list[str] = []
            for number in range(count):
                images = pipe(prompt, seed=seed + number, **settings).images
                made += [_png(one) for one in images]
                yield made

        turns = self._work.images
        try:
            made = await turns.done(request, turns.add(steps))
        finally:
            gone.set()
        data = [{"b64_json": one, "seed": seed + number} for number, one in enumerate(made)]
        return JSONResponse({"created": int(time.time()), "data": data, "output_format": "png"})


def _settings(body: Any) -> dict[str, Any]:
    """Return the settings of the pipeline that a request names."""
    made: dict[str, Any] = {}
    for name, allowed in (("response_format", ("b64_json",)), ("output_format", ("png",)),
                          ("background", ("auto", "opaque")), ("stream", (False,))):  # fmt: skip
        if body.get(name) is not None and body[name] not in allowed:
            text = f"'{name}' is {' or '.join(map(str, allowed))}: images are sent as PNG"
            raise HttpError(400, "unsupported_field", text, param=name)
    size = field(body, "size", (str,), "auto")
    if size != "auto":
        match = _SIZE.fullmatch(size)
        width, height = (int(match[1]), int(match[2])) if match else (0, 0)
        if not all(_SIDES[0] <= side <= _SIDES[1] for side in (width, height)):
            text = f"'size' is WIDTHxHEIGHT, {_SIDES[0]} to {_SIDES[1]} each"
            raise HttpError(400, "invalid_value", text, param="size")
        made["size"] = height, width
    if body.get("steps") is not None:
        made["steps"] = _within(body, "steps", 1, 1, _MOST_STEPS)
    return made


def _within(body: Any, name: str, usual: int, least: int, most: int) -> int:
    value: int = field(body, name, (int,), usual)
    if not least <= value <= most:
        text = f"'{name}' is {least} to {most}"
        raise HttpError(400, "invalid_value", text, param=name)
    return value


def _watcher(gone: threading.Event) -> Any:
    """Return what ends an image that nobody waits for."""

    def progress(*_: object) -> None:
        if gone.is_set():
            raise HttpError(499, "client_gone", "the client has disconnected")

    return progress


def _png(image: Any) -> str:
    """Return a PIL image as PNG in base64."""
    data = io.BytesIO()
    image.save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()
