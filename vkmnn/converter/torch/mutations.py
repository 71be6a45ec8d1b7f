"""Programs in the form that torch's exporter to ONNX takes as it is meant.

The exporter drops what a program writes, without a word, and fails at results that are no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vkmnn.converter.torch.packages import PROGRAM, need_torch
from vkmnn.errors import ConversionError

_STORED = ("BUFFER_MUTATION", "PARAMETER_MUTATION")
_KNOWN = ("USER_OUTPUT", "USER_INPUT_MUTATION", *_STORED)


@dataclass(slots=True)
class Pure:
    """A program that writes nothing, and takes and returns tensors only.

    Attributes:
        program: it; its last inputs are those of `states`, in their order, and its last outputs
            the new values of `states`, then of `inputs`.
        states: first values of the buffers that were written, by name.
        inputs: names of the inputs that were written.
    """

    program: Any
    states: dict[str, Any] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)


def pure_program(program: Any) -> Pure:
    """Return a program in which buffers that were written are inputs and outputs.

    Raises:
        ConversionError: it returns what only training uses.
    """
    given = program.graph_signature
    tensors = not any(map(_is_constant, (*given.input_specs, *given.output_specs)))
    plain = all(spec.kind.name == "USER_OUTPUT" for spec in given.output_specs)
    if tensors and plain and not given.buffers and not _writes(program.graph_module):
        return Pure(program)
    torch = need_torch(PROGRAM)
    # The exporter takes this one for the normalisation with stored statistics.
    training = torch.ops.aten._native_batch_norm_legit_functional
    apart = torch._decomp.get_decompositions([training])
    functional = program.run_decompositions(apart)  # a copy
    signature = functional.graph_signature
    kinds = {spec.kind.name for spec in signature.output_specs}
    if other := kinds.difference(_KNOWN):
        what = ", ".join(sorted(other)).lower()
        raise ConversionError(
            f"the program returns what only training uses: {what}",
            hint="export the module in the mode eval, without its loss",
        )
    return Pure(program) if kinds <= {"USER_OUTPUT"} and tensors else _rewritten(functional)


def _is_constant(spec: Any) -> bool:
    """Return whether an input or a result is a number, a text or None."""
    return hasattr(spec.arg, "value")


def _writes(module: Any) -> bool:
    """Return whether any operator of a graph, or of one inside it, writes its operand."""
    return any(
        getattr(getattr(node.target, "_schema", None), "is_mutable", False)
        for inner in module.modules()
        if hasattr(inner, "graph")
        for node in inner.graph.nodes
    )


def _rewritten(program: Any) -> Pure:
    """Return a program of the same graph, which is changed, as of `pure_program`."""
    graph, signature = program.graph, program.graph_signature
    values = graph.output_node().args[0]
    results = [
        (spec, value)
        for spec, value in zip(signature.output_specs, values, strict=True)
        if not _is_constant(spec)
    ]
    plain = [one for one in results if one[0].kind.name == "USER_OUTPUT"]
    fed = [one for one in results if one[0].kind.name == "USER_INPUT_MUTATION"]
    changed = [one for one in results if one[0].kind.name in _STORED]
    written = [spec.target for spec, _ in changed]
    if len(set(written)) < len(written):
        raise ConversionError("the program writes a buffer in two places")
    inputs = _moved_inputs(program, written)
    graph.output_node().args = (tuple(value for _, value in (*plain, *changed, *fed)),)
    program.graph_module.recompile()
    made = _with_signature(program, inputs, [spec.arg for spec, _ in (*plain, *changed, *fed)])
    stored = {**program.state_dict, **program.constants}
    states = {target: stored[target] for target in written}
    return Pure(made, states, [spec.target for spec, _ in fed])


def _moved_inputs(program: Any, written: Sequence[str]) -> list[tuple[Any, bool]]:
    """Move the inputs of written buffers behind the others, and drop constants.

    Returns:
        The specifications of inputs in their new order, each with whether it is written.
    """
    graph, specs = program.graph, program.graph_signature.input_specs
    places = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for spec in filter(_is_constant, specs):
        graph.erase_node(places.pop(spec.arg.name))
    last: Any = list(places.values())[-1] if places else None
    held = {spec.target: spec for spec in specs if spec.target in written}
    for target in written:
        place = places[held[target].arg.name]
        if place is not last:
            last.append(place)
            last = place
    kept = [one for one in specs if one.target not in held and not _is_constant(one)]
    return [*((one, False) for one in kept), *((held[target], True) for target in written)]


def _with_signature(program: Any, inputs: Sequence[tuple[Any, bool]], results: list[Any]) -> Any:
    """Return a program of the same graph whose written inputs and results are the caller's."""
    torch = need_torch(PROGRAM)
    signature_of, tree = torch.export.graph_signature, torch.utils._pytree
    user_input = signature_of.InputKind.USER_INPUT
    user_output = signature_of.OutputKind.USER_OUTPUT
    specs = [
        signature_of.InputSpec(user_input, spec.arg, None) if written else spec
        for spec, written in inputs
    ]
    named = [spec.arg.name for spec in specs if spec.kind == user_input]
    outputs = [signature_of.OutputSpec(user_output, one, None) for one in results]
    entry = torch.export.ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=tree.tree_structure((tuple(named), {})),
        out_spec=tree.tree_structure(tuple(range(len(outputs)))),
        forward_arg_names=named,
    )
    return type(program)(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=signature_of.ExportGraphSignature(specs, outputs),
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=[torch.export.ModuleCallEntry("", entry)],
        constants=program.constants,
        verifiers=program.verifiers,
    )
