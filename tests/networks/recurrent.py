"""Networks with recurrent layers: text recognition, tagging, and voice activity with a state."""

from __future__ import annotations

import numpy as np
import onnx

from tests.networks.written import Feeds, Written, network, normal

_HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def crnn() -> onnx.ModelProto:
    """Return a text recogniser: convolutions, two bidirectional LSTMs, log-probabilities."""
    text = f"""{_HEADER}
    crnn (float[n, 1, 32, w] picture) => (float[t, n, 37] chances)
    {{
        c0 = Conv <pads = [1, 1, 1, 1]> (picture, k0, b0)
        r0 = Relu (c0)
        p0 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r0)
        c1 = Conv <pads = [1, 1, 1, 1]> (p0, k1, b1)
        r1 = Relu (c1)
        p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 1], pads = [0, 1, 0, 1]> (r1)
        c2 = Conv <pads = [1, 1, 1, 1], strides = [2, 1]> (p1, k2)
        n2 = BatchNormalization (c2, gain, bias, mean, var)
        r2 = Relu (n2)
        c3 = Conv (r2, k3, b3)
        r3 = Relu (c3)
        row = Squeeze (r3, a2)
        steps = Transpose <perm = [2, 0, 1]> (row)
        shape = Shape (steps)
        n = Gather (shape, one)
        n_1 = Unsqueeze (n, a0)
        state = Concat <axis = 0> (two_1, n_1, width)
        zeros = ConstantOfShape <value = float[1] {{0.0}}> (state)
        y0, h0, l0 = LSTM <hidden_size = 20, direction = "bidirectional">
                          (steps, w0, u0, v0, , zeros, zeros)
        y0_t = Transpose <perm = [0, 2, 1, 3]> (y0)
        y0_r = Reshape (y0_t, joined)
        y1, h1, l1 = LSTM <hidden_size = 20, direction = "bidirectional">
                          (y0_r, w1, u1, v1, , zeros, zeros)
        y1_t = Transpose <perm = [0, 2, 1, 3]> (y1)
        y1_r = Reshape (y1_t, joined)
        dense = MatMul (y1_r, out)
        logits = Add (dense, out_b)
        chances = LogSoftmax <axis = 2> (logits)
    }}"""
    weights = {
        "k0": (12, 1, 3, 3), "k1": (16, 12, 3, 3), "k2": (24, 16, 3, 3), "k3": (32, 24, 4, 1),
        "b0": (12,), "b1": (16,), "b3": (32,),
        "w0": (2, 80, 32), "u0": (2, 80, 20), "v0": (2, 160),
        "w1": (2, 80, 40), "u1": (2, 80, 20), "v1": (2, 160),
        "out": (40, 37), "out_b": (37,),
    }  # fmt: skip
    constants = {
        "gain": np.ones(24, np.float32), "bias": np.full(24, 0.1, np.float32),
        "mean": np.zeros(24, np.float32), "var": np.full(24, 0.5, np.float32),
        "a0": np.array([0]), "a2": np.array([2]), "one": np.int64(1), "two_1": np.array([2]),
        "width": np.array([20]), "joined": np.array([0, 0, -1]),
    }  # fmt: skip
    return network(text, weights, constants)


def tagger() -> onnx.ModelProto:
    """Return a tagger of sentences of different lengths: embeddings, a GRU each way, the tags."""
    text = f"""{_HEADER}
    tagger (int64[n, t] words, int32[n] lengths) =>
        (float[n, t, 9] scores, int64[n, t] tags, float[2, n, 16] last)
    {{
        embedded = Gather (table, words)
        steps = Transpose <perm = [1, 0, 2]> (embedded)
        y, last = GRU <hidden_size = 16, direction = "bidirectional", linear_before_reset = 1>
                      (steps, w, u, v, lengths)
        y_t = Transpose <perm = [2, 0, 1, 3]> (y)
        y_r = Reshape (y_t, joined)
        dense = MatMul (y_r, out)
        logits = Add (dense, out_b)
        length_axis = Shape <start = 1> (words)
        t = Squeeze (length_axis, a0)
        places = Range (zero, t, one)
        places_2 = Unsqueeze (places, a0)
        lengths_l = Cast <to = 7> (lengths)
        lengths_2 = Unsqueeze (lengths_l, a1)
        real = Less (places_2, lengths_2)
        real_3 = Unsqueeze (real, a2)
        scores = Where (real_3, logits, nothing)
        tags = ArgMax <axis = 2, keepdims = 0> (scores)
    }}"""
    weights = {
        "table": (50, 12), "w": (2, 48, 12), "u": (2, 48, 16), "v": (2, 96),
        "out": (32, 9), "out_b": (9,),
    }  # fmt: skip
    constants = {
        "joined": np.array([0, 0, -1]), "a0": np.array([0]), "a1": np.array([1]),
        "a2": np.array([2]), "zero": np.int64(0), "one": np.int64(1), "nothing": np.float32(0),
    }  # fmt: skip
    return network(text, weights, constants)


_VOICE_BODY = """
        padded = Pad <mode = "reflect"> (sound, pads)
        channel = Unsqueeze (padded, a1)
        waves = Conv <strides = [{stride}]> (channel, {basis})
        real, imaginary = Split <axis = 1> (waves, halves)
        real_2 = Mul (real, real)
        imaginary_2 = Mul (imaginary, imaginary)
        power = Add (real_2, imaginary_2)
        loud = Sqrt (power)
        c0 = Conv <pads = [1, 1], strides = [1]> (loud, k0, b0)
        r0 = Relu (c0)
        c1 = Conv <pads = [1, 1], strides = [2]> (r0, k1, b1)
        r1 = Relu (c1)
        steps = Transpose <perm = [2, 0, 1]> (r1)
        h = Gather <axis = 0> (state, zero)
        c = Gather <axis = 0> (state, one)
        h_3 = Unsqueeze (h, a0)
        c_3 = Unsqueeze (c, a0)
        y, h_n, c_n = LSTM <hidden_size = 24> (steps, w, u, v, , h_3, c_3)
        y_s = Squeeze (y, a1)
        y_t = Transpose <perm = [1, 2, 0]> (y_s)
        y_r = Relu (y_t)
        dense = Conv (y_r, out, out_b)
        chances = Sigmoid (dense)
        {chance} = ReduceMean <axes = [2], keepdims = 0> (chances)
        {next} = Concat <axis = 0> (h_n, c_n)
"""
_VOICE_WEIGHTS = {
    "basis": (34, 1, 32), "narrow": (34, 1, 16), "k0": (24, 17, 3), "k1": (24, 24, 3),
    "b0": (24,), "b1": (24,), "w": (1, 96, 24), "u": (1, 96, 24), "v": (1, 192),
    "out": (1, 24, 1), "out_b": (1,),
}  # fmt: skip
_VOICE_CONSTANTS = {
    "pads": np.array([0, 8, 0, 8]), "halves": np.array([17, 17]), "a0": np.array([0]),
    "a1": np.array([1]), "zero": np.int64(0), "one": np.int64(1), "wide_rate": np.int64(16000),
}  # fmt: skip


def voice() -> onnx.ModelProto:
    """Return a detector of voices in chunks of sound, whose state is an input and an output."""
    body = _VOICE_BODY.format(stride=16, basis="basis", chance="chance", next="state_n")
    text = f"""{_HEADER}
    voice (float[1, samples] sound, float[2, 1, 24] state) =>
        (float[1, 1] chance, float[2, 1, 24] state_n)
    {{{body}}}"""
    weights = {name: shape for name, shape in _VOICE_WEIGHTS.items() if name != "narrow"}
    constants = {name: it for name, it in _VOICE_CONSTANTS.items() if name != "wide_rate"}
    return network(text, weights, constants)


def voice_rates() -> onnx.ModelProto:
    """Return the same for two sampling rates: the rate, an input, selects a branch."""
    wide = _VOICE_BODY.format(stride=16, basis="basis", chance="chance_w", next="state_w")
    narrow = _VOICE_BODY.format(stride=8, basis="narrow", chance="chance_n", next="state_x")
    text = f"""{_HEADER}
    voice (float[1, samples] sound, float[2, 1, 24] state, int64 rate) =>
        (float[1, 1] chance, float[2, 1, 24] state_n)
    {{
        is_wide = Equal (rate, wide_rate)
        chance, state_n = If (is_wide) <
            then_branch = wide () => (float[1, 1] chance_w, float[2, 1, 24] state_w) {{{wide}}},
            else_branch = narrow () => (float[1, 1] chance_n, float[2, 1, 24] state_x) {{{narrow}}}
        >
    }}"""
    return network(text, _VOICE_WEIGHTS, _VOICE_CONSTANTS)


def _lines(random: np.random.Generator) -> list[Feeds]:
    return [{"picture": normal(random, n, 1, 32, w)} for n, w in ((1, 60), (2, 41), (1, 60))]


def _sentences(random: np.random.Generator) -> list[Feeds]:
    return [
        {
            "words": random.integers(0, 50, (len(lengths), max(lengths))),
            "lengths": np.array(lengths, np.int32),
        }
        for lengths in ((7, 3, 5), (1,), (11, 2), (3, 7, 6))
    ]


def _chunks(random: np.random.Generator) -> list[Feeds]:
    return [
        {"sound": normal(random, 1, samples), "state": normal(random, 2, 1, 24)}
        for samples in (512, 512, 256)
    ]


RECURRENT = {
    "crnn": Written("text recogniser: convolutions and two bidirectional LSTMs", crnn, _lines),
    "tagger": Written("tagger: a GRU each way over sentences of given lengths", tagger, _sentences),
    "voice": Written("voice activity: an LSTM whose state goes in and comes out", voice, _chunks),
    "voice_rates": Written(
        "voice activity with an If on the sampling rate",
        voice_rates,
        lambda random: [
            {**feeds, "rate": np.array(rate)}
            for feeds, rate in zip(_chunks(random), (16000, 8000, 16000), strict=True)
        ],
    ),
}
