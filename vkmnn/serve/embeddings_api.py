"""OpenAI's API: embeddings."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from vkmnn.serve.limits import Bodies, HttpError, Limits, field
from vkmnn.serve.metrics import Metrics
from vkmnn.serve.models import Models
from vkmnn.serve.routes import Row
from vkmnn.serve.work import Work


class EmbeddingsApi:
    """The route /v1/embeddings."""

    def __init__(
        self, models: Models, limits: Limits, bodies: Bodies, work: Work, metrics: Metrics
    ) -> None:
        self._models = models
        self._limits = limits
        self._bodies = bodies
        self._work = work
        self._metrics = metrics

    def routes(self) -> list[Row]:
        """Return the rows of the route table."""
        example = {"model": "NAME", "input": ["Hello"]}
        return [Row("/v1/embeddings", self.embeddings, "POST", "vectors of texts", example)]

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        body = await self._bodies.object_of(request)
        name, model = self._models.embedding_model(body.get("model"))
        texts = field(body, "input", (str, list))
        texts = [texts] if isinstance(texts, str) else texts
        if not texts or not all(isinstance(text, str) for text in texts):
            text = "'input' is a string or a list of strings"
            raise HttpError(400, "invalid_input", text, param="input")
        if len(texts) > self._limits.texts:
            text = f"'input' has {len(texts)} texts, and {self._limits.texts} at most"
            raise HttpError(400, "too_many_texts", text, param="input")
        form = field(body, "encoding_format", (str,), "float")
        if form not in ("float", "base64"):
            text = "'encoding_format' is float or base64"
            raise HttpError(400, "unsupported_field", text, param="encoding_format")
        size = field(body, "dimensions", (int,))
        if size is not None and size < 1:
            raise HttpError(400, "invalid_value", "'dimensions' is 1 or more", param="dimensions")
        for text in texts:
            model.tokenizer.check_characters(len(text), model.capacity)
        parts: list[str] = []

        def steps() -> Generator[int, None, None]:
            count = 0
            for vector, tokens in model.each(texts):
                count += tokens
                parts.append(_embedding(len(parts), _cut(vector, size), form == "base64"))
                yield count

        turns = self._work.embedding
        count = await turns.done(request, turns.add(steps))
        self._metrics.prompt_tokens.inc(count)
        usage = {"prompt_tokens": count, "total_tokens": count}
        head = json.dumps({"object": "list", "model": name, "usage": usage})
        text = f'{head[:-1]}, "data": [{", ".join(parts)}]}}'
        return Response(text, media_type="application/json")


def _cut(vector: Any, size: int | None) -> Any:
    """Return the first numbers of a vector, normalised to length 1 again."""
    numbers = np.asarray(vector, np.float32)
    if size is None or size == numbers.size:
        return numbers
    if size > numbers.size:
        text = f"'dimensions' is {size}, and the model's vectors have {numbers.size}"
        raise HttpError(400, "invalid_value", text, param="dimensions")
    length = np.linalg.norm(numbers[:size])
    return numbers[:size] / (length or 1.0)


def _embedding(index: int, vector: Any, coded: bool) -> str:
    """Return a text's vector as JSON."""
    numbers = np.asarray(vector, "<f4")
    if not np.isfinite(numbers).all():  # JSON cannot represent it
        text = f"the vector of text {index} has numbers that are not finite"
        raise HttpError(500, "not_finite", text)
    made: Any = base64.b64encode(numbers.tobytes()).decode() if coded else numbers.tolist()
    return json.dumps({"object": "embedding", "index": index, "embedding": made})
