"""OpenAI's API: transcriptions and translations of sounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from vkmnn.llm.spectrogram import RATE
from vkmnn.pipelines import Transcript
from vkmnn.pipelines.sounds.reading import read_sound
from vkmnn.serve.forms import form_of
from vkmnn.serve.limits import Bodies, HttpError, Limits
from vkmnn.serve.models import Models
from vkmnn.serve.routes import Row
from vkmnn.serve.work import Work

TASK = "automatic-speech-recognition"
_FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
_REFUSED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "prompt": (("",), "the model hears only the sound"),
    "stream": (("false", "False", "0"), "a transcript is sent as a whole"),
    "temperature": (("0", "0.0", ""), "the likeliest words are chosen"),
    "timestamp_granularities[]": (("segment",), "times are those of segments"),
    "chunking_strategy": (("auto",), "long sounds are cut at pauses"),
    "include[]": ((), "words have no scores"),
}
"""Fields that would change the result, with their supported values, and the reason."""


class AudioApi:
    """The routes under /v1/audio."""

    def __init__(self, models: Models, limits: Limits, bodies: Bodies, work: Work) -> None:
        self._models = models
        self._limits = limits
        self._bodies = bodies
        self._work = work

    def routes(self) -> list[Row]:
        """Return the rows of the route table."""
        return [
            Row("/v1/audio/transcriptions", self.transcriptions, "POST", "what is said in a sound"),
            Row("/v1/audio/translations", self.translations, "POST",
                "what is said in a sound, in English"),
        ]  # fmt: skip

    async def transcriptions(self, request: Request) -> Response:
        """POST /v1/audio/transcriptions."""
        return await self._written(request, translate=False)

    async def translations(self, request: Request) -> Response:
        """POST /v1/audio/translations."""
        return await self._written(request, translate=True)

    async def _written(self, request: Request, translate: bool) -> Response:
        async with self._bodies.received(request) as body:
            fields, files = await form_of(request, body)
            pipe = self._models.pipeline(fields.get("model"), TASK)[1]
            form = fields.get("response_format", "json")
            if form not in _FORMATS:
                text = f"'response_format' is one of {', '.join(_FORMATS)}"
                raise HttpError(400, "invalid_value", text, param="response_format")
            for name, (allowed, reason) in _REFUSED.items():
                if name in fields and fields[name] not in allowed:
                    text = f"'{name}' is not supported: {reason}"
                    raise HttpError(400, "unsupported_field", text, param=name)
            sound = files.get("file")
            if not sound:
                raise HttpError(400, "missing_file", "'file' is missing or empty", param="file")
            settings: dict[str, Any] = {"translate": translate}
            if fields.get("language") and not translate:
                settings["language"] = fields["language"]
            longest = self._limits.sound_s

            def steps() -> Iterator[tuple[Transcript, float]]:
                samples = read_sound(sound, RATE, longest)
                for transcript in pipe.steps(samples, **settings):
                    yield transcript, len(samples) / RATE

            turns = self._work.sounds
            transcript, seconds = await turns.done(request, turns.add(steps))
        return _told(transcript, seconds, form, translate)


def _told(transcript: Transcript, seconds: float, form: str, translate: bool) -> Response:
    if form in ("srt", "vtt"):
        return PlainTextResponse(transcript.subtitles(f".{form}"))
    text = transcript.text()
    if form == "text":
        return PlainTextResponse(f"{text}\n")
    usage = {"type": "duration", "seconds": math.ceil(seconds)}
    if form == "json":
        return JSONResponse({"text": text, "usage": usage})
    segments = [
        {"id": number, "seek": 0, "start": round(one.start, 2), "end": round(one.end, 2),
         "text": one.text, "tokens": [], "temperature": 0.0, "avg_logprob": 0.0,
         "compression_ratio": 0.0, "no_speech_prob": 0.0}
        for number, one in enumerate(transcript.segments)
    ]  # fmt: skip
    return JSONResponse({
        "task": "translate" if translate else "transcribe", "language": transcript.language,
        "duration": round(seconds, 2), "text": text, "segments": segments, "usage": usage,
    })  # fmt: skip
