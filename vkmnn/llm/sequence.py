"""A text in the caches of a decoder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from vkmnn.decoding.sampling import StepSampler
from vkmnn.decoding.step_ring import Waits
from vkmnn.errors import (
    BudgetError,
    InvalidInputError,
    ModelFileError,
    OutOfDeviceMemoryError,
    StateLostError,
    VkmnnError,
)
from vkmnn.ir import Array
from vkmnn.llm.chunks import CHUNKS, CROWDED_CHUNK, next_chunk
from vkmnn.llm.decoder import Decoder
from vkmnn.llm.session_file import read_session, write_session

_log = logging.getLogger(__name__)

T = TypeVar("T")

DRAFTS = 8
"""Rows of a run that checks guesses: the last token, and the guessed next ones."""


class Sequence:
    """Tokens whose keys and values are in caches on the device.

    A failure leaves `tokens` as they were, or with some of those to be appended. The next call
    first repairs the caches; if the device was lost and reopened, it runs all tokens again.

    Args:
        decoder: the network.
        shared: whether its steps may be batched with those of others.

    Attributes:
        tokens: the tokens in the caches.
        waits: CPU seconds spent waiting for the device, in all steps.
    """

    def __init__(self, decoder: Decoder, shared: bool = False) -> None:
        self._decoder = decoder
        self._shared = shared
        self.waits = Waits()
        self._state, self._loop = decoder.new_state(self.waits, shared)
        self._call = decoder.open.core.call
        self._cuts: bool | None = None
        self._begun = False  # steps may be batched with those of others
        self._sure: int | None = None  # after an error, how many tokens the caches surely hold
        self.tokens: list[int] = []

    @property
    def room(self) -> int:
        """Number of tokens that still fit."""
        return self._decoder.capacity - len(self.tokens)

    @property
    def cache_bytes(self) -> int:
        """The size of the caches' memory; 0 before the first token."""
        if self._cuts is None or self._state.lost:
            return 0
        return sum(self._state.memory(name).nbytes for name in self._decoder.caches)

    def warm_up(self) -> None:
        """Make room for the caches, whose axes are known from then on."""
        self._with_caches(lambda: None)

    def _warm_up(self) -> None:
        if self._cuts is not None:
            return
        self._state.reset()  # an earlier attempt may have failed halfway
        if self._state.prepare(self._decoder.feeds([0], 0, [0]), self._decoder.growing):
            self._cuts = True
            return
        for past in range(2):
            self._run([0], past, [0])
        cuts = True
        try:
            self._state.truncate(1)
            self._call(self._loop.step, 0, 0, None)
        except InvalidInputError:  # part of the state does not grow: it cannot go back
            cuts = False
        self._state.reset()
        self._cuts = cuts

    def begin(self) -> None:
        """Allow batched steps with other texts."""
        self._begun = True
        self._with_caches(lambda: self._call(self._loop.set_batchable, True))

    def end(self) -> None:
        """Leave batched steps; the tokens stay."""
        self._begun = False
        try:
            self._call(self._loop.set_batchable, False)
        except VkmnnError as error:  # the text is complete, and the next call repairs the caches
            self._doubt()
            _log.info("discarded decode steps have failed: %s", error)

    # --- after errors ----------------------------------------------------------------------------

    def _with_caches(self, work: Callable[[], T]) -> T:
        """Run a function on the caches, which are repaired first after a failure.

        If the device is lost meanwhile and another opened, the function is called once more.
        """
        try:
            self._mend()
            return work()
        except StateLostError as error:
            self._doubt()
            _log.warning("%d tokens are run again: %s", len(self.tokens), error.message)
        except BaseException:
            self._doubt()
            raise
        self._mend()
        return work()

    def _doubt(self) -> None:
        """Mark the caches to be repaired before their next use."""
        if self._sure is None:
            self._sure = len(self.tokens)

    def _mend(self) -> None:
        """Bring the caches to the content of `tokens`."""
        if self._sure is None and self._cuts is not None and not self._state.lost:
            return
        self._doubt()
        if self._state.lost:
            self._state, self._loop = self._decoder.new_state(self.waits, self._shared)
            self._cuts = None
        if self._cuts is None:
            self._sure = 0
            self._warm_up()
        if self._begun:
            self._call(self._loop.set_batchable, True)
        kept = min(self._state.length, self._sure or 0) if self._cuts else 0
        if kept:
            self._state.truncate(kept)
        else:
            self._state.reset()
        tokens, self.tokens = self.tokens, self.tokens[:kept]
        try:
            while len(self.tokens) < len(tokens):
                left = tokens[len(self.tokens) :]
                size = self._chunk(len(left))
                self._chunk_logits(left[:size], 1, size)
        finally:
            self.tokens, self._sure = tokens, len(self.tokens)
        self._sure = None

    def restart(self, tokens: Items[int]) -> None:
        """Start the next call with these tokens, even if the last one failed."""
        self._doubt()
        self._sure = min(self.shared(tokens), self._sure or 0)
        self.tokens = list(tokens)

    def shared(self, tokens: Items[int]) -> int:
        """Return how many of the first tokens are already in the caches."""
        count = 0
        for one, other in zip(self.tokens, tokens, strict=False):
            if one != other:
                break
            count += 1
        return count

    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on, or all if part of the state cannot go back.

        Raises:
            InvalidInputError: there are fewer.
        """
        if not 0 <= length <= len(self.tokens):
            raise InvalidInputError(f"there are {len(self.tokens)} tokens, and not {length}")
        if length == len(self.tokens):
            return
        if length and self._cuts is not False:
            self._with_caches(lambda: self._state.truncate(length))
            del self.tokens[length:]
            return
        self.restart([])
        self._mend()

    def extend(self, tokens: Items[int], wanted: int = 1) -> Array:
        """Append tokens; return the logits of the last `wanted` ones, [wanted, vocabulary].

        Args:
            tokens: the next tokens, at least one.
            wanted: number of rows of logits; more than one requires at most `DRAFTS` tokens.

        Raises:
            InvalidInputError: there are no tokens, or more than fit.
        """
        self._check_room(tokens)
        for rows in self._chunks(tokens, wanted, lambda: CHUNKS[-1]):
            made = rows
        return made

    def _check_room(self, tokens: Items[int]) -> None:
        if not tokens:
            raise InvalidInputError("there are no tokens to run", hint="a prompt has at least one")
        if len(tokens) > self.room:
            raise InvalidInputError(
                f"{len(tokens)} tokens do not fit: {len(self.tokens)} of "
                f"{self._decoder.capacity} are taken",
                hint="load the model with a larger capacity, or shorten the prompt",
            )

    def chunks(self, tokens: Items[int], crowded: Callable[[], bool]) -> Iterator[Array]:
        """Append tokens, as `extend`; yield the logits of the last one of each chunk.

        Args:
            tokens: the next tokens, at least one.
            crowded: returns whether others wait for their turn: chunks are smaller then. Only a
                text that is alone runs in large ones.

        Raises:
            InvalidInputError: as `extend`.
        """
        self._check_room(tokens)
        decoder = self._decoder
        return self._chunks(tokens, 1, lambda: CROWDED_CHUNK if crowded() else decoder.chunks[-1])

    def _chunks(self, tokens: Items[int], wanted: int, most: Callable[[], int]) -> Iterator[Array]:
        self.warm_up()
        done = 0
        while done < len(tokens):
            left = len(tokens) - done
            size = DRAFTS if 1 < wanted <= left <= DRAFTS else self._chunk(left, most())
            if size > self.room:
                size = left if wanted > 1 else 1
            part = list(tokens[done : done + size])
            try:
                run = partial(self._chunk_logits, part, min(wanted, len(part)), size)
                rows = self._with_caches(run)
            except (BudgetError, OutOfDeviceMemoryError) as error:
                if not self._decoder.give_up_chunk(size):
                    raise
                _log.warning("chunks of %d tokens and more are too large: %s", size, error.message)
                continue
            yield rows
            done += len(part)

    @property
    def samples_on_device(self) -> bool:
        """Whether the device can sample tokens."""
        return bool(self._decoder.io.vocabulary)

    def step(self, token: int, ahead: int, sampler: StepSampler = None) -> int | None:
        """Append a token; return the next one.

        Args:
            token: the next token of the text.
            ahead: number of tokens likely to be needed after it.
            sampler: how the next one is chosen; None chooses the likeliest. It must be the same
                object for a whole text. The host samples only in steps that are batched with those
                of other texts.

        Returns:
            None if the network cannot run in steps; nothing has been appended then.
        """
        tokens = self.tokens
        if not tokens or len(tokens) >= self._decoder.capacity or not self._cuts:
            return None
        try:
            if self._sure is not None:
                self._mend()
            chosen = self._call(self._loop.step, token, ahead, sampler)
            if chosen is not None:
                tokens.append(token)
            return chosen
        except StateLostError:
            self.warm_up()  # of other caches
        except BaseException:
            self._doubt()
            raise
        chosen = self._call(self._loop.step, token, ahead, sampler)
        if chosen is not None:
            tokens.append(token)
        return chosen

    def prefetch(self, token: int, ahead: int, sampler: StepSampler) -> None:
        """Announce the next call of `step`, so that batched steps of other texts can include it."""
        if self._cuts and self._sure is None:
            self._call(self._loop.prefetch, token, ahead, sampler)

    def append(self, tokens: Items[int]) -> None:
        """Append tokens without computing logits.

        Raises:
            InvalidInputError: as `extend`.
        """
        if len(tokens) > 1 or self.step(tokens[0], 0) is None:
            self.extend(tokens)

    def _chunk(self, left: int, most: int = CHUNKS[-1]) -> int:
        fits = [size for size in self._decoder.chunks if size <= min(self.room, most)]
        if not self._cuts:
            return max(size for size in fits if size <= left)
        return next_chunk(left, fits)

    def _chunk_logits(self, part: list[int], wanted: int, size: int) -> Array:
        """Run tokens padded to `size`; the rows of the padding are discarded."""
        past, count = len(self.tokens), len(part)
        rows = list(range(count - wanted, count))
        padded = [*part, *[part[-1]] * (size - count)] if self._cuts else part
        if wanted > 1:
            rows = [*rows, *[count - 1] * (DRAFTS - wanted)]
        logits = self._run(padded, past, rows)
        if len(padded) > count:
            self._state.truncate(past + count)
        self.tokens += part
        return logits[:wanted]

    def _run(self, tokens: list[int], past: int, rows: list[int]) -> Array:
        decoder = self._decoder
        results = self._state.run([decoder.logits], decoder.feeds(tokens, past, rows))
        logits: Array = results[0][0]
        return logits if decoder.picks_rows else np.asarray(logits[rows])

    # --- files -----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the tokens and their caches to a file (.npz), whole or not at all.

        Raises:
            InvalidInputError: the caches are empty, part of the state does not grow, or the
                file cannot be written.
        """
        if not self.tokens or self._cuts is False:
            raise InvalidInputError(
                "there is nothing to save"
                if not self.tokens
                else "part of the model's state does not grow, so it cannot be saved",
            )
        write_session(path, self.tokens, self._with_caches(self._rows))

    def _rows(self) -> dict[str, Array]:
        return {name: self._state.value(name).numpy() for name in self._decoder.caches}

    # --- rows ------------------------------------------------------------------------------------

    @property
    def axes(self) -> Mapping[str, int]:
        """The axis of each cache that has a row for each token; empty if rows cannot be copied."""
        return self._state.axes if self._cuts else {}

    def rows(self) -> dict[str, Array]:
        """Return the rows of all caches."""
        return self._with_caches(self._rows)

    def restore(self, tokens: Items[int], caches: dict[str, Array]) -> None:
        """Replace the tokens, and the rows by those of `rows`."""

        def restore() -> None:
            self._sure = 0  # unless all of it succeeds
            self._state.restore(caches)
            self.tokens, self._sure = list(tokens), None

        self._with_caches(restore)

    def load(self, path: str | Path) -> None:
        """Replace the tokens by those of a file from `save`.

        Raises:
            ModelFileError: the file is damaged, or of another kind.
            InvalidInputError: it was written with another model, or does not fit the capacity.
        """
        tokens, caches = read_session(path, self._decoder.vocabulary)
        self._with_caches(partial(self._restore, path, tokens, caches))

    def _restore(self, path: str | Path, tokens: list[int], caches: dict[str, Array]) -> None:
        self._sure = 0  # unless all of it succeeds
        self._state.restore(caches)
        if self._state.length != len(tokens):
            raise ModelFileError(
                f"'{path}' is not a saved session: it has {len(tokens)} tokens, and caches of "
                f"{self._state.length}"
            )
        self.tokens, self._sure = tokens, None

    def close(self) -> None:
        """Release the caches."""
        self._state.close()
