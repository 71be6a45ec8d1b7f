"""The findings of a run of the fuzzer."""

from __future__ import annotations

from collections import Counter
from typing import Any

from vkmnn_suite.fuzz.check import AGREES, DISPUTED, FAILURES, REFUSED
from vkmnn_suite.fuzz.options import Options
from vkmnn_suite.fuzz.recipes import RECIPES


class Report:
    """Counts verdicts.

    Attributes:
        failures: the answers of workers on models that failed.
        seconds: how long it took.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.kinds: Counter[str] = Counter()
        self.ops: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.disputes: Counter[str] = Counter()
        self.failures: list[dict[str, Any]] = []
        self.seconds = 0.0

    def add(self, answer: dict[str, Any]) -> str | None:
        """Count a model; return what to print about it immediately."""
        kind = answer["kind"]
        self.kinds[kind] += 1
        self.ops.update(answer["ops"])
        what = f"{answer['op']}: {answer['detail']}"
        if kind == REFUSED:
            self.refused[what] += 1
        if kind == DISPUTED:
            self.disputes[what] += 1
        if kind not in FAILURES:
            return None
        self.failures.append(answer)
        lines = [f"{kind} {what}", answer.get("text", f"model {answer['number']}")]
        if "file" in answer:
            lines.append(f"  python -m vkmnn_suite.fuzz --replay {answer['file']}")
        return "\n".join(lines) + "\n"

    def text(self) -> str:
        """Return the report."""
        models = sum(self.kinds.values())
        rate = models / self.seconds if self.seconds else 0.0
        missing = sorted(set(RECIPES) - set(self.ops)) if not self._options.ops else []
        agree, refused, disputed = (self.kinds[kind] for kind in (AGREES, REFUSED, DISPUTED))
        seed, seconds, failed_count = self._options.seed, self.seconds, len(self.failures)
        lines = [
            f"seed {seed}: {models} models in {seconds:.0f} s, {rate:.1f} a second",
            f"  {agree} agree, {refused} refused, {disputed} disputed, {failed_count} failed",
            f"  {len(self.ops.keys() & set(RECIPES))} of {len(RECIPES)} operators",
        ]
        if missing:
            lines[-1] += f"; not: {', '.join(missing)}"
        if self.ops:
            name, rarest = min(self.ops.items(), key=lambda item: item[1])
            lines.append(f"  {sum(self.ops.values())} nodes; rarest: {name}, {rarest}")
        for title, counts in (("refused", self.refused), ("disputed", self.disputes)):
            lines += [f"  {title} {count} × {what}" for what, count in counts.most_common()]
        failed = Counter(f"{a['kind']} {a['op']}" for a in self.failures)
        lines += [f"  FAILED {count} × {what}" for what, count in failed.most_common()]
        return "\n".join(lines)
