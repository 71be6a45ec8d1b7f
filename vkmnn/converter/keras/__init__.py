"""Keras's models: Keras exports them as SavedModels, which are read as any other.

Keras is imported with the first model of this kind.
"""

from __future__ import annotations

from vkmnn.converter.keras.front_end import KerasFrontEnd

__all__ = ["KerasFrontEnd"]
