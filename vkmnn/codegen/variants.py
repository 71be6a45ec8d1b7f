"""`macro.json` → the list of variants: axes multiplied, exclusions taken out, names made."""

from __future__ import annotations

import difflib
import itertools
import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vkmnn.codegen.declare import RESERVED_NAMES
from vkmnn.codegen.features import FEATURES, default_optimize, with_implied
from vkmnn.codegen.jsonpos import Node, parse
from vkmnn.errors import ShaderError

MACRO_FILE = "macro.json"
TEMPLATE_SUFFIX = ".comp.j2"
OPTIMIZE = ("-O", "-Os", "none")
ENTRY_KEYS = ("axes", "exclude", "requires", "optimize", "op_type")
SHORT_KEYS = ("useFP16", "macro")

AxisValue = str | int

_AXIS_NAME = re.compile(r"[a-z][a-z0-9_]*")
_AXIS_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*")
_TEMPLATE_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Condition:
    """`axis=value` pairs that must all hold; without pairs it always holds."""

    pairs: tuple[tuple[str, AxisValue], ...]

    def holds(self, axes: Mapping[str, AxisValue]) -> bool:
        """Say whether every pair agrees with these axis values."""
        return all(axes[axis] == value for axis, value in self.pairs)


@dataclass(frozen=True, slots=True)
class Variant:
    """One shader to build: a template and one value per axis."""

    name: str
    template: TemplateEntry
    axes: dict[str, AxisValue]

    @property
    def requires(self) -> frozenset[str]:
        """The features declared for these axis values."""
        return with_implied(
            frozenset(
                name
                for condition, names in self.template.requires
                if condition.holds(self.axes)
                for name in names
            )
        )

    @property
    def optimize(self) -> str:
        """The optimisation policy: the last matching rule, else the default for the features."""
        rules = [policy for rule, policy in self.template.optimize if rule.holds(self.axes)]
        return rules[-1] if rules else default_optimize(self.requires)


@dataclass(frozen=True, slots=True)
class TemplateEntry:
    """One entry of `macro.json`."""

    name: str
    file: str
    line: int
    axes: dict[str, tuple[AxisValue, ...]]
    exclude: tuple[dict[str, tuple[AxisValue, ...]], ...] = ()
    requires: tuple[tuple[Condition, tuple[str, ...]], ...] = ()
    optimize: tuple[tuple[Condition, str], ...] = ()
    op_type: str | None = None

    def variants(self) -> list[Variant]:
        """Return the variants in axis order; raises `ShaderError` when none is left."""
        found = []
        for values in itertools.product(*self.axes.values()):
            axes = dict(zip(self.axes, values, strict=True))
            if not any(
                all(axes[axis] in excluded for axis, excluded in rule.items())
                for rule in self.exclude
            ):
                found.append(Variant(variant_name(self.name, values), self, axes))
        if not found:
            raise ShaderError(
                f"'{self.file}': the exclusions leave no variant",
                template=MACRO_FILE,
                line=self.line,
            )
        return found


def variant_name(template: str, values: Iterable[AxisValue]) -> str:
    """Return `<template>_<axis values, lower case>`, e.g. `binary_add_f32`."""
    return "_".join([template, *(str(value).lower() for value in values)])


def closest(word: str, choices: Iterable[str]) -> str:
    """Return a hint naming the nearest choice, or all of them."""
    names = sorted(choices)
    near = difflib.get_close_matches(word, names, n=1)
    return f"did you mean '{near[0]}'?" if near else f"one of: {', '.join(names)}"


def _fail(message: str, node: Node, hint: str | None = None) -> ShaderError:
    return ShaderError(message, template=MACRO_FILE, line=node.line, hint=hint)


def _object(node: Node, what: str) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        raise _fail(f"{what} must be an object", node)
    return node.value


def _items(node: Node) -> tuple[Node, ...]:
    return node.value if isinstance(node.value, tuple) else ()


def _strings(node: Node, what: str) -> tuple[str, ...]:
    items = _items(node)
    if not isinstance(node.value, tuple) or not all(isinstance(i.value, str) for i in items):
        raise _fail(f"{what} must be a list of strings", node)
    return tuple(str(item.value) for item in items)


def _axes(node: Node) -> dict[str, tuple[AxisValue, ...]]:
    axes: dict[str, tuple[AxisValue, ...]] = {}
    for name, values in _object(node, "'axes'").items():
        if not _AXIS_NAME.fullmatch(name) or keyword.iskeyword(name):
            raise _fail(f"axis name '{name}' must be a lower-case Python identifier", values)
        if name in RESERVED_NAMES:
            raise _fail(f"axis name '{name}' is taken by a template helper", values)
        if not isinstance(values.value, tuple) or not values.value:
            raise _fail(f"axis '{name}' must be a list with at least one value", values)
        axes[name] = tuple(_axis_value(name, item) for item in values.value)
        lowered = [str(value).lower() for value in axes[name]]
        twice = {value for value in lowered if lowered.count(value) > 1}
        if twice:
            raise _fail(f"axis '{name}' lists '{min(twice)}' twice (case is ignored)", values)
    return axes


def _axis_value(axis: str, node: Node) -> AxisValue:
    value = node.value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and _AXIS_VALUE.fullmatch(value):
        return value
    raise _fail(
        f"axis '{axis}': {value!r} is neither a word of letters, digits and '_' "
        "nor a non-negative integer",
        node,
    )


def _known_axis(axis: str, axes: Mapping[str, tuple[AxisValue, ...]], node: Node) -> None:
    if axis not in axes:
        raise _fail(f"unknown axis '{axis}'", node, closest(axis, axes))


def _exclude(
    node: Node, axes: Mapping[str, tuple[AxisValue, ...]]
) -> tuple[dict[str, tuple[AxisValue, ...]], ...]:
    if not isinstance(node.value, tuple):
        raise _fail("'exclude' must be a list of objects", node)
    rules = []
    for item in node.value:
        rule: dict[str, tuple[AxisValue, ...]] = {}
        for axis, given in _object(item, "an exclusion").items():
            _known_axis(axis, axes, given)
            values = given.value if isinstance(given.value, tuple) else (given,)
            rule[axis] = tuple(_axis_value(axis, value) for value in values)
            for value, place in zip(rule[axis], values, strict=True):
                if value not in axes[axis]:
                    raise _fail(
                        f"exclusion of '{axis}={value}', which the axis does not have",
                        place,
                        closest(str(value), map(str, axes[axis])),
                    )
        if not rule:
            raise _fail("an empty exclusion would take out every variant", item)
        rules.append(rule)
    return tuple(rules)


def _condition(text: str, axes: Mapping[str, tuple[AxisValue, ...]], node: Node) -> Condition:
    if text == "*":
        return Condition(())
    pairs: list[tuple[str, AxisValue]] = []
    for part in text.split(","):
        axis, equals, word = part.strip().partition("=")
        if not equals:
            raise _fail(f"condition '{text}' is not 'axis=value[,axis=value]' or '*'", node)
        _known_axis(axis, axes, node)
        value = next((value for value in axes[axis] if str(value) == word), None)
        if value is None:
            raise _fail(
                f"condition '{text}': axis '{axis}' has no value '{word}'",
                node,
                closest(word, map(str, axes[axis])),
            )
        pairs.append((axis, value))
    return Condition(tuple(pairs))


def _requires(
    node: Node, axes: Mapping[str, tuple[AxisValue, ...]]
) -> tuple[tuple[Condition, tuple[str, ...]], ...]:
    rules = node.value if isinstance(node.value, dict) else {"*": node}
    found = []
    for text, names in rules.items():
        features = _strings(names, "required features")
        for name in features:
            if name not in FEATURES:
                raise _fail(f"unknown feature '{name}'", names, closest(name, FEATURES))
        found.append((_condition(text, axes, names), features))
    return tuple(found)


def _optimize(
    node: Node, axes: Mapping[str, tuple[AxisValue, ...]]
) -> tuple[tuple[Condition, str], ...]:
    rules = node.value if isinstance(node.value, dict) else {"*": node}
    found = []
    for text, policy in rules.items():
        if policy.value not in OPTIMIZE:
            raise _fail(f"'optimize' must be one of {', '.join(OPTIMIZE)}", policy)
        found.append((_condition(text, axes, policy), str(policy.value)))
    return tuple(found)


def _short_form(node: Node) -> dict[str, tuple[AxisValue, ...]]:
    """MNN's reading: a plain variant, one per macro name, each also in half precision if asked."""
    entry = {"macro": node} if isinstance(node.value, tuple) else _object(node, "the entry")
    names = entry.get("macro", Node((), node.line))
    _strings(names, "'macro'")
    axes = _axes(Node({"macro": Node((Node("BASE", node.line), *_items(names)), node.line)}, 0))
    half = entry["useFP16"].value if "useFP16" in entry else False
    if not isinstance(half, bool):
        raise _fail("'useFP16' must be true or false", entry["useFP16"])
    if half:
        axes["dtype"] = ("f32", "f16")
    return axes


def _entry(file: str, node: Node) -> TemplateEntry:
    name = file.removesuffix(TEMPLATE_SUFFIX)
    if name == file or not _TEMPLATE_NAME.fullmatch(name) or keyword.iskeyword(name):
        raise _fail(
            f"'{file}' must be a lower-case Python identifier followed by '{TEMPLATE_SUFFIX}'", node
        )
    keys = node.value if isinstance(node.value, dict) else {}
    if isinstance(node.value, tuple) or (keys and set(keys) <= set(SHORT_KEYS)):
        axes = _short_form(node)
        half = ((Condition((("dtype", "f16"),)), ("storage16",)),) if "dtype" in axes else ()
        return TemplateEntry(name, file, node.line, axes, requires=half)
    entry = _object(node, f"the entry of '{file}'")
    for key, value in entry.items():
        if key not in ENTRY_KEYS:
            raise _fail(f"'{file}': unknown key '{key}'", value, closest(key, ENTRY_KEYS))
    axes = _axes(entry["axes"]) if "axes" in entry else {}
    op_type = entry["op_type"].value if "op_type" in entry else None
    if op_type is not None and not isinstance(op_type, str):
        raise _fail("'op_type' must be a string", entry["op_type"])
    return TemplateEntry(
        name,
        file,
        node.line,
        axes,
        exclude=_exclude(entry["exclude"], axes) if "exclude" in entry else (),
        requires=_requires(entry["requires"], axes) if "requires" in entry else (),
        optimize=_optimize(entry["optimize"], axes) if "optimize" in entry else (),
        op_type=op_type,
    )


def load_entries(folder: Path, only: frozenset[str] = frozenset()) -> list[TemplateEntry]:
    """Read `folder/macro.json`, sorted by template.

    Args:
        folder: where the templates and macro.json are.
        only: names of the templates wanted (`"binary"`); empty for all. The rest is not checked.

    Raises:
        ShaderError: with file and line, for unknown or duplicate keys, for entries without a
            template and for templates without an entry.
    """
    path = folder / MACRO_FILE
    if not path.is_file():
        raise ShaderError(f"{path} does not exist", hint="it lists the templates and their axes")
    node = parse(path.read_text(encoding="utf-8"), MACRO_FILE)
    entries = []
    for file, value in _object(node, MACRO_FILE).items():
        if file == "$schema" or (only and file.removesuffix(TEMPLATE_SUFFIX) not in only):
            continue
        entry = _entry(file, value)
        if not (folder / file).is_file():
            raise _fail(f"'{file}' has an entry but no template in {folder.name}/", value)
        entries.append(entry)
    known = {entry.file for entry in entries}
    for template in sorted(folder.glob(f"*{TEMPLATE_SUFFIX}")):
        wanted = not only or template.name.removesuffix(TEMPLATE_SUFFIX) in only
        if wanted and template.name not in known:
            raise ShaderError(
                f"the template has no entry in {MACRO_FILE}, so nothing would be built from it",
                template=template.name,
                line=1,
                hint=f'add "{template.name}": {{"axes": {{}}}} to {MACRO_FILE}',
            )
    for name in sorted(only - {entry.name for entry in entries}):
        raise ShaderError(f"there is no template '{name}'", template=MACRO_FILE, line=1)
    return sorted(entries, key=lambda entry: entry.name)


def expand(entries: Iterable[TemplateEntry]) -> list[Variant]:
    """Return all variants sorted by name; two with one name are an error."""
    variants = sorted(
        (variant for entry in entries for variant in entry.variants()), key=lambda v: v.name
    )
    for first, second in itertools.pairwise(variants):
        if first.name == second.name:
            raise ShaderError(
                f"two variants are called '{first.name}' ({first.template.file}, "
                f"{second.template.file})",
                template=MACRO_FILE,
                line=second.template.line,
            )
    return variants
