"""OpenAI's API: images for prompts."""

from __future__ import annotations

import base64
import io
import json
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from vkmnn.errors import InvalidInputError
from vkmnn.serve.limits import Bodies, HttpError, Limits, field
from vkmnn.serve.models import Models
from vkmnn.serve.pieces import Pieces
from vkmnn.serve.routes import Row
from vkmnn.serve.store import Store
from vkmnn.serve.work import Work

TASK = "text-to-image"
_SIZE = re.compile(r"(\d{2,4})x(\d{2,4})")
_SIDES = (64, 2048)
_MOST_STEPS = 200
_CHARACTERS = 16384
IMAGE = "/v1/images/{id}"
"""Route of an image that is kept; its id is a secret, as browsers send no key."""

_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "response_format": ("b64_json", "url"),
    "output_format": ("png",),
    "background": ("auto", "opaque"),
    "quality": ("auto", "standard", "medium"),
    "style": (),
    "stream": (False,),
}
"""Fields that would change the result, and their supported values."""


class ImagesApi:
    """The routes under /v1/images."""

    def __init__(self, models: Models, limits: Limits, bodies: Bodies, work: Work) -> None:
        self._models = models
        self._limits = limits
        self._bodies = bodies
        self._work = work
        self._store = Store(limits.kept_bytes, "image")

    def routes(self) -> list[Row]:
        """Return the rows of the route table."""
        example = {"model": "NAME", "prompt": "a red fox", "size": "512x512"}
        return [
            Row("/v1/images/generations", self.generations, "POST", "images for a prompt", example),
            Row(IMAGE, self.image, "GET", "an image that is kept, without a key"),
        ]

    async def image(self, request: Request) -> Response:
        """GET /v1/images/ID."""
        (png,) = self._store.parts(request.path_params["id"])
        return Pieces(png, self._bodies, "image/png", {"Cache-Control": "private"})

    async def generations(self, request: Request) -> Response:
        """POST /v1/images/generations."""
        body = await self._bodies.object_of(request)
        pipe = self._models.pipeline(body.get("model"), TASK)[1]
        prompt = field(body, "prompt", (str,))
        if not prompt or len(prompt) > _CHARACTERS:
            text = f"'prompt' is a text of {_CHARACTERS} characters at most"
            raise HttpError(400, "invalid_value", text, param="prompt")
        count = _within(body, "n", 1, 1, self._limits.choices)
        settings, as_url = _settings(body), body.get("response_format") == "url"
        first = field(body, "seed", (int,))
        seed = secrets.randbits(31) if first is None else first % (1 << 31)
        gone = threading.Event()
        if "progress" in pipe.settings:
            settings["progress"] = _watcher(gone)

        def steps() -> Iterator[list[bytes]]:
            made: list[bytes] = []
            for number in range(count):
                images = pipe(prompt, seed=seed + number, **settings).images
                made += [_png(one) for one in images]
                yield made

        turns = self._work.images
        try:
            made = await turns.done(request, turns.add(steps))
        except InvalidInputError as error:
            name = error.message.partition("=")[0]
            param = name if name in settings else "prompt"
            raise HttpError(400, "invalid_value", error.message, param=param) from error
        finally:
            gone.set()
        if as_url and sum(map(len, made)) > self._limits.kept_bytes:
            text = "the images are too large to be kept: ask for 'b64_json'"
            raise HttpError(400, "invalid_value", text, param="response_format")
        told = [self._address(request, png) for png in made] if as_url else made
        whole = await self._bodies.aside(_told, told, seed)
        return Pieces(whole, self._bodies, "application/json", {})

    def _address(self, request: Request, png: bytes) -> str:
        """Keep an image; return its address, which nobody can guess."""
        identity = f"{secrets.token_urlsafe(24)}.png"
        self._store.put(identity, png)
        return f"{request.base_url}{IMAGE.format(id=identity)[1:]}"


def _settings(body: Any) -> dict[str, Any]:
    """Return the settings of the pipeline that a request names."""
    made: dict[str, Any] = {}
    for name, allowed in _FIELDS.items():
        if body.get(name) is not None and body[name] not in allowed:
            text = (
                f"'{name}' is not supported, or only as: {', '.join(map(str, allowed)) or 'none'}"
            )
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


def _png(image: Any) -> bytes:
    """Return a PIL image as PNG."""
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def _told(images: Sequence[bytes | str], seed: int) -> bytes:
    """Return the JSON of a response: the images, or their addresses."""
    data = [
        {"seed": seed + number,
         **({"url": one} if isinstance(one, str) else {"b64_json": base64.b64encode(one).decode()})}
        for number, one in enumerate(images)
    ]  # fmt: skip
    whole = {"created": int(time.time()), "data": data, "output_format": "png"}
    return json.dumps(whole).encode()
