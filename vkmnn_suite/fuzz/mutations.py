"""Ways to make a valid model invalid: each changes one part of its structure, never its bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

_M = TypeVar("_M", bound=Message)

Mutation = Callable[[onnx.ModelProto, random.Random], None]
"""Changes the model in place; does nothing if the model has no suitable part."""

MUTATIONS: dict[str, Mutation] = {}

INTS = (
    *(-(2**63), -(2**31) - 1, -(2**31), -101, -3, -2, -1, 0, 1, 2, 3, 4, 7, 64, 101),
    *(2**16, 2**24, 2**31 - 1, 2**31, 2**33, 2**40, 2**62, 2**63 - 1),
)
FLOATS = (
    *(float("nan"), float("inf"), float("-inf"), 0.0, -0.0, -1.0, 0.5, 2.0, 1e-9, 1e-45, 3e38),
    *(1.0000001, 1e6, -1e30),
)
STRINGS = (
    *("", "x", "SAME_UPPER", "VALID", "NOTSET", "linear", "nearest", "cubic", "reflect", "edge"),
    *("constant", "wrap", "add", "mul", "min", "max", "none", "DCR", "CRD", "align_corners"),
    *("tf_crop_and_resize", "half_pixel", "tanh", "ij,jk->ik", "...i,i...->", "i" * 60, "ii,->i"),
    *("floor", "border", "RIGHT", "not_larger", "\N{SNOWMAN}", "a" * 5000),
)
NAMES = ("", "nothing", "x", "y", "a/b", "\N{SNOWMAN}", "n" * 3000)
DTYPES = (*range(24), 99, -1)
OPS = (
    *("Relu", "Add", "Reshape", "Concat", "Split", "Pad", "Slice", "Resize", "Gather", "Tile"),
    *("Expand", "Conv", "MatMul", "Gemm", "Softmax", "ReduceSum", "Transpose", "Unsqueeze"),
    *("Squeeze", "TopK", "If", "Loop", "Einsum", "LayerNormalization", "QuantizeLinear", "OneHot"),
    *("MaxPool", "ConvTranspose", "Cast", "Range", "ConstantOfShape", "Shape", "Where", "Identity"),
    *("Flatten", "ScatterND", "GatherND", "CumSum", "DepthToSpace", "NoSuchOp", "Constant"),
)
ATTRIBUTES = (
    *("axis", "axes", "perm", "kernel_shape", "strides", "pads", "dilations", "group", "to"),
    *("keepdims", "alpha", "epsilon", "num_outputs", "blocksize", "mode", "auto_pad", "value"),
    *("output_shape", "output_padding", "batch_dims", "equation", "transA", "num_heads", "slope"),
)
_DATA_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def mutation(function: Mutation) -> Mutation:
    """File a mutation under its name."""
    MUTATIONS[function.__name__.strip("_")] = function
    return function


def mutate(model: onnx.ModelProto, rng: random.Random) -> str:
    """Change the model in place; return the mutation's name."""
    name = rng.choice(list(MUTATIONS))
    try:
        MUTATIONS[name](model, rng)
    except Exception:  # noqa: BLE001 - onnx and protobuf raise anything
        # An earlier mutation left nothing to change, or protobuf cannot hold the value.
        return f"{name} (no effect)"
    return name


def _node(model: onnx.ModelProto, rng: random.Random) -> NodeProto:
    node: NodeProto = rng.choice(list(model.graph.node))
    return node


def _copy(message: _M) -> _M:
    """Return a copy; protobuf may corrupt a list to which one of its own elements is added."""
    made: _M = type(message)()
    made.CopyFrom(message)
    return made


def _names(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    found = [value.name for value in (*graph.input, *graph.output)]
    found += [tensor.name for tensor in graph.initializer]
    found += [name for node in graph.node for name in (*node.input, *node.output)]
    return found or ["x"]


def _some_name(model: onnx.ModelProto, rng: random.Random) -> str:
    return rng.choice(_names(model)) if rng.random() < 0.8 else rng.choice(NAMES)


def _vary(values: list[int], rng: random.Random) -> list[int]:
    """Return a list of integers with one thing wrong."""
    what = rng.randrange(8)
    if what == 0:
        return []
    if what == 1:
        return values[:-1]
    if what == 2:
        return [*values, rng.choice(INTS)]
    if what == 3:
        return values * 2
    if what == 4:
        return [rng.choice(INTS)] * rng.choice((1, 2, 33, 65, 101))
    changed = values or [0]
    place = rng.randrange(len(changed))
    near = (changed[place] + 1, changed[place] - 1, -changed[place], *changed)
    changed[place] = rng.choice(near if what == 5 else INTS)
    return [min(max(value, -(2**63)), 2**63 - 1) for value in changed]


# --- attributes ----------------------------------------------------------------------------------


def _attribute(model: onnx.ModelProto, rng: random.Random) -> AttributeProto:
    nodes = [node for node in model.graph.node if node.attribute]
    attribute: AttributeProto = rng.choice(list(rng.choice(nodes).attribute))
    return attribute


def _add_attribute(node: NodeProto, name: str, rng: random.Random) -> None:
    kinds: tuple[Callable[[], object], ...] = (
        lambda: rng.choice(INTS),
        lambda: _vary([0, 1], rng) or [0],
        lambda: rng.choice(FLOATS),
        lambda: rng.choice(STRINGS),
        lambda: [rng.choice(FLOATS)],
        lambda: numpy_helper.from_array(np.array([rng.choice(INTS)])),
    )
    node.attribute.append(helper.make_attribute(name, rng.choice(kinds)()))


@mutation
def _attribute_value(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = _attribute(model, rng)
    if attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(INTS)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice(FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice(STRINGS).encode()
    elif attribute.type == AttributeProto.INTS:
        attribute.ints[:] = _vary(list(attribute.ints), rng)
    elif attribute.type == AttributeProto.TENSOR:
        _damage_tensor(attribute.t, rng)


@mutation
def _attribute_list(model: onnx.ModelProto, rng: random.Random) -> None:
    lists = [a for n in model.graph.node for a in n.attribute if a.type == AttributeProto.INTS]
    attribute = rng.choice(lists)
    attribute.ints[:] = _vary(list(attribute.ints), rng)


@mutation
def _attribute_type(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    name = node.attribute[rng.randrange(len(node.attribute))].name
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    _add_attribute(node, name, rng)


@mutation
def _attribute_declared_type(model: onnx.ModelProto, rng: random.Random) -> None:
    _attribute(model, rng).type = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 14))  # type: ignore[assignment]


@mutation
def _attribute_gone(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice([node for node in model.graph.node if node.attribute])
    del node.attribute[rng.randrange(len(node.attribute))]


@mutation
def _attribute_more(model: onnx.ModelProto, rng: random.Random) -> None:
    _add_attribute(_node(model, rng), rng.choice(ATTRIBUTES), rng)


@mutation
def _attribute_twice(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice([node for node in model.graph.node if node.attribute])
    node.attribute.append(_copy(rng.choice(node.attribute)))


@mutation
def _attribute_reference(model: onnx.ModelProto, rng: random.Random) -> None:
    _attribute(model, rng).ref_attr_name = rng.choice(ATTRIBUTES)


@mutation
def _attribute_graph(model: onnx.ModelProto, rng: random.Random) -> None:
    depth = rng.choice((1, 2, 20))  # protobuf refuses deeper ones to be parsed
    graph = helper.make_graph([], "inner", [], [])
    for _ in range(depth):
        node = helper.make_node("If", [_some_name(model, rng)], ["inner_out"], then_branch=graph)
        graph = helper.make_graph([node], "inner", [], [])
    _node(model, rng).attribute.append(helper.make_attribute("then_branch", graph))


# --- nodes ---------------------------------------------------------------------------------------


@mutation
def _node_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    node.input[rng.randrange(len(node.input))] = _some_name(model, rng)


@mutation
def _node_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    names = list(node.input)
    changes: tuple[list[str], ...] = (
        names[:-1],
        names[1:],
        [*names, _some_name(model, rng)],
        [*names, *[""] * rng.choice((1, 3, 100))],
        names[::-1],
        names * rng.choice((2, 50)),
        [],
        ["" if rng.random() < 0.5 else name for name in names],
    )
    node.input[:] = rng.choice(changes)


@mutation
def _node_outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    names = list(node.output)
    changes: tuple[list[str], ...] = (
        names[:-1],
        [*names, f"more{rng.randrange(9)}"],
        [*names, *(f"more{number}" for number in range(rng.choice((3, 300))))],
        [*names, ""],
        ["", *names[1:]],
        [*names, *names],
        [_some_name(model, rng), *names[1:]],
        [],
    )
    node.output[:] = rng.choice(changes)


@mutation
def _node_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    _node(model, rng).op_type = rng.choice((*OPS, *NAMES))


@mutation
def _node_domain(model: onnx.ModelProto, rng: random.Random) -> None:
    domains = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "nowhere", "\N{SNOWMAN}")
    _node(model, rng).domain = rng.choice(domains)


@mutation
def _node_twice(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.node.append(_copy(_node(model, rng)))


@mutation
def _node_gone(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.node[rng.randrange(len(model.graph.node))]


@mutation
def _node_before(model: onnx.ModelProto, rng: random.Random) -> None:
    """Something new between a node and one of its inputs."""
    node = _node(model, rng)
    place = rng.randrange(len(node.input))
    more = helper.make_node(rng.choice(OPS), [node.input[place]], [f"new{rng.randrange(99)}"])
    for _ in range(rng.randrange(3)):
        more.input.append(_some_name(model, rng))
    if rng.random() < 0.6:
        _add_attribute(more, rng.choice(ATTRIBUTES), rng)
    node.input[place] = more.output[0]
    model.graph.node.append(more)


@mutation
def _node_after(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another operator reads the result of a node, and takes its name."""
    node = _node(model, rng)
    place = rng.randrange(len(node.output))
    name = f"made{rng.randrange(99)}"
    more = helper.make_node(rng.choice(OPS), [name], [node.output[place]])
    for _ in range(rng.randrange(3)):
        more.input.append(_some_name(model, rng))
    if rng.random() < 0.6:
        _add_attribute(more, rng.choice(ATTRIBUTES), rng)
    node.output[place] = name
    model.graph.node.append(more)


@mutation
def _node_chain(model: onnx.ModelProto, rng: random.Random) -> None:
    """Concats that double, or other ops in a row, on some tensor."""
    node = _node(model, rng)
    place = rng.randrange(len(node.input))
    name = node.input[place]
    kind, attributes = rng.choice(
        (("Concat", {"axis": 0}), ("Add", {}), ("Relu", {}), ("MatMul", {}), ("Mul", {}))
    )
    for number in range(rng.choice((2, 12, 40))):
        inputs = [name] if kind == "Relu" else [name, name]
        name = f"link{number}_{rng.randrange(99)}"
        more = helper.make_node(kind, inputs, [name])
        more.attribute.extend(helper.make_attribute(*pair) for pair in attributes.items())
        model.graph.node.append(more)
    node.input[place] = name


@mutation
def _node_names(model: onnx.ModelProto, rng: random.Random) -> None:
    name = rng.choice(NAMES)
    for node in model.graph.node:
        node.name = name


@mutation
def _node_order(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


# --- what the graph declares ---------------------------------------------------------------------


def _damage_value(value: ValueInfoProto, rng: random.Random) -> None:
    tensor = value.type.tensor_type
    what = rng.randrange(9)
    if what == 0:
        tensor.elem_type = rng.choice(DTYPES)
    elif what == 1:
        value.ClearField("type")
    elif what == 2:
        tensor.ClearField("shape")
    elif what == 3:
        value.name = rng.choice(NAMES)
    elif what == 4:
        for _ in range(rng.choice((1, 2, 33, 70))):
            tensor.shape.dim.add(dim_value=rng.choice((0, 1, 1, 1, 2)))
    elif what == 5:
        del tensor.shape.dim[:]
    elif what == 6:
        copy = _copy(value)
        value.type.sequence_type.elem_type.CopyFrom(copy.type)
    else:
        dim = tensor.shape.dim[rng.randrange(len(tensor.shape.dim))]
        if rng.random() < 0.3:
            dim.dim_param = rng.choice(("N", "", "batch*2", "-1"))
        else:
            dim.dim_value = rng.choice((*INTS, dim.dim_value + 1, dim.dim_value - 1, 0, 1, 2))


@mutation
def _graph_input(model: onnx.ModelProto, rng: random.Random) -> None:
    _damage_value(rng.choice(model.graph.input), rng)


@mutation
def _graph_output(model: onnx.ModelProto, rng: random.Random) -> None:
    _damage_value(rng.choice(model.graph.output), rng)


@mutation
def _graph_value(model: onnx.ModelProto, rng: random.Random) -> None:
    """A wrong statement on a tensor within."""
    shape = _vary([1, 2], rng)
    said = helper.make_tensor_value_info(_some_name(model, rng), rng.choice(DTYPES), shape)
    model.graph.value_info.append(said)


@mutation
def _graph_lists(model: onnx.ModelProto, rng: random.Random) -> None:
    values = rng.choice((model.graph.input, model.graph.output))
    what = rng.randrange(3)
    if what == 0:
        del values[rng.randrange(len(values))]
    elif what == 1:
        values.append(_copy(rng.choice(values)))
    else:
        name = _some_name(model, rng)
        values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]))


# --- initializers --------------------------------------------------------------------------------


def _damage_tensor(tensor: TensorProto, rng: random.Random) -> None:
    what = rng.randrange(9)
    if what == 0:
        tensor.dims[:] = _vary(list(tensor.dims), rng)
    elif what == 1:
        tensor.data_type = rng.choice(DTYPES)
    elif what == 2:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    elif what == 3:
        tensor.raw_data += rng.randbytes(rng.choice((1, 4, 8, 1000)))
    elif what == 4:
        getattr(tensor, rng.choice(_DATA_FIELDS)).append(1)
    elif what == 5:
        tensor.ClearField(rng.choice(("raw_data", "dims", "data_type", "name", *_DATA_FIELDS)))
    else:
        _damage_values(tensor, rng)


def _damage_values(tensor: TensorProto, rng: random.Random) -> None:
    """Put numbers in that an operator may not expect; the tensor itself stays valid."""
    array = numpy_helper.to_array(tensor).copy()
    flat = array.reshape(-1)
    places = range(len(flat)) if rng.random() < 0.2 else [rng.randrange(len(flat))]
    for place in places:
        if array.dtype.kind == "f":
            flat[place] = rng.choice(FLOATS)
        elif array.dtype.kind in "iu":
            limits = np.iinfo(array.dtype)
            flat[place] = min(max(rng.choice(INTS), int(limits.min)), int(limits.max))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


@mutation
def _initializer(model: onnx.ModelProto, rng: random.Random) -> None:
    _damage_tensor(rng.choice(model.graph.initializer), rng)


@mutation
def _initializer_values(model: onnx.ModelProto, rng: random.Random) -> None:
    _damage_values(rng.choice(model.graph.initializer), rng)


@mutation
def _initializer_integers(model: onnx.ModelProto, rng: random.Random) -> None:
    """Shapes, axes, pads and the like, which are short integer tensors."""
    tensors = [t for t in model.graph.initializer if t.data_type == TensorProto.INT64]
    tensor = rng.choice(tensors)
    values = _vary([int(value) for value in numpy_helper.to_array(tensor).reshape(-1)], rng)
    tensor.CopyFrom(numpy_helper.from_array(np.array(values, np.int64), tensor.name))


@mutation
def _initializer_instead(model: onnx.ModelProto, rng: random.Random) -> None:
    """An input of some node becomes a constant of another kind."""
    dtypes = (np.float32, np.int64, np.int32, np.bool_, np.float16, np.float64, np.uint8, np.int8)
    shape = rng.choice(((), (0,), (1,), (4,), (2, 3), (1, 1, 1, 1), (2, 0, 3)))
    array = np.full(shape, rng.choice((0, 1, 2, 100)), rng.choice(dtypes))
    name = f"instead{rng.randrange(99)}"
    node = _node(model, rng)
    node.input[rng.randrange(len(node.input))] = name
    model.graph.initializer.append(numpy_helper.from_array(array, name))


@mutation
def _initializer_lists(model: onnx.ModelProto, rng: random.Random) -> None:
    tensors = model.graph.initializer
    what = rng.randrange(3)
    if what == 0:
        del tensors[rng.randrange(len(tensors))]
    elif what == 1:
        tensors.append(_copy(rng.choice(tensors)))
    else:
        rng.choice(tensors).name = _some_name(model, rng)


@mutation
def _initializer_outside(model: onnx.ModelProto, rng: random.Random) -> None:
    """The data claims to be in another file."""
    tensor = rng.choice(model.graph.initializer)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    places = ("w.bin", "../w.bin", "/etc/passwd", "", "\N{SNOWMAN}", ".", "a\0b", "C:\\w")
    entries = {"location": rng.choice(places)}
    for key in ("offset", "length", "checksum"):
        if rng.random() < 0.5:
            entries[key] = rng.choice(("-1", "0", "1" * 30, "x", "4", ""))
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


@mutation
def _initializer_sparse(model: onnx.ModelProto, rng: random.Random) -> None:
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(rng.choice(model.graph.initializer))
    sparse.dims[:] = _vary([2, 3], rng)


# --- the model -----------------------------------------------------------------------------------


@mutation
def _opset(model: onnx.ModelProto, rng: random.Random) -> None:
    versions = (*range(6, 26), 0, -1, 99, 2**31, 2**62)
    rng.choice(model.opset_import).version = rng.choice(versions)


@mutation
def _opset_lists(model: onnx.ModelProto, rng: random.Random) -> None:
    what = rng.randrange(3)
    if what == 0:
        del model.opset_import[rng.randrange(len(model.opset_import))]
    else:
        domain = rng.choice(("", "ai.onnx", "com.microsoft", "nowhere"))
        model.opset_import.add(domain=domain, version=rng.choice((1, 13, 21)))


@mutation
def _header(model: onnx.ModelProto, rng: random.Random) -> None:
    what = rng.randrange(3)
    if what == 0:
        model.ir_version = rng.choice((0, 1, 3, 99, 2**40))
    elif what == 1:
        model.graph.name = rng.choice(NAMES)
    else:
        model.metadata_props.add(key="k" * rng.choice((1, 9999)), value="v")


def _call(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> NodeProto:
    return helper.make_node(name, inputs, outputs, domain="my")


@mutation
def _function(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node becomes a call of a function of the model, with something wrong at times."""
    place = rng.randrange(len(model.graph.node))
    inner = NodeProto()
    inner.CopyFrom(model.graph.node[place])
    inputs, outputs = list(dict.fromkeys(filter(None, inner.input))), list(inner.output)
    body = [inner]
    what = rng.randrange(8)
    if what == 0:
        body = [_call("f", inputs, outputs)]
    elif what == 1:
        body = [_call("g", inputs, outputs)]
    elif what == 2:
        body = []
    elif what == 3:
        inputs = inputs[:-1]
    elif what == 4:
        outputs = [*outputs, "open"]
    elif what == 5 and inner.attribute:
        inner.attribute[0].ref_attr_name = inner.attribute[0].name
    imports = [*model.opset_import, helper.make_opsetid("my", 1)]
    names = [attribute.name for attribute in inner.attribute] if what == 5 else []
    function = helper.make_function("my", "f", inputs, outputs, body, imports, names)
    model.functions.append(function)
    if what == 1:
        back = [_call("f", inputs, outputs)]
        model.functions.append(helper.make_function("my", "g", inputs, outputs, back, imports))
    if what == 6:
        model.functions.append(function)
    if what != 7:
        model.opset_import.add(domain="my", version=1)
    call = _call("f", list(function.input), list(function.output))
    model.graph.node[place].CopyFrom(call)


@mutation
def _functions_nested(model: onnx.ModelProto, rng: random.Random) -> None:
    """Functions that call each other twice: 2^depth nodes."""
    node = _node(model, rng)
    depth = rng.choice((2, 12, 70))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    for level in range(depth):
        body = [_call(f"d{level + 1}", ["a"], ["t"]), _call(f"d{level + 1}", ["t"], ["b"])]
        if level == depth - 1:
            body = [helper.make_node("Relu", ["a"], ["b"])]
        model.functions.append(helper.make_function("my", f"d{level}", ["a"], ["b"], body, imports))
    model.opset_import.add(domain="my", version=1)
    place = rng.randrange(len(node.input))
    name = f"nested{rng.randrange(99)}"
    model.graph.node.append(_call("d0", [node.input[place]], [name]))
    node.input[place] = name
