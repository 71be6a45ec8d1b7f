"""What the front end supports, and what to say about the rest."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from vkmnn.converter.onnx.registry import normal_domain, registered

_ALTERNATIVES: Mapping[str, str] = {
    "NonMaxSuppression": "its output shape depends on data; run it after the network",
    "NonZero": "its output shape depends on data; masks with Where keep shapes fixed",
    "Compress": "its output shape depends on data; Gather with known indices does not",
    "Unique": "its output shape depends on data; compute it outside the network",
    "If": "control flow is not supported; export the branch that is taken",
    "Loop": "control flow is not supported; unroll the loop at export",
    "Scan": "control flow is not supported; unroll the loop at export",
    "LSTM": "recurrent operators are not supported yet; unroll them at export",
    "GRU": "recurrent operators are not supported yet; unroll them at export",
    "RNN": "recurrent operators are not supported yet; unroll them at export",
    "RandomNormal": "random numbers are not supported; feed them as an input",
    "RandomNormalLike": "random numbers are not supported; feed them as an input",
    "RandomUniform": "random numbers are not supported; feed them as an input",
    "RandomUniformLike": "random numbers are not supported; feed them as an input",
    "Multinomial": "random numbers are not supported; feed them as an input",
}


def alternative(op: str, domain: str, opset: int) -> str:
    """Say why there is no converter for an operator, and what comes nearest."""
    domain = normal_domain(domain)
    known = {name: versions for other, name, versions in registered() if other == domain}
    if op in known:
        return f"the operator is supported from opset {min(known[op])} on"
    if not domain and op in _ALTERNATIVES:
        return _ALTERNATIVES[op]
    standard = [name for other, name, _ in registered() if not other]
    near = difflib.get_close_matches(op, standard, 1, 0.75)
    reason = "no converter and no function body"
    if domain:
        reason = f"no converter for this operator of domain '{domain}'"
    return f"{reason}; the nearest supported operator is {near[0]}" if near else reason
