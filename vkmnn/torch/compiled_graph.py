"""A graph of torch.compile's that runs in sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkmnn.converter.torch import NEXT
from vkmnn.errors import IntegerRangeError, ShapeError
from vkmnn.torch.graph_sessions import REFUSED, GraphSessions, Settings
from vkmnn.torch.graphs import Layout, Refusal, Result, Signature, sizes_at
from vkmnn.torch.tensors import as_array, as_tensor

_MAX_LAYOUTS = 256


class CompiledGraph:
    """A graph that runs in sessions; safe to use from several threads.

    Args:
        torch: the package.
        graph: the graph as torch.compile hands it over, which PyTorch runs where sessions cannot.
        rewritten: what sessions run, as of `read_graph`.
        signature: how both belong together.
        settings: how it runs.
    """

    def __init__(
        self, torch: Any, graph: Any, rewritten: Any, signature: Signature, settings: Settings
    ) -> None:
        self._torch = torch
        self._graph = graph
        self._signature = signature
        self._settings = settings
        self._sessions = GraphSessions(torch, rewritten, signature, settings)
        self._layouts: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self._refused = False

    def __call__(self, *args: Any) -> Any:
        """Run the graph once."""
        if self._refused:
            return self._graph(*args)
        try:
            made = self._made(args)
        except Refusal as refusal:
            self._settings.fall_back(refusal)
            return self._graph(*args)
        return tuple([self._returned(one, args, made) for one in self._signature.results])

    def _made(self, args: Sequence[Any]) -> list[Any]:
        """Run a session; return its results as tensors, those for written inputs written."""
        torch, signature = self._torch, self._signature
        if signature.written:
            _refuse_shared(signature.written, args, torch)
        try:
            bound = self._sessions.find(args)
        except Refusal:
            self._refused = True
            raise
        feeds = {name: as_array(torch, args[place]) for name, place in bound.feeds}
        try:
            try:
                arrays = bound.session.run(None, feeds)
            except ShapeError:
                bound = self._sessions.find(args, fixed=True)
                arrays = bound.session.run(None, feeds)
        except (IntegerRangeError, *REFUSED) as error:
            raise Refusal(error.message, error.hint or "") from error
        made = [as_tensor(torch, array) for array in arrays]
        if signature.written:
            places = dict(bound.feeds)
            names = [info.name for info in bound.session.get_outputs()]
            with torch.no_grad():
                for name, value in zip(names, made, strict=True):
                    if name.endswith(NEXT):
                        args[places[name.removesuffix(NEXT)]].copy_(value)
        return made

    def _returned(self, result: Result, args: Sequence[Any], made: Sequence[Any]) -> Any:
        """Return one of the graph's results."""
        if result.number is not None:
            value = made[result.number]
        elif result.given is not None:
            value = args[result.given]
        elif isinstance(result.value, int | None):
            return result.value
        else:
            return self._values((result.value,), args)[0]
        if result.view is not None:
            return self._viewed(value, result.view, args)
        return value if result.order is None else value.permute(result.order)

    def _viewed(self, value: Any, view: Layout, args: Sequence[Any]) -> Any:
        rank = len(view.size)
        numbers = self._values((*view.size, *view.stride, view.offset), args)
        offset = numbers[-1]
        return value.as_strided(numbers[:rank], numbers[rank:-1], offset)

    def _values(self, sizes: tuple[Any, ...], args: Sequence[Any]) -> tuple[int, ...]:
        """Return sizes as numbers, those of earlier calls from memory."""
        symbols = self._signature.symbols
        key = (sizes, tuple([args[place] for place in symbols.values()]))
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            found = self._layouts[key] = sizes_at(sizes, symbols, args)
        return found


def _refuse_shared(written: Sequence[int], args: Sequence[Any], torch: Any) -> None:
    """Refuse arguments that lie in the memory of one that is written."""
    memory = [
        one.untyped_storage().data_ptr() if isinstance(one, torch.Tensor) else None for one in args
    ]
    for place in written:
        if memory[place] and memory.count(memory[place]) > 1:
            raise Refusal("it writes an argument whose memory is another's, too", "pass a copy")
