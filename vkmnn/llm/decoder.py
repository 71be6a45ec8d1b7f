"""A decoder with its caches on the device: tokens in, logits out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np

from vkmnn.arguments import check_feeds, checked_number
from vkmnn.base.budget import Budget
from vkmnn.base.packed_rows import PACKINGS, Packing
from vkmnn.decoding.cache_pool import CachePool
from vkmnn.decoding.decode_loop import DecodeLoop
from vkmnn.decoding.decode_step import DecoderIO
from vkmnn.decoding.session_state import SessionState, matched_pairs, open_state
from vkmnn.decoding.step_ring import Waits
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.ir import Array, TensorInfo
from vkmnn.llm.chunks import CHUNKS, chunk_sizes, work_of
from vkmnn.llm.layout import Layout
from vkmnn.llm.networks import decoder_graph, of_one_text
from vkmnn.llm.wanted_rows import ROWS
from vkmnn.opening import OpenSession, open_model
from vkmnn.runtime.device_info import DeviceInfo, DeviceType
from vkmnn.schedule_config import STORAGE, Precision, ScheduleConfig

KvCacheDtype = Literal["f32", "f16", "i8"]
"""How keys and values are stored between runs; "f32" as the network computes them."""

MAX_BATCH = 8
"""Maximum texts per decode step: kernels process as many rows in little more time than one."""
LARGE_BATCH = 64
"""The same where cooperative matrices multiply the rows."""
CACHES_SHARE = 1 / 4
"""Of the device's memory, for the caches of more than `MAX_BATCH` texts."""

DEFAULT_CAPACITY = 4096
SAMPLED_BY_CPUS = 4096
"""Maximum tokens from which a CPU device samples; with more, numpy takes as long."""

_KNOWN = ("input_ids", "attention_mask", "position_ids", "token_type_ids", "cache_position")


class Decoder:
    """The network of a decoder; sequences hold the caches.

    Args:
        layout: the folder.
        config: device and options.
        capacity: maximum tokens of a sequence; None for the model's own maximum, up to 4,096.
        budget: limits of loading.
        kv_cache_dtype: how keys and values are stored between runs.

    Attributes:
        chunks: numbers of tokens that a run of a prompt may have, in ascending order.
        texts: maximum number of texts that share a step.

    Raises:
        ModelFileError: the network is not a decoder with caches of a known layout.
        VkmnnError: as `InferenceSession`.
    """

    def __init__(
        self,
        layout: Layout,
        config: ScheduleConfig,
        capacity: int | None = None,
        budget: Budget | None = None,
        kv_cache_dtype: KvCacheDtype = "f32",
    ) -> None:
        self._packing = packing_of(kv_cache_dtype)
        if capacity is not None:
            capacity = checked_number(capacity, "the capacity, in tokens,", 2)
        self.capacity = capacity or min(layout.context or DEFAULT_CAPACITY, DEFAULT_CAPACITY)
        names = layout.names
        self._ids = next((k for k, v in names.items() if v == "input_ids"), "input_ids")
        self.logits = next((k for k, v in names.items() if v == "logits"), "logits")
        described = layout.described
        model = described.network(self.capacity + CHUNKS[-1]) if described else layout.decoder
        graph = decoder_graph(model, self.logits, budget)
        self._roles = {info.name: _role(info.name, names) for info in graph.inputs}
        outputs = [info.name for info in graph.outputs]
        inputs = {info.name: info for info in graph.inputs}
        if self._ids not in inputs or self.logits not in outputs:
            raise ModelFileError(
                f"'{layout.decoder}' is not a decoder: it has the inputs {', '.join(inputs)} and "
                f"the outputs {', '.join(outputs)}",
                hint="a decoder has input_ids and logits; export it with its caches",
            )
        self._pairs = _pairs_of(layout, list(inputs), outputs)
        fed = {name: info for name, info in inputs.items() if name not in self._pairs}
        unknown = [name for name in fed if self._roles[name] not in (*_KNOWN, ROWS)]
        if unknown:
            raise ModelFileError(
                f"'{layout.decoder}' has an input '{unknown[0]}' that no known layout has",
                hint="use vkmnn.InferenceSession(…).state(…), and feed it yourself",
            )
        self._fed: dict[str, TensorInfo] = fed
        self.picks_rows = ROWS in inputs
        scores = next(info.shape for info in graph.outputs if info.name == self.logits)
        last = scores[-1] if scores else None
        self.vocabulary = last if isinstance(last, int) else None
        graph = of_one_text(graph, self._roles, self._pairs)
        self._network, self.open = self._opened(graph, config, budget)
        try:
            cache_bytes = self._cache_bytes(inputs)
            self.texts = texts_at_once(self.open.device, self.open.precision, cache_bytes)
            self._pool = CachePool(self.open.core.program, self.texts) if self._batches() else None
            self.chunks = self._chunks()
        except BaseException:
            self.close()
            raise
        self.io = DecoderIO(self._ids, self.logits, self._others, self._sampled_from())
        self._check = partial(check_feeds, self._fed, types=self._network.graph.types)

    def _opened(
        self, graph: Any, config: ScheduleConfig, budget: Budget | None
    ) -> tuple[Any, OpenSession]:
        return open_model(graph, config, budget)

    def _batches(self) -> bool:
        """Return whether a batched step is faster than one step per text.

        On CPU devices, arithmetic on quantised weights takes as long as reading them: reading them
        once for several rows gains nothing, and the kernel for one row is the fastest.
        """
        coded = any(op.type == "MatMulNBits" for op in self._network.graph.ops)
        return not (coded and self._is_cpu())

    def _cache_bytes(self, inputs: dict[str, TensorInfo]) -> int:
        """Return the size of a text's caches at full capacity, in float16."""
        sizes = (inputs[name].shape or () for name in self._pairs)
        elements = (prod(size for size in shape if isinstance(size, int)) for shape in sizes)
        return 2 * self.capacity * sum(elements)

    def _chunks(self) -> tuple[int, ...]:
        if not self.picks_rows:  # a chunk computes the logits of all its tokens
            return CHUNKS
        work = work_of(self._network.graph, self.vocabulary)
        return chunk_sizes(self.open.device, self.capacity, work)

    def give_up_chunk(self, size: int) -> bool:
        """Use no chunks as large as one that failed; return whether they can be done without."""
        if size <= CHUNKS[-1]:
            return False
        self.chunks = tuple(each for each in self.chunks if each < size)
        return True

    def _is_cpu(self) -> bool:
        return getattr(self.open.device, "type", None) is DeviceType.CPU

    def new_state(self, waits: Waits, shared: bool = False) -> tuple[SessionState, DecodeLoop]:
        """Return caches for one more sequence, and its steps.

        Args:
            waits: how to wait for its steps.
            shared: whether it is among the `texts` whose steps may be batched.
        """
        core = self.open.core
        state = open_state(core, self._pairs, self.capacity, {}, self._check, waits, self._packing)
        return state, state.decode_loop(self.io, self._pool if shared else None)

    @property
    def caches(self) -> list[str]:
        """The inputs that are caches."""
        return list(self._pairs)

    @property
    def weight_bytes(self) -> int:
        """The size of the weights as stored in the network."""
        return sum(array.nbytes for array in self._network.graph.constants.values())

    def feeds(self, tokens: Sequence[int], past: int, rows: Sequence[int]) -> dict[str, Array]:
        """Return the feeds of a run.

        Args:
            tokens: the new tokens.
            past: number of tokens in the caches.
            rows: new tokens whose logits are requested.
        """
        count = len(tokens)
        made: dict[str, Array] = {}
        for name, info in self._fed.items():
            role, dtype = self._roles[name], info.dtype.numpy
            if role == "input_ids":
                made[name] = np.array([tokens], dtype)
            elif role == "attention_mask":
                made[name] = np.ones((1, past + count), dtype)
            elif role == "position_ids":
                made[name] = np.arange(past, past + count, dtype=dtype)[None]
            elif role == "cache_position":
                made[name] = np.arange(past, past + count, dtype=dtype)
            elif role == "token_type_ids":
                made[name] = np.zeros((1, count), dtype)
            else:
                made[name] = np.array(rows, dtype)
        return made

    @property
    def growing(self) -> dict[str, int]:
        """The inputs other than caches with an axis as long as the text, and that axis."""
        return {name: 1 for name in self._fed if self._roles[name] == "attention_mask"}

    def _sampled_from(self) -> int:
        """Return the number of tokens, if the device samples from them faster than the host."""
        count = self.vocabulary or 0
        return 0 if self._is_cpu() and count > SAMPLED_BY_CPUS else count

    def _others(self, past: int) -> dict[str, Array]:
        """Return the other feeds of a run of one token."""
        made = self.feeds([0], past, [0])
        del made[self._ids]
        return made

    def close(self) -> None:
        """Release the device's memory."""
        self.open.core.close()


def texts_at_once(info: object, stored: Precision, cache_bytes: int) -> int:
    """Return the maximum texts per decode step, a power of two.

    Cooperative matrices multiply float16 numbers. Without them, every eight further texts would
    read the weights once more.

    Args:
        info: the device.
        stored: the precision of the session.
        cache_bytes: size of the caches of a text that is as long as possible.
    """
    if not isinstance(info, DeviceInfo) or info.type is DeviceType.CPU:
        return MAX_BATCH
    if STORAGE[stored][0] != "f16" or not info.cooperative_matrices:
        return MAX_BATCH
    room = int(CACHES_SHARE * info.memory_bytes) // max(cache_bytes, 1)
    return min(LARGE_BATCH, max(MAX_BATCH, (1 << room.bit_length()) >> 1))


def packing_of(kv_cache_dtype: KvCacheDtype) -> Packing:
    """Return how rows of caches are packed; raise InvalidInputError for other values."""
    if kv_cache_dtype == "f32":
        return ""
    if kv_cache_dtype in PACKINGS:
        return kv_cache_dtype
    raise InvalidInputError(
        f"kv_cache_dtype is {kv_cache_dtype!r}", hint=f"it is one of f32, {', '.join(PACKINGS)}"
    )


def _role(name: str, names: Any) -> str:
    return str(names.get(name, name))


def _pairs_of(layout: Layout, inputs: list[str], outputs: list[str]) -> dict[str, str]:
    """Return pairs of caches: those of the layout, and others named past and present."""
    patterns = dict(layout.past)
    for a, b in (("past_key_values.*", "present.*"), ("past.*", "present.*"),
                 ("past_*", "present_*"), ("past_conv.*", "present_conv.*"),
                 ("past_recurrent.*", "present_recurrent.*")):  # fmt: skip
        patterns.setdefault(a, b)
    found: dict[str, str] = {}
    for source, target in patterns.items():
        try:
            made = matched_pairs({source: target}, inputs, outputs)
        except InvalidInputError:  # no cache has this name
            continue
        found |= {name: output for name, output in made.items() if name not in found}
    if not found:
        raise ModelFileError(
            f"'{layout.decoder}' has no caches: its inputs are {', '.join(inputs)}",
            hint="export the model with past key values (Optimum's task text-generation-with-past)",
        )
    return found
