"""Quantisation in training, random numbers, and what is refused by its kind."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vkmnn.converter.nodes import FLOAT
from vkmnn.converter.nodes.composed import rounded_to_steps
from vkmnn.converter.tensorflow.nodes import TfNode, reads


@reads("FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel")
def fake_quant(op: TfNode) -> None:
    """Rounding to the steps between two limits, which are moved so that zero is a step."""
    op.need(1)
    bits, narrow = op.integer("num_bits", 8), op.flag("narrow_range")
    if op.type.endswith("Args"):
        ends = [[op.real("min", -6.0)], [op.real("max", 6.0)]]
    else:
        op.need(3)
        values = [op.value(number) for number in (1, 2)]
        if values[0] is None or values[1] is None or values[0].size != values[1].size:
            raise op.unreadable("limits computed at run time")
        ends = [[float(one) for one in array.reshape(-1)] for array in values if array is not None]
    if len(ends[0]) == 1:
        made = rounded_to_steps(op, op.inputs[0], ends[0][0], ends[1][0], bits, narrow)
        op.finish("Identity", made)
        return
    _by_channel(op, np.array(ends[0], np.float32), np.array(ends[1], np.float32), bits, narrow)


def _by_channel(op: TfNode, low: np.ndarray, high: np.ndarray, bits: int, narrow: bool) -> None:
    first, last = int(narrow), (1 << bits) - 1
    if not 2 <= bits <= 16 or not np.all(low < high):
        raise op.damaged(f"it rounds to {bits} bits between limits in the wrong order")
    scale = (high - low) / np.float32(last - first)
    zero = np.floor(np.clip(first - low / scale, first, last) + np.float32(0.5))
    low, high = (first - zero) * scale, (last - zero) * scale
    floor, top, step = (op.constant(one, np.float32) for one in (low, high, scale))
    x = op.make("Min", op.make("Max", op.inputs[0], floor), top)
    steps = op.make("Div", op.make("Sub", x, floor), step)
    whole = op.make("Floor", op.make("Add", steps, op.constant(0.5, np.float32)))
    op.finish("Add", op.make("Mul", whole, step), floor)


@reads("RandomUniform", "RandomStandardNormal")
def random(op: TfNode) -> None:
    """Random numbers; other ones than TensorFlow's."""
    op.need(1)
    kind = "RandomUniform" if op.type == "RandomUniform" else "RandomNormal"
    dtype = op.dtype("dtype") if "dtype" in op.attrs else FLOAT
    base = op.make("Expand", op.constant(0, np.float32), op.vector(0))
    made = op.make(f"{kind}Like", base, dtype=FLOAT)
    op.finish_as(dtype, made)


@reads("Multinomial")
def draws(op: TfNode) -> None:
    """Random classes by their logarithmic odds; others than TensorFlow's."""
    op.need(2)
    (count,) = op.settled(1, "a number of draws")[:1] or [1]
    if not 0 < count < 1 << 20:
        raise op.damaged(f"it draws {count} times")
    dtype = op.dtype("output_dtype") if "output_dtype" in op.attrs else 7
    made = op.make("Multinomial", op.inputs[0], sample_size=count, dtype=6)
    op.finish_as(dtype, made)


_TEXTS = "texts: vkmnn runs networks on numbers; cut the model off behind them"
_TABLES = "a table, which is looked up by keys; give the network what it finds"
_FILES = "files and examples in their serialised form; give the network tensors"
_GENERATOR = "random numbers that follow from a seed, by a generator that ONNX does not have"
NEVER: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("AsString", "StringJoin", "StringSplit", "StringSplitV2", "StringLower"),
            *("StringUpper", "StringStrip", "StringLength", "Substr", "RegexReplace"),
            *("RegexFullMatch", "StaticRegexReplace", "StaticRegexFullMatch", "StringFormat"),
            *("StringToHashBucketFast", "StringToHashBucket", "StringToHashBucketStrong"),
            *("StringToNumber", "StringNGrams", "UnicodeDecodeWithOffsets", "UnicodeEncode"),
            *("UnicodeTranscode", "UnicodeScript", "EncodeBase64", "DecodeBase64", "ReduceJoin"),
        ),
        _TEXTS,
    ),
    **dict.fromkeys(
        (
            *("HashTable", "HashTableV2", "MutableHashTable", "MutableHashTableV2"),
            *("LookupTableFind", "LookupTableFindV2", "LookupTableImportV2"),
            *("InitializeTableFromTextFileV2", "LookupTableSizeV2", "MutableDenseHashTableV2"),
            "AnonymousHashTable",
        ),
        _TABLES,
    ),
    **dict.fromkeys(
        (
            *("ParseExample", "ParseExampleV2", "ParseSingleExample", "DecodeRaw", "DecodeCSV"),
            *("DecodeJpeg", "DecodePng", "DecodeImage", "DecodeBmp", "DecodeGif", "DecodeWav"),
            *("DecodeAndCropJpeg", "ReadFile", "WriteFile", "EncodeJpeg", "EncodePng"),
            *("RestoreV2", "SaveV2", "MergeV2Checkpoints", "IteratorGetNext", "ParseTensor"),
        ),
        _FILES,
    ),
    **dict.fromkeys(
        (
            *("StatelessRandomUniform", "StatelessRandomUniformV2", "StatelessRandomNormal"),
            *("StatelessRandomNormalV2", "StatelessRandomGetKeyCounter", "StatelessMultinomial"),
            *("StatelessTruncatedNormalV2", "RngReadAndSkip", "StatefulUniform"),
            *("StatefulStandardNormalV2", "TruncatedNormal", "RandomUniformInt", "RandomShuffle"),
            *("StatelessRandomUniformFullIntV2", "StatelessRandomUniformIntV2", "RandomGammaV3"),
        ),
        _GENERATOR,
    ),
}
"""Operators that are never read, and why."""


@reads(*NEVER)
def refused(op: TfNode) -> None:
    """Nothing that a network on numbers can have."""
    raise op.unreadable(NEVER[op.type])
