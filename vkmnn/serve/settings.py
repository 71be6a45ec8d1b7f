"""Settings of generated texts in the bodies of requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vkmnn.errors import InvalidInputError
from vkmnn.llm import Grammar, LanguageModel
from vkmnn.llm.grammar import schema_text
from vkmnn.serve.limits import HttpError, Limits, field

_NUMBER = (int, float)
MAX_TOP_LOGPROBS = 20
"""Maximum likeliest tokens that a request may ask for."""

_SAMPLING: Mapping[str, tuple[type, ...]] = {
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "top_k": (int,),
    "min_p": _NUMBER,
    "repetition_penalty": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
}
_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "suffix": (("",), "the models have no place for it"),
    "functions": (([],), "use 'tools'"),
    "function_call": (("none", "auto"), "use 'tool_choice'"),
    "modalities": ((["text"],), "answers are text"),
    "audio": ((), "answers are text"),
    "web_search_options": ((), "the server searches nothing"),
}
"""Fields that would change the result, with their supported values, and the reason."""

_TOKENS = ("max_completion_tokens", "max_tokens")
_FIRST_WORD = re.compile(r"(\w+)")


def check_fields(body: Mapping[str, Any]) -> None:
    """Refuse fields that would change the result and are not supported."""
    for name, (allowed, reason) in _REFUSED.items():
        value = body.get(name)
        if value is not None and value not in allowed:
            text = f"'{name}' is not supported: {reason}"
            raise HttpError(400, "unsupported_field", text, param=name)


def settings_of(
    body: Any, model: LanguageModel, limits: Limits, usual: int | None, least: int = 1
) -> dict[str, Any]:
    """Return the arguments of `LanguageModel.pieces`.

    Options that a request leaves out are those that the model's files recommend.

    Args:
        body: the request.
        model: the model.
        limits: the server's limits.
        usual: maximum tokens if the request names none; None for as many as fit.
        least: smallest maximum that is accepted.
    """
    recommended = {"temperature": 1.0, **model.sampling_defaults()}
    how: dict[str, Any] = {
        name: field(body, name, kinds, recommended.get(name)) for name, kinds in _SAMPLING.items()
    }
    seed = field(body, "seed", (int,))
    name = next((one for one in _TOKENS if body.get(one) is not None), _TOKENS[1])
    return {
        **how,
        "max_tokens": max_tokens_of(field(body, name, (int,), usual), limits, name, least),
        "seed": None if seed is None else seed % (1 << 63),
        "stop": stops_of(field(body, "stop", (str, list), []), limits),
        "logit_bias": bias_of(field(body, "logit_bias", (dict,), {}), model),
    }


def max_tokens_of(most: int | None, limits: Limits, name: str, least: int = 1) -> int | None:
    """Return the maximum tokens of a text, within the server's limit."""
    limit = limits.max_tokens
    if most is not None and (most < least or (limit is not None and most > limit)):
        text = f"{name} is {least} to {limit}" if limit else f"{name} is {least} or more"
        raise HttpError(400, "invalid_max_tokens", text, param=name)
    return limit if most is None else most


def stops_of(stop: Any, limits: Limits) -> list[str]:
    """Return the stop texts."""
    stops = [stop] if isinstance(stop, str) else stop
    if not all(isinstance(one, str) for one in stops):
        text = "'stop' is a string or a list of strings"
        raise HttpError(400, "invalid_type", text, param="stop")
    if len(stops) > limits.stop_texts or any(len(s) > limits.stop_characters for s in stops):
        text = (
            f"'stop' has {limits.stop_texts} texts of {limits.stop_characters} characters at most"
        )
        raise HttpError(400, "invalid_stop", text, param="stop")
    return list(stops)


def bias_of(bias: Mapping[str, Any], model: LanguageModel) -> dict[int, float]:
    """Return numbers to add to logits, by tokens."""
    most = model.vocabulary
    made: dict[int, float] = {}
    for key, value in bias.items():
        token = int(key) if key.isascii() and key.isdigit() and len(key) < 11 else -1
        if not 0 <= token < most or isinstance(value, bool) or not isinstance(value, _NUMBER):
            text = f"'logit_bias' maps tokens, 0 to {most - 1}, to numbers: not '{key[:40]}'"
            raise HttpError(400, "invalid_value", text, param="logit_bias")
        made[token] = value
    return made


def scores_of(body: Any, chat: bool) -> int | None:
    """Return how many likeliest tokens to report with each token; None for no scores."""
    if not chat:
        count = field(body, "logprobs", (int, bool))
        count = None if count is False else int(count) if count is not None else None
        return _in_range(count, "logprobs")
    if not field(body, "logprobs", (bool,), False):
        if field(body, "top_logprobs", (int,), 0):
            text = "'top_logprobs' needs 'logprobs': true"
            raise HttpError(400, "invalid_value", text, param="top_logprobs")
        return None
    return _in_range(field(body, "top_logprobs", (int,), 0), "top_logprobs")


def _in_range(count: int | None, name: str) -> int | None:
    if count is not None and not 0 <= count <= MAX_TOP_LOGPROBS:
        text = f"'{name}' is 0 to {MAX_TOP_LOGPROBS}"
        raise HttpError(400, "invalid_value", text, param=name)
    return count


def choices_of(body: Any, limits: Limits) -> int:
    """Return how many texts to generate for each prompt."""
    count: int = field(body, "n", (int,), 1)
    if not 1 <= count <= limits.choices:
        text = f"'n' is 1 to {limits.choices}"
        raise HttpError(400, "invalid_value", text, param="n")
    if field(body, "best_of", (int,), count) not in (1, count):
        text = "'best_of' is not supported: ask for 'n' texts with 'logprobs', and choose"
        raise HttpError(400, "unsupported_field", text, param="best_of")
    return count


# --- formats -------------------------------------------------------------------------------------


def format_of(given: Any, param: str) -> Grammar | str | None:
    """Return the format of an answer: a JSON schema as text, another grammar, or None for any.

    Args:
        given: `response_format`, or `text.format` of the API of responses.
        param: its name, for errors.
    """
    if given is None:
        return None
    if not isinstance(given, dict):
        raise HttpError(400, "invalid_type", f"'{param}' is an object", param=param)
    kind = given.get("type")
    try:
        if kind == "text":
            return None
        if kind == "json_object":
            return schema_text({"type": "object"})
        if kind == "json_schema":
            inner = given.get("json_schema", given)
            schema = inner.get("schema") if isinstance(inner, dict) else None
            if schema is None:
                text = f"'{param}' has no schema"
                raise HttpError(400, "invalid_schema", text, param=f"{param}.json_schema.schema")
            return schema_text(schema)
        if kind == "grammar":
            source, syntax = given.get("definition"), given.get("syntax", "lark")
            if not isinstance(source, str) or syntax not in ("lark", "regex"):
                text = f"'{param}' needs a syntax, lark or regex, and a definition"
                raise HttpError(400, "invalid_grammar", text, param=param)
            return Grammar.lark(source) if syntax == "lark" else Grammar.regex(source)
    except InvalidInputError as error:
        raise HttpError(400, "invalid_schema", error.message, param=param) from error
    text = f"'{param}.type' is text, json_object, json_schema or grammar"
    raise HttpError(400, "unsupported_field", text, param=f"{param}.type")


def as_param(error: InvalidInputError) -> HttpError:
    """Return the response for a value that `LanguageModel.options` refuses."""
    match = _FIRST_WORD.match(error.message)
    name = match[1] if match and match[1] in (*_SAMPLING, "logit_bias", "seed") else None
    return HttpError(400, "invalid_value", error.message, param=name)
