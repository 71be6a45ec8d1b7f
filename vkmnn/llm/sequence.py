"""One text in the caches of a decoder."""

from __future__ import annotations

import json
from collections.abc import Sequence as Items
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.core.cache_pool import Pick
from vkmnn.core.chained import Drawing
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.ir import Array
from vkmnn.llm.decoder import CHUNKS, Decoder

DRAFTS = 8
"""Rows of a run that checks guesses: the last token, and those guessed to follow."""


class Sequence:
    """Tokens whose keys and values are in caches on the device.

    Args:
        decoder: the network.
        shared: whether it may take steps at once with others.

    Attributes:
        tokens: those that the caches hold.
        waits: CPU seconds that waiting for the device has taken, in all steps.
    """

    def __init__(self, decoder: Decoder, shared: bool = False) -> None:
        self._decoder = decoder
        self._state = decoder.new_state(shared)
        self._cuts: bool | None = None
        self.waits = self._state.waits
        self.tokens: list[int] = []

    @property
    def room(self) -> int:
        """How many more tokens there is room for."""
        return self._decoder.capacity - len(self.tokens)

    @property
    def cache_bytes(self) -> int:
        """The size of the caches' memory; 0 before the first token."""
        if self._cuts is None:
            return 0
        return sum(self._state.memory(name).nbytes for name in self._decoder.caches)

    def warm_up(self) -> None:
        """Run some tokens, so that the state knows what grows, and steps are recorded.

        Nothing is left of them.
        """
        if self._cuts is not None:
            return
        for past in range(2):
            self._run([0], past, [0])
        try:
            self._state.truncate(1)
            self._cuts = True
            self._state.follow(0, self._decoder.following)
        except InvalidInputError:  # part of the state does not grow: it cannot go back
            self._cuts = False
        self._state.reset()

    def begin(self) -> None:
        """Let steps be taken at once with those of other texts."""
        self.warm_up()
        self._state.share(True)

    def end(self) -> None:
        """Take no more part in the steps of others; the tokens stay."""
        with suppress(InvalidInputError):  # the model may have been closed
            self._state.share(False)

    def shared(self, tokens: Items[int]) -> int:
        """Return how many of the first tokens the caches hold already."""
        count = 0
        for one, other in zip(self.tokens, tokens, strict=False):
            if one != other:
                break
            count += 1
        return count

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on; all of them where part of the state cannot go back.

        Raises:
            InvalidInputError: there are fewer.
        """
        if length == len(self.tokens):
            return
        if length and self._cuts is not False:
            self._state.truncate(length)
            del self.tokens[length:]
            return
        self._state.reset()
        self.tokens.clear()

    def extend(self, tokens: Items[int], wanted: int = 1) -> Array:
        """Append tokens; return the logits after the last `wanted` of them, [wanted, vocabulary].

        Args:
            tokens: what follows, one at least.
            wanted: how many rows of logits; more than one takes `DRAFTS` tokens at most.

        Raises:
            InvalidInputError: there are none, or more than there is room for.
        """
        if not tokens:
            raise InvalidInputError("there are no tokens to run", hint="a prompt has one at least")
        if len(tokens) > self.room:
            raise InvalidInputError(
                f"{len(tokens)} tokens do not fit: {len(self.tokens)} of "
                f"{self._decoder.capacity} are taken",
                hint="load the model with a larger capacity, or shorten the prompt",
            )
        self.warm_up()
        rows: Array = np.zeros((0, 0), np.float32)
        done = 0
        while done < len(tokens):
            left = len(tokens) - done
            size = DRAFTS if 1 < wanted <= left <= DRAFTS else self._chunk(left)
            if size > self.room:
                size = left if wanted > 1 else 1
            part = list(tokens[done : done + size])
            rows = self._chunk_logits(part, size, min(wanted, len(part)))
            done += len(part)
        return rows

    def follow(
        self, token: int, ahead: int, drawing: Drawing | None = None, pick: Pick | None = None
    ) -> int | None:
        """Append a token; return the next one, which the device chose.

        Args:
            token: the next one of the text.
            ahead: how many more are likely to be wanted after it.
            drawing: how to draw; None takes the likeliest. The same object for a whole text.
            pick: chooses by scores on the host, in steps that other texts take, too.

        Returns:
            None where the network cannot be run like this; nothing has been appended then.
        """
        tokens, decoder = self.tokens, self._decoder
        if not tokens or len(tokens) >= decoder.capacity or not self._cuts:
            return None
        chosen = self._state.follow(token, decoder.following, ahead, drawing, pick)
        if chosen is not None:
            tokens.append(token)
        return chosen

    def announce(self, token: int, ahead: int, drawing: Drawing | None, pick: Pick | None) -> None:
        """Say what `follow` will be called with next: the steps of others may take it along."""
        if self._cuts:
            self._state.announce(token, self._decoder.following, ahead, drawing, pick)

    def append(self, tokens: Items[int]) -> None:
        """Append tokens of which no logits are wanted.

        Raises:
            InvalidInputError: as `extend`.
        """
        if len(tokens) > 1 or self.follow(tokens[0], 0) is None:
            self.extend(tokens)

    def _chunk(self, left: int) -> int:
        fits = [size for size in CHUNKS if size <= self.room]
        if not self._cuts:
            return max(size for size in fits if size <= left)
        return next((size for size in fits if size >= left), fits[-1])

    def _chunk_logits(self, part: list[int], size: int, wanted: int) -> Array:
        """Run tokens, padded at the end; what the padding adds is forgotten."""
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

    # --- kept in files ---------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the tokens and their caches to a file (.npz).

        Raises:
            InvalidInputError: there is nothing in them, or part of the state does not grow.
        """
        if not self.tokens or self._cuts is False:
            raise InvalidInputError(
                "there is nothing to save" if not self.tokens else "such a state cannot be saved"
            )
        arrays: dict[str, Any] = {
            name: self._state.value(name).numpy() for name in self._decoder.caches
        }
        arrays["vkmnn:about"] = np.frombuffer(
            json.dumps({"tokens": self.tokens}).encode(), np.uint8
        )
        with Path(path).open("wb") as file:
            np.savez(file, **arrays)

    def load(self, path: str | Path) -> None:
        """Read what `save` wrote.

        Raises:
            ModelFileError: the file cannot be read.
            InvalidInputError: it was written with another model, or does not fit the capacity.
        """
        try:
            with np.load(path, allow_pickle=False) as kept:
                arrays = {name: kept[name] for name in kept.files}
            tokens = json.loads(arrays.pop("vkmnn:about").tobytes())["tokens"]
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise ModelFileError(f"'{path}' is not a saved session: {error}") from error
        self.warm_up()
        self._state.restore(arrays)
        self.tokens = [int(token) for token in tokens]

    def close(self) -> None:
        """Release the caches."""
        self._state.close()
