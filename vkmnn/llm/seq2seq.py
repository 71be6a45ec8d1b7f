"""Encoders with decoders: T5, Marian, BART, Whisper."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.arguments import check_feeds
from vkmnn.base.closing import Closing
from vkmnn.base.packed_rows import Packing
from vkmnn.decoding.session_state import SessionState, matched_pairs, open_state
from vkmnn.errors import InvalidInputError, ModelFileError, StateLostError
from vkmnn.ir import Array, TensorInfo
from vkmnn.llm.beam_search import BeamOptions, BeamSearch
from vkmnn.llm.decoder import KvCacheDtype, packing_of
from vkmnn.llm.embedding import LENGTHS
from vkmnn.llm.generation import Generated
from vkmnn.llm.layout import Layout
from vkmnn.llm.networks import decoder_graph
from vkmnn.llm.sampling import Guide, Sampler, Sampling
from vkmnn.llm.spectrogram import FRAMES, log_mel
from vkmnn.llm.text import Tokenizer
from vkmnn.llm.wanted_rows import ROWS
from vkmnn.opening import open_model
from vkmnn.schedule_config import ScheduleConfig

if TYPE_CHECKING:
    pass

_log = logging.getLogger(__name__)

_PAIRS = {"past_key_values.*.decoder.key": "present.*.decoder.key",
          "past_key_values.*.decoder.value": "present.*.decoder.value"}  # fmt: skip
_SOURCES = ("input_ids", "input_features", "input_values")


class _Part:
    """A network and its feeds."""

    def __init__(self, model: Any, config: ScheduleConfig) -> None:
        network, self.open = open_model(model, config)
        self.inputs: dict[str, TensorInfo] = {info.name: info for info in network.graph.inputs}
        self.outputs = [info.name for info in network.outputs]
        self._types = network.graph.types

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once, with the feeds that the network has inputs for."""
        given = {}
        for name, info in self.inputs.items():
            if name in feeds:
                given[name] = np.asarray(feeds[name], info.dtype.numpy)
            else:  # a cache that this branch does not use
                shape = [size if isinstance(size, int) else 0 for size in info.shape or ()]
                given[name] = np.zeros([1, *shape[1:]], info.dtype.numpy)
        return dict(self.open.core.run(check_feeds(self.inputs, given, self._types)))

    def state(self, capacity: int, packing: Packing) -> tuple[SessionState, dict[str, str]]:
        """Return caches of the decoder's own keys and values, and their names."""
        pairs = {
            name: output
            for source, target in _PAIRS.items()
            for name, output in matched_pairs({source: target}, self.inputs, self.outputs).items()
        }
        fed = {name: info for name, info in self.inputs.items() if name not in pairs}
        check = partial(check_feeds, fed, types=self._types)
        return open_state(self.open.core, pairs, capacity, {}, check, None, packing), pairs

    def close(self) -> None:
        """Release the device's memory."""
        self.open.core.close()


class Seq2SeqModel(Closing):
    """An encoder, its decoder and their tokenizer; created by `vkmnn.llm.load_seq2seq`.

    Attributes:
        name: name of the folder.
        capacity: maximum number of tokens of a result.
    """

    def __init__(
        self,
        layout: Layout,
        config: ScheduleConfig,
        name: str,
        capacity: int,
        kv_cache_dtype: KvCacheDtype = "f32",
    ) -> None:
        assert layout.encoder is not None
        self._packing = packing_of(kv_cache_dtype)
        self.name, self.layout, self.capacity = name, layout, capacity
        merged = "merged" in layout.decoder.name
        if not merged and (layout.first is None or "past" not in layout.decoder.name):
            raise ModelFileError(
                f"'{layout.folder}' has no decoder with caches",
                hint="export it with decoder_model_merged.onnx, or with decoder_model.onnx and "
                "decoder_with_past_model.onnx",
            )
        first = layout.decoder if merged or layout.first is None else layout.first
        no_cache = {"use_cache_branch": np.array([False])}
        self._encoder = _Part(layout.encoder, config)
        self._first = _Part(decoder_graph(first, "logits", None, no_cache), config)
        self._next = _Part(decoder_graph(layout.decoder, "logits", None), config)
        self.device = self._next.open.device
        self._source = next((n for n in _SOURCES if n in self._encoder.inputs), "")
        if not self._source:
            raise ModelFileError(f"the encoder's inputs are {', '.join(self._encoder.inputs)}")
        self._state, self._pairs = self._next.state(capacity, self._packing)
        self._warm = False
        self._beams: dict[int, SessionState] = {}
        self._tokenizer: Tokenizer | None = None

    @property
    def lost(self) -> bool:
        """Whether the model cannot answer because its device is lost (`InferenceSession.lost`)."""
        return any(part.open.core.lost for part in (self._encoder, self._first, self._next))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder; raises the same errors as `LanguageModel.tokenizer`."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self.layout.folder)
        return self._tokenizer

    def generate(
        self,
        source: Any,
        max_tokens: int | None = None,
        *,
        prompt: Sequence[int] | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        repetition_penalty: float = 1.0,
    ) -> Generated:
        """Generate text from a source text or sound.

        Args:
            source: a string or a list of tokens; for speech models, the result of their feature
                extractor, an array [1, …] or without the first axis; for Whisper, also the sound
                itself, floats [samples], 16,000 per second.
            max_tokens: maximum tokens.
            prompt: the decoder's first tokens; None for those of config.json.
            temperature: as `LanguageModel.generate`, like the others.
            top_k: likewise.
            top_p: likewise.
            seed: likewise.
            repetition_penalty: likewise.

        Raises:
            InvalidInputError: the source or a value does not fit.
        """
        begin = list(prompt) if prompt is not None else self._beginning()
        sampling = Sampling(temperature, top_k, top_p, repetition_penalty, seed)
        return self.guided(source, begin, max_tokens, sampling)

    def guided(
        self,
        source: Any,
        prompt: Sequence[int] | None = None,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        guide: Guide | None = None,
    ) -> Generated:
        """Generate text whose tokens a function may exclude.

        Args:
            source: as for `generate`, like `prompt` and `max_tokens`.
            prompt: the decoder's first tokens.
            max_tokens: maximum tokens.
            sampling: how tokens are selected; None for the likeliest.
            guide: gets the logits, float32 [vocabulary], and the tokens after the prompt so far;
                returns the logits to select by.

        Raises:
            VkmnnError: as `generate`.
        """
        begin = list(prompt) if prompt is not None else self._beginning()
        arguments = (source, max_tokens, begin, sampling or Sampling(temperature=0.0), guide)
        try:
            return self._generated(*arguments)
        except StateLostError as error:  # another device has been opened
            _log.warning("the text is generated again: %s", error.message)
        self._state, self._pairs = self._next.state(self.capacity, self._packing)
        self._warm = False
        return self._generated(*arguments)

    def searched(
        self,
        source: Any,
        prompt: Sequence[int],
        max_tokens: int | None,
        options: BeamOptions,
        guide: Guide | None = None,
    ) -> Generated:
        """Generate the likeliest text that a beam search finds.

        Args:
            source: as for `generate`, like `prompt` and `max_tokens`.
            prompt: the decoder's first tokens.
            max_tokens: maximum tokens.
            options: the beams.
            guide: as for `guided`, with log probabilities, float32 [vocabulary].

        Raises:
            VkmnnError: as `generate`.
        """
        arguments = (source, list(prompt), max_tokens, options, guide)
        try:
            return self._searched(*arguments)
        except StateLostError as error:
            _log.warning("the text is generated again: %s", error.message)
        self._beams.clear()
        return self._searched(*arguments)

    def _searched(
        self,
        source: Any,
        begin: list[int],
        max_tokens: int | None,
        options: BeamOptions,
        guide: Guide | None,
    ) -> Generated:
        most = self._most(begin, max_tokens)
        made, across = self._begun(source, begin)
        search = BeamSearch(options, most, self.layout.eos, guide)
        rows = {name: np.repeat(np.asarray(made[output]), options.beams, 0)
                for name, output in self._pairs.items()}  # fmt: skip
        across = {name: np.repeat(np.asarray(one), options.beams, 0)
                  for name, one in across.items()}  # fmt: skip
        state = self._beams.get(options.beams)
        if state is None:
            state = self._next.state(self.capacity, self._packing)[0]
            for _ in range(2):  # so that the state knows its growing axes
                self._step(across, [0] * options.beams, state)
            self._beams[options.beams] = state
        state.restore(rows)
        result = Generated(prompt_tokens=len(begin))
        logits = np.repeat(np.asarray(made["logits"])[:, -1], options.beams, 0)
        while True:
            parents = search.advance(logits)
            if search.done:
                break
            if not np.array_equal(parents, np.arange(options.beams)):
                state.restore({name: np.array(state.value(name))[parents] for name in rows})
            logits = self._step(across, [one[-1] for one in search.tokens], state)[:, -1]
            result.runs += 1
        tokens = list(search.best())
        ends = bool(tokens) and tokens[-1] in self.layout.eos
        result.tokens = tokens[:-1] if ends else tokens
        result.finish_reason = "stop" if ends else "length"
        if (self.layout.folder / "tokenizer.json").is_file():
            result.text = self.tokenizer.decode(result.tokens)
        return result

    @property
    def hears(self) -> bool:
        """Whether the encoder takes spectrograms."""
        return self._source == "input_features"

    @property
    def seconds(self) -> float:
        """The seconds of sound that a speech encoder takes at a time; 30 for Whisper."""
        return self._bands_and_frames()[1] / FRAMES

    def _generated(
        self,
        source: Any,
        max_tokens: int | None,
        begin: list[int],
        sampling: Sampling,
        guide: Guide | None,
    ) -> Generated:
        sampler = Sampler(sampling)
        most = self._most(begin, max_tokens)
        made, across = self._begun(source, begin)
        self._restore(across, {name: made[output] for name, output in self._pairs.items()})
        result = Generated(prompt_tokens=len(begin))
        logits = made["logits"]
        while True:
            scores = np.asarray(logits)[0, -1]
            if guide is not None:
                scores = guide(scores.astype(np.float32), result.tokens)
            token = sampler.sample(scores, [*begin, *result.tokens])
            if token in self.layout.eos:
                result.finish_reason = "stop"
                break
            result.tokens.append(token)
            if len(result.tokens) >= most:
                result.finish_reason = "length"
                break
            logits = self._step(across, [token], self._state)
            result.runs += 1
        if (self.layout.folder / "tokenizer.json").is_file():
            result.text = self.tokenizer.decode(result.tokens)
        return result

    def _most(self, begin: Sequence[int], max_tokens: int | None) -> int:
        """Return how many tokens may follow a prompt."""
        most = self.capacity - len(begin)
        most = most if max_tokens is None else min(most, max_tokens)
        if most < 1:
            raise InvalidInputError("there is no room for a token", hint="ask for at least 1")
        return most

    def _begun(self, source: Any, begin: list[int]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the decoder's first outputs, and the inputs that are the same in every step."""
        across = self._encoded(source)
        made = self._first.run({**across, "input_ids": [begin], ROWS: [len(begin) - 1]})
        across |= {name: made[f"present.{name.removeprefix('past_key_values.')}"]
                   for name in self._next.inputs if ".encoder." in name}  # fmt: skip
        return made, across

    def _beginning(self) -> list[int]:
        for config in (self.layout.search, self.layout.config):
            if start := config.tokens("decoder_start_token_id"):
                return [min(start)]
        raise InvalidInputError("config.json names no decoder_start_token_id", hint="pass `prompt`")

    def _encoded(self, source: Any) -> dict[str, Any]:
        """Return the encoder's output, and its mask."""
        if self._source != "input_ids":
            features = np.asarray(source)
            if self._source == "input_features" and features.ndim == 1:
                features = self._heard(features)
            features = np.asarray(features, np.float32)
            if features.ndim == len(self._encoder.inputs[self._source].shape or ()) - 1:
                features = features[None]
            return {"encoder_hidden_states": self._hidden({self._source: features})}
        tokens = self.tokenizer.encode(source) if isinstance(source, str) else list(source)
        if not tokens:
            raise InvalidInputError("the source is empty")
        size = next((n for n in LENGTHS if n >= len(tokens)), len(tokens))
        mask = (np.arange(size) < len(tokens)).astype(np.int64)[None]
        ids = np.array([[*tokens, *[0] * (size - len(tokens))]])
        hidden = self._hidden({"input_ids": ids, "attention_mask": mask})
        return {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}

    def _heard(self, samples: Array) -> Array:
        """Return the spectrogram of a sound, in the encoder's size."""
        bands, frames = self._bands_and_frames()
        return log_mel(samples, bands, frames / FRAMES)

    def _bands_and_frames(self) -> tuple[int, int]:
        """Return the size of the encoder's spectrograms."""
        shape = self._encoder.inputs[self._source].shape or ()
        bands, frames = (size if isinstance(size, int) else usual
                         for size, usual in zip(shape[1:3], (80, 3000), strict=True))  # fmt: skip
        return bands, frames

    def _hidden(self, feeds: Mapping[str, Any]) -> Array:
        made = self._encoder.run(feeds)
        hidden: Array = made.get("last_hidden_state", next(iter(made.values())))
        return hidden

    def _restore(self, across: Mapping[str, Any], rows: Mapping[str, Array]) -> None:
        if not self._warm:
            self._state.reset()  # an earlier attempt may have failed halfway
            for _ in range(2):  # so that the state knows its growing axes
                self._step(across, [0], self._state)
            self._warm = True
        self._state.restore(rows)

    def _step(self, across: Mapping[str, Any], tokens: Sequence[int], state: SessionState) -> Array:
        given = {**across, "input_ids": [[token] for token in tokens], ROWS: [0]}
        feeds = {
            name: np.asarray(given[name], info.dtype.numpy)
            for name, info in self._next.inputs.items()
            if name not in self._pairs
        }
        return state.run(["logits"], feeds)[0]

    def close(self) -> None:
        """Release the device's memory."""
        for part in (self._encoder, self._first, self._next):
            part.close()
