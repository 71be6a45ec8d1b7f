"""Random JSON schemas whose values are short."""

from __future__ import annotations

import random
from typing import Any

FORMATS = ("uuid", "ipv4", "ipv6", "email")
PATTERNS = ("^[a-c]{1,4}$", "^\\d{3}-\\d{2}$", "^(yes|no)$", "^x*y?$", "[A-Z]\\.", "^\\w+/\\w$")
WORDS = ("name", "größe", "a b", 'q"t', "x\\y", "tag", "id", "naïve", "\n", "😀")


def random_schema(seed: int) -> dict[str, Any]:
    """Return a schema of objects, arrays, references and simple values."""
    rng = random.Random(seed)
    made = _object(rng, 3, ["node"])
    made["$defs"] = {
        "node": {
            "type": "object",
            "properties": {"v": _value(rng, 0, []), "next": {"anyOf": [
                {"type": "null"}, {"const": 1}, {"const": "x"}, {"$ref": "#/$defs/node"}]}},
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    }  # fmt: skip
    return made


def _value(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    kinds = [_string, _string, _integer, _number, _constant, _simple]
    if depth:
        kinds += [_object_in, _array, _choice, _tuple]
    if names:
        kinds.append(lambda *_: {"$ref": f"#/$defs/{rng.choice(names)}"})
    return rng.choice(kinds)(rng, depth, names)


def _object_in(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    return _object(rng, depth - 1, names)


def _object(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    keys = rng.sample(WORDS, rng.randint(1, 4))
    made: dict[str, Any] = {
        "type": "object",
        "properties": {key: _value(rng, depth, names) for key in keys},
        "required": [key for key in keys if rng.random() < 0.7],
        "additionalProperties": False,
    }
    if rng.random() < 0.3:
        made |= {"title": "T", "description": "what it is"}
    return made


def _array(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    least = rng.randint(0, 2)
    return {"type": "array", "items": _value(rng, depth - 1, names), "minItems": least,
            "maxItems": least + rng.randint(0, 2)}  # fmt: skip


def _tuple(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    items = [_value(rng, depth - 1, names) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _choice(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    return {"anyOf": [_value(rng, depth - 1, names) for _ in range(rng.randint(2, 3))]}


def _string(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    kind = rng.randrange(4)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(PATTERNS), "maxLength": 8}
    if kind == 1:
        return {"type": "string", "format": rng.choice(FORMATS)}
    if kind == 2:
        return {"enum": rng.sample(WORDS, 3)}
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 9)}


def _integer(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    least = rng.randint(-1000, 1000)
    return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 10**6)}


def _number(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    least = round(rng.uniform(-9, 9), 2)
    return {"type": "number", "minimum": least, "exclusiveMaximum": least + rng.randint(1, 99)}


def _constant(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    return {"const": rng.choice([None, True, 3, -0.5, "x", [1, {"a": "b"}], {"k": None}])}


def _simple(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    five = {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 999}
    kinds = [{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}, five]
    return rng.choice(kinds)
