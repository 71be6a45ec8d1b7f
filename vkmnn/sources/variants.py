"""Selection among variants of a network, by file name suffix."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

PREFERRED = ("q4f16", "fp16", "q4", "", "quantized", "int8", "uint8", "bnb4", "q8",
             "Q4_K_M", "Q4_0", "Q8_0")  # fmt: skip
"""Variants of language models in order of preference; "" has no suffix and is usually fp32."""

NETWORK = re.compile(r"(?P<stem>[a-z][a-z_]*?)(?:_(?P<variant>q4f16|q4|q8|q2|q2f16|q1|fp16|fp32|"
                     r"int8|uint8|int4|quantized|bnb4|optimized))?\.onnx")  # fmt: skip
"""Optimum's names of network files: role and variant."""

_SPLIT = re.compile(r"-(?P<number>\d{5})-of-\d{5}(?=\.gguf$)")


def role_of(name: str) -> tuple[str, str] | None:
    """Return role and variant of a file, "" for fp32; None for other files."""
    match = NETWORK.fullmatch(PurePosixPath(name).name)
    if match is None:
        return None
    variant = match["variant"] or ""
    return match["stem"], "" if variant == "fp32" else variant


def gguf_variants(names: Iterable[str]) -> dict[str, str]:
    """Return GGUF files by the suffixes of their names; of split files, the first part.

    Image projectors, which llama.cpp loads in addition to a text model, are left out.
    """
    files = [
        name
        for name in sorted(names)
        if name.endswith(".gguf")
        and not PurePosixPath(name).name.startswith("mmproj")
        and ((match := _SPLIT.search(name)) is None or match["number"] == "00001")
    ]
    stems = [_SPLIT.sub("", PurePosixPath(name).name).removesuffix(".gguf") for name in files]
    short = [re.split(r"[-.]", stem)[-1] for stem in stems]
    return dict(zip(short if len(set(short)) == len(short) else stems, files, strict=True))


def preferred(variants: Collection[str]) -> str:
    """Return the preferred variant of a language model."""
    return next((one for one in PREFERRED if one in variants), next(iter(variants)))


def plain_of(names: Collection[str]) -> str | None:
    """Return the base file: the names of all others start with its name."""
    if len(names) == 1:
        return next(iter(names))
    stems = {name: PurePosixPath(name).name.rpartition(".")[0] for name in names}
    shortest = min(stems, key=lambda name: (len(stems[name]), name))
    others = [stem for name, stem in stems.items() if name != shortest]
    begins = tuple(f"{stems[shortest]}{mark}" for mark in "_-.")
    return shortest if all(stem.startswith(begins) for stem in others) else None


def named(names: Collection[str], wanted: str) -> list[str]:
    """Return the files that match a path, a name, or a variant."""
    if wanted in names:
        return [wanted]
    for means in (
        lambda path: path.name == wanted,
        lambda path: re.search(rf"[_.-]{re.escape(wanted)}$", path.stem, re.IGNORECASE),
    ):
        found = [name for name in names if means(PurePosixPath(name))]
        if found:
            return found
    return []
