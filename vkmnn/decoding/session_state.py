"""The result of `InferenceSession.state`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.arguments import checked_number
from vkmnn.base.closing import Closing
from vkmnn.base.packed_rows import Packing
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.session import Session
from vkmnn.decoding.cache_pool import CachePool
from vkmnn.decoding.decode_loop import DecodeLoop
from vkmnn.decoding.decode_step import DecoderIO
from vkmnn.decoding.kv_state import KVState
from vkmnn.decoding.step_ring import Waits
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array

if TYPE_CHECKING:
    pass

Check = Callable[[Mapping[str, Any]], dict[str, Any]]


class SessionState(Closing):
    """Runs of a session that hand outputs on to the next run's inputs, on the device.

    Created by `InferenceSession.state`. One sequence of runs; create one per sequence.

    Attributes:
        waits: CPU seconds spent waiting for the device, in all runs in place.
    """

    def __init__(self, session: Session, state: KVState, pairs: Mapping[str, str], check: Check):
        self._session = session
        self._state = state
        self._pairs = dict(pairs)
        self._check = check
        self.waits = state.waits

    @property
    def length(self) -> int:
        """Number of rows in the caches; 0 if nothing grows."""
        return self._state.tensors.length

    @property
    def axes(self) -> Mapping[str, int]:
        """The axis that grows of each cache; empty before the first run, or with other state."""
        tensors = self._state.tensors
        return dict(tensors.axes) if tensors.only_caches else {}

    @property
    def lost(self) -> bool:
        """Whether its device was lost: create another state, and repeat its runs."""
        return self._state.lost

    def run(
        self, output_names: list[str] | tuple[str, ...] | None, feeds: Mapping[str, Any]
    ) -> list[Array]:
        """Run the network once on the state and the feeds.

        Args:
            output_names: which outputs to return; None, or an empty list, for those that are not
                state. KVState is copied to the host only when it is asked for.
            feeds: as for `InferenceSession.run`, except for state inputs.

        Raises:
            InvalidInputError: as `InferenceSession.run`; or the state is full, or closed.
            StateLostError: with on_device_lost="rebuild", its device was lost; another state of the
                session can be made.
        """
        given = self._check(feeds)
        wanted = None if not output_names else list(output_names)
        made = self._session.call(self._run, given)
        inputs = {output: name for name, output in self._pairs.items()}
        for name in wanted or ():
            if name not in made and name not in inputs:
                raise InvalidInputError(
                    f"the network has no output '{name}'",
                    hint=f"outputs: {', '.join([*made, *inputs])}",
                )
        return [
            made[name] if name in made else np.array(self.value(inputs[name]))
            for name in (made if wanted is None else wanted)
        ]

    def _run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        self._session.check_sizes(feeds)  # the state was planned with them
        return self._state.run(feeds)

    def prepare(self, feeds: Mapping[str, Any], growing: Mapping[str, int]) -> bool:
        """Make room for empty caches; see `KVState.prepare`."""
        return self._session.call(self._state.prepare, feeds, growing)

    def decode_loop(self, io: DecoderIO, pool: CachePool | None = None) -> DecodeLoop:
        """Return the decode loop, whose methods are for `core.Session.call`."""
        return self._session.call(DecodeLoop, self._state, io, pool)

    def value(self, name: str) -> DeviceTensor:
        """Return the value of a state input in the next run.

        Raises:
            InvalidInputError: it is not state, or there is none before the first run.
        """
        self._known(name)
        return self._session.call(self._state.value, name)

    def memory(self, name: str) -> DeviceTensor:
        """Return the memory of a cache, which may have more rows than `length`."""
        self._known(name)
        return self._session.call(self._state.memory, name)

    def _known(self, name: str) -> None:
        if name not in self._pairs:
            raise InvalidInputError(
                f"'{name}' is not a state input",
                hint=f"state inputs: {', '.join(self._pairs)}",
            )

    def reset(self) -> None:
        """Begin a new sequence; memory and plans stay."""
        self._session.call(self._state.reset)

    def truncate(self, length: int) -> None:
        """Discard all rows of the caches from `length` on, such as rejected tokens.

        Raises:
            InvalidInputError: there are fewer rows, or part of the state does not grow.
        """
        length = checked_number(length, "the length to keep")
        self._session.call(self._state.truncate, length)

    def restore(self, rows: Mapping[str, Array]) -> None:
        """Begin a new sequence with these rows in the caches, as `value` returned them before.

        Args:
            rows: an array for each cache, of its shape except for the number of rows.

        Raises:
            InvalidInputError: nothing has run yet, an array is missing or does not fit, or part of
                the state does not grow.
        """
        if not isinstance(rows, Mapping):
            raise InvalidInputError(
                f"rows are a dictionary of arrays by name, not {type(rows).__name__}",
                hint=f"write {{'{next(iter(self._pairs), 'past')}': array}}",
            )
        arrays = {
            name: row if hasattr(row, "shape") else np.asarray(row) for name, row in rows.items()
        }
        self._session.call(self._state.restore, arrays)

    def close(self) -> None:
        """Release the state's memory and plans; the session stays."""
        self._session.detach(self._state)


def open_state(
    session: Session,
    pairs: Mapping[str, str],
    capacity: int | None,
    initial: Mapping[str, Array],
    check: Check,
    waits: Waits | None = None,
    packing: Packing = "",
) -> SessionState:
    """Return state that a session keeps between runs.

    Args:
        session: it closes the state with itself.
        pairs: each input with the output that feeds it in the next run.
        capacity: the maximum number of rows in a cache; None for no limit.
        initial: initial values; by default caches are empty and everything else is zero.
        check: checks the feeds of the other inputs.
        waits: how steps are waited for; another one by default.
        packing: how rows of caches are packed in memory.

    Raises:
        InvalidInputError: the initial rows exceed the capacity, or the session has been closed.
    """

    def make() -> KVState:
        state = KVState(session.program, pairs, capacity, initial, waits, packing)
        session.attach(state)
        return state

    return SessionState(session, session.call(make), pairs, check)


def matched_pairs(
    pairs: Mapping[str, str], inputs: Iterable[str], outputs: Iterable[str]
) -> dict[str, str]:
    """Return pairs of inputs and outputs by name; `*` matches the same text in both.

    Raises:
        InvalidInputError: a name does not exist, or two inputs would share one output.
    """
    if not isinstance(pairs, Mapping):
        raise InvalidInputError(
            f"state is a dictionary from inputs to outputs, not {pairs!r}",
            hint="write {'past.*': 'present.*'}",
        )
    ins, outs = list(inputs), list(outputs)
    found: dict[str, str] = {}
    for source, target in pairs.items():
        if not all(isinstance(name, str) for name in (source, target)):
            raise InvalidInputError(
                f"state maps names of inputs to names of outputs, not {source!r} to {target!r}",
                hint="write {'past.*': 'present.*'}",
            )
        head, star, tail = source.partition("*")
        names = [source] if not star else [n for n in ins if _between(n, head, tail) is not None]
        for name in names:
            output = target.replace("*", _between(name, head, tail) or "", 1) if star else target
            for one, known, what in ((name, ins, "input"), (output, outs, "output")):
                if one not in known:
                    raise InvalidInputError(
                        f"the network has no {what} '{one}'", hint=f"{what}s: {', '.join(known)}"
                    )
            found[name] = output
        if not names:
            raise InvalidInputError(
                f"no input matches '{source}'", hint=f"inputs: {', '.join(ins)}"
            )
    if len(set(found.values())) < len(found):
        raise InvalidInputError(
            "one output would feed two inputs", hint="give each input a separate output"
        )
    return found


def _between(name: str, head: str, tail: str) -> str | None:
    fits = len(name) >= len(head) + len(tail) and name.startswith(head) and name.endswith(tail)
    return name[len(head) : len(name) - len(tail)] if fits else None
