"""Programs in the form that torch's exporter to ONNX takes as it is meant.

The exporter drops what a program writes, without a word, and fails at results that are no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vkmnn.converter.torch.packages import need_torch
from vkmnn.errors import ConversionError


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
    if tensors and not given.buffers and not _writes(program.graph_module):
        return Pure(program)
    functional = program.run_decompositions({})  # a copy
    signature = functional.graph_signature
    kinds = {spec.kind.name for spec in signature.output_specs}
    known = {"USER_OUTPUT", "BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION"}
    if kinds - known:
        what = ", ".join(sorted(kinds - known)).lower()
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
    torch = need_torch("a program of torch.export")

    signature_of, tree = torch.export.graph_signature, torch.utils._pytree
    signature = program.graph_signature
    user_input = signature_of.InputKind.USER_INPUT
    user_output = signature_of.OutputKind.USER_OUTPUT
    module, graph = program.graph_module, program.graph

    values = graph.output_node().args[0]
    results = [
        (spec, value)
        for spec, value in zip(signature.output_specs, values, strict=True)
        if not _is_constant(spec)
    ]
    plain = [one for one in results if one[0].kind == user_output]
    changed = [one for one in results if "USER" not in one[0].kind.name]
    fed = [one for one in results if one[0].kind.name == "USER_INPUT_MUTATION"]
    written = [spec.target for spec, _ in changed]
    if len(set(written)) < len(written):
        raise ConversionError("the program writes a buffer in two places")
    held = {spec.target: spec for spec in signature.input_specs if spec.target in written}

    places = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for spec in signature.input_specs:
        if _is_constant(spec):
            graph.erase_node(places.pop(spec.arg.name))
    last = list(places.values())[-1] if places else None
    for target in written:
        place = places[held[target].arg.name]
        if place is not last:
            last.append(place)
            last = place
    ordered = [*plain, *changed, *fed]
    graph.output_node().args = (tuple(value for _, value in ordered),)
    module.recompile()

    inputs = [
        spec
        for spec in signature.input_specs
        if spec.target not in held and not _is_constant(spec)
    ]
    inputs += [signature_of.InputSpec(user_input, held[one].arg, None) for one in written]
    outputs = [signature_of.OutputSpec(user_output, spec.arg, None) for spec, _ in ordered]
    named = [spec.arg.name for spec in inputs if spec.kind == user_input]
    entry = torch.export.ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=tree.tree_structure((tuple(named), {})),
        out_spec=tree.tree_structure(tuple(range(len(ordered)))),
        forward_arg_names=named,
    )
    made = type(program)(
        root=module,
        graph=graph,
        graph_signature=signature_of.ExportGraphSignature(inputs, outputs),
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=[torch.export.ModuleCallEntry("", entry)],
        constants=program.constants,
        verifiers=program.verifiers,
    )
    stored = {**program.state_dict, **program.constants}
    states = {target: stored[target] for target in written}
    return Pure(made, states, [spec.target for spec, _ in fed])
