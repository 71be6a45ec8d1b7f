"""Operators that the front end supports, and advice on the others."""

from __future__ import annotations

from collections.abc import Mapping

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.domains import normal_domain
from vkmnn.converter.onnx.registry import find_converter, registered
from vkmnn.converter.onnx.schema import Schema, sample_body

_LOOP = (
    "a few known iterations are unrolled, and heavy bodies run on the device; "
    "light bodies are faster on the host than their submissions would be"
)
_RANDOM = (
    "random numbers are generated on the host; to keep the network on the device, feed them as an "
    "input"
)
_NOT_TENSORS = (
    "sequences, optionals and strings are kept on the host; the device holds dense tensors"
)
_SEQUENCES = "sequences with known contents become tensors; all others are kept on the host"

_ALTERNATIVES: Mapping[str, str] = {
    "If": (
        "constant conditions are resolved, and heavy branches run on the device; "
        "light branches are faster on the host than a submission would be"
    ),
    "Loop": _LOOP,
    "Scan": _LOOP,
    "SequenceMap": _NOT_TENSORS,
    "Bernoulli": _RANDOM,
    "RandomNormal": _RANDOM,
    "RandomNormalLike": _RANDOM,
    "RandomUniform": _RANDOM,
    "RandomUniformLike": _RANDOM,
    "Multinomial": _RANDOM,
    "ConcatFromSequence": _SEQUENCES,
    "Optional": _NOT_TENSORS,
    "OptionalGetElement": _NOT_TENSORS,
    "OptionalHasElement": _NOT_TENSORS,
    "RegexFullMatch": _NOT_TENSORS,
    "SequenceAt": _SEQUENCES,
    "SequenceConstruct": _SEQUENCES,
    "SequenceEmpty": _SEQUENCES,
    "SequenceErase": _SEQUENCES,
    "SequenceInsert": _SEQUENCES,
    "SequenceLength": _SEQUENCES,
    "SplitToSequence": _SEQUENCES,
    "StringConcat": _NOT_TENSORS,
    "StringNormalizer": _NOT_TENSORS,
    "StringSplit": _NOT_TENSORS,
    "TfIdfVectorizer": _NOT_TENSORS,
}

_SEARCH = (
    "the whole search with its decoder runs in onnxruntime; "
    "for text on the device, export the decoder alone and open it with vkmnn.llm"
)
_IN_DOMAINS: Mapping[tuple[str, str], str] = {
    ("ai.onnx.ml", ""): (
        "trees, encoders and scalers of ai.onnx.ml run on the host: a row takes a few comparisons, "
        "less time than a submission"
    ),
    ("com.microsoft", "BeamSearch"): _SEARCH,
    ("com.microsoft", "GreedySearch"): _SEARCH,
    ("com.microsoft", "Sampling"): _SEARCH,
    ("com.microsoft", "WhisperBeamSearch"): _SEARCH,
}
"""Domain and operator, or "" for all of a domain -> why it is on the host."""

_NO_KERNEL = "no converter and no function body"


@dataclass(frozen=True, slots=True)
class OpSupport:
    """A supported operator.

    `versions` are the opsets at which its converters start, or its function bodies are written;
    `how` is "direct" or "function body".
    """

    domain: str
    name: str
    versions: tuple[int, ...]
    how: str


def supported_ops() -> tuple[OpSupport, ...]:
    """Return every operator that can be converted, by domain and name, including loaded plug-ins'.

    Operators that the installed onnx package defines by function bodies count when every operator
    in the body is supported; uses that are refused for an attribute or a type do not show here.
    """
    from onnx import defs

    direct = [OpSupport(*entry, "direct") for entry in registered()]
    bodies = []
    for schema in defs.get_all_schemas():
        domain = normal_domain(schema.domain)
        if not domain and not schema.deprecated and _body_is_supported(schema, ()):
            versions = sorted(
                {
                    *schema.function_opset_versions,  # type: ignore[attr-defined]
                    *schema.context_dependent_function_opset_versions,  # type: ignore[attr-defined]
                }
            )
            bodies.append(OpSupport(domain, schema.name, tuple(versions), "function body"))
    return tuple(sorted((*direct, *bodies), key=lambda entry: (entry.domain, entry.name)))


def _body_is_supported(schema: Schema, callers: tuple[str, ...]) -> bool:
    """True when an operator without converter has a body of supported operators."""
    from onnx import defs

    if find_converter(schema.name, schema.domain, schema.since_version) or schema.name in callers:
        return False
    body = sample_body(schema)
    if body is None:
        return False
    opsets = {normal_domain(entry.domain): entry.version for entry in body.opset_import}
    for node in body.node:
        domain = normal_domain(node.domain)
        opset = opsets.get(domain, 1)
        if find_converter(node.op_type, domain, opset):
            continue
        inner = defs.get_schema(node.op_type, opset, domain)
        if not _body_is_supported(inner, (*callers, schema.name)):
            return False
    return True


def body_operators(name: str) -> tuple[tuple[str, str], ...]:
    """Return (name, domain) of the operators that one of ONNX's operators is defined by."""
    from onnx import defs

    body = sample_body(defs.get_schema(name))
    nodes = body.node if body is not None else ()
    return tuple((node.op_type, normal_domain(node.domain)) for node in nodes)


def unsupported_ops() -> list[tuple[str, str]]:
    """Return (name, reason) of ONNX's own operators that cannot be converted, by name."""
    from onnx import defs

    supported = {entry.name for entry in supported_ops() if not entry.domain}
    return sorted(
        (schema.name, _ALTERNATIVES.get(schema.name, _NO_KERNEL))
        for schema in defs.get_all_schemas()
        if not schema.domain and not schema.deprecated and schema.name not in supported
    )


def standard_name(text: str) -> str | None:
    """Return the ONNX operator that `text` names, ignoring case."""
    from onnx import defs

    names = {schema.name.lower(): schema.name for schema in defs.get_all_schemas()}
    return names.get(text.lower())


def alternative(op: str, domain: str, opset: int) -> str:
    """Return why an operator has no converter, and the closest alternative."""
    domain = normal_domain(domain)
    known = {name: versions for other, name, versions in registered() if other == domain}
    if op in known:
        return f"the operator is supported from opset {min(known[op])} on"
    if not domain and op in _ALTERNATIVES:
        return _ALTERNATIVES[op]
    for key in ((domain, op), (domain, "")):
        if key in _IN_DOMAINS:
            return _IN_DOMAINS[key]
    reason = f"no converter for this operator of domain '{domain}'" if domain else _NO_KERNEL
    standard = [name for other, name, _ in registered() if not other]
    import difflib

    near = difflib.get_close_matches(op, standard, 1, 0.75)
    return f"{reason}; the nearest supported operator is {near[0]}" if near else reason
