"""The JSON of OpenAI's chat and completions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from vkmnn.llm.sampling import Scored
from vkmnn.llm.text import Tokenizer
from vkmnn.llm.tools import CallBegins, CallGoesOn, Text
from vkmnn.serve.texts import Answer, Asked, Part, new_call_id


def frame(asked: Asked, chat: bool, identity: str, chunk: bool = False) -> dict[str, Any]:
    """Return the fields that all answers and chunks have."""
    kind = "chat.completion" if chat else "text_completion"
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{identity}",
        "object": f"{kind}.chunk" if chunk and chat else kind,
        "created": int(time.time()),
        "model": asked.name,
        "system_fingerprint": None,
    }


def usage_of(asked: Asked, answers: Sequence[Any]) -> dict[str, Any]:
    """Return the numbers of tokens; a prompt counts once, however many texts follow it."""
    results = [one.result for one in answers]
    firsts = results[:: asked.choices]
    prompt, made = sum(map(len, asked.prompts)), sum(len(one.tokens) for one in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in firsts)},
    }


# --- chat ----------------------------------------------------------------------------------------


def chat_choice(asked: Asked, index: int, answer: Answer) -> dict[str, Any]:
    """Return a choice of a chat."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {"id": one.id, "type": "function",
             "function": {"name": one.name, "arguments": one.arguments}}
            for one in answer.calls
        ]  # fmt: skip
    scores = chat_scores(asked, answer.scores)
    return {"index": index, "message": message, "logprobs": scores,
            "finish_reason": answer.reason}  # fmt: skip


class ChatDeltas:
    """The deltas of a streamed choice."""

    def __init__(self, asked: Asked, index: int) -> None:
        self._asked = asked
        self._index = index
        self._calls = -1

    def first(self) -> dict[str, Any]:
        """Return the first choice, with the role."""
        return self._choice({"role": "assistant", "content": ""}, None, None)

    def of(self, part: Part) -> list[dict[str, Any]]:
        """Return the choices for a part of the text."""
        scores = chat_scores(self._asked, part.scores) if part.scores else None
        made: list[dict[str, Any]] = []
        for event in part.events:
            made.append(self._choice(self._delta(event), scores, None))
            scores = None
        if part.reason is not None:
            made.append(self._choice({}, scores, part.reason))
        return made

    def _delta(self, event: Any) -> dict[str, Any]:
        if isinstance(event, Text):
            return {"content": event.text}
        call: dict[str, Any] = {}
        if isinstance(event, CallBegins):
            self._calls += 1
            length = self._asked.tools.style.id_length if self._asked.tools else 0
            call = {"id": new_call_id(length), "type": "function",
                    "function": {"name": event.name, "arguments": ""}}  # fmt: skip
        elif isinstance(event, CallGoesOn):
            call = {"function": {"arguments": event.text}}
        return {"tool_calls": [{"index": self._calls, **call}]}

    def _choice(self, delta: dict[str, Any], scores: Any, reason: str | None) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": scores, "finish_reason": reason}


def chat_scores(asked: Asked, scores: Sequence[Scored]) -> dict[str, Any] | None:
    """Return the scores of tokens as chats have them; None if they were not asked for."""
    if asked.how.get("logprobs") is None:
        return None
    tokenizer = asked.model.tokenizer
    content = [
        {
            **_token(tokenizer, one.chosen.token, one.chosen.logprob),
            "top_logprobs": [_token(tokenizer, two.token, two.logprob) for two in one.likeliest],
        }
        for one in scores
    ]
    return {"content": content, "refusal": None}


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": max(logprob, _LEAST),
        "bytes": list(data),
    }


_LEAST = -9999.0
"""Stands for the logarithm of 0, as in OpenAI's answers: JSON has no infinity."""


# --- completions ---------------------------------------------------------------------------------


def completion_choice(asked: Asked, index: int, answer: Answer, echo: str | None) -> dict[str, Any]:
    """Return a choice of a completion; `echo` is the text of its prompt, if it is repeated."""
    scores = None
    if asked.how.get("logprobs") is not None:
        prompt = asked.prompts[index // asked.choices]
        before = list(answer.result.prompt_logprobs) if echo is not None else []
        tokens = [*(prompt if before else ()), *answer.result.tokens]
        scores = completion_scores(asked, tokens, [*before, *answer.scores], 0)[0]
    return {"index": index, "text": (echo or "") + answer.text, "logprobs": scores,
            "finish_reason": answer.reason}  # fmt: skip


def completion_scores(
    asked: Asked, tokens: Sequence[int], scores: Sequence[Scored | None], offset: int
) -> tuple[dict[str, Any], int]:
    """Return the scores of tokens as completions have them, and the offset after them."""
    tokenizer = asked.model.tokenizer

    def text_of(token: int) -> str:
        return tokenizer.token_bytes(token).decode("utf-8", "replace")

    made: dict[str, list[Any]] = {
        "tokens": [text_of(token) for token in tokens],
        "token_logprobs": [None if s is None else max(s.chosen.logprob, _LEAST) for s in scores],
        "top_logprobs": [
            None if s is None else {text_of(t.token): max(t.logprob, _LEAST) for t in s.likeliest}
            for s in scores
        ],
        "text_offset": [],
    }
    for text in made["tokens"]:
        made["text_offset"].append(offset)
        offset += len(text)
    return made, offset


class CompletionParts:
    """The parts of a streamed completion."""

    def __init__(self, asked: Asked, index: int, echo: str | None) -> None:
        self._asked = asked
        self._index = index
        self._echo = echo
        self._told = 0
        self._offset = len(echo or "")

    def of(self, part: Part) -> list[dict[str, Any]]:
        """Return the choices for a part of the text."""
        scores: Mapping[str, Any] | None = None
        if self._asked.how.get("logprobs") is not None:
            count = self._told + len(part.scores)
            tokens = part.result.tokens[self._told : count]
            self._told = count
            scores, self._offset = completion_scores(self._asked, tokens, part.scores, self._offset)
        text = "".join(one.text for one in part.events if isinstance(one, Text))
        echo, self._echo = self._echo or "", None
        return [{"index": self._index, "text": echo + text, "logprobs": scores,
                 "finish_reason": part.reason}]  # fmt: skip
