"""`macro.json` → the list of variants: axes multiplied, exclusions removed, names assigned."""

from __future__ import annotations

import difflib
import itertools
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from vkmnn.base.elements import FLOATS, NARROW
from vkmnn.codegen.declare import LOCAL_SIZE_NAMES, RESERVED_NAMES, SpecValue
from vkmnn.codegen.failures import failures_of, raise_all
from vkmnn.codegen.features import FEATURES, IMAGE_FORMATS, default_optimize, with_implied
from vkmnn.codegen.jsonpos import Node, parse
from vkmnn.codegen.places import MACRO_FILE, TEMPLATE_SUFFIX
from vkmnn.errors import ShaderError
from vkmnn.shader_files.lock import variant_name

OPTIMIZE = ("-O", "-Os", "none")
ENTRY_KEYS = ("axes", "exclude", "spec", "requires", "optimize", "op_type")
SHORT_KEYS = ("useFP16", "macro")

AxisValue = str | int
Axes = Mapping[str, tuple[AxisValue, ...]]
Rules = tuple[dict[str, tuple[AxisValue, ...]], ...]
Row = tuple[AxisValue, ...]
Rows = tuple[tuple[tuple[str, ...], tuple[Row, ...]], ...]
"""Axes that vary together, and the values that they have at a time."""

_Section = TypeVar("_Section")

ELEMENT_SETS: dict[str, tuple[str, ...]] = {
    "$floats": tuple(FLOATS),
    "$narrow": tuple(name for name in FLOATS if name in NARROW),
    "$images": tuple(name for name, one in FLOATS.items() if one.image in IMAGE_FORMATS),
    "$imageless": tuple(name for name, one in FLOATS.items() if one.image not in IMAGE_FORMATS),
}
"""Words of macro.json that stand for several float elements."""

_AXIS_NAME = re.compile(r"[a-z][a-z0-9_]*")
_AXIS_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*")
_TEMPLATE_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Condition:
    """`axis=value` pairs that must all hold; without pairs it always holds."""

    pairs: tuple[tuple[str, AxisValue], ...]

    def holds(self, axes: Mapping[str, AxisValue]) -> bool:
        """Return whether every pair agrees with these axis values."""
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
    line: int = field(repr=False)
    axes: dict[str, tuple[AxisValue, ...]]
    rows: Rows = ()
    exclude: tuple[dict[str, tuple[AxisValue, ...]], ...] = ()
    requires: tuple[tuple[Condition, tuple[str, ...]], ...] = ()
    optimize: tuple[tuple[Condition, str], ...] = ()
    op_type: str | None = None
    spec: dict[str, SpecValue] = field(default_factory=dict)
    spec_lines: dict[str, int] = field(default_factory=dict, repr=False)

    def variants(self) -> list[Variant]:
        """Return the variants in axis order; raises `ShaderError` if none is left."""
        found = [
            Variant(variant_name(self.name, axes.values()), self, axes)
            for axes in _combinations(self.axes, self.rows)
            if not any(_excludes(rule, axes) for rule in self.exclude)
        ]
        if not found:
            raise ShaderError(
                f"'{self.file}': the exclusions leave no variant",
                template=MACRO_FILE,
                line=self.line,
            )
        return found


def _combinations(axes: Axes, rows: Rows) -> Iterator[dict[str, AxisValue]]:
    """Return the product of the axes, in their order; those of `rows` vary together."""
    together = {names[0]: (names, values) for names, values in rows}
    listed = {name for names, _ in rows for name in names}
    factors: list[list[dict[str, AxisValue]]] = []
    for axis, values in axes.items():
        if axis in together:
            names, chosen = together[axis]
            factors.append([dict(zip(names, row, strict=True)) for row in chosen])
        elif axis not in listed:
            factors.append([{axis: value} for value in values])
    for parts in itertools.product(*factors):
        yield {axis: value for part in parts for axis, value in part.items()}


def _excludes(rule: Axes, axes: Mapping[str, AxisValue]) -> bool:
    return all(axes[axis] in excluded for axis, excluded in rule.items())


def variant_names(template: str, axes: Mapping[str, Iterable[AxisValue]]) -> Iterator[str]:
    """Return the names of all combinations of axis values, also of those that are not built."""
    return (variant_name(template, values) for values in itertools.product(*axes.values()))


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


Items = tuple[Node, ...]


def _items(node: Node) -> Items:
    return node.value if isinstance(node.value, tuple) else ()


def _elements(nodes: Items) -> Items:
    """Return the values of an axis with the words of ELEMENT_SETS spelled out."""
    spelled: list[Node] = []
    for node in nodes:
        names = ELEMENT_SETS.get(node.value) if isinstance(node.value, str) else None
        spelled += [node] if names is None else [Node(name, node.line) for name in names]
    return tuple(spelled)


def _strings(node: Node, what: str) -> tuple[str, ...]:
    items = _items(node)
    if not isinstance(node.value, tuple) or not all(isinstance(i.value, str) for i in items):
        raise _fail(f"{what} must be a list of strings", node)
    return tuple(str(item.value) for item in items)


def _axes(node: Node) -> tuple[dict[str, tuple[AxisValue, ...]], Rows]:
    """Read the axes; a key of several names has rows of values that go together."""
    axes: dict[str, tuple[AxisValue, ...]] = {}
    rows: list[tuple[tuple[str, ...], tuple[Row, ...]]] = []
    for key, values in _object(node, "'axes'").items():
        names = tuple(name.strip() for name in key.split(","))
        given = {key: values}
        if len(names) > 1:
            found = _rows(names, values)
            rows.append((names, found))
            columns = (dict.fromkeys(column) for column in zip(*found, strict=True))
            given = {
                name: Node(tuple(Node(value, values.line) for value in column), values.line)
                for name, column in zip(names, columns, strict=True)
            }
        if len({*names}) < len(names) or not axes.keys().isdisjoint(names):
            raise _fail(f"axes '{key}': one of them is listed twice", values)
        axes |= _single_axes(given)
    return axes, tuple(rows)


def _rows(names: tuple[str, ...], node: Node) -> tuple[Row, ...]:
    what = f"axes '{','.join(names)}'"
    rows: list[Row] = []
    for item in _items(node):
        values = _items(item)
        if len(values) != len(names):
            raise _fail(f"{what}: each row must be a list of {len(names)} values", item)
        row = tuple(map(_axis_value, names, values))
        if row in rows:
            raise _fail(f"{what}: a row is listed twice", item)
        rows.append(row)
    if not rows:
        raise _fail(f"{what} must be a list with at least one row", node)
    return tuple(rows)


def _single_axes(given: Mapping[str, Node]) -> dict[str, tuple[AxisValue, ...]]:
    axes: dict[str, tuple[AxisValue, ...]] = {}
    for name, values in given.items():
        if not _AXIS_NAME.fullmatch(name) or keyword.iskeyword(name):
            raise _fail(f"axis name '{name}' must be a lower-case Python identifier", values)
        if name in RESERVED_NAMES:
            raise _fail(f"axis name '{name}' is already used by a template helper", values)
        if not isinstance(values.value, tuple) or not values.value:
            raise _fail(f"axis '{name}' must be a list with at least one value", values)
        axes[name] = tuple(_axis_value(name, item) for item in _elements(values.value))
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
        closest(str(value), ELEMENT_SETS) if str(value).startswith("$") else None,
    )


def _known_axis(axis: str, axes: Axes, node: Node) -> None:
    if axis not in axes:
        raise _fail(f"unknown axis '{axis}'", node, closest(axis, axes))


def _exclude(node: Node, axes: Axes, listed: Rows) -> Rules:
    if not isinstance(node.value, tuple):
        raise _fail("'exclude' must be a list of objects", node)
    rules = []
    for item in node.value:
        rule: dict[str, tuple[AxisValue, ...]] = {}
        for axis, given in _object(item, "an exclusion").items():
            _known_axis(axis, axes, given)
            values = _elements(given.value if isinstance(given.value, tuple) else (given,))
            rule[axis] = tuple(_axis_value(axis, value) for value in values)
            for value, place in zip(rule[axis], values, strict=True):
                if value not in axes[axis]:
                    raise _fail(
                        f"exclusion of '{axis}={value}', which the axis does not have",
                        place,
                        closest(str(value), map(str, axes[axis])),
                    )
                if rule[axis].count(value) > 1:
                    raise _fail(f"an exclusion lists '{axis}={value}' twice", place)
        if not rule:
            raise _fail("an empty exclusion would exclude every variant", item)
        rules.append(rule)
    _needed(rules, list(_combinations(axes, listed)), node.value)
    return tuple(rules)


def _needed(
    rules: list[dict[str, tuple[AxisValue, ...]]],
    products: list[dict[str, AxisValue]],
    nodes: Items,
) -> None:
    """Refuse an exclusion that excludes nothing that the others do not."""
    for i in reversed(range(len(rules))):
        others = rules[:i] + rules[i + 1 :]
        if not any(
            _excludes(rules[i], product) and not any(_excludes(rule, product) for rule in others)
            for product in products
        ):
            shown = ", ".join(f"{k}={'|'.join(map(str, v))}" for k, v in rules[i].items())
            raise _fail(
                f"the exclusion {shown} excludes nothing that the other exclusions do not",
                nodes[i],
                "take it out",
            )


def _condition(text: str, axes: Axes, node: Node) -> Condition:
    if text == "*":
        return Condition(())
    pairs: dict[str, AxisValue] = {}
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
        if axis in pairs:
            raise _fail(f"condition '{text}' names axis '{axis}' twice: it never holds", node)
        pairs[axis] = value
    return Condition(tuple(pairs.items()))


def _requires(node: Node, axes: Axes) -> tuple[tuple[Condition, tuple[str, ...]], ...]:
    rules = node.value if isinstance(node.value, dict) else {"*": node}
    found = []
    for text, names in rules.items():
        features = _strings(names, "required features")
        for name in features:
            if name not in FEATURES:
                raise _fail(f"unknown feature '{name}'", names, closest(name, FEATURES))
            if features.count(name) > 1:
                raise _fail(f"feature '{name}' is listed twice", names)
        found.append((_condition(text, axes, names), features))
    return tuple(found)


def _optimize(node: Node, axes: Axes) -> tuple[tuple[Condition, str], ...]:
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
    axes, _ = _axes(Node({"macro": Node((Node("BASE", node.line), *_items(names)), node.line)}, 0))
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
    return _full_form(name, file, _object(node, f"the entry of '{file}'"), node)


def _full_form(name: str, file: str, entry: dict[str, Node], node: Node) -> TemplateEntry:
    failures = [
        _fail(f"'{file}': unknown key '{key}'", value, closest(key, ENTRY_KEYS))
        for key, value in entry.items()
        if key not in ENTRY_KEYS
    ]

    unknown = len(failures)

    def section(key: str, read: Callable[[Node], _Section], default: _Section) -> _Section:
        try:
            return read(entry[key]) if key in entry else default
        except ShaderError as error:
            failures.append(error)
            return default

    nothing: tuple[dict[str, tuple[AxisValue, ...]], Rows] = ({}, ())
    axes, rows = section("axes", _axes, nothing)
    if len(failures) > unknown or (unknown and "axes" not in entry):
        raise_all(failures)  # the rest speaks of axes, which are misspelt or wrong
    made = TemplateEntry(
        name,
        file,
        node.line,
        axes,
        rows=rows,
        exclude=section("exclude", lambda value: _exclude(value, axes, rows), ()),
        requires=section("requires", lambda value: _requires(value, axes), ()),
        optimize=section("optimize", lambda value: _optimize(value, axes), ()),
        op_type=section("op_type", _op_type, None),
        spec=section("spec", _spec, {}),
        spec_lines=section("spec", _spec_lines, {}),
    )
    raise_all(failures)
    _check_conditions(made, entry)
    return made


def _spec(node: Node) -> dict[str, SpecValue]:
    found: dict[str, SpecValue] = {}
    for name, given in _object(node, "'spec'").items():
        value = given.value
        if not isinstance(value, int | float):
            raise _fail(f"spec '{name}': the default must be a number or a truth value", given)
        if name in LOCAL_SIZE_NAMES and (type(value) is not int or value < 1):
            raise _fail(f"spec '{name}': it must be a positive integer", given)
        found[name] = value
    return found


def _spec_lines(node: Node) -> dict[str, int]:
    given = node.value if isinstance(node.value, dict) else {}
    return {name: value.line for name, value in given.items()}


def _op_type(node: Node) -> str:
    if not isinstance(node.value, str):
        raise _fail("'op_type' must be a string", node)
    return node.value


def _check_conditions(made: TemplateEntry, entry: dict[str, Node]) -> None:
    """Check a rule for excluded variants; the exclusions must also leave some variants."""
    variants = made.variants()
    for key, rules in (("requires", made.requires), ("optimize", made.optimize)):
        for condition, _ in rules:
            if not any(condition.holds(variant.axes) for variant in variants):
                text = ",".join(f"{axis}={value}" for axis, value in condition.pairs)
                raise _fail(
                    f"'{key}' has a rule for '{text}', but the exclusions leave no such variant",
                    entry[key],
                )


def load_entries(folder: Path, only: frozenset[str] = frozenset()) -> list[TemplateEntry]:
    """Read `folder/macro.json`, sorted by template.

    Args:
        folder: the folder of the templates and macro.json.
        only: names of the requested templates (`"binary"`); empty for all. The rest is not checked.

    Raises:
        ShaderError: with file and line, for unknown or duplicate keys, for entries without a
            template and for templates without an entry; `BuildFailedError` when there are more.
    """
    entries, failures = read_entries(folder, only)
    raise_all(failures)
    return entries


def read_entries(
    folder: Path, only: frozenset[str] = frozenset()
) -> tuple[list[TemplateEntry], list[ShaderError]]:
    """Do the work of `load_entries`; return the entries that are well and all that is wrong."""
    path = folder / MACRO_FILE
    if not path.is_file():
        hint = "it lists the templates and their axes"
        return [], [ShaderError(f"{path} does not exist", hint=hint)]
    try:
        nodes = _object(parse(path.read_text(encoding="utf-8"), MACRO_FILE), MACRO_FILE)
    except ShaderError as error:
        return [], [error]
    nodes = {
        file: node
        for file, node in nodes.items()
        if file != "$schema" and (not only or file.removesuffix(TEMPLATE_SUFFIX) in only)
    }
    files = {path.name for path in folder.glob(f"*{TEMPLATE_SUFFIX}")}
    entries: list[TemplateEntry] = []
    failures: list[ShaderError] = []
    for file, node in nodes.items():
        try:
            entries.append(_entry(file, node))
        except ShaderError as error:
            failures += failures_of(error)
        if file.endswith(TEMPLATE_SUFFIX) and file not in files:
            near = difflib.get_close_matches(file, files - nodes.keys(), n=1)
            hint = f"did you mean '{near[0]}'?" if near else "write it, or take the entry out"
            message = f"'{file}' has an entry but no template in {folder.name}/"
            failures.append(_fail(message, node, hint))
    for file in sorted(files - nodes.keys()):
        if not only or file.removesuffix(TEMPLATE_SUFFIX) in only:
            message = f"the template has no entry in {MACRO_FILE}: nothing would be built from it"
            hint = f'add "{file}": {{"axes": {{}}}} to {MACRO_FILE}'
            failures.append(ShaderError(message, template=file, line=1, hint=hint))
    here = {file.removesuffix(TEMPLATE_SUFFIX) for file in (*files, *nodes)}
    failures += [
        ShaderError(f"there is no template '{name}'", hint=closest(name, here))
        for name in sorted(only - here)
    ]
    entries = [entry for entry in entries if entry.file in files]
    return sorted(entries, key=lambda entry: entry.name), failures


def expand(entries: Iterable[TemplateEntry]) -> list[Variant]:
    """Return all variants sorted by name; two with one name are an error."""
    variants = sorted(
        (variant for entry in entries for variant in entry.variants()), key=lambda v: v.name
    )
    raise_all(
        [
            ShaderError(
                f"two variants are called '{first.name}' ({first.template.file}, "
                f"{second.template.file})",
                template=MACRO_FILE,
                line=second.template.line,
                hint="rename a template or an axis value",
            )
            for first, second in itertools.pairwise(variants)
            if first.name == second.name
        ]
    )
    return variants
