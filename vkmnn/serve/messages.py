"""Conversations and functions in the bodies of requests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vkmnn.llm.templates import ROLES, knows_role
from vkmnn.llm.tools import HERMES, ToolStyle, style_of
from vkmnn.serve.limits import HttpError, Limits, field

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SYSTEM, _DEVELOPER = "system", "developer"


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions that an answer may call.

    Attributes:
        functions: `name`, `description` and `parameters` of each.
        callable: those that may be called: all, or the one that the request names.
        style: how the model writes calls.
        known: whether its chat template describes functions; otherwise the prompt has to.
        required: whether the answer has to be a call.
        strict: whether arguments have to be valid even if the model may choose to call.
        parallel: whether there may be several calls.
    """

    functions: Sequence[Mapping[str, Any]]
    callable: Sequence[Mapping[str, Any]]
    style: ToolStyle
    known: bool
    required: bool
    parallel: bool
    strict: bool = False

    @property
    def names(self) -> list[str]:
        """Names of the functions that may be called."""
        return [one["name"] for one in self.callable]

    @property
    def described(self) -> list[dict[str, Any]]:
        """The functions as chat templates take them."""
        return [{"type": "function", "function": dict(one)} for one in self.functions]


def tools_of(body: Any, template: str, limits: Limits) -> Tools | None:
    """Return the functions of a request; None if it has none, or none may be called."""
    given = field(body, "tools", (list,), [])
    choice = field(body, "tool_choice", (str, dict), "auto" if given else "none")
    if not given:
        if choice not in ("none", "auto"):
            raise _wrong("'tool_choice' needs 'tools'", "tool_choice")
        return None
    if len(given) > limits.tools:
        raise _wrong(f"'tools' has {len(given)} functions, and {limits.tools} at most", "tools")
    functions = [_function(one, f"tools[{number}]") for number, one in enumerate(given)]
    names = [one["name"] for one in functions]
    if len(set(names)) < len(names):
        raise _wrong("two functions in 'tools' have one name", "tools")
    required, allowed = _choice(choice, names)
    if choice == "none":
        return None
    style = style_of(template)
    return Tools(
        functions,
        [one for one in functions if one["name"] in allowed],
        style or HERMES,
        style is not None,
        required,
        field(body, "parallel_tool_calls", (bool,), True),
        any(_is_strict(one, f"tools[{number}]") for number, one in enumerate(given)),
    )


def _is_strict(tool: Any, param: str) -> bool:
    strict = tool.get("function", tool).get("strict")
    if not isinstance(strict, bool | None):
        raise _wrong("'strict' is true or false", f"{param}.function.strict")
    return bool(strict)


def _choice(choice: Any, names: Sequence[str]) -> tuple[bool, Sequence[str]]:
    """Return whether there has to be a call, and of which functions."""
    if choice in ("none", "auto", "required"):
        return choice == "required", names
    if isinstance(choice, dict) and choice.get("type") == "function":
        inner = choice.get("function", choice)
        name = str(inner.get("name")) if isinstance(inner, dict) else ""
        if name in names:
            return True, [name]
        raise _wrong("'tool_choice' names a function that 'tools' lacks", "tool_choice")
    raise _wrong("'tool_choice' is none, auto, required or a function", "tool_choice")


def _function(given: Any, param: str) -> dict[str, Any]:
    if not isinstance(given, dict) or given.get("type") != "function":
        kind = given.get("type") if isinstance(given, dict) else given
        raise _wrong(f"a tool of the type '{str(kind)[:40]}' is not supported", param)
    inner = given.get("function", given)
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        text = "a function's name has 1 to 128 letters, digits, dots, dashes and underscores"
        raise _wrong(text, f"{param}.function.name")
    parameters = inner.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise _wrong("'parameters' is a JSON schema", f"{param}.function.parameters")
    description = inner.get("description")
    if not isinstance(description, str | None):
        raise _wrong("'description' is a string", f"{param}.function.description")
    empty = {"type": "object", "properties": {}}
    return {"name": name, "description": description or "", "parameters": parameters or empty}


def _wrong(text: str, param: str) -> HttpError:
    return HttpError(400, "invalid_tools", text, param=param)


# --- messages ------------------------------------------------------------------------------------


def messages_of(given: Sequence[Any], template: str, tools: Tools | None) -> list[dict[str, Any]]:
    """Return validated messages as chat templates take them.

    Each has its content as one text; arguments of calls are objects. If the template does not
    describe functions, a text of the first message does.
    """
    if not given:
        raise HttpError(400, "invalid_messages", "'messages' is empty", param="messages")
    style = style_of(template)
    made = [_message(one, f"messages[{n}]", style) for n, one in enumerate(given)]
    for number, message in enumerate(made):
        if knows_role(template, message["role"]):
            continue
        if message["role"] != _DEVELOPER:
            text = f"the model knows no role '{message['role'][:40]}', but {', '.join(ROLES)}"
            param = f"messages[{number}].role"
            raise HttpError(400, "invalid_messages", text, param=param)
        message["role"] = _SYSTEM
    if style is None:
        made = [_plain(message) for message in made]
    if tools is not None and not tools.known:
        _describe(made, tools, _SYSTEM in template)
    return made


def _message(message: Any, param: str, style: ToolStyle | None) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        text = "a message needs a role and content"
        raise HttpError(400, "invalid_messages", text, param=param)
    made = {**message, "content": text_of(message.get("content"), f"{param}.content")}
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise _bad_call(f"{param}.tool_calls")
        made["tool_calls"] = [
            _made_call(one, f"{param}.tool_calls[{n}]", style) for n, one in enumerate(calls)
        ]
        if not calls:
            del made["tool_calls"]
    identity = message.get("tool_call_id")
    if identity is not None:
        if not isinstance(identity, str):
            text = "'tool_call_id' is the id of a call"
            raise HttpError(400, "invalid_messages", text, param=f"{param}.tool_call_id")
        made["tool_call_id"] = _fitting_id(identity, style)
    return made


def text_of(content: Any, param: str) -> str:
    """Return the content of a message as one text."""
    content = "" if content is None else content
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise HttpError(400, "invalid_messages", "content is text", param=param)
    parts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        key = "refusal" if kind == "refusal" else "text"
        known = kind in ("text", "input_text", "output_text", "refusal")
        if not known or not isinstance(part.get(key), str):
            text = f"content of the type '{str(kind)[:40]}' is not supported: models read text"
            raise HttpError(400, "unsupported_content", text, param=f"{param}[{number}]")
        parts.append(part[key])
    return "".join(parts)


def _made_call(call: Any, param: str, style: ToolStyle | None) -> dict[str, Any]:
    """Return an earlier call with its arguments as an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _bad_call(param)
    arguments = function.get("arguments") or "{}"
    identity = call.get("id")
    if not isinstance(arguments, str | dict) or not isinstance(identity, str | None):
        raise _bad_call(param)
    if isinstance(arguments, str):
        arguments = _object_of(arguments)
    made: dict[str, Any] = {
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }
    if identity is not None:
        made["id"] = _fitting_id(identity, style)
    return made


def _object_of(arguments: str) -> Any:
    """Return arguments as an object; a model may have written something else."""
    try:
        made = json.loads(arguments)
        json.dumps(made)
    except (ValueError, RecursionError):
        made = None
    return made if isinstance(made, dict) else {"arguments": arguments}


def _bad_call(param: str) -> HttpError:
    text = "a call has an id and a function with a name and arguments"
    return HttpError(400, "invalid_messages", text, param=param)


def _fitting_id(given: str, style: ToolStyle | None) -> str:
    """Return a call's id in the length that the model's template checks."""
    length = style.id_length if style else 0
    if not length or (len(given) == length and given.isalnum()):
        return given
    number = int.from_bytes(hashlib.sha256(given.encode()).digest()[:16], "big")
    return "".join(_LETTERS[number // 62**n % 62] for n in range(length))


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose calls and results are part of its text."""
    if message["role"] == "tool":
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": text}
    calls = message.pop("tool_calls", [])
    texts = [f"{HERMES.begin}{json.dumps(one['function'])}{HERMES.end}" for one in calls]
    content = "\n".join([*([message["content"]] if message["content"] else []), *texts])
    return {**message, "content": content}


def _describe(messages: list[dict[str, Any]], tools: Tools, has_system: bool) -> None:
    """Describe functions in the first message, for a template that does not."""
    lines = "\n".join(json.dumps(one) for one in tools.described)
    text = (
        "You may call functions. Their signatures are within <tools></tools>:\n"
        f"<tools>\n{lines}\n</tools>\n"
        "For each call, write a JSON object with its name and arguments within "
        "<tool_call></tool_call>:\n"
        '<tool_call>\n{"name": "…", "arguments": {…}}\n</tool_call>'
    )
    first = messages[0]
    if first["role"] == _SYSTEM or not has_system:
        first["content"] = f"{first['content']}\n\n{text}" if first["content"] else text
    else:
        messages.insert(0, {"role": _SYSTEM, "content": text})
