"""A decoder out of an architecture and its weights, in nodes as onnxruntime-genai's builder has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.language.architecture import Architecture
from vkmnn.converter.language.blocks import F16
from vkmnn.converter.language.rope import Rope
from vkmnn.converter.language.stored import StoredTensor
from vkmnn.converter.language.weights import TYPES, Coded, LazyWeights, Single, Source, joined
from vkmnn.converter.onnx.model_file import ModelFile
from vkmnn.errors import ModelFileError, UnsupportedNode, UnsupportedOpError
from vkmnn.ir import Array

if TYPE_CHECKING:
    import onnx

_MICROSOFT = "com.microsoft"
_OPSET, _IR_VERSION = 21, 10
_FLOAT, _INT32, _INT64 = 1, 6, 7  # TensorProto.DataType


@dataclass(frozen=True, slots=True)
class _Piece:
    """A matrix of a product: an order of its rows, and its bias, where it has these."""

    tensor: StoredTensor
    order: Array | None = None
    bias: StoredTensor | None = None


class NetworkBuilder:
    """Writes a decoder: input_ids, attention_mask, past_key_values.N.… -> logits, present.N.….

    Args:
        architecture: the structure of the layers.
        weights: tensors by the names that GGUF files have.
        others: the types of tensors that are not read.
        name: name of the model.
        producer: the origin of the weights.
        positions: how many the rotary tables hold.
        pairs: queries and keys hold their rotary halves in pairs (LLaMA in GGUF files).
        one_more: norms hold their factors less one (Gemma in safetensors).
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: Mapping[str, StoredTensor],
        others: Mapping[str, str],
        *,
        name: str,
        producer: str,
        positions: int,
        pairs: bool = False,
        one_more: bool = False,
    ) -> None:
        self._architecture = architecture
        self._weights = weights
        self._others = others
        self._name, self._producer = name, producer
        self._positions, self._pairs, self._one_more = positions, pairs, one_more
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._sources: list[tuple[Source, str]] = []
        self._made: set[str] = set()
        self._tables: dict[Rope, list[str]] = {}
        self._unread: list[UnsupportedNode] = []

    def build(self) -> ModelFile:
        """Return the model; its weights are read when they are asked for.

        Raises:
            ModelFileError: a tensor is missing, or its shape contradicts the sizes.
            UnsupportedOpError: tensors of unsupported types, all of which are listed.
        """
        from onnx import helper

        plan = self._architecture
        self._front()
        x = self._embedded()
        y = x if plan.traits.normed_after else self._norm(x, "blk.0.attn_norm")
        for layer in range(plan.layers):
            x, y = self._layer(layer, x, y)
        self._logits(y)
        if self._unread:
            raise UnsupportedOpError(self._unread)
        caches = [f"{layer}.{part}" for layer in range(plan.layers) for part in ("key", "value")]
        info = helper.make_tensor_value_info
        shape: list[str | int | None] = [
            "batch_size",
            plan.kv_heads,
            "past_sequence_length",
            plan.depth,
        ]
        whole: list[str | int | None] = [
            "batch_size",
            plan.kv_heads,
            "total_sequence_length",
            plan.depth,
        ]
        vocabulary = self._tensor("token_embd.weight").shape[0]
        inputs = [
            info("input_ids", _INT64, ["batch_size", "sequence_length"]),
            info("attention_mask", _INT64, ["batch_size", "total_sequence_length"]),
            *(info(f"past_key_values.{one}", _FLOAT, shape) for one in caches),
        ]
        outputs = [
            info("logits", _FLOAT, ["batch_size", "sequence_length", vocabulary]),
            *(info(f"present.{one}", _FLOAT, whole) for one in caches),
        ]
        graph = helper.make_graph(self._nodes, self._name, inputs, outputs, self._initializers)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_MICROSOFT, 1)]
        proto = helper.make_model(
            graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name=self._producer
        )
        weights = LazyWeights()
        for number, (source, part) in enumerate(self._sources):
            weights.add(number, proto.graph.initializer[number], source, part)
        return ModelFile(proto, weights, None, weights.again)

    # --- nodes and constants ---------------------------------------------------------------------

    def _node(self, op: str, inputs: list[str], output: str, domain: str = "", **attributes: Any
              ) -> str:  # fmt: skip
        from onnx import helper

        self._nodes.append(helper.make_node(op, inputs, [output], f"/{output}", domain=domain,
                                            **attributes))  # fmt: skip
        return output

    def _initializer(
        self, name: str, dtype: Any, shape: tuple[int, ...], read: Callable[[], Array]
    ) -> str:
        return self._parts_of(Single(read), {"": (name, dtype, shape)})[0]

    def _parts_of(
        self, source: Source, parts: Mapping[str, tuple[str, Any, tuple[int, ...]]]
    ) -> list[str]:
        """Add the initializers of a source: of each part, a name, an element type, a shape."""
        from onnx import TensorProto

        for part, (name, dtype, shape) in parts.items():
            if name not in self._made:
                self._made.add(name)
                tensor = TensorProto(name=name, data_type=TYPES[np.dtype(dtype)], dims=shape)
                tensor.raw_data = b""
                self._initializers.append(tensor)
                self._sources.append((source, part))
        return [name for name, _, _ in parts.values()]

    def _constant(self, name: str, value: Any, dtype: Any) -> str:
        array = np.array(value, dtype)
        return self._initializer(name, dtype, array.shape, lambda: array)

    def _tensor(self, name: str, shape: tuple[int, ...] | None = None) -> StoredTensor:
        """Return a required tensor, with this shape.

        Raises:
            ModelFileError: the tensor is missing, or has another shape.
        """
        found = self._weights.get(name)
        if found is None:
            raise ModelFileError(
                f"'{self._name}' has no tensor '{name}'",
                hint="its layers are not those of its family, or files are missing",
            )
        if shape is not None and found.shape != shape:
            raise found.damaged(f"its shape is {list(found.shape)} instead of {list(shape)}")
        return found

    def _has(self, name: str) -> bool:
        kind = self._others.get(name)
        if kind is not None:
            what = UnsupportedNode("Weights", "", 0, name, f"the type {kind} is not read")
            if what not in self._unread:
                self._unread.append(what)
        return name in self._weights or kind is not None

    # --- parts -----------------------------------------------------------------------------------

    def _front(self) -> None:
        """Add the number of keys of each sequence, and their maximum; positions if needed."""
        one = self._constant("one", 1, np.int64)
        axis = self._constant("axis", [1], np.int64)
        kept = self._node("ReduceSum", ["attention_mask", axis], "kept", keepdims=0)
        less = self._node("Sub", [kept, one], "kept_less")
        self._node("Cast", [less], "seqlens_k", to=_INT32)
        shape = self._node("Shape", ["attention_mask"], "mask_shape")
        columns = self._node("Gather", [shape, one], "columns")
        self._node("Cast", [columns], "total", to=_INT32)
        switched = {
            rope.original for rope in self._architecture.ropes if rope and self._switches(rope)
        }
        if switched:
            self._shifted_positions(kept, columns, max(switched))

    def _switches(self, rope: Rope) -> bool:
        """Return whether long texts are rotated by other frequencies than short ones."""
        return rope.changes and self._positions > rope.original

    def _shifted_positions(self, kept: str, total: str, original: int) -> None:
        """Add the tables' rows: from the second half if a sequence is longer than `original`."""
        one, axis = "one", "axis"
        ids = self._node("Shape", ["input_ids"], "ids_shape")
        count = self._node("Gather", [ids, one], "count")
        first = self._node("Sub", [kept, count], "first_or_less")
        zero = self._constant("zero", 0, np.int64)
        first = self._node("Max", [first, zero], "first")
        first = self._node("Unsqueeze", [first, axis], "first_column")
        places = self._node("Range", [zero, count, one], "places")
        plain = self._node("Add", [first, places], "plain_positions")
        limit = self._constant("original", original, np.int64)
        long = self._node("Cast", [self._node("Greater", [total, limit], "is_long")], "long_one",
                          to=_INT64)  # fmt: skip
        rows = self._constant("table_rows", self._positions, np.int64)
        shift = self._node("Mul", [long, rows], "shift")
        self._node("Add", [plain, shift], "position_ids")

    def _embedded(self) -> str:
        plan = self._architecture
        table = self._tensor("token_embd.weight")
        if len(table.shape) != 2 or table.shape[1] != plan.width:
            raise table.damaged(f"its shape is {list(table.shape)}, the width is {plan.width}")
        if table.type.is_coded:
            codes, scales, *zeros = self._codes([_Piece(table)], "token_embd")
            inputs = [codes, "input_ids", scales, *zeros]
            how = {"bits": table.type.bits, "block_size": table.type.block}
            x = self._node("GatherBlockQuantized", inputs, "embedded", _MICROSOFT, **how,
                           wide=1, centred=1)  # fmt: skip
        else:
            x = self._node("Gather", [self._floats(table, "token_embd"), "input_ids"], "embedded")
        return self._scaled(x, plan.embedding_scale, "embedded_scaled")

    def _scaled(self, x: str, factor: float, name: str) -> str:
        if factor == 1.0:
            return x
        by = self._constant(f"factor_{factor!r}", factor, np.float32)
        return self._node("Mul", [x, by], name)

    def _floats(self, tensor: StoredTensor, name: str, order: Array | None = None,
                add: float = 0.0) -> str:  # fmt: skip
        def read() -> Array:
            found = tensor.floats()
            found = found if order is None else found[order]
            return found + np.float32(add) if add else found

        return self._initializer(f"{name}.weight", np.float32, tensor.shape, read)

    def _codes(self, pieces: Sequence[_Piece], name: str, gates: bool = False) -> list[str]:
        """Return the initializers of a matrix in few bits: values, scales, zero points if any."""
        rows = sum(one.tensor.rows for one in pieces)
        source = Coded([one.tensor for one in pieces], [one.order for one in pieces], gates)
        sizes = pieces[0].tensor.coded_parts()
        return self._parts_of(
            source,
            {
                part: (f"{name}.{part}", np.uint8 if part == "codes" else np.float32, (rows, size))
                for part, size in sizes.items()
            },
        )

    def _norm(self, x: str, name: str, skip: str = "") -> str:
        """Add a normalisation; with `skip`, of the sum, which becomes `{name}.sum`."""
        plan, factors = self._architecture, [self._gain(name, self._architecture.width)]
        kind = "LayerNormalization" if plan.traits.layer_norm else "SimplifiedLayerNormalization"
        if plan.traits.layer_norm and self._has(f"{name}.bias"):
            bias = self._tensor(f"{name}.bias", (plan.width,))
            factors.append(self._initializer(f"{name}.bias", np.float32, bias.shape, bias.floats))
        if not skip:
            return self._node(kind, [x, *factors], name, axis=-1, epsilon=plan.epsilon,
                              stash_type=1)  # fmt: skip
        from onnx import helper

        node = helper.make_node(
            f"Skip{kind}", [x, skip, *factors],
            [name, "", "", f"{name}.sum"], f"/{name}", domain=_MICROSOFT, epsilon=plan.epsilon,
        )  # fmt: skip
        self._nodes.append(node)
        return name

    def _gain(self, name: str, width: int) -> str:
        tensor = self._tensor(f"{name}.weight", (width,))
        return self._floats(tensor, name, add=1.0 if self._one_more else 0.0)

    def _piece(
        self,
        name: str,
        size: tuple[int, int],
        rows: tuple[int, int] | None = None,
        order: Array | None = None,
    ) -> _Piece | None:
        """Return a matrix [columns, depth] and its bias if it has one; None if it is not read.

        Args:
            name: of the tensor.
            size: columns and depth of the whole tensor.
            rows: the first of the tensor's rows, and how many, where it holds several matrices.
            order: an order of the rows.
        """
        self._has(f"{name}.weight")
        if f"{name}.weight" in self._others:
            return None
        tensor, bias = self._tensor(f"{name}.weight", size), None
        if f"{name}.bias" in self._weights:
            bias = _part(self._tensor(f"{name}.bias", size[:1]), rows)
        return _Piece(_part(tensor, rows), order, bias)

    def _product(self, x: str, name: str, size: tuple[int, int]) -> str:
        """Add a product by the matrix of a name, [columns, depth], and its bias if it has one."""
        return self._multiplied(x, name, [self._piece(name, size)])

    def _multiplied(
        self, x: str, name: str, pieces: Sequence[_Piece | None], gates: str = ""
    ) -> str:
        """Add a product by matrices that are `_alike`, their columns side by side.

        Args:
            x: what is multiplied.
            name: of the result.
            pieces: the matrices; with one that is not read, the network is refused at the end.
            gates: an activation, by which the first of two matrices gates the other.
        """
        known = [one for one in pieces if one is not None]
        if len(known) < len(pieces):
            return name
        columns, depth = sum(one.tensor.rows for one in known), known[0].tensor.shape[-1]
        bias = self._bias_of(known, name, bool(gates))
        if not known[0].tensor.type.is_coded:
            weights = self._float_rows(known, name)
            made = f"{name}.product" if bias else name
            y = self._node("FusedMatMul", [x, weights], made, _MICROSOFT, transB=1)
            return self._node("Add", [y, bias], name) if bias else y
        codes, scales, *zeros = self._codes(known, name, bool(gates))
        inputs = [x, codes, scales, *(zeros or [""]), "", bias]
        while not inputs[-1]:
            inputs.pop()
        kind = known[0].tensor.type
        how: dict[str, Any] = {"gates": gates} if gates else {}
        return self._node("MatMulNBits", inputs, f"{name}.out", _MICROSOFT, K=depth, N=columns,
                          bits=kind.bits, block_size=kind.block, centred=1, **how)  # fmt: skip

    def _float_rows(self, pieces: Sequence[_Piece], name: str) -> str:
        """Return the initializer of matrices of floats, one below the other."""
        if len(pieces) == 1:
            return self._floats(pieces[0].tensor, name, pieces[0].order)

        def read() -> Array:
            made = np.empty(shape, np.float32)
            start = 0
            for one in pieces:
                made[start : start + one.tensor.rows] = _ordered(one.tensor.floats(), one.order)
                start += one.tensor.rows
            return made

        shape = sum(one.tensor.rows for one in pieces), pieces[0].tensor.shape[-1]
        return self._initializer(f"{name}.weight", np.float32, shape, read)

    def _bias_of(self, pieces: Sequence[_Piece], name: str, gates: bool) -> str:
        """Return the biases of matrices as one, with zeros where one has none; "" without any."""
        if all(one.bias is None for one in pieces):
            return ""

        def read() -> Array:
            found = [
                np.zeros(one.tensor.rows, np.float32) if one.bias is None
                else _ordered(one.bias.floats(), one.order)
                for one in pieces
            ]  # fmt: skip
            return joined(found, gates)

        rows = sum(one.tensor.rows for one in pieces)
        return self._initializer(f"{name}.bias", np.float32, (rows,), read)

    # --- a layer ---------------------------------------------------------------------------------

    def _layer(self, layer: int, x: str, y: str) -> tuple[str, str]:
        """Add a layer to the stream x with its normalised form y; return both after it."""
        plan, name = self._architecture, f"blk.{layer}"
        attended = self._attention(layer, y)
        if self._has(f"{name}.post_attention_norm.weight"):
            attended = self._norm(attended, f"{name}.post_attention_norm")
        attended = self._scaled(attended, plan.residual_scale, f"{name}.attn_scaled")
        last = layer + 1 == plan.layers
        if plan.traits.parallel and not self._has(f"{name}.ffn_norm.weight"):
            y = self._node("Add", [attended, self._gates(name, y)], f"{name}.both_parts")
        elif plan.traits.normed_after:
            x = self._node("Add", [x, attended], f"{name}.attn_sum")
            y = self._norm(self._gates(name, x), f"{name}.post_ffw_norm")
            if not last:
                x = self._node("Add", [x, y], f"{name}.sum")
                return x, x
        else:
            y = self._norm(x, f"{name}.ffn_norm", attended)
            x = f"{name}.ffn_norm.sum"
            y = self._gates(name, y)
            if self._has(f"{name}.post_ffw_norm.weight"):
                y = self._norm(y, f"{name}.post_ffw_norm")
            y = self._scaled(y, plan.residual_scale, f"{name}.ffn_scaled")
        after = "output_norm" if last else f"blk.{layer + 1}.attn_norm"
        return f"{after}.sum", self._norm(x, after, y)

    def _attention(self, layer: int, y: str) -> str:
        from onnx import helper

        plan, name = self._architecture, f"blk.{layer}"
        wide, narrow = plan.heads * plan.depth, plan.kv_heads * plan.depth
        rope = plan.ropes[layer]
        places = {"q": (0, wide), "k": (wide, narrow), "v": (wide + narrow, narrow)}
        pieces = []
        for part, (start, count) in places.items():
            order = None
            if self._pairs and part != "v":
                turned = rope.width if rope else plan.depth
                order = _unpaired(count // plan.depth, plan.depth, turned)
            if self._has(f"{name}.attn_qkv.weight"):
                size = (wide + 2 * narrow, plan.width)
                pieces.append(self._piece(f"{name}.attn_qkv", size, (start, count), order))
            else:
                pieces.append(self._piece(f"{name}.attn_{part}", (count, plan.width), order=order))
        norms, whole = [], plan.traits.normed_after
        if _alike(pieces) and not whole:
            parts = [self._multiplied(y, f"{name}.attn_all", pieces), "", ""]
        else:
            parts = [self._multiplied(y, f"{name}.attn_{part}", [piece])
                     for part, piece in zip(places, pieces, strict=True)]  # fmt: skip
        if whole:
            parts = [self._whole_norm(part, f"{name}.attn_{kind}_norm", size)
                     for part, kind, size in zip(parts, "qk", (wide, narrow), strict=False)
                     ] + parts[2:]  # fmt: skip
        elif self._has(f"{name}.attn_q_norm.weight"):
            norms = [self._gain(f"{name}.attn_{part}_norm", plan.depth) for part in "qk"]
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        outputs = [f"{name}.attn", f"present.{layer}.key", f"present.{layer}.value"]
        tables = self._tables_of(rope) if rope else ["", ""]
        inputs = [*parts, *past, "seqlens_k", "total", *tables]
        sinks = f"{name}.attn_sinks"
        has_sinks = self._has(f"{sinks}.weight")
        inputs.append("position_ids" if rope and self._switches(rope) else "")
        inputs += ["", self._floats(self._tensor(f"{sinks}.weight", (plan.heads,)), sinks)
                   if has_sinks else ""]  # fmt: skip
        inputs += ["", "", *norms]
        while not inputs[-1]:
            inputs.pop()
        node = helper.make_node(
            "GroupQueryAttention", inputs, outputs, f"/{name}.attn", domain=_MICROSOFT,
            num_heads=plan.heads, kv_num_heads=plan.kv_heads, do_rotary=int(bool(rope)),
            scale=plan.scale,
            softcap=plan.score_cap, local_window_size=plan.windows[layer],
            qk_norm_epsilon=plan.epsilon if norms else None,
        )  # fmt: skip
        self._nodes.append(node)
        return self._product(outputs[0], f"{name}.attn_output", (plan.width, wide))

    def _whole_norm(self, x: str, name: str, width: int) -> str:
        """Add the normalisation of all heads together."""
        return self._node("SimplifiedLayerNormalization", [x, self._gain(name, width)], name,
                          axis=-1, epsilon=self._architecture.epsilon, stash_type=1)  # fmt: skip

    def _tables_of(self, rope: Rope) -> list[str]:
        if rope not in self._tables:
            suffix = len(self._tables) or ""
            both = self._switches(rope)
            parts = [rope.tables(self._positions, long) for long in ((False, True) if both else (
                False,))]  # fmt: skip
            tables = [np.concatenate(one) for one in zip(*parts, strict=True)]
            self._tables[rope] = [
                self._constant(f"{part}_cache{suffix}", table, np.float32)
                for part, table in zip(("cos", "sin"), tables, strict=True)
            ]
        return self._tables[rope]

    def _gates(self, name: str, y: str) -> str:
        """Add the feed-forward part of a layer."""
        if not self._architecture.traits.gated:
            return self._ungated(name, y)
        if not self._has(f"{name}.ffn_gate_inp.weight"):
            return self._gated(name, y)
        mixed = self._mixed(name, y)
        if not self._has(f"{name}.ffn_gate_inp_shexp.weight"):
            return mixed
        shared = self._gated(name, y, "_shexp")
        gate = self._shared_gate(f"{name}.ffn_gate_inp_shexp", y)
        weighted = self._node("Mul", [shared, gate], f"{name}.shared")
        return self._node("Add", [mixed, weighted], f"{name}.both")

    def _ungated(self, name: str, y: str) -> str:
        """Add gelu(up(y)), and the product after it."""
        width = self._architecture.width
        inner = self._rows(f"{name}.ffn_up.weight")
        up = self._product(y, f"{name}.ffn_up", (inner, width))
        act = self._node("Gelu", [up], f"{name}.act", approximate="tanh")
        return self._product(act, f"{name}.ffn_down", (width, inner))

    def _shared_gate(self, name: str, y: str) -> str:
        """Add the share of the expert that all tokens go through."""
        tensor = self._tensor(f"{name}.weight")
        row = self._initializer(
            f"{name}.weight", np.float32, (1, self._architecture.width),
            lambda: tensor.floats().reshape(1, -1),
        )  # fmt: skip
        if prod(tensor.shape) != self._architecture.width:
            raise tensor.damaged(f"its shape is {list(tensor.shape)}")
        score = self._node("FusedMatMul", [y, row], f"{name}.score", _MICROSOFT, transB=1)
        return self._node("Sigmoid", [score], name)

    def _mixed(self, name: str, y: str) -> str:
        """Add a mixture of experts: for each token, those with the highest scores."""
        plan = self._architecture
        count = self._tensor(f"{name}.ffn_gate_inp.weight").shape[0]
        scores = self._product(y, f"{name}.ffn_gate_inp", (count, plan.width))
        parts = [self._experts_of(name, part, count) for part in ("gate", "down", "up")]
        if any(not part for part in parts):
            return name  # the network is refused once all unread weights are known
        if not 0 < plan.experts <= count:
            raise parts[0][0].damaged(f"{plan.experts} of {count} experts are chosen")
        rows = parts[0][0].shape[0]
        shapes = ((rows, plan.width), (plan.width, rows), (rows, plan.width))
        for part, shape in zip(parts, shapes, strict=True):
            for one in part:
                if one.shape != shape:
                    raise one.damaged(f"its shape is {list(one.shape)}, not {list(shape)}")
        how: dict[str, Any] = {"k": plan.experts, "activation_type": "silu"}
        if plan.traits.limit:
            how |= {"activation_type": "swiglu", "swiglu_limit": plan.traits.limit,
                    "activation_alpha": 1.702, "activation_beta": 1.0}  # fmt: skip
        biases = [self._expert_biases(f"{name}.ffn_{part}_exps.bias", (count, shape[0]))
                  for part, shape in zip(("gate", "down", "up"), shapes, strict=True)]  # fmt: skip
        if not all(one.type.is_coded for part in parts for one in part):
            tables = [self._float_experts(f"{name}.experts.{n}", part)
                      for n, part in enumerate(parts)]  # fmt: skip
            inputs = [y, scores, *chain(*zip(tables, biases, strict=True))]
            while not inputs[-1]:
                inputs.pop()
            return self._node("MoE", inputs, f"{name}.mixture", _MICROSOFT, **how,
                              normalize_routing_weights=int(plan.normalised))  # fmt: skip
        inputs = [y, scores, *[""] * 13]
        for number, part in enumerate(parts):
            codes, scales, *zeros = self._coded_experts(f"{name}.experts.{number}", part)
            inputs[2 + 3 * number : 5 + 3 * number] = codes, scales, biases[number]
            inputs[11 + number] = zeros[0] if zeros else ""
            how[f"fc{number + 1}_expert_weight_bits"] = part[0].type.bits
        if not plan.normalised:
            inputs[14] = self._node("Softmax", [scores], f"{name}.shares", axis=-1)
        while not inputs[-1]:
            inputs.pop()
        return self._node("QMoE", inputs, f"{name}.mixture", _MICROSOFT, **how,
                          centred=1)  # fmt: skip

    def _expert_biases(self, name: str, shape: tuple[int, int]) -> str:
        if name not in self._weights:
            return ""
        tensor = self._tensor(name, shape)
        return self._initializer(name, np.float32, shape, tensor.floats)

    def _experts_of(self, name: str, part: str, count: int) -> list[StoredTensor]:
        """Return a matrix of each expert, out of one tensor or of several; none if unread."""
        whole = f"{name}.ffn_{part}_exps.weight"
        single = [f"{name}.ffn_{part}.{number}.weight" for number in range(count)]
        names = [whole] if self._has(whole) else single
        unread = [one for one in names if self._has(one) and one in self._others]
        if unread:
            return []
        if names == single:
            found = [self._tensor(one) for one in single]
            if len({one.type.name for one in found}) > 1:
                raise found[0].damaged("experts have weights of several types")
            return found
        tensor = self._tensor(whole)
        if len(tensor.shape) != 3 or tensor.shape[0] != count:
            raise tensor.damaged(f"its shape is {list(tensor.shape)}, of {count} experts")
        flat = replace(tensor, shape=(count * tensor.shape[1], tensor.shape[2]))
        rows = tensor.shape[1]
        return [_part(flat, (number * rows, rows)) for number in range(count)]

    def _float_experts(self, name: str, experts: list[StoredTensor]) -> str:
        def read() -> Array:
            half = all(one.type is F16 for one in experts)
            dtype = np.float16 if half else np.float32
            made = np.empty((len(experts), *experts[0].shape), dtype)
            for number, one in enumerate(experts):
                made[number] = one.floats()
            return made

        return self._initializer(name, np.float32, (len(experts), *experts[0].shape), read)

    def _coded_experts(self, name: str, experts: list[StoredTensor]) -> list[str]:
        """Return the initializers of the matrices of all experts: values, scales, zero points."""
        count, rows = len(experts), experts[0].rows
        found = self._codes([_Piece(one) for one in _adjacent(experts)], name)
        for tensor in self._initializers[-len(found) :]:
            tensor.dims[:] = [count, rows, tensor.dims[-1]]
        return found

    def _gated(self, name: str, y: str, of: str = "") -> str:
        """Add act(gate(y)) · up(y), and the product after it."""
        plan = self._architecture
        up_name, gate_name = f"{name}.ffn_up{of}", f"{name}.ffn_gate{of}"
        fused = f"{name}.ffn_gate_up" if self._has(f"{name}.ffn_gate_up.weight") else up_name
        rows = self._rows(f"{fused}.weight")
        if self._has(f"{gate_name}.weight"):
            inner, size = rows, (rows, plan.width)
            pieces = [self._piece(gate_name, size), self._piece(up_name, size)]
        else:
            inner, size = rows // 2, (rows, plan.width)
            pieces = [self._piece(fused, size, (start, inner)) for start in (0, inner)]
        down = f"{name}.ffn_down{of}", (plan.width, inner)
        coded = all(one is not None and one.tensor.type.is_coded for one in pieces)
        if coded and _alike(pieces) and inner % 2 == 0:
            mixed = self._multiplied(y, f"{name}.mixed{of}", pieces, plan.traits.activation)
            return self._product(mixed, *down)
        gate = self._multiplied(y, f"{name}.gate{of}", pieces[:1])
        up = self._multiplied(y, f"{name}.up{of}", pieces[1:])
        if plan.traits.activation == "silu":
            sigmoid = self._node("Sigmoid", [gate], f"{name}.sigmoid{of}")
            act = self._node("Mul", [gate, sigmoid], f"{name}.act{of}")
        else:
            act = self._node("Gelu", [gate], f"{name}.act{of}", approximate="tanh")
        mixed = self._node("Mul", [act, up], f"{name}.mixed{of}")
        return self._product(mixed, *down)

    def _rows(self, name: str) -> int:
        return 2 if name in self._others else self._tensor(name).shape[0]

    def _logits(self, y: str) -> None:
        plan = self._architecture
        name = "output" if self._has("output.weight") else "token_embd"
        vocabulary = self._tensor("token_embd.weight").shape[0]
        scores = self._product(y, name, (vocabulary, plan.width))
        scores = self._scaled(scores, plan.logit_scale, "logits_scaled")
        if plan.logit_cap:
            cap = self._constant("logit_cap", plan.logit_cap, np.float32)
            small = self._node("Div", [scores, cap], "logits_small")
            self._node("Mul", [self._node("Tanh", [small], "logits_bounded"), cap], "logits")
        else:
            self._nodes[-1].output[0] = "logits"


def _part(tensor: StoredTensor, rows: tuple[int, int] | None) -> StoredTensor:
    """Return some rows of a tensor as one."""
    if rows is None:
        return tensor
    start, count = rows
    width = tensor.row_bytes if len(tensor.shape) > 1 else tensor.type.nbytes
    return replace(tensor, shape=(count, *tensor.shape[1:]), offset=tensor.offset + start * width)


def _alike(pieces: Sequence[_Piece | None]) -> bool:
    """Tell whether matrices may be one: they are of the same type."""
    return len({None if one is None else one.tensor.type.name for one in pieces} - {None}) == 1


def _adjacent(tensors: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
    """Return matrices that lie in a file one after the other as one matrix."""
    first, end = tensors[0], tensors[0].offset
    for one in tensors:
        if (one.path, one.offset) != (first.path, end):
            return tensors
        end += one.nbytes
    return [replace(first, shape=(sum(one.rows for one in tensors), first.shape[-1]))]


def _ordered(array: Array, order: Array | None) -> Array:
    return array if order is None else array[order]


def _unpaired(heads: int, depth: int, turned: int) -> Array:
    """Return the permutation from interleaved pairs to halves of each head's first elements."""
    places = np.arange(heads * depth).reshape(heads, depth)
    pairs = places[:, :turned].reshape(heads, turned // 2, 2)
    halves = pairs.transpose(0, 2, 1).reshape(heads, turned)
    return np.concatenate([halves, places[:, turned:]], axis=1).reshape(-1)
