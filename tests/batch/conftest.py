"""Fixtures of the tests of jobs and pools."""

from __future__ import annotations

from tests.cli.conftest import cli as cli
