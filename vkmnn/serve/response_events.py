"""The JSON of OpenAI's responses, and their events while they are written."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vkmnn.llm import Generated
from vkmnn.llm.tools import CallBegins, CallGoesOn, Text
from vkmnn.serve.answers import chat_scores
from vkmnn.serve.texts import Asked, Part, new_call_id

_ECHOED = ("instructions", "max_output_tokens", "metadata", "previous_response_id", "tool_choice",
           "tools", "user")  # fmt: skip
"""Fields of the request that the response repeats."""

_USUAL = {"metadata": {}, "tool_choice": "auto", "tools": []}
_ADDED, _DONE = "response.output_item.added", "response.output_item.done"

NamedEvent = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Written:
    """A response that is being written.

    Attributes:
        asked: the request.
        body: its JSON.
        identity: the response's id.
        created: seconds since the epoch.
        messages: the conversation before it, without instructions.
    """

    asked: Asked
    body: Any
    identity: str
    created: int
    messages: Sequence[Any]

    @property
    def kept(self) -> bool:
        """Whether other requests may continue it."""
        return self.body.get("store") is not False

    def response(self, status: str, output: Sequence[Any], usage: Any) -> dict[str, Any]:
        """Return the response's JSON."""
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        how = self.asked.how
        return {
            "id": self.identity,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "model": self.asked.name,
            "output": list(output),
            **{name: self.body.get(name, _USUAL.get(name)) for name in _ECHOED},
            "parallel_tool_calls": self.body.get("parallel_tool_calls") is not False,
            "temperature": how["temperature"],
            "top_p": 1.0 if how["top_p"] is None else how["top_p"],
            "text": self.body.get("text") or {"format": {"type": "text"}},
            "reasoning": {"effort": None, "summary": None},
            "store": self.kept,
            "truncation": "disabled",
            "usage": usage,
        }


def usage_of(asked: Asked, output: Output) -> dict[str, Any]:
    """Return the numbers of tokens."""
    before, made = len(asked.prompts[0]), len(output.result.tokens)
    return {
        "input_tokens": before,
        "input_tokens_details": {"cached_tokens": output.result.cached_tokens},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": before + made,
    }


class Output:
    """The items of a response: messages and calls.

    Attributes:
        items: the items so far.
        result: what was generated.
        status: "completed", or "incomplete" if the text was cut off.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self.items: list[dict[str, Any]] = []
        self.result = Generated()
        self.status = "in_progress"

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The output as a message of a chat."""
        texts = [one["content"][0]["text"] for one in self.items if one["type"] == "message"]
        calls = [
            {"id": one["call_id"], "type": "function",
             "function": {"name": one["name"], "arguments": one["arguments"]}}
            for one in self.items if one["type"] == "function_call"
        ]  # fmt: skip
        more = {"tool_calls": calls} if calls else {}
        return [{"role": "assistant", "content": "".join(texts), **more}]

    def add(self, part: Part) -> list[NamedEvent]:
        """Append a part; return its events."""
        made: list[NamedEvent] = []
        scores = (chat_scores(self._asked, part.scores) or {}).get("content", [])
        for event in part.events:
            if isinstance(event, Text):
                made += self._text(event.text, scores)
                scores = []
            elif isinstance(event, CallBegins):
                made += [*self._closed(), *self._call(event.name)]
            elif isinstance(event, CallGoesOn):
                item = self.items[-1]
                item["arguments"] += event.text
                made.append(("response.function_call_arguments.delta",
                             {**self._place(), "delta": event.text}))  # fmt: skip
        self.result = part.result
        if part.reason is not None:
            self.status = "incomplete" if part.reason == "length" else "completed"
            if not self.items:  # an empty answer
                made += self._text("", [])
            made += self._closed()
        return made

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _is_open(self, kind: str) -> bool:
        last = self.items[-1] if self.items else {}
        return last.get("type") == kind and last.get("status") == "in_progress"

    def _text(self, text: str, scores: list[Any]) -> list[NamedEvent]:
        """Append text to the message; begin one if there is none."""
        made: list[NamedEvent] = []
        if not self._is_open("message"):
            made += self._closed()
            item: dict[str, Any]
            item = {"id": f"msg_{secrets.token_hex(24)}", "type": "message", "role": "assistant",
                    "status": "in_progress", "content": []}  # fmt: skip
            self.items.append(item)
            made.append((_ADDED, {"output_index": len(self.items) - 1, "item": dict(item)}))
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"] = [part]
            added = {**self._place(), "content_index": 0, "part": {**part, "logprobs": []}}
            made.append(("response.content_part.added", added))
        part = self.items[-1]["content"][0]
        part["text"] += text
        part["logprobs"] += scores
        delta = {**self._place(), "content_index": 0, "delta": text, "logprobs": scores}
        return [*made, ("response.output_text.delta", delta)] if text else made

    def _call(self, name: str) -> list[NamedEvent]:
        """Begin a call."""
        length = self._asked.tools.style.id_length if self._asked.tools else 0
        item = {"id": f"fc_{secrets.token_hex(24)}", "type": "function_call",
                "status": "in_progress", "call_id": new_call_id(length), "name": name,
                "arguments": ""}  # fmt: skip
        self.items.append(item)
        return [(_ADDED, {"output_index": len(self.items) - 1, "item": dict(item)})]

    def _closed(self) -> list[NamedEvent]:
        """End the last item, if it is open."""
        made: list[NamedEvent] = []
        if self._is_open("message"):
            part = self.items[-1]["content"][0]
            place = {**self._place(), "content_index": 0}
            told = {"text": part["text"], "logprobs": part["logprobs"]}
            made.append(("response.output_text.done", {**place, **told}))
            made.append(("response.content_part.done", {**place, "part": part}))
        elif self._is_open("function_call"):
            item = self.items[-1]
            made.append(("response.function_call_arguments.done",
                         {**self._place(), "name": item["name"],
                          "arguments": item["arguments"]}))  # fmt: skip
        else:
            return []
        self.items[-1]["status"] = self.status if self.status == "incomplete" else "completed"
        place = {"output_index": len(self.items) - 1, "item": self.items[-1]}
        return [*made, (_DONE, place)]
