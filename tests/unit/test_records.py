"""Our dataclasses are the standard ones, but for when their methods are compiled."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pkgutil
import threading
from dataclasses import FrozenInstanceError
from typing import Any, ClassVar

import pytest

import vkmnn
from vkmnn.base.records import _PARAMS, dataclass

UNIMPORTED = ("vkmnn.testing", "vkmnn.bench", "vkmnn.cli", "vkmnn.codegen", "vkmnn.onnxruntime")


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float = 0.5
    name: str = dataclasses.field(default="", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Named(Point):
    y: float = 2.5
    tags: tuple[str, ...] = ()


@dataclass(slots=True)
class Bag:
    size: int
    items: list[int] = dataclasses.field(default_factory=list)
    total: int = dataclasses.field(init=False, default=0)
    unset: int = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.total = self.size + len(self.items)


@dataclass(frozen=True, slots=True)
class Own:
    value: int

    def __repr__(self) -> str:
        return "own"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 3


def standard(cls: Any) -> Any:
    """Return the standard decorator's result for a class's fields."""
    fields = []
    for item in dataclasses.fields(cls):
        options = {"default": item.default}
        if item.default_factory is not dataclasses.MISSING:
            options = {"default_factory": item.default_factory}
        same = {"init": item.init, "repr": item.repr, "hash": item.hash, "compare": item.compare}
        fields.append((item.name, item.type, dataclasses.field(**options, **same)))
    frozen = cls.__dataclass_params__.frozen
    return dataclasses.make_dataclass(cls.__name__, fields, frozen=frozen, slots=True)


def ours() -> list[type]:
    """Return every class created by `vkmnn.base.records`."""
    found = {}
    for module in pkgutil.walk_packages(vkmnn.__path__, "vkmnn."):
        if not module.name.startswith(UNIMPORTED):
            for value in vars(importlib.import_module(module.name)).values():
                params = vars(value).get("__dataclass_params__") if type(value) is type else None
                if any(params is shared for shared in _PARAMS.values()):
                    found[f"{value.__module__}.{value.__qualname__}"] = value
    return [found[name] for name in sorted(found)]


def test_every_class_takes_what_the_standard_one_takes():
    classes = ours()
    assert len(classes) > 50
    for cls in classes:
        with pytest.raises(TypeError, match=rf"{cls.__name__}\.__init__\(\) got an unexpected"):
            cls(no_such_field=1)
        expected = inspect.signature(standard(cls)).parameters
        got = inspect.signature(cls).parameters
        assert list(got) == list(expected)
        assert [p.kind for p in got.values()] == [p.kind for p in expected.values()]
        required = [n for n, p in expected.items() if p.default is inspect.Parameter.empty]
        assert [n for n, p in got.items() if p.default is inspect.Parameter.empty] == required
        assert not hasattr(cls, "__dict__") or "__dict__" not in cls.__slots__


def test_fields_replace_and_matching():
    point = Point(3, name="here")
    assert [item.name for item in dataclasses.fields(Point)] == ["x", "y", "name"]
    assert dataclasses.is_dataclass(point)
    assert dataclasses.asdict(point) == {"x": 3, "y": 0.5, "name": "here"}
    assert dataclasses.replace(point, y=1.0) == Point(3, 1.0)
    match point:
        case Point(x, y):
            assert (x, y) == (3, 0.5)
        case _:
            pytest.fail("does not match")


def test_repr_equality_and_hash_are_those_of_fields():
    assert repr(Point(3, name="here")) == "Point(x=3, y=0.5)"
    assert Point(3, name="here") == Point(3, name="there")
    assert hash(Point(3, name="here")) == hash(Point(3)) == hash((3, 0.5))
    assert Point(3) != Point(4)
    assert Point(3) != Named(3, 0.5)
    assert Point(3) != (3, 0.5)
    assert Point.__hash__ is not object.__hash__


def test_derived_classes_keep_the_order_and_change_defaults():
    named = Named(1, tags=("a",))
    assert repr(named) == "Named(x=1, y=2.5, tags=('a',))"
    assert Named.__slots__ == ("tags",)
    with pytest.raises(TypeError):
        Named()

    @dataclasses.dataclass(frozen=True, slots=True)
    class Plugin(Point):
        extra: int = 7

    assert repr(Plugin(1)).endswith("Plugin(x=1, y=0.5, extra=7)")
    with pytest.raises(TypeError, match="non-frozen"):

        @dataclass(slots=True)
        class Melted(Point):
            more: int = 0


def test_frozen_classes_refuse_changes():
    point = Point(3)
    for name in ("x", "other"):
        with pytest.raises(
            dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"
        ):
            setattr(point, name, 4)
        with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(point, name)
    assert point == Point(3)

    class Free(Point):
        pass

    free = Free(3)
    free.other = 4  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        free.x = 4  # type: ignore[misc]


def test_changeable_classes_have_factories_and_no_hash():
    bag, other = Bag(2), Bag(2, [1])
    bag.items.append(5)
    assert (bag.total, other.total, Bag(2).items) == (2, 3, [])
    assert repr(other) == "Bag(size=2, items=[1], total=3)"
    assert not hasattr(bag, "unset")
    with pytest.raises(TypeError, match="unhashable"):
        hash(bag)
    with pytest.raises(TypeError, match="total"):
        Bag(2, total=1)  # type: ignore[call-arg]


def test_own_methods_stay():
    assert repr(Own(1)) == "own"
    assert Own(1) == Own(2)
    assert hash(Own(1)) == 3


def test_copies():
    for value in (Point(3, name="here"), Named(1, tags=("a",))):
        for again in (copy.copy(value), copy.deepcopy(value)):
            assert again == value
            assert again.name == value.name


def test_cyclic_objects_can_be_shown():
    bag = Bag(1)
    bag.items.append(bag)  # type: ignore[arg-type]
    assert repr(bag) == "Bag(size=1, items=[...], total=1)"


@pytest.mark.parametrize("made_by", [dataclass, dataclasses.dataclass])
def test_class_variables_are_no_fields(made_by: Any):
    @made_by(frozen=True, slots=True)
    class Counted:
        value: int
        kinds: ClassVar[int] = 3

    @dataclass(frozen=True, slots=True)
    class More(Counted):
        other: int

    assert [item.name for item in dataclasses.fields(Counted)] == ["value"]
    assert More(1, 2) == More(value=1, other=2)
    assert [item.name for item in dataclasses.fields(More)] == ["value", "other"]
    assert More.kinds == Counted.kinds == 3


def test_other_options_are_left_to_the_standard_decorator():
    @dataclass
    class Open:
        value: int

    Open(1).more = 2  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="mutable default"):

        @dataclass(slots=True)
        class Shared:
            items: list[int] = []  # noqa: RUF012 - this is what is refused


def test_first_calls_from_several_threads():
    made = []
    for _ in range(20):

        @dataclass(frozen=True, slots=True)
        class Fresh:
            value: int

        start = threading.Barrier(4)

        def use(start: threading.Barrier = start, fresh: Any = Fresh) -> None:
            start.wait()
            made.append(fresh(1) == fresh(1) and hash(fresh(1)) == hash((1,)))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert made == [True] * 80
