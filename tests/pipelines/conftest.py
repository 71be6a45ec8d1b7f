"""Shared fixtures for tests of pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.pipelines.networks import stripes


@pytest.fixture
def street(tmp_path: Path) -> Path:
    """An image file of 120 rows and 200 columns."""
    path = tmp_path / "street.png"
    Image.fromarray(stripes(120, 200)).save(path)
    return path
