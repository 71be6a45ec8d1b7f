"""Operators that run functions: calls, branches and loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkmnn.converter.nodes import INT32, Scope
from vkmnn.converter.nodes.control import Body, branches, loop
from vkmnn.converter.tensorflow.context import INSIDE
from vkmnn.converter.tensorflow.counting import counters, is_full, is_last, is_row, unchanged
from vkmnn.converter.tensorflow.functions import Function
from vkmnn.converter.tensorflow.lists import as_tensor, materialised
from vkmnn.converter.tensorflow.nodes import TfNode, reads
from vkmnn.converter.tensorflow.tensor_list import TensorList


def inline(op: TfNode, function: Function, arguments: Sequence[str]) -> None:
    """Read a function in the place of an operator."""
    made = op.model.call(function, op.scope, op.name + INSIDE, arguments, op.prefix)
    if len(made) < len(op.outputs) and function.results:
        raise op.damaged(f"the function '{function.name}' has {len(made)} results")
    for name, output in zip(made, op.outputs, strict=False):
        op.model.refused.discard(output)
        op.alias(name, output)
    _keep_refused(op)


def _check(op: TfNode, made: Sequence[str]) -> None:
    """Check that the results of a function are there.

    Raises:
        UnreadableError: they are behind operators that are not read.
    """
    if not op.model.refused.isdisjoint(made):
        raise op.unreadable("a function with operators that are not read")


def _keep_refused(op: TfNode) -> None:
    """Leave results of refused nodes among those that are not there."""
    behind = op.model.refused.intersection(op.outputs)
    op.outputs = [name for name in op.outputs if name not in behind]


@reads("PartitionedCall", "StatefulPartitionedCall")
def call(op: TfNode) -> None:
    """A function, in its place."""
    inline(op, op.function("f"), op.inputs)


# --- branches ------------------------------------------------------------------------------------


class _Choice:
    """The branches of an operator, with the same results: its own, then variables."""

    def __init__(self, op: TfNode, arguments: Sequence[str], count: int) -> None:
        self.op, self.arguments, self.count = op, arguments, count
        self.keys = sorted(op.model.plan.writes.get(op.name, ()))
        self.lists: dict[int, TensorList] = {}

    def body(self, function: Function, what: str) -> Body:
        """Return what writes a branch."""
        model = self.op.model

        def body(scope: Scope, _: list[str]) -> list[str]:
            with model.inside(scope, self.op.name):
                prefix = f"{self.op.name}{INSIDE}{what}{INSIDE}"
                made = model.call(function, scope, prefix, self.arguments)[: self.count]
                if len(made) != self.count:
                    raise self.op.damaged(f"the function '{function.name}' has other results")
                _check(self.op, made)
                for place, name in enumerate(made):
                    if name in model.lists:
                        self.lists[place] = model.lists[name]
                made = [as_tensor(self.op, scope, name) for name in made]
                return [*made, *(model.variables.value(key) for key in self.keys)]

        return body

    def write(self, condition: str, then: Body, otherwise: Body) -> None:
        """Write the operator's If."""
        model, own = self.op.model, self.op.outputs
        for key in self.keys:
            model.variables.value(key)
        after = [self.op.scope.fresh(f"{self.op.name}/after") for _ in self.keys]
        self.op.outputs = [*own, *after]
        branches(self.op, condition, then, otherwise)
        self.op.outputs = own
        for key, name in zip(self.keys, after, strict=True):
            model.variables.assign(key, name)
        for place, one in self.lists.items():
            model.lists[own[place]] = one.stacked(own[place])


def _count(op: TfNode, functions: Sequence[Function]) -> int:
    return min(len(op.outputs), *(len(one.results) for one in functions))


@reads("If", "StatelessIf")
def conditional(op: TfNode) -> None:
    """If; the functions capture the operator's inputs after the condition."""
    op.need(1, 0)
    sides = [op.function(f"{side}_branch") for side in ("then", "else")]
    known = op.value(0)
    if known is not None:
        taken = bool(known.reshape(-1)[0]) if known.size == 1 else known.size > 0
        inline(op, sides[0 if taken else 1], op.inputs[1:])
        return
    op.outputs = op.outputs[: _count(op, sides)]
    choice = _Choice(op, op.inputs[1:], len(op.outputs))
    then, otherwise = (choice.body(one, what) for one, what in zip(sides, "tf", strict=True))
    choice.write(op.inputs[0], then, otherwise)


@reads("Case", "StatelessCase")
def cases(op: TfNode) -> None:
    """If in If: an index chooses among functions, the last one where it is out of range."""
    op.need(1, 0)
    listed = op.attrs["branches"].list.func if "branches" in op.attrs else []
    functions = [op.named_function(one.name) for one in listed]
    if not 0 < len(functions) <= 64:
        raise op.unreadable(f"{len(functions)} branches")
    known = op.integers(0)
    if known is not None and len(known) == 1:
        inside = 0 <= known[0] < len(functions)
        inline(op, functions[known[0] if inside else -1], op.inputs[1:])
        return
    if len(functions) == 1:
        inline(op, functions[0], op.inputs[1:])
        return
    op.outputs = op.outputs[: _count(op, functions)]
    choice = _Choice(op, op.inputs[1:], len(op.outputs))

    def rest(number: int) -> Body:
        if number == len(functions) - 1:
            return choice.body(functions[number], str(number))

        def body(scope: Scope, given: list[str]) -> list[str]:
            outputs = [scope.fresh(f"{op.name}/case") for _ in (*op.outputs, *choice.keys)]
            inner = TfNode(op.model, scope, op.node, "", [], outputs)
            inner.name = op.name
            with op.model.inside(scope, op.name):
                first = choice.body(functions[number], str(number))
                branches(inner, _is(inner, op.inputs[0], number), first, rest(number + 1))
            return outputs

        return body

    first = choice.body(functions[0], "0")
    choice.write(_is(op, op.inputs[0], 0), first, rest(1))


def _is(op: TfNode, index: str, number: int) -> str:
    return op.make("Equal", op.cast(index, INT32), op.constant(number, "i4"), dtype=9)


# --- loops ---------------------------------------------------------------------------------------


class _While:
    """A loop: which of its values are carried, stacked, or the same in all rounds."""

    def __init__(self, op: TfNode) -> None:
        self.op, self.model = op, op.model
        self.condition, self.body = op.function("cond"), op.function("body")
        count = len(op.inputs)
        if len(self.body.results) != count or len(self.body.arguments) != count:
            raise op.damaged(f"it carries {count} values, and its body {len(self.body.results)}")
        self.keys = sorted(self.model.plan.writes.get(op.name, ()))
        handles = {n for n, name in enumerate(op.inputs) if name in self.model.handles}
        self.fixed = unchanged(self.body) | handles
        steps = counters(op, self.body)
        self.stacked = [
            n
            for n, name in enumerate(op.inputs)
            if n not in self.fixed and name in self.model.lists
            and is_row(op, self.body, n, steps)
            and is_full(op, self.condition, n, steps, self.fixed)
        ]  # fmt: skip
        self.last = [
            n
            for n, name in enumerate(op.inputs)
            if n not in self.fixed and name in self.model.lists and is_last(op, self.body, n)
        ]
        self.stacked += self.last
        self.carried = [n for n in range(count) if n not in self.fixed and n not in self.stacked]
        self.tries = 0

    def arguments(self, carried: Sequence[str], inner: bool) -> list[str]:
        """Return what a function is given, by the names of what is carried."""
        found = list(self.op.inputs)
        for place, name in zip(self.carried, carried, strict=False):
            found[place] = name
            if self.op.inputs[place] in self.model.lists:
                self.model.lists[name] = self.model.lists[self.op.inputs[place]].stacked(name)
        for place in self.stacked:
            found[place] = f"{self.op.name}{INSIDE}list{place}"
            one = self.model.lists[self.op.inputs[place]]
            self.model.lists[found[place]] = one.scanned() if inner else one
        return found

    def tested(self, scope: Scope, given: list[str]) -> list[str]:
        """Write the condition."""
        self.tries += 1
        prefix = f"{self.op.name}{INSIDE}cond{self.tries}{INSIDE}"
        arguments = self.arguments(given, scope is not self.op.scope)
        made = self._inside(scope, self.condition, prefix, arguments)[0]
        if len(made) != 1:
            raise self.op.damaged(f"its condition has {len(made)} results")
        return made

    def round(self, scope: Scope, given: list[str]) -> list[str]:
        """Write the body."""
        self.tries += 1
        prefix = f"{self.op.name}{INSIDE}body{self.tries}{INSIDE}"
        own = len(self.carried)
        before = dict(zip(self.keys, given[own:], strict=True))
        arguments = self.arguments(given[:own], True)
        made, after = self._inside(scope, self.body, prefix, arguments, before)
        rows = [self.model.lists[made[n]].row for n in self.stacked]
        return [*(made[n] for n in self.carried), *after, *rows]

    def _inside(
        self,
        scope: Scope,
        function: Function,
        prefix: str,
        arguments: list[str],
        before: Mapping[str, str] | None = None,
    ) -> tuple[list[str], list[str]]:
        variables = self.model.variables
        with self.model.inside(scope, self.op.name):
            variables.values.update(before or {})
            made = self.model.call(function, scope, prefix, arguments)
            _check(self.op, made)
            skipped = {*self.fixed, *self.stacked} if function is self.body else set()
            made = [
                name if n in skipped else as_tensor(self.op, scope, name)
                for n, name in enumerate(made)
            ]
            return made, [variables.value(key) for key in self.keys]

    def write(self) -> None:
        """Write the operator's Loop."""
        op, variables = self.op, self.model.variables
        self._give_tensors()
        names = [*op.outputs, *(op.scope.fresh(f"{op.name}/end") for _ in op.inputs)]
        starts = [op.inputs[n] for n in self.carried]
        starts += [variables.value(key) for key in self.keys]
        after = [op.scope.fresh(f"{op.name}/after") for _ in self.keys]
        results = [*(names[n] for n in self.carried), *after, *(names[n] for n in self.stacked)]
        own = len(self.carried)

        def condition(scope: Scope, given: list[str]) -> list[str]:
            return self.tested(scope, given[:own])

        loop(op, starts, condition, self.round, results)
        for key, name in zip(self.keys, after, strict=True):
            variables.assign(key, name)
        for n in (*self.carried, *self.stacked):
            if op.inputs[n] in self.model.lists:
                one = self.model.lists[op.inputs[n]]
                rows = names[n]
                if n in self.last:
                    ends = [op.constant([value]) for value in (-1, 2**31 - 1, 0)]
                    rows = op.make("Slice", rows, *ends)
                self.model.lists[names[n]] = one.stacked(rows, n in self.stacked)
        for n in self.fixed:
            if n < len(op.outputs):
                op.alias(op.inputs[n], op.outputs[n])

    def _give_tensors(self) -> None:
        """Give lists that are carried tensors, of sizes that a first round tells if need be."""
        open_ = [
            n
            for n in self.carried
            if self.op.inputs[n] in self.model.lists
            and not self.model.lists[self.op.inputs[n]].is_sized
        ]
        if open_:
            prefix = f"{self.op.name}{INSIDE}first{INSIDE}"
            values = dict(self.model.variables.values)
            made = self.model.call(self.body, self.op.scope, prefix, self.op.inputs)
            self.model.variables.values = values
            for n in open_:
                one = self.model.lists.get(made[n])
                if one is not None and one.base:
                    self.model.lists[self.op.inputs[n]] = one.stacked(one.base)
        for n in self.carried:
            if self.op.inputs[n] in self.model.lists:
                name = materialised(self.op, self.op.scope, self.op.inputs[n])
                self.op.inputs[n] = name


@reads("While", "StatelessWhile")
def repetition(op: TfNode) -> None:
    """Loop; lists that get a row in each round are what it stacks."""
    op.need(0, 0)
    op.outputs = op.outputs[: len(op.inputs)]
    _While(op).write()


_PARTS = ("Switch", "_SwitchN", "Merge", "Enter", "Exit", "NextIteration", "LoopCond")
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("RefSwitch", "RefMerge", "RefEnter", "RefExit", "RefNextIteration"),
        "control flow of references to variables",
    ),
    **dict.fromkeys(
        ("SymbolicGradient", "RemoteCall", "For", "PyFunc", "EagerPyFunc", "PyFuncStateless"),
        "code that is not in the file, or functions of functions",
    ),
}
"""Operators that are never read, and why."""


@reads(*_PARTS, "LoopVariable")
def part(op: TfNode) -> None:
    """Part of a conditional or loop of TensorFlow 1, which becomes If or Loop."""
    raise op.unreadable("control flow whose parts do not belong together")


@reads(*REFUSED)
def refused(op: TfNode) -> None:
    """Nothing that can be read."""
    raise op.unreadable(REFUSED[op.type])
