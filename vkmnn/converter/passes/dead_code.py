"""Removal of ops that no output depends on."""

from __future__ import annotations

from vkmnn.ir.graph import Graph


class RemoveDeadCode:
    """Removes ops whose results nothing uses, and constants and infos that nothing names."""

    name = "remove_dead_code"

    def run(self, graph: Graph) -> int:
        """Remove; return the number of removed ops and constants."""
        needed = graph.output_names()
        kept = []
        for op in reversed(graph.ops):
            if any(name in needed for name in op.outputs):
                needed.update(op.inputs)
                kept.append(op)
        removed = len(graph.ops) - len(kept)
        graph.ops = kept[::-1]
        unused = [name for name in graph.constants if name not in needed]
        for name in unused:
            del graph.constants[name]
        known = {name for op in graph.ops for name in op.outputs}
        known.update(info.name for info in graph.inputs)
        graph.infos = {name: info for name, info in graph.infos.items() if name in known}
        return removed + len(unused)
