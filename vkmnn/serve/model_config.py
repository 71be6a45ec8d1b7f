"""How a model of a repository is run: `config.pbtxt` of Triton, or the same fields as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vkmnn.errors import InvalidInputError
from vkmnn.inference_session import NodeArg
from vkmnn.serve.joining import Batching

PBTXT, JSON = "config.pbtxt", "config.json"
_MAX_BYTES = 1 << 20
_MAX_DEPTH = 16

_REFUSED = {
    "ensemble_scheduling": "ensembles of models",
    "sequence_batching": "sequences of requests",
    "model_transaction_policy": "several responses for a request",
}
"""Fields that change results or the form of responses."""

_READ = {
    "name", "platform", "backend", "max_batch_size", "input", "output", "version_policy",
    "instance_group", "dynamic_batching", "default_model_filename",
}  # fmt: skip
_READ_INSIDE = {
    "input": {"name", "data_type", "dims", "format"},
    "output": {"name", "data_type", "dims", "label_filename"},
    "instance_group": {"count", "kind", "gpus", "name"},
    "dynamic_batching": {
        "preferred_batch_size", "max_queue_delay_microseconds", "default_queue_policy",
    },
    "default_queue_policy": {"default_timeout_microseconds", "max_queue_size", "timeout_action"},
    "version_policy": {"latest", "all", "specific"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """How one model is run.

    Attributes:
        batching: how requests are joined.
        versions: selects the versions to serve from all that are there, in ascending order.
        devices: where to open sessions; empty for the server's devices.
        instances: sessions on each device; None for the server's number.
        file: the name of the model's file in the folder of a version, or "".
        queue: maximum waiting requests; None for the server's number.
        timeout_s: seconds that a request waits at most; None for any time.
        shapes: expected dimensions by input and output, without the axis of the batch.
        labels: files with the names of an output's classes, by output.
        ignored: fields that have no effect here.
    """

    batching: Batching
    versions: Callable[[Sequence[str]], Sequence[str]] = lambda there: there[-1:]
    devices: tuple[str | int, ...] = ()
    instances: int | None = None
    file: str = ""
    queue: int | None = None
    timeout_s: float | None = None
    shapes: tuple[tuple[str, str, tuple[int, ...] | None], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()

    def only_device(self, default: str | int) -> str | int:
        """Return the device of a model that has one session.

        Raises:
            InvalidInputError: the configuration asks for several.
        """
        if len(self.devices) > 1 or (self.instances or 1) > 1:
            raise InvalidInputError(
                "the configuration asks for several instances of a model that is not a network",
                hint="give it one instance: texts are generated together",
            )
        return self.devices[0] if self.devices else default

    def check(self, args: Sequence[NodeArg]) -> None:
        """Compare the declared inputs and outputs with those of the network.

        Raises:
            InvalidInputError: one does not exist, or has another number of dimensions.
        """
        known = {arg.name: arg for arg in args}
        for kind, name, dims in self.shapes:
            if name not in known:
                raise InvalidInputError(
                    f"the configuration names the {kind} '{name}', which the network lacks",
                    hint=f"it has {', '.join(known)}",
                )
            shape = known[name].shape
            rank = len(shape) - (1 if self.batching.limit else 0) if shape is not None else None
            if dims is not None and rank is not None and len(dims) != rank:
                raise InvalidInputError(
                    f"the configuration gives the {kind} '{name}' {len(dims)} dimensions, "
                    f"but the network has {rank}",
                    hint="with max_batch_size above 0, dims leave out the axis of the batch",
                )


def read_config(folder: Path, server: Batching) -> ModelConfig:
    """Return the configuration of a model's folder; without a file, that of the server.

    Args:
        folder: the folder of the model.
        server: how the server joins requests.

    Raises:
        InvalidInputError: the file is malformed, or asks for something that is not supported.
    """
    for name, parse in ((PBTXT, parse_text), (JSON, json.loads)):
        path = folder / name
        if not path.is_file():
            continue
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise InvalidInputError(f"'{path}' has more than {_MAX_BYTES} bytes")
            fields = parse(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidInputError(f"'{path}' cannot be read: {error}") from error
        if name == JSON and isinstance(fields, dict) and "model_type" in fields:
            continue  # of a language model, in Hugging Face's form
        return config_of(fields, folder.name, server)
    return ModelConfig(server)


def config_of(fields: Any, folder: str, server: Batching) -> ModelConfig:
    """Return the configuration in some fields.

    Raises:
        InvalidInputError: a field is malformed, or asks for something that is not supported.
    """
    if not isinstance(fields, dict):
        raise InvalidInputError("a configuration is an object of fields")
    for name, what in _REFUSED.items():
        if name in fields:
            raise InvalidInputError(
                f"'{name}' is not supported: {what}", hint="serve the network alone"
            )
    if _text(fields, "name", folder) != folder:
        raise InvalidInputError(
            f"the configuration is for '{fields['name']}', but the folder is '{folder}'"
        )
    dynamic = _inside(fields, "dynamic_batching")
    policy = _inside(dynamic or {}, "default_queue_policy") or {}
    devices, instances = _instances(fields)
    timeout = _number(policy, "default_timeout_microseconds", 0)
    return ModelConfig(
        batching=_batching(fields, dynamic, server),
        versions=_version_policy(fields),
        devices=devices,
        instances=instances,
        file=_plain_name(_text(fields, "default_model_filename", "")),
        queue=_number(policy, "max_queue_size", 0) or None,
        timeout_s=timeout / 1e6 if timeout else None,
        shapes=tuple(_shapes(fields)),
        labels=tuple(
            (_text(one, "name", ""), _plain_name(_text(one, "label_filename", "")))
            for one in _list(fields, "output")
            if "label_filename" in one
        ),
        ignored=tuple(_ignored(fields, _READ)),
    )


def _batching(fields: Any, dynamic: Any, server: Batching) -> Batching:
    if "max_batch_size" not in fields and dynamic is None:
        return server
    limit = _number(fields, "max_batch_size", server.most if dynamic is not None else 0)
    if not limit or dynamic is None:
        return replace(server, most=1, preferred=(), limit=limit or None)
    preferred = dynamic.get("preferred_batch_size", [])
    preferred = preferred if isinstance(preferred, list) else [preferred]
    if not all(type(one) is int for one in preferred):
        raise InvalidInputError("'preferred_batch_size' is a list of numbers")
    delay = _number(dynamic, "max_queue_delay_microseconds", round(server.delay_s * 1e6))
    return Batching(limit, tuple(preferred), delay / 1e6, limit)


def _version_policy(fields: Any) -> Callable[[Sequence[str]], Sequence[str]]:
    policy = _inside(fields, "version_policy") or {}
    if "all" in policy:
        return lambda there: there
    if "specific" in policy:
        listed = (_inside(policy, "specific") or {}).get("versions", [])
        wanted = {str(one) for one in (listed if isinstance(listed, list) else [listed])}
        return lambda there: [one for one in there if one in wanted]
    count = _number(_inside(policy, "latest") or {}, "num_versions", 1)
    return lambda there: there[-max(count, 1) :]


def _instances(fields: Any) -> tuple[tuple[str | int, ...], int | None]:
    devices: list[str | int] = []
    counts: set[int] = set()
    for group in _list(fields, "instance_group"):
        counts.add(_number(group, "count", 1))
        gpus = group.get("gpus", [])
        gpus = gpus if isinstance(gpus, list) else [gpus]
        if not all(type(one) is int for one in gpus):
            raise InvalidInputError("'gpus' is a list of device numbers")
        devices += ["cpu"] if _text(group, "kind", "") == "KIND_CPU" else gpus
    if len(counts) > 1:
        raise InvalidInputError(
            "the groups in 'instance_group' have different counts", hint="use one count for all"
        )
    count = counts.pop() if counts else None
    if count is not None and not 1 <= count <= 64:
        raise InvalidInputError(f"the count of 'instance_group' is from 1 to 64, not {count}")
    return tuple(devices), count


def _shapes(fields: Any) -> Iterator[tuple[str, str, tuple[int, ...] | None]]:
    for kind in ("input", "output"):
        for one in _list(fields, kind):
            dims = one.get("dims")
            dims = dims if isinstance(dims, list) or dims is None else [dims]
            yield kind, _text(one, "name", ""), None if dims is None else tuple(dims)


def _ignored(fields: Any, known: set[str], place: str = "") -> Iterator[str]:
    """Yield the names of the fields that nothing reads."""
    for name, value in fields.items():
        if name not in known:
            yield f"{place}{name}"
        elif name in _READ_INSIDE:
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, dict):
                    yield from _ignored(one, _READ_INSIDE[name], f"{place}{name}.")


def _inside(fields: Any, name: str) -> dict[str, Any] | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidInputError(f"'{name}' is not an object of fields")
    return value


def _list(fields: Any, name: str) -> list[dict[str, Any]]:
    value = fields.get(name, [])
    made = value if isinstance(value, list) else [value]
    if not all(isinstance(one, dict) for one in made):
        raise InvalidInputError(f"'{name}' is not a list of objects")
    return made


def _text(fields: Any, name: str, default: str) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise InvalidInputError(f"'{name}' is not a text")
    return value


def _number(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise InvalidInputError(f"'{name}' is not a number from 0")
    return value


def _plain_name(name: str) -> str:
    if name and (name in (".", "..") or re.search(r"[/\\:\0]", name)):
        raise InvalidInputError(f"'{name}' is not the name of a file in the folder")
    return name


# --- protobuf's text format -----------------------------------------------------------------------

_TOKEN = re.compile(
    r"""(?:\s|\#[^\n]*)*(?:(?P<sign>[{}\[\]:,;<>])|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[-+.\w]+)|(?P<end>$)|(?P<odd>.))""",
    re.VERBOSE | re.DOTALL,
)


def parse_text(text: str) -> dict[str, Any]:
    """Parse protobuf's text format; fields that occur several times become lists.

    Raises:
        ValueError: it is malformed.
    """
    tokens = [(match.lastgroup, match.group(match.lastgroup or 0)) for match in _matches(text)]
    fields, place = _message(tokens, 0, "", 0)
    if tokens[place][0] != "end":
        raise ValueError(f"'{tokens[place][1]}' is not expected after the last field")
    return fields


def _matches(text: str) -> Iterator[re.Match[str]]:
    for match in _TOKEN.finditer(text):
        yield match
        if match.lastgroup == "end":
            return


Tokens = Sequence[tuple[str | None, str]]


def _message(tokens: Tokens, place: int, end: str, depth: int) -> tuple[dict[str, Any], int]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the fields are more than {_MAX_DEPTH} levels deep")
    made: dict[str, Any] = {}
    while tokens[place][0] != "end" and tokens[place][1] != end:
        kind, name = tokens[place]
        if kind != "word":
            raise ValueError(f"'{name}' is not the name of a field")
        place += 1
        if tokens[place][1] == ":":
            place += 1
        value, place = _value(tokens, place, depth)
        if name in made:
            there = made[name] if isinstance(made[name], list) else [made[name]]
            value = there + (value if isinstance(value, list) else [value])
        made[name] = value
        if tokens[place] in (("sign", ","), ("sign", ";")):
            place += 1
    if end and tokens[place][1] != end:
        raise ValueError(f"'{end}' is missing at the end")
    return made, place + (1 if end else 0)


def _value(tokens: Tokens, place: int, depth: int) -> tuple[Any, int]:
    kind, text = tokens[place]
    if kind == "sign" and text in "{<":
        return _message(tokens, place + 1, "}" if text == "{" else ">", depth + 1)
    if kind == "sign" and text == "[":
        listed: list[Any] = []
        place += 1
        while tokens[place] != ("sign", "]"):
            value, place = _value(tokens, place, depth + 1)
            listed.append(value)
            if tokens[place] == ("sign", ","):
                place += 1
        return listed, place + 1
    if kind == "text":
        inner = text[1:-1].replace("\\'", "'")
        inner = inner.replace('"', '\\"') if text[0] == "'" else inner
        return json.loads(f'"{inner}"', strict=False), place + 1
    if kind == "word":
        return _word(text), place + 1
    raise ValueError(f"'{text}' is not a value" if text else "a value is missing")


def _word(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return text
