"""One word per thing: what docs/vocabulary.md rules out does not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("vkmnn", "docs", "examples", "tools", "tasks.py", "README.md")
SUFFIXES = {".py", ".md", ".j2", ".js"}
GENERATED = {"vkmnn/shaders/kernels.py", "vkmnn/shaders/report.md"}
ITSELF = {"docs/vocabulary.md"}

BREAK = r"(?:\s|\n\s*(?:#|//)?)+"  # words of a phrase may stand on two lines, in comments too

# What is not said -> what is said instead.
WORDS = {
    r"\bbehind\b": "after, past, following",
    rf"\b(?:is|are|was|were){BREAK}no{BREAK}[a-z]\w*": "is not a …",
    rf"\bso{BREAK}many\b": "this many, or the name of the number",
    rf"\b(?:by|of|its|the|run's){BREAK}begin\b(?!\w|`)": "start",
    rf"\bcounts?{BREAK}for{BREAK}nothing\b": "is ignored",
    r"\bhalves\b": "fp16, float16",
    r"\b_?(?:least|most|LEAST|MOST)_\w+": "min_, max_",
    r"\b(?:Refusal|HalfRule|half_rule)\b": "Rejection, NoMatch, Fp16Rule, fp16_rule",
    r"\bblind_\w+": "fully masked",
}

# What fits a pattern and is meant -> why.
ALLOWED = {
    r"(?:leave|leaves|left)\b[^.;]*\bbehind": "the idiom",
    rf"\b[Tt]here{BREAK}(?:surely{BREAK})?(?:is|are|was|were)\b": "says what does not exist",
    r"(?:is|are|was|were)\s+no\s+(?:longer|more|less|fewer|better|slower|faster|later|worse)": (
        "compares"
    ),
    r"\bmost_common\b": "collections.Counter",
    r"halves\s+(?:the|may go)": "the verb; and halves of integers, which round either way",
    r"(?:Exact|numbers and) halves\b": "numbers that end in .5",
    r"\bhalves(?:\(|,| =|\.astype| /)": "names of arrays of numbers that end in .5",
}


def files() -> Iterator[Path]:
    for place in PLACES:
        path = ROOT / place
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            name = file.relative_to(ROOT).as_posix()
            if file.suffix in SUFFIXES and name not in GENERATED | ITSELF:
                yield file


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, what stands there and what should, for every word that is not used."""
    allowed = [match.span() for pattern in ALLOWED for match in re.finditer(pattern, text)]
    for pattern, instead in WORDS.items():
        for match in re.finditer(pattern, text):
            start, end = match.span()
            if not any(start < last and first < end for first, last in allowed):
                yield text.count("\n", 0, start) + 1, match.group(), instead


def test_words_that_are_not_used():
    found = [
        f"{file.relative_to(ROOT)}:{line}: '{text}'; say {instead}"
        for file in files()
        for line, text, instead in findings(file.read_text("utf-8"))
    ]
    assert not found, "see docs/vocabulary.md:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "the lanes behind the last channel",
        "'x' is no list of sizes",
        "# what is\n    # no tensor",
        "so\nmany parts",
        "sorted by begin",
        "stored as halves",
        "MOST_ROUNDS = 3",
        "a function of `least_seconds`",
    ],
)
def test_they_would_be_found(text: str):
    assert list(findings(text))


@pytest.mark.parametrize(
    "text",
    [
        "nothing is left behind",
        "there is no such file",
        "48 rows are no faster",
        "counts.most_common(3)",
        "it halves the speed",
        "the `begin` of a slice",
    ],
)
def test_what_is_said(text: str):
    assert not list(findings(text))


def test_every_exception_is_needed():
    texts = [file.read_text("utf-8") for file in files()]
    unused = [pattern for pattern in ALLOWED if not any(re.search(pattern, text) for text in texts)]
    assert not unused
