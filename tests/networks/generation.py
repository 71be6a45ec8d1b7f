"""Networks that write sequences: a merged encoder-decoder, and a scripted beam search."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import onnx

from tests.networks.decoders import decoder
from tests.networks.written import Feeds, Written, network, normal

_HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
_LAYERS, _HEADS, _DEPTH, _TOKENS = 2, 3, 8, 31
_WIDTH = _HEADS * _DEPTH


def _attention(name: str, x: str, keys: str, values: str, mask: str = "") -> str:
    """Return attention of `x` to keys and values that are already split into heads."""
    added = f"{name}_masked = Add ({name}_scaled, {mask})" if mask else ""
    return f"""
        {name}_q = MatMul ({x}, {name}_wq)
        {name}_q4 = Reshape ({name}_q, heads)
        {name}_qt = Transpose <perm = [0, 2, 1, 3]> ({name}_q4)
        {name}_kt = Transpose <perm = [0, 1, 3, 2]> ({keys})
        {name}_scores = MatMul ({name}_qt, {name}_kt)
        {name}_scaled = Div ({name}_scores, root)
        {added}
        {name}_weights = Softmax <axis = -1> ({name}_{"masked" if mask else "scaled"})
        {name}_mixed = MatMul ({name}_weights, {values})
        {name}_mt = Transpose <perm = [0, 2, 1, 3]> ({name}_mixed)
        {name}_joined = Reshape ({name}_mt, joined)
        {name}_out = MatMul ({name}_joined, {name}_wo)
    """


def _cut(source: str, weight: str, result: str) -> str:
    return f"""
        {result}_m = MatMul ({source}, {weight})
        {result}_4 = Reshape ({result}_m, heads)
        {result} = Transpose <perm = [0, 2, 1, 3]> ({result}_4)
    """


def _layer(number: int, x: str, with_past: bool) -> str:
    """Return a layer of the decoder; its caches are joined with new rows, or created from them."""
    own, cross = f"own{number}", f"cross{number}"
    lines = []
    lines.append(f"{own}_n = LayerNormalization <axis = -1> ({x}, {own}_gain)")
    for part in ("key", "value"):
        weight = f"{own}_w{part[0]}"
        made = f"now_{number}_decoder_{part}"
        if with_past:
            lines.append(_cut(f"{own}_n", weight, f"{own}_{part}_new"))
            lines.append(
                f"{made} = Concat <axis = 2> (past_{number}_decoder_{part}, {own}_{part}_new)"
            )
            # Optimum's merged decoders return the encoder's caches as they came.
            lines.append(f"now_{number}_encoder_{part} = Identity (past_{number}_encoder_{part})")
        else:
            lines.append(_cut(f"{own}_n", weight, made))
            lines.append(
                _cut("encoder_hidden_states", f"{cross}_w{part[0]}", f"now_{number}_encoder_{part}")
            )
    mask = "" if with_past else "causal"
    keys = [f"now_{number}_decoder_{part}" for part in ("key", "value")]
    lines.append(_attention(own, f"{own}_n", *keys, mask))
    lines.append(f"{own}_x = Add ({x}, {own}_out)")
    lines.append(f"{cross}_n = LayerNormalization <axis = -1> ({own}_x, {cross}_gain)")
    keys = [
        f"past_{number}_encoder_{part}" if with_past else f"now_{number}_encoder_{part}"
        for part in ("key", "value")
    ]
    lines.append(_attention(cross, f"{cross}_n", *keys, "hidden"))
    lines.append(f"{cross}_x = Add ({own}_x, {cross}_out)")
    lines.append(f"up{number} = MatMul ({cross}_x, {own}_up)")
    lines.append(f"up{number}_r = Relu (up{number})")
    lines.append(f"down{number} = MatMul (up{number}_r, {own}_down)")
    lines.append(f"x{number + 1} = Add ({cross}_x, down{number})")
    return "\n        ".join(lines)


def _branch(name: str, with_past: bool) -> str:
    caches = ", ".join(f"float[b, {_HEADS}, r, {_DEPTH}] now_{c}" for c in _caches())
    causal = "" if with_past else """
        length = Shape <start = 1, end = 2> (decoder_input_ids)
        square = Concat <axis = 0> (length, length)
        dark = ConstantOfShape <value = float[1] {-1e9}> (square)
        causal = Trilu <upper = 1> (dark, one)
    """  # fmt: skip
    layers = "\n".join(_layer(n, f"x{n}", with_past) for n in range(_LAYERS))
    text = f"""{name} () => (float[b, s, {_TOKENS}] now_logits, {caches}) {{
        x0 = Gather (table, decoder_input_ids)
        visible = Cast <to = 1> (encoder_attention_mask)
        veiled = Sub (one_f, visible)
        veiled_2 = Mul (veiled, far)
        hidden = Unsqueeze (veiled_2, a12)
        {causal}
        {layers}
        last = LayerNormalization <axis = -1> (x{_LAYERS}, gain)
        now_logits = MatMul (last, out)
    }}"""
    # Names are unique in the whole model, as checkers want them.
    made = [line.split(" = ")[0].strip() for line in text.splitlines()[1:] if " = " in line]
    return _renamed(text, made, f"{name}_")


def _renamed(text: str, names: Iterable[str], prefix: str) -> str:
    wanted = {*names, "now_logits", *(f"now_{c}" for c in _caches())}
    return re.sub(r"\w+", lambda m: prefix + m[0] if m[0] in wanted else m[0], text)


def _caches() -> list[str]:
    return [
        f"{n}_{side}_{part}"
        for n in range(_LAYERS)
        for side in ("decoder", "encoder")
        for part in ("key", "value")
    ]


def merged() -> onnx.ModelProto:
    """Return a decoder with cross attention: the first step and the later ones in one model."""
    pasts = ", ".join(
        f"float[b, {_HEADS}, {'p' if 'decoder' in c else 'q'}, {_DEPTH}] past_{c}"
        for c in _caches()
    )
    presents = ", ".join(f"present_{c}" for c in _caches())
    typed = ", ".join(f"float[b, {_HEADS}, r, {_DEPTH}] present_{c}" for c in _caches())
    text = f"""{_HEADER}
    merged (int64[b, s] decoder_input_ids, float[b, e, {_WIDTH}] encoder_hidden_states,
            int64[b, e] encoder_attention_mask, {pasts}, bool[1] use_cache_branch) =>
        (float[b, s, {_TOKENS}] logits, {typed})
    {{
        logits, {presents} = If (use_cache_branch) <
            then_branch = {_branch("later", True)},
            else_branch = {_branch("first", False)}
        >
    }}"""
    square = (_WIDTH, _WIDTH)
    weights: dict[str, tuple[int, ...]] = {"table": (_TOKENS, _WIDTH), "out": (_WIDTH, _TOKENS)}
    constants = {
        "heads": np.array([0, 0, _HEADS, _DEPTH]), "joined": np.array([0, 0, _WIDTH]),
        "root": np.float32(_DEPTH**0.5), "one": np.int64(1), "one_f": np.float32(1),
        "far": np.float32(-1e9), "a12": np.array([1, 2]), "gain": np.ones(_WIDTH, np.float32),
    }  # fmt: skip
    for n in range(_LAYERS):
        weights |= {f"{side}{n}_w{part}": square for side in ("own", "cross") for part in "qkvo"}
        weights |= {f"own{n}_up": (_WIDTH, 48), f"own{n}_down": (48, _WIDTH)}
        constants |= {f"{s}{n}_gain": np.ones(_WIDTH, np.float32) for s in ("own", "cross")}
    return network(text, weights, constants)


def beams() -> onnx.ModelProto:
    """Return a beam search over a small recurrent network, as scripting writes it."""
    text = f"""{_HEADER}
    beams (float[1, 16] context, int64 longest) => (int64[4, t] written, float[4] total)
    {{
        hidden_0 = Expand (context, four_rows)
        going_0 = Greater (longest, zero)
        written, total, hidden = Loop (longest, going_0, start, nothing, hidden_0) <
            body = step (int64 i, bool going, int64[4, t] rows, float[4] sums, float[4, 16] h) =>
                (bool on, int64[4, u] rows_n, float[4] sums_n, float[4, 16] h_n)
            {{
                last_2 = Slice (rows, minus_1, far, a1)
                last = Squeeze (last_2, a1)
                x = Gather (table, last)
                gx = MatMul (x, wx)
                gh = MatMul (h, wh)
                g = Add (gx, gh)
                h_c = Tanh (g)
                logits_m = MatMul (h_c, out)
                logits = Add (logits_m, out_b)
                chance = LogSoftmax <axis = -1> (logits)
                sums_2 = Unsqueeze (sums, a1)
                all = Add (chance, sums_2)
                is_first = Equal (i, zero)
                open = If (is_first) <
                    then_branch = one_beam () => (float[4, 23] only) {{
                        only = Where (is_row_0, all, lowest)
                    }},
                    else_branch = all_beams () => (float[4, 23] any) {{
                        ended = Equal (last, stop)
                        ended_2 = Unsqueeze (ended, a1)
                        stay = Add (sums_2, stop_only)
                        any = Where (ended_2, stay, all)
                    }}
                >
                flat = Reshape (open, minus_1)
                sums_n, chosen = TopK (flat, four)
                beam = Div (chosen, vocabulary)
                token = Mod (chosen, vocabulary)
                token_2 = Unsqueeze (token, a1)
                kept = Gather (rows, beam)
                rows_n = Concat <axis = 1> (kept, token_2)
                h_n = Gather (h_c, beam)
                done = Equal (token, stop)
                not_done = Not (done)
                count = Cast <to = 6> (not_done)
                left = ReduceMax <keepdims = 0> (count)
                on = Cast <to = 9> (left)
            }}
        >
    }}"""
    weights = {"table": (23, 16), "wx": (16, 16), "wh": (16, 16), "out": (16, 23)}
    stop_only = np.full((1, 23), -1e9, np.float32)
    stop_only[0, 2] = 0
    bias = np.zeros(23, np.float32)
    bias[2] = 2.5
    constants = {
        "four_rows": np.array([4, 16]), "start": np.ones((4, 1), np.int64),
        "nothing": np.zeros(4, np.float32), "zero": np.int64(0), "a1": np.array([1]),
        "minus_1": np.array([-1]), "far": np.array([2**63 - 1]), "four": np.array([4]),
        "is_row_0": np.arange(4).reshape(4, 1) == 0, "lowest": np.float32(-1e9),
        "stop": np.int64(2), "stop_only": stop_only, "out_b": bias, "vocabulary": np.int64(23),
    }  # fmt: skip
    return network(text, weights, constants)


def _steps(random: np.random.Generator) -> list[Feeds]:
    """Return a first step with empty caches, and later ones with caches of their own."""
    feeds: list[Feeds] = []
    for batch, length, past in ((2, 4, 0), (2, 1, 4), (2, 1, 5), (1, 3, 0), (1, 1, 3)):
        mask = np.ones((batch, 6), np.int64)
        mask[0, 5:] = 0
        caches = {
            f"past_{c}": normal(
                random, batch, _HEADS, (6 if "encoder" in c else past) if past else 0, _DEPTH
            )
            for c in _caches()
        }
        feeds.append(
            {
                "decoder_input_ids": random.integers(0, _TOKENS, (batch, length)),
                "encoder_hidden_states": normal(random, batch, 6, _WIDTH),
                "encoder_attention_mask": mask,
                **caches,
                "use_cache_branch": np.array([past > 0]),
            }
        )
    return feeds


def _prompts(random: np.random.Generator) -> list[Feeds]:
    return [
        {
            "input_ids": random.integers(0, 61, (1, length)),
            "attention_mask": np.ones((1, length + past), np.int64),
            **{
                f"past.{n}.{part}": normal(random, 1, 4, past, 8)
                for n in range(2)
                for part in ("key", "value")
            },
        }
        for length, past in ((5, 0), (1, 5), (1, 6), (3, 7))
    ]


GENERATION = {
    "decoder": Written(
        "decoder with caches that grow by a Concat",
        (lambda: onnx.load_model_from_string(decoder())),
        _prompts,
    ),
    "merged": Written("encoder-decoder: If on `use_cache_branch`", merged, _steps),
    "beams": Written(
        "scripted beam search: a Loop with an If inside",
        beams,
        lambda random: [
            {"context": 2 * normal(random, 1, 16), "longest": np.array(n)} for n in (60, 3, 0, 60)
        ],
    ),
}
