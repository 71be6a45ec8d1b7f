"""Lives by name; see `sweep`."""

from __future__ import annotations

from collections.abc import Mapping

from vkmnn_suite.faults.sessions import OnTensors, Plain, Rebuilt
from vkmnn_suite.faults.texts import RebuiltTexts, States, Texts
from vkmnn_suite.faults.trial import Trials

LIVES: Mapping[str, type[Trials]] = {
    "plain": Plain,
    "bound": OnTensors,
    "rebuild": Rebuilt,
    "state": States,
    "text": Texts,
    "rebuilt text": RebuiltTexts,
}
