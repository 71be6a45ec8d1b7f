"""Lists of tensors, of TensorFlow 2 (TensorList) and 1 (TensorArray), as stacked tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkmnn.converter.nodes import INT32, INT64, Scope, SourceOp
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.tensorflow.nodes import TfNode, reads
from vkmnn.converter.tensorflow.tensor_list import TensorList

_MOST_PARTS = 1024


def _list(op: TfNode, number: int) -> TensorList:
    found = op.model.lists.get(op.inputs[number]) if number < len(op.inputs) else None
    if found is None:
        raise op.unreadable("a list that is not one of tensors")
    return found


def _zeros(op: SourceOp, one: TensorList, like: str = "") -> str:
    """Return the tensor of a list without elements yet.

    Args:
        op: the operator whose nodes they are.
        one: the list.
        like: an element, where there is one.
    """
    dtype = NUMPY_TYPES[one.dtype]
    length = op.make("Reshape", op.cast(one.length, INT64), op.constant([1]))
    rank: int | None
    if one.item is not None and None not in one.item:
        sizes, rank = op.constant(list(one.item)), len(one.item)
    elif like:
        sizes = op.make("Shape", like, dtype=INT64)
        shape = op.shape_of(like)
        rank = None if shape is None else len(shape)
    else:
        raise op.unreadable("a list of elements of unknown sizes")
    whole = op.make("Concat", length, sizes, axis=0)
    made = op.make("Expand", op.constant(0, dtype), whole)
    known = (op.shape_of(like) if like else one.item) or one.item
    if rank is not None:
        first = op.scope.constants.get(one.length)
        rows = int(first.reshape(-1)[0]) if first is not None and first.size == 1 else None
        op.scope.shapes[made] = (rows, *(known if known is not None else (None,) * rank))
    return made


def materialised(op: TfNode, scope: Scope, name: str) -> str:
    """Return the tensor of a list, which is made where there is none."""
    one = op.model.lists[name]
    made = one.tensor or _zeros(SourceOp(scope, op.type, op.name, [], []), one)
    op.model.lists[made] = one.stacked(made)
    return made


def as_tensor(op: TfNode, scope: Scope, name: str) -> str:
    """Return the result of a function as a tensor; lists are stacked."""
    if name in op.model.lists:
        return materialised(op, scope, name)
    if name in op.model.handles:
        raise op.unreadable("a function that returns a resource")
    return name


def _finish(op: TfNode, one: TensorList, output: int = 0) -> None:
    op.model.lists[op.outputs[output]] = one


def _item(op: TfNode, number: int) -> tuple[int | None, ...] | None:
    """Return the sizes that an input states; a negative scalar says nothing."""
    array = op.value(number)
    if array is None or array.ndim != 1:
        elements = op.elements.get(op.inputs[number]) if number < len(op.inputs) else None
        vector = elements is not None and op.rank(number) == 1
        return tuple(one if one != -1 else None for one in elements or []) if vector else None
    return tuple(int(one) if one >= 0 else None for one in array)


# --- making --------------------------------------------------------------------------------------


@reads("TensorListReserve", "EmptyTensorList")
def reserve(op: TfNode) -> None:
    """A list of elements that are zero, or without elements."""
    op.need(2)
    empty = op.type == "EmptyTensorList"
    length = op.constant(0, np.int32) if empty else op.inputs[1]
    _finish(op, TensorList(op.dtype("element_dtype"), length, _item(op, 0)))


@reads("TensorListFromTensor")
def from_tensor(op: TfNode) -> None:
    """A list of the parts along the first axis."""
    op.need(1)
    sizes = op.shape_of(op.inputs[0])
    item = None if not sizes else tuple(sizes[1:])
    _finish(op, TensorList(op.type_of(op.inputs[0]), "", item, op.inputs[0]))


@reads("TensorArrayV3")
def array(op: TfNode) -> None:
    """A list; what follows hands on its second output."""
    op.need(1, 0)
    stated = op.attrs["element_shape"].shape if "element_shape" in op.attrs else None
    item = None
    if stated is not None and not stated.unknown_rank and stated.dim:
        item = tuple(dim.size if dim.size >= 0 else None for dim in stated.dim)
    op.model.handles[op.outputs[0]] = ""
    if len(op.outputs) > 1:
        _finish(op, TensorList(op.dtype("dtype"), op.inputs[0], item), 1)


# --- writing -------------------------------------------------------------------------------------


def _written(op: TfNode, one: TensorList, index: str, item: str) -> TensorList:
    """Return a list with another element at a place."""
    if one.writes_rows:
        return replace(one, row=item)
    base = one.base
    if not one.tensor:
        base = _zeros(op, one, item)
    places = op.make("Reshape", op.cast(index, INT64), op.constant([1, 1]))
    rows = op.make("Unsqueeze", item, op.constant([0]))
    made = op.make("ScatterND", one.tensor or base, places, rows)
    return replace(one, tensor=made, base=base)


def _appended(op: TfNode, one: TensorList, item: str) -> TensorList:
    if one.writes_rows:
        return replace(one, row=item)
    rows = op.make("Unsqueeze", item, op.constant([0]))
    length = op.scope.constants.get(one.length)
    empty = not one.tensor and length is not None and not length.any()
    made = rows if empty else op.make("Concat", one.tensor or _zeros(op, one, item), rows, axis=0)
    grown = op.constant(int(length.item()) + 1, np.int32) if length is not None else ""
    return replace(one, tensor=made, length=grown)


@reads("TensorListSetItem", "TensorArrayWriteV3")
def write(op: TfNode) -> None:
    """Another element at a place; a list that may grow gets one more at its end."""
    first = op.type == "TensorListSetItem"
    op.need(3 if first else 4)
    one, index, item = _list(op, 0 if first else 3), op.integers(1), op.inputs[2]
    length = op.scope.constants.get(one.length)
    end = [] if length is None else length.reshape(-1).tolist()
    if len(end) == 1 and index == end and not one.writes_rows:
        _finish(op, _appended(op, one, item))
    else:
        _finish(op, _written(op, one, op.inputs[1], item))


@reads("TensorListPushBack")
def append(op: TfNode) -> None:
    """One element more, at the end."""
    op.need(2)
    _finish(op, _appended(op, _list(op, 0), op.inputs[1]))


@reads("TensorListPopBack")
def pop(op: TfNode) -> None:
    """The last element, and the list without it."""
    op.need(1)
    one = _list(op, 0)
    whole = materialised(op, op.scope, op.inputs[0])
    ends = [op.constant([value]) for value in (0, -1, 0)]
    shorter = op.make("Slice", whole, *ends)
    length = op.scope.constants.get(one.length)
    less = op.constant(max(int(length.item()) - 1, 0), np.int32) if length is not None else ""
    _finish(op, replace(one, tensor=shorter, length=less))
    if len(op.outputs) > 1:
        last = op.scope.constant(np.array(-1), op.name)
        op.scope.emit("Gather", [whole, last], op.outputs[1:2], op.name, axis=0)


@reads("TensorListScatter", "TensorListScatterV2", "TensorArrayScatterV3")
def scatter(op: TfNode) -> None:
    """A list of the parts along the first axis, at places."""
    op.need(3)
    if op.type == "TensorArrayScatterV3":
        one, indices, rows = _list(op, 3), 1, op.inputs[2]
    else:
        rows, indices = op.inputs[0], 1
        length = op.inputs[3] if op.type.endswith("V2") and op.integers(3) != [-1] else ""
        one = TensorList(op.type_of(rows), length, _item(op, 2))
        if not length:
            most = op.make("ReduceMax", op.inputs[1], keepdims=0)
            one = replace(one, length=op.make("Add", most, op.constant(1, np.int32)))
    sizes = op.shape_of(rows)
    if not one.tensor and _counts_up(op, indices, one):
        item = tuple(sizes[1:]) if sizes else one.item
        _finish(op, replace(one, tensor=rows, length="", item=item))
        return
    like = op.make("Gather", rows, op.scope.constant(np.array(0), op.name), axis=0)
    places = op.make("Unsqueeze", op.long(indices), op.constant([1]))
    base = one.base or ("" if one.tensor else _zeros(op, one, like))
    made = op.make("ScatterND", one.tensor or base, places, rows)
    _finish(op, replace(one, tensor=made, base=base))


def _counts_up(op: TfNode, number: int, one: TensorList) -> bool:
    """Return whether an input has all places of a list, in order."""
    places, length = op.value(number), op.scope.constants.get(one.length)
    if places is not None and length is not None and places.ndim == 1:
        grows = op.node.op == "TensorArrayScatterV3" and not length.any()
        count = len(places) if grows else int(length.reshape(-1)[0])
        return bool(places.tolist() == list(range(count)))
    limit = op.model.ranges.get(op.inputs[number])
    if limit is None:
        return False
    return op.same(limit, one.length) or (length is not None and not length.any())


@reads("TensorListScatterIntoExistingList")
def scatter_into(op: TfNode) -> None:
    """Other elements at places."""
    op.need(3)
    one = _list(op, 0)
    like = op.make("Gather", op.inputs[1], op.scope.constant(np.array(0), op.name), axis=0)
    places = op.make("Unsqueeze", op.long(2), op.constant([1]))
    whole = one.tensor or _zeros(op, one, like)
    _finish(op, replace(one, tensor=op.make("ScatterND", whole, places, op.inputs[1])))


@reads("TensorListResize")
def resize(op: TfNode) -> None:
    """A list of another length: cut, or with zeros at its end."""
    op.need(2)
    one = _list(op, 0)
    if not one.tensor:
        _finish(op, replace(one, length=op.inputs[1]))
        return
    size = op.make("Reshape", op.long(1), op.constant([1]))
    shape = op.make("Shape", one.tensor, dtype=INT64)
    rows = op.make("Slice", shape, op.constant([0]), op.constant([1]), op.constant([0]))
    missing = op.make("Max", op.make("Sub", size, rows), op.constant([0]))
    none = op.constant([0])
    padded = op.make(
        "Pad", one.tensor, op.make("Concat", none, missing, axis=0),
        op.constant(0, NUMPY_TYPES[one.dtype]), none,
    )  # fmt: skip
    made = op.make("Slice", padded, none, size, none)
    _finish(op, replace(one, tensor=made, length=""))


# --- reading -------------------------------------------------------------------------------------


@reads("TensorListStack", "TensorArrayGatherV3", "TensorListGather")
def stack(op: TfNode) -> None:
    """Elements, stacked: all of them, or those at places."""
    op.need(1)
    number = 2 if op.type == "TensorArrayGatherV3" else 0
    one = _list(op, number)
    whole = materialised(op, op.scope, op.inputs[number])
    if op.type != "TensorListStack":
        op.need(2)
        limit = op.model.ranges.get(op.inputs[1])
        every = limit is not None and (op.same(limit, one.length) or _is_length(op, limit, one))
        if not every:
            op.finish("Gather", whole, op.inputs[1], axis=0)
            return
    stated = _item(op, 1) if op.type != "TensorArrayGatherV3" else one.item
    rows = op.integer("num_elements", -1)
    op.finish("Identity", whole)
    known = op.shape_of(op.outputs[0])
    if stated is not None and op.outputs[0] in op.scope.types:
        given = (rows if rows >= 0 else None, *stated)
        if known is None:
            op.scope.shapes[op.outputs[0]] = given
        elif len(known) == len(given):
            both = zip(known, given, strict=True)
            op.scope.shapes[op.outputs[0]] = tuple(b if a is None else a for a, b in both)


def _is_length(op: TfNode, limit: str, one: TensorList) -> bool:
    return bool(one.tensor) and op.model.lengths.get(limit) == one.tensor


@reads("TensorListGetItem", "TensorArrayReadV3")
def item(op: TfNode) -> None:
    """The element at a place."""
    op.need(2)
    number = 2 if op.type == "TensorArrayReadV3" else 0
    if number >= len(op.inputs):
        raise op.damaged("it has no list")
    _list(op, number)
    whole = materialised(op, op.scope, op.inputs[number])
    op.finish("Gather", whole, op.inputs[1], axis=0)


@reads("TensorListLength", "TensorArraySizeV3")
def length(op: TfNode) -> None:
    """The number of elements."""
    op.need(1)
    number = 1 if op.type == "TensorArraySizeV3" else 0
    if number >= len(op.inputs):
        raise op.damaged("it has no list")
    one = _list(op, number)
    if one.length:
        op.alias(one.length, op.outputs[0])
        return
    sizes = op.shape_of(one.tensor)
    if sizes and sizes[0] is not None:
        op.scope.set_constant(op.outputs[0], np.array(sizes[0], np.int32))
        return
    shape = op.make("Shape", one.tensor, dtype=INT64)
    rows = op.make("Gather", shape, op.scope.constant(np.array(0), op.name), axis=0)
    op.finish("Cast", rows, dtype=INT32, to=INT32)
    op.model.lengths[op.outputs[0]] = one.tensor


@reads("TensorListElementShape")
def element_shape(op: TfNode) -> None:
    """The sizes of the elements."""
    op.need(1)
    one = _list(op, 0)
    dtype = op.dtype("shape_type") if "shape_type" in op.attrs else INT32
    if one.item is not None and None not in one.item:
        op.scope.set_constant(op.outputs[0], np.array(one.item, NUMPY_TYPES[dtype]))
        return
    whole = materialised(op, op.scope, op.inputs[0])
    shape = op.make("Shape", whole, dtype=INT64)
    ends = [op.constant([value]) for value in (1, 2**31 - 1, 0)]
    op.finish_as(dtype, op.make("Slice", shape, *ends))


@reads("TensorListConcatV2", "TensorListConcat", "TensorArrayConcatV3")
def concatenated(op: TfNode) -> None:
    """Elements of one size, joined along their first axis."""
    op.need(1)
    number = 1 if op.type == "TensorArrayConcatV3" else 0
    _list(op, number)
    whole = materialised(op, op.scope, op.inputs[number])
    shape = op.make("Shape", whole, dtype=INT64)
    ends = [op.constant([value]) for value in (2, 2**31 - 1, 0)]
    sizes = op.make("Concat", op.constant([-1]), op.make("Slice", shape, *ends), axis=0)
    op.finish("Reshape", whole, sizes)
    if len(op.outputs) > 1:
        first, second = (
            op.make("Slice", shape, *(op.constant([value]) for value in (n, n + 1, 0)))
            for n in range(2)
        )
        op.scope.emit("Expand", [second, first], op.outputs[1:2], op.name)


@reads("TensorListSplit", "TensorArraySplitV3")
def divided(op: TfNode) -> None:
    """A list of parts of one size along the first axis."""
    op.need(3)
    old = op.type == "TensorArraySplitV3"
    parts = op.settled(2, "sizes of parts")
    if len(set(parts)) != 1 or min(parts) < 1 or len(parts) > _MOST_PARTS:
        raise op.unreadable(f"parts of {parts} rows")
    value = op.inputs[1 if old else 0]
    rest = list(op.sizes(value)[1:])
    if rest.count(None) > 1:
        raise op.unreadable("parts of unknown sizes")
    sizes = [len(parts), parts[0], *(-1 if size is None else size for size in rest)]
    made = op.make("Reshape", value, op.constant(sizes))
    _finish(op, TensorList(op.type_of(value), "", (parts[0], *rest), made))


@reads("TensorArrayCloseV3")
def close(op: TfNode) -> None:
    """Nothing."""
