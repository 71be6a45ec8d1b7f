"""Constrained decoding: text that matches a JSON schema, a regular expression or a grammar.

llguidance says which tokens may come next; docs/decisions/constrained-decoding.md has the reasons.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from vkmnn.base.extras import need
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array
from vkmnn.llm.confined import Confined, Confinement

MAX_BYTES = 1 << 18
"""Maximum size of a grammar."""

MAX_SOURCE = 1 << 14
"""Maximum characters of a regular expression or a grammar in Lark's syntax."""

MAX_STRING = 1 << 13
"""Maximum characters of a string inside a JSON schema."""

MAX_DEPTH, MAX_REFERENCES = 64, 20_000
"""Maximum references that follow each other in a JSON schema, and references in all."""

_MEMORY_BYTES, _CPU_S, _WALL_S = 768 << 20, 3, 30.0
"""Limits of checking a grammar; ordinary ones take milliseconds."""

_LIMITS: Mapping[str, Any] = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 20_000,  # some 2 KiB each
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
"""Limits of llguidance's work, at compilation and for each token."""

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as Python's `json.dumps` writes it: flexible whitespace could go on for ever."""

_KEPT = 64
"""Compiled grammars that are kept for the next text."""

_EXTRA = "grammar"

_STUCK = "NoExtension"
"""How llguidance's reason begins if no text matches a grammar."""

_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?|\n\s*\d+ \| [\s\S]*")
"""What llguidance adds to the reason of an error: the place in the grammar, and its lines."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on generated text: a JSON schema, a grammar or a regular expression.

    Attributes:
        text: the grammar in llguidance's format.
        what: its kind, for messages.
    """

    text: str
    what: str

    @staticmethod
    def json() -> Grammar:
        """Any JSON object."""
        return Grammar.schema({"type": "object"})

    @staticmethod
    def schema(schema: Mapping[str, Any] | bool) -> Grammar:
        """JSON that is valid by a JSON schema.

        Raises:
            InvalidInputError: it is not a schema, or too large.
        """
        return _made("json_schema", json.loads(schema_text(schema)), "JSON schema")

    @staticmethod
    def regex(pattern: str) -> Grammar:
        """Text that a regular expression matches as a whole.

        Raises:
            InvalidInputError: it is too large.
        """
        _check_length(pattern, "regular expression")
        return lark(f"start: /{_slashed(pattern)}/", "regular expression")

    @staticmethod
    def lark(source: str) -> Grammar:
        """Text of a context-free grammar in Lark's syntax; `start` is its first rule.

        Raises:
            InvalidInputError: it is too large.
        """
        _check_length(source, "grammar")
        return lark(source, "grammar")


def _check_length(source: Any, what: str) -> None:
    if not isinstance(source, str) or len(source) > MAX_SOURCE:
        raise InvalidInputError(f"the {what} is a text of {MAX_SOURCE} characters at most")


def lark(source: str, what: str) -> Grammar:
    """Return a grammar in Lark's syntax; `what` is its kind, for messages."""
    return _made("lark_grammar", source, what)


def _made(key: str, value: Any, what: str) -> Grammar:
    text = json.dumps({"grammars": [{key: value}]})
    if len(text) > MAX_BYTES:
        raise InvalidInputError(f"the {what} has {len(text)} bytes, and {MAX_BYTES} at most")
    return Grammar(text, what)


def _slashed(pattern: str) -> str:
    """Escape the slashes of a pattern that no backslash escapes yet."""
    made, escaped = [], False
    for one in pattern:
        made.append("\\/" if one == "/" and not escaped else "\\n" if one == "\n" else one)
        escaped = one == "\\" and not escaped
    return "".join(made)


def schema_text(schema: Any) -> str:
    """Return a JSON schema as text, checked for its size, with the style of the output.

    Objects whose properties are listed have no others, unless the schema says that they may.

    Raises:
        InvalidInputError: it is not a schema, or too large.
    """
    schema = {} if schema is True else schema
    if not isinstance(schema, Mapping):
        raise InvalidInputError("a JSON schema is an object", hint='{"type": "object", …}')
    try:
        text = json.dumps({**schema, "x-guidance": _STYLE}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"the schema is not JSON: {error}") from error
    if len(text) > MAX_BYTES:
        raise InvalidInputError(f"the JSON schema has {len(text)} bytes, and {MAX_BYTES} at most")
    longest = max(map(len, _strings(schema)), default=0)
    if longest > MAX_STRING:
        raise InvalidInputError(
            f"the JSON schema has a string of {longest} characters, and {MAX_STRING} at most"
        )
    _check_references(schema)
    closed = _closed(json.loads(text))
    return text if closed is None else json.dumps(closed)


def _check_references(schema: Mapping[str, Any]) -> None:
    """Refuse references to references to …: compilation follows them on its stack.

    The check in another process would refuse them too, but ends that process.
    """
    seen: set[str] = set()
    work = 0
    path = [iter(_references(schema))]
    while path:
        pointer = next(path[-1], None)
        if pointer is None:
            path.pop()
            continue
        if pointer in seen:
            continue
        seen.add(pointer)
        found = list(_references(_target(schema, pointer)))
        work += len(found)
        path.append(iter(found))
        if len(path) > MAX_DEPTH or work > MAX_REFERENCES:
            raise InvalidInputError(
                f"the JSON schema has references that are more than {MAX_DEPTH} deep, or more than "
                f"{MAX_REFERENCES} of them"
            )


def _references(value: Any) -> Iterator[str]:
    """Yield the references in a part of a schema."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            if isinstance(one.get("$ref"), str):
                yield one["$ref"]
            waiting += [inner for key, inner in one.items() if key not in ("$defs", "definitions")]
        elif isinstance(one, list | tuple):
            waiting += one


def _target(schema: Any, pointer: str) -> Any:
    """Return the part of a schema that a reference names; None if it is elsewhere."""
    part = schema
    for step in pointer.removeprefix("#").split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping):
            part = part.get(name)
        elif isinstance(part, list) and name.isdigit() and len(name) < 9:
            part = part[int(name)] if int(name) < len(part) else None
        else:
            return None
    return part


_SCHEMAS = ("additionalProperties", "items")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_TABLES = ("properties", "patternProperties", "$defs", "definitions")
_OPEN = ("additionalProperties", "patternProperties", "minProperties", "$ref", "anyOf", "oneOf")
"""Keys by which an object may have, or may need, other properties than those that it lists."""


def _closed(schema: dict[str, Any]) -> Any:
    """Rule out properties that objects do not list; None if that could rule out all texts.

    A model would otherwise go on with properties of its own. Parts of `allOf` list some of an
    object's properties each.
    """
    waiting: list[Any] = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict):
            continue
        if "allOf" in one:
            return None
        listed = one.get("properties")
        if isinstance(listed, dict) and not any(key in one for key in _OPEN):
            required = one.get("required", [])
            if isinstance(required, list) and all(str(name) in listed for name in required):
                one["additionalProperties"] = False
        waiting += [one.get(key) for key in _SCHEMAS]
        for key in _LISTS:
            waiting += one[key] if isinstance(one.get(key), list) else ()
        for key in _TABLES:
            waiting += one[key].values() if isinstance(one.get(key), dict) else ()
    return schema


def _strings(value: Any) -> Iterable[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            waiting += one


class Constraint:
    """What the tokens of one text may be, by a grammar."""

    def __init__(self, matcher: Any, what: str) -> None:
        self._matcher = matcher
        self._what = what
        self._made: list[int] = []

    def guide(self, logits: Array, made: Sequence[int]) -> Array:
        """Return logits in which tokens that may not follow are -inf; see `sampling.Guide`.

        Raises:
            InvalidInputError: the grammar needs too much work at this place, or has no next token.
        """
        self._catch_up(made)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.zeros(logits.size, np.bool_)
        known = np.unpackbits(bits, bitorder="little")[: logits.size]
        allowed[: known.size] = known
        if self._matcher.is_error() or not known.any():
            raise self._failure()
        return np.where(allowed, logits, np.float32(-np.inf))

    def is_complete(self, made: Sequence[int]) -> bool:
        """Return whether the text is complete, and nothing may follow."""
        self._catch_up(made)
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def _catch_up(self, made: Sequence[int]) -> None:
        """Bring the matcher to these tokens: usually one more, fewer after a failed step."""
        known = self._made
        if len(made) < len(known) or list(made[: len(known)]) != known:
            same = next((n for n, pair in enumerate(zip(known, made, strict=False))
                         if pair[0] != pair[1]), min(len(known), len(made)))  # fmt: skip
            self._matcher.rollback(len(known) - same)
            del known[same:]
        new = list(made[len(known) :])
        if new and not self._matcher.consume_tokens(new):
            raise self._failure()
        known += new

    def _failure(self) -> InvalidInputError:
        reason = str(self._matcher.get_error()).split("\n", 1)[0][:300]
        if not reason or reason.startswith(_STUCK):
            reason = "no token may come next"
        return InvalidInputError(
            f"the {self._what} cannot be followed: {reason}", hint="make it simpler"
        )


class Compiler:
    """Compiles grammars for the tokens of a model.

    Args:
        vocabulary: tokenizer.json.
        eos: tokens that end a text.

    Raises:
        InvalidInputError: the tokenizer is of a kind that llguidance does not know.
        MissingExtraError: `llguidance` is not installed.
    """

    def __init__(self, vocabulary: str, eos: Iterable[int]) -> None:
        self._llguidance = need("llguidance", "constrained decoding", _EXTRA)
        self._limits = self._llguidance.LLParserLimits(**_LIMITS)
        try:
            self._tokens = self._llguidance.LLTokenizer(vocabulary, eos_token=sorted(eos) or None)
        except Exception as error:  # the package's, which has no error class
            raise InvalidInputError(
                f"constrained decoding does not know this tokenizer: {str(error)[:300]}",
                hint="byte-level BPE and SentencePiece with byte fallback are known",
            ) from error
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, grammar: Grammar) -> bool:
        """Return whether a grammar is compiled already."""
        return grammar.text in self._kept

    def start(self, grammar: Grammar) -> Constraint:
        """Return the constraint of a new text; compile the grammar if necessary.

        Raises:
            InvalidInputError: the grammar is wrong, not supported or too complex.
        """
        with self._lock:
            matcher = self._kept.pop(grammar.text, None)
        if matcher is None:
            matcher = self._compiled(grammar)
        with self._lock:
            self._kept[grammar.text] = matcher
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return Constraint(matcher.deep_copy(), grammar.what)

    def _compiled(self, grammar: Grammar) -> Any:
        check(grammar)
        matcher = self._llguidance.LLMatcher(
            self._tokens, grammar.text, log_level=0, limits=self._limits
        )
        possible = any(matcher.compute_bitmask())
        if matcher.is_error() or not possible:
            raise _refused(grammar, matcher.get_error() or "no text matches it")
        return matcher


def check(grammar: Grammar) -> None:
    """Check a grammar in a separate process: its compilation may exhaust memory or the stack.

    Raises:
        InvalidInputError: it is wrong, not supported or too complex.
    """
    told = _CHECKER.ask(json.dumps({"grammar": grammar.text, "limits": _LIMITS}).encode() + b"\n")
    if "failed" in told:
        raise _refused(grammar, f"it is too complex: {told['failed']}")
    if "refused" in told:
        raise _refused(grammar, told["refused"])


def _refused(grammar: Grammar, reason: str) -> InvalidInputError:
    reason = " ".join(_PLACE.sub("", reason.split("\n<non-verbose", 1)[0]).split())[:300]
    if reason.startswith(_STUCK):
        reason = "no text matches it"
    return InvalidInputError(f"the {grammar.what} is not supported: {reason}")


def _confinement() -> Confinement:
    package = need("llguidance", "constrained decoding", _EXTRA)
    folder = str(Path(package.__file__).resolve().parents[1])
    return Confinement("grammars", [folder], _MEMORY_BYTES, _CPU_S, _WALL_S)


_CHECKER = Confined(_confinement, "leave out the grammar")
