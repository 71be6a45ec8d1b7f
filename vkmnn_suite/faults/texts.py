"""The lives of a decoder: its state, and the sequences of a language model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vkmnn import llm
from vkmnn.decoding.session_state import SessionState
from vkmnn.errors import VkmnnError
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array
from vkmnn.llm.decoder import MAX_BATCH
from vkmnn_suite.faults.library import Fault
from vkmnn_suite.faults.sessions import is_gone
from vkmnn_suite.faults.trial import Trials

PROMPTS = [[5 + number, 9, 20, number] for number in range(MAX_BATCH)]
"""A batch that uses all slots for sequences."""
_TOKENS, _CAPACITY = 3, 32


class Texts(Trials):
    """Generates sequences: a batch, a sampled one, and a session that is saved and loaded.

    With `tune`, the batch uses all slots.
    """

    lost: Literal["raise", "rebuild"] = "raise"

    def _prepare(self) -> None:
        self._prompts = PROMPTS if self._tune else PROMPTS[:2]
        self._folder = tempfile.TemporaryDirectory(prefix="vkmnn-faults-")
        self._kept = Path(self._folder.name) / "text.npz"
        with self._load() as model:
            self._expected = list(self._texts(model))

    def _load(self) -> llm.LanguageModel:
        return llm.load(self._model, capacity=_CAPACITY, on_device_lost=self.lost)

    def _texts(self, model: llm.LanguageModel) -> Iterator[Any]:
        """Yield the tokens of each part of the life."""
        yield [made.tokens for made in model.generate(self._prompts, _TOKENS)]
        yield model.generate([1, 2, 3], _TOKENS, temperature=1.0, seed=3).tokens
        text = model.session()
        made = text.generate([4, 5, 6], _TOKENS).tokens
        text.save(self._kept)
        yield made, text.generate([8], _TOKENS).tokens
        text.close()
        again = model.session(self._kept)
        yield again.tokens, again.generate([8], _TOKENS).tokens
        again.close()

    def _life(self, opened: list[Any], found: list[str], fault: Fault | None) -> None:
        model = self._load()
        opened.append(model)
        self._compare(model, found)
        model.close()
        opened.clear()
        self._end()

    def _compare(self, model: llm.LanguageModel, found: list[str]) -> None:
        for number, (got, want) in enumerate(zip(self._texts(model), self._expected, strict=True)):
            if got != want:
                found.append(f"wrong tokens in part {number}: {got}, not {want}")

    def _check_usable(self, opened: Any, found: list[str]) -> None:
        """Generate the sequences again, with the same maximum number at a time."""
        core = opened._decoder.open.core
        gone = is_gone(core)
        if gone and not core.closed and not opened.lost:
            found.append("the model does not say that its device is lost")
        try:
            self._compare(opened, found)
            if gone:
                found.append("a lost device computes")
        except VkmnnError as error:
            if not gone:
                found.append(f"the model is unusable: {type(error).__name__}: {error}")
        if opened._made != len(opened._free):
            found.append(f"{opened._made - len(opened._free)} places for texts are missing")

    def _check_anew(self, found: list[str]) -> None:
        with self._load() as model:
            self._compare(model, found)


class RebuiltTexts(Texts):
    """Requests a new device if one is lost."""

    lost = "rebuild"


@dataclass(slots=True)
class Opened:
    """A session and its state, once created."""

    session: InferenceSession
    state: SessionState | None = None

    def close(self) -> None:
        """Close both."""
        if self.state is not None:
            self.state.close()
        self.session.close()


class States(Trials):
    """Runs a decoder with its caches as state: steps, rows forgotten, restored, started over."""

    def _prepare(self) -> None:
        self._bytes = self._model.read_bytes()
        with InferenceSession(self._bytes) as session:
            self._state_inputs = [i.name for i in session.get_inputs() if i.name.startswith("past")]
            self._infos = {i.name: i for i in session.get_inputs()}
            self._expected = list(self._steps(self._new_state(session)))

    def _new_state(self, session: InferenceSession) -> SessionState:
        past = self._state_inputs[0].partition(".")[0]
        return session.state({f"{past}.*": "present.*"}, capacity=_CAPACITY)

    def _steps(self, state: SessionState) -> Iterator[Array]:
        """Yield the result of each step."""
        state.reset()
        for tokens in ([3, 1, 4], [5], [9]):
            yield self._step(state, tokens)
        state.truncate(3)
        yield self._step(state, [2])
        rows = {name: np.array(state.value(name)) for name in self._state_inputs}
        yield self._step(state, [6])
        state.restore(rows)
        yield self._step(state, [6])

    def _step(self, state: SessionState, tokens: list[int]) -> Array:
        total = state.length + len(tokens)
        values: dict[str, Any] = {
            "input_ids": [tokens],
            "attention_mask": [[1] * total],
            "position_ids": [list(range(state.length, total))],
        }
        feeds = {
            name: np.array(values[name], info.dtype)
            for name, info in self._infos.items()
            if name in values
        }
        return state.run(None, feeds)[0]

    def _life(self, opened: list[Any], found: list[str], fault: Fault | None) -> None:
        session = InferenceSession(self._bytes)
        pair = Opened(session)
        opened.append(pair)
        state = pair.state = self._new_state(session)
        self._compare(state, found)
        pair.state = None  # closing it begins
        state.close()
        session.close()
        opened.clear()
        self._end()

    def _compare(self, state: SessionState, found: list[str]) -> None:
        for number, (got, want) in enumerate(zip(self._steps(state), self._expected, strict=True)):
            if not np.allclose(got, want, rtol=1e-4, atol=1e-5):
                found.append(f"wrong data in step {number}")

    def _check_usable(self, opened: Any, found: list[str]) -> None:
        """Go on with the state, and with another one of the session."""
        gone = is_gone(opened.session._session.core)
        for state in (opened.state, None):
            try:
                self._compare(state or self._new_state(opened.session), found)
                if gone:
                    found.append("a lost device computes")
            except VkmnnError as error:
                if not gone:
                    found.append(f"unusable: {type(error).__name__}: {error}")

    def _check_anew(self, found: list[str]) -> None:
        with InferenceSession(self._bytes) as session:
            self._compare(self._new_state(session), found)
