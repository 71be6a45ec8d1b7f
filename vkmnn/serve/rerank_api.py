"""Ranking of documents by a query, as in the APIs of Jina and Cohere."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vkmnn.serve.limits import Bodies, HttpError, Limits, field
from vkmnn.serve.models import Models
from vkmnn.serve.routes import Row
from vkmnn.serve.work import Work

TASK = "text-classification"
_CHARACTERS = 1 << 16


class RerankApi:
    """The route /v1/rerank."""

    def __init__(self, models: Models, limits: Limits, bodies: Bodies, work: Work) -> None:
        self._models = models
        self._limits = limits
        self._bodies = bodies
        self._work = work

    def routes(self) -> list[Row]:
        """Return the rows of the route table."""
        example = {"model": "NAME", "query": "a fox", "documents": ["a dog", "a red fox"]}
        return [Row("/v1/rerank", self.rerank, "POST", "documents, ranked by a query", example)]

    async def rerank(self, request: Request) -> Response:
        """POST /v1/rerank."""
        body = await self._bodies.object_of(request)
        name, pipe = self._models.pipeline(body.get("model"), TASK)
        query, documents = _text(body.get("query"), "query"), self._documents(body)
        top = field(body, "top_n", (int,), len(documents))
        if top < 1:
            raise HttpError(400, "invalid_value", "'top_n' is 1 or more", param="top_n")
        whole = field(body, "return_documents", (bool,), True)

        def steps() -> Iterator[tuple[list[float], int]]:
            scores: list[float] = []
            count = 0
            for document in documents:
                labels = pipe({"text": query, "text_pair": document}, truncate=True)
                scores.append(float(labels.scores[-1]))  # of one class, or of the second of two
                count += labels.tokens
                yield scores, count

        turns = self._work.ranking
        scores, count = await turns.done(request, turns.add(steps))
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:top]
        results = [
            {"index": index, "relevance_score": scores[index],
             **({"document": {"text": documents[index]}} if whole else {})}
            for index in order
        ]  # fmt: skip
        usage = {"prompt_tokens": count, "total_tokens": count}
        identity = f"rerank-{secrets.token_hex(12)}"
        made = {"id": identity, "object": "list", "model": name, "results": results}
        meta = {"billed_units": {"search_units": 1}}
        return JSONResponse({**made, "usage": usage, "meta": meta})

    def _documents(self, body: Any) -> list[str]:
        given = field(body, "documents", (list,), [])
        if not 1 <= len(given) <= self._limits.texts:
            text = f"'documents' has 1 to {self._limits.texts} texts"
            raise HttpError(400, "too_many_texts", text, param="documents")
        return [_text(one, f"documents[{number}]") for number, one in enumerate(given)]


def _text(given: Any, param: str) -> str:
    """Return a text, or that of an object with one."""
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str) or not text.strip() or len(text) > _CHARACTERS:
        told = f"'{param}' is a text of {_CHARACTERS} characters at most"
        raise HttpError(400, "invalid_input", told, param=param)
    return text
