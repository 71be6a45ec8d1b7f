"""Example arguments of a TorchScript module, whose file states neither shapes nor types."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice, product
from typing import Any

from vkmnn.converter.front_end import Conversion
from vkmnn.converter.torch.argument_types import kinds_by_use
from vkmnn.converter.torch.sources import Script
from vkmnn.errors import ConversionError, InvalidInputError

_LOG = logging.getLogger(__name__)
_OPEN_BATCH, _OPEN = 2, 32
"""Sizes of example arguments for sizes that are left open: on the first axis, and on others."""

_MAX_TRIALS = 81
"""Combinations of element types that a module is run on."""


class Arguments:
    """Example arguments of a module.

    Attributes:
        names: of its inputs.
        tensors: the arguments.
        open: names of sizes that are open, by input and axis.
    """

    def __init__(
        self, names: list[str], tensors: tuple[Any, ...], open_sizes: dict[str, dict[int, str]]
    ) -> None:
        self.names, self.tensors, self.open = names, tensors, open_sizes


def arguments_of(torch: Any, module: Any, source: Script, conversion: Conversion) -> Arguments:
    """Return example arguments: those of the caller, or tensors of the shapes that are given."""
    formal = module.forward.schema.arguments[1:]
    names = [one.name for one in formal]
    needed = [one.name for one in formal if not one.has_default_value()]
    if source.args is not None:
        if not len(needed) <= len(source.args) <= len(names):
            raise InvalidInputError(
                f"the module takes {len(needed)} arguments, not {len(source.args)}",
                hint=f"its arguments: {', '.join(names)}",
            )
        return Arguments(names[: len(source.args)], tuple(source.args), {})
    shapes = conversion.shapes
    missing = [name for name in needed if name not in shapes]
    if missing:
        example = ", ".join(f"{name!r}: (1, 3, 224, 224)" for name in needed)
        raise ConversionError(
            f"a TorchScript file does not state the shapes of its inputs: {', '.join(missing)}",
            hint=f"give them: --shape {needed[0]}=1,3,224,224 for commands, "
            f"input_shapes={{{example}}} for sessions; or the arguments: "
            "vkmnn.torch.compile(torch.jit.load(FILE), args)",
        )
    given = [name for name in names if name in shapes]
    if given != names[: len(given)]:
        raise ConversionError(
            "shapes of optional inputs are given without those before them",
            hint=f"its inputs in order: {', '.join(names)}",
        )
    sizes = {
        name: [
            dim if isinstance(dim, int) else (_OPEN if axis else _OPEN_BATCH)
            for axis, dim in enumerate(shapes[name])
        ]
        for name in given
    }
    named = {
        name: {
            axis: dim or f"{name}_{axis}"
            for axis, dim in enumerate(shapes[name])
            if not isinstance(dim, int)
        }
        for name in given
    }
    tensors = _tensors(torch, source, sizes)
    return Arguments(given, tensors, {name: axes for name, axes in named.items() if axes})


def _tensors(torch: Any, source: Script, sizes: Mapping[str, Sequence[int]]) -> tuple[Any, ...]:
    """Return tensors that the module runs on; their types follow from its graph, or are guesses."""
    module = source.module
    floats = [one.dtype for one in module.parameters() if one.is_floating_point()]
    usual = list(dict.fromkeys((*floats[:1], torch.float32, torch.int64, torch.bool)))
    used = kinds_by_use(torch, module, len(sizes))
    preferred = [list(dict.fromkeys((*kinds, *usual))) for kinds in used]
    first = None
    for types in islice(_likeliest(preferred), _MAX_TRIALS):
        tensors = tuple(
            torch.ones(*one, dtype=kind) for one, kind in zip(sizes.values(), types, strict=True)
        )
        if (error := _failure(torch, module, tensors)) is None:
            _say_guesses(torch, source, list(sizes), tensors, used)
            return tensors
        first = first or error
    lines = [line for line in str(first).splitlines() if "Error" in line] or [str(first)[:200]]
    raise ConversionError(
        f"the TorchScript module refuses arguments of these shapes: {lines[-1].strip()[:200]}",
        hint="give its arguments: vkmnn.torch.compile(torch.jit.load(FILE), args)",
    )


def _likeliest(preferred: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield one type per input: all first choices, then more and more other ones."""
    for count in range(len(preferred) + 1):
        for places in combinations(range(len(preferred)), count):
            for others in product(*(preferred[place][1:] for place in places)):
                types = [kinds[0] for kinds in preferred]
                for place, kind in zip(places, others, strict=True):
                    types[place] = kind
                yield tuple(types)


def _failure(torch: Any, module: Any, tensors: tuple[Any, ...]) -> Exception | None:
    """Return the error of a run, or None."""
    try:
        with torch.no_grad():
            module(*tensors)
    except Exception as error:  # noqa: BLE001 - torch raises errors of any type
        return error
    return None


def _say_guesses(
    torch: Any,
    source: Script,
    names: Sequence[str],
    tensors: tuple[Any, ...],
    used: Sequence[Sequence[Any]],
) -> None:
    """Warn of types that neither the graph nor a failure with another type tells."""
    guessed = []
    for place, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
        if tensor.dtype in used[place]:
            continue
        other = torch.int64 if tensor.is_floating_point() else torch.float32
        changed = (*tensors[:place], tensor.to(other), *tensors[place + 1 :])
        if _failure(torch, source.module, changed) is None:
            guessed.append(f"'{name}' is {str(tensor.dtype).removeprefix('torch.')}")
    if guessed:
        _LOG.warning(
            "'%s' does not state the element types of its inputs; these are guesses: %s "
            "(for other types: vkmnn.torch.compile(torch.jit.load(FILE), args))",
            source.name,
            ", ".join(guessed),
        )
