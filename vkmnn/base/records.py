"""`dataclass` for many small classes that exist from the start, with lazily compiled methods.

The standard decorator writes and compiles up to six methods for each class, which takes 0.3 to 0.9
ms, and most of them are never called in a given process. This one creates equal classes, but
compiles a method when it is first called, and stores the fields of frozen classes through the
descriptors of their slots, in half the time. Type checkers see the standard decorator; `fields`,
`replace` and `is_dataclass` work as usual, and either kind of class may derive from the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import (
    MISSING,
    Field,
    FrozenInstanceError,
    dataclass,
    field,
    fields,
    is_dataclass,
)
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_standard: Callable[..., Any] = dataclass


@dataclass(slots=True)
class _Changeable:
    value: int


@dataclass(frozen=True, slots=True)
class _Frozen:
    value: int


def _marks(kind: Any) -> tuple[Any, Any]:
    """Return the attributes that the standard module attaches to a class and its fields."""
    return kind.__dataclass_fields__["value"]._field_type, kind.__dataclass_params__


_FIELD, _FROZEN_PARAMS = _marks(_Frozen)
_PARAMS = {True: _FROZEN_PARAMS, False: _marks(_Changeable)[1]}
_UNUSUAL = ("InitVar", "KW_ONLY")


def _dataclass(cls: Any = None, /, **options: Any) -> Any:
    """Create a dataclass; arguments and result are those of `dataclasses.dataclass`."""

    def make(made: Any) -> Any:
        if options.keys() <= {"slots", "frozen"} and options.get("slots"):
            frozen = options.get("frozen", False)
            own = _own_fields(made)
            if own is not None and all(_same(base, frozen) for base in made.__bases__):
                return _make(made, frozen, own)
        return _standard(**options)(made)

    return make if cls is None else make(cls)


if not TYPE_CHECKING:
    dataclass = _dataclass


def _same(base: Any, frozen: bool) -> bool:
    """Return whether a base is a plain class, or frozen like the class itself."""
    params = getattr(base, "__dataclass_params__", None)
    return params is None or params.frozen is frozen


def _own_fields(cls: Any) -> dict[str, Field[Any]] | None:
    """Return the fields that a class adds, or None if they need the standard decorator."""
    found: dict[str, Field[Any]] = {}
    for name, kind in cls.__annotations__.items():
        if isinstance(kind, str) and "ClassVar" in kind:
            continue
        default = cls.__dict__.get(name, MISSING)
        if not isinstance(kind, str) or any(word in kind for word in _UNUSUAL):
            return None
        item: Any = default if isinstance(default, Field) else field(default=default)
        if item.kw_only is True or type(item.default).__hash__ is None:  # a mutable default
            return None
        item.name, item.type, item._field_type, item.kw_only = name, kind, _FIELD, False
        found[name] = item
    return found


def _make(cls: Any, frozen: bool, own: dict[str, Field[Any]]) -> Any:
    """Return the class recreated with slots and methods."""
    inherited = [fields(base) for base in reversed(cls.__mro__[1:]) if is_dataclass(base)]
    members = {item.name: item for items in (*inherited, own.values()) for item in items}
    taken = {slot for base in cls.__mro__[1:] for slot in _slots_of(base)}
    body = {name: value for name, value in cls.__dict__.items() if name not in own}
    body.pop("__dict__", None)
    body.pop("__weakref__", None)
    body["__slots__"] = tuple(name for name in members if name not in taken)
    body["__dataclass_fields__"] = members
    body["__dataclass_params__"] = _PARAMS[frozen]
    body.setdefault("__match_args__", tuple(item.name for item in members.values() if item.init))
    if frozen:
        body |= {"__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}
        body.setdefault("__getstate__", _state)
        body.setdefault("__setstate__", _set_state)
    names = ["__init__", "__repr__", "__eq__"]
    if "__hash__" not in body or (body["__hash__"] is None and "__eq__" in body):
        if frozen:
            names.append("__hash__")
            body.pop("__hash__", None)
        else:
            body["__hash__"] = None
    methods = [_Method(name) for name in names if name not in body]
    body |= {method.name: method.stub() for method in methods}
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    for method in methods:
        method.owner = made
    return made


def _slots_of(base: Any) -> Iterable[str]:
    slots = base.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


class _Method:
    """A method that is compiled when it is first called."""

    __slots__ = ("name", "owner")

    owner: Any

    def __init__(self, name: str) -> None:
        self.name = name

    def stub(self) -> Callable[..., Any]:
        """Return the placeholder of a method in the class."""

        def first_call(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
            method = _WRITERS[self.name](self.owner)
            method.__name__ = self.name
            method.__qualname__ = f"{self.owner.__qualname__}.{self.name}"
            setattr(self.owner, self.name, method)
            return method(self_, *args, **kwargs)

        return first_call


def _compiled(text: str, names: dict[str, Any]) -> Any:
    """Return the function that a definition of `method` defines."""
    exec(text, names)  # noqa: S102 - the text is made of the names of fields
    return names["method"]


def _fields_of(owner: Any) -> list[Field[Any]]:
    return list(owner.__dataclass_fields__.values())


def _write_init(owner: Any) -> Any:
    """Return `__init__`: it stores the arguments, and calls `__post_init__` if there is one."""
    params, lines = ["self"], []
    names: dict[str, Any] = {"MISSING": MISSING}
    frozen = owner.__dataclass_params__.frozen
    for index, item in enumerate(_fields_of(owner)):
        value = item.name
        if item.default_factory is not MISSING:
            names[f"_make{index}"] = item.default_factory
            value = f"_make{index}() if {item.name} is MISSING else {item.name}"
            if not item.init:
                value = f"_make{index}()"
        elif not item.init and item.default is MISSING:
            continue
        elif item.default is not MISSING:
            names[f"_default{index}"] = item.default
            value = item.name if item.init else f"_default{index}"
        if item.init:
            params.append(_param(item, index))
        if frozen:
            names[f"_set{index}"] = getattr(owner, item.name).__set__
            lines.append(f"_set{index}(self, {value})")
        else:
            lines.append(f"self.{item.name} = {value}")
    if hasattr(owner, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "\n ".join(lines or ["pass"])
    return _compiled(f"def method({', '.join(params)}):\n {body}", names)


def _param(item: Field[Any], index: int) -> str:
    if item.default_factory is not MISSING:
        return f"{item.name}=MISSING"
    return item.name if item.default is MISSING else f"{item.name}=_default{index}"


def _write_repr(owner: Any) -> Any:
    shown = ", ".join(f"{i.name}={{self.{i.name}!r}}" for i in _fields_of(owner) if i.repr)
    text = f'def method(self):\n return f"{{self.__class__.__qualname__}}({shown})"'
    return recursive_repr()(_compiled(text, {}))


def _write_eq(owner: Any) -> Any:
    names = [item.name for item in _fields_of(owner) if item.compare]
    own, others = _values("self", names), _values("other", names)
    text = "def method(self, other):\n if other.__class__ is self.__class__:\n"
    return _compiled(f"{text}  return {own} == {others}\n return NotImplemented", {})


def _write_hash(owner: Any) -> Any:
    hashed = [
        item.name
        for item in _fields_of(owner)
        if (item.compare if item.hash is None else item.hash)
    ]
    return _compiled(f"def method(self):\n return hash({_values('self', hashed)})", {})


def _values(of: str, names: Sequence[str]) -> str:
    return "(" + "".join(f"{of}.{name}, " for name in names) + ")"


_WRITERS: dict[str, Callable[[Any], Any]] = {
    "__init__": _write_init,
    "__repr__": _write_repr,
    "__eq__": _write_eq,
    "__hash__": _write_hash,
}


def _refuse_assignment(self: Any, name: str, value: Any) -> None:
    if "__dataclass_fields__" in type(self).__dict__ or name in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_deletion(self: Any, name: str) -> None:
    if "__dataclass_fields__" in type(self).__dict__ or name in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__dataclass_fields__]


def _set_state(self: Any, state: Sequence[Any]) -> None:
    for name, value in zip(self.__dataclass_fields__, state, strict=True):
        object.__setattr__(self, name, value)
