"""What `new-op` writes is clean and passes its own test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.new_op.conftest import Place

GATE = ("--inputs", "2", "--param", "alpha:float=1.5", "--param", "k:int")
LONG = (  # everything at its limit
    *("a_very_long_name_of_an_operator2", "--inputs", "7"),
    *("--domain", "com.example.of.a.domain.that.is.as.long2"),
    *("--param", "a_very_long_name_of_a_parameter1:float=-0.123456"),
    *("--param", "a_very_long_name_of_a_parameter2:int=3"),
)


@pytest.mark.slow
@pytest.mark.soak  # tests/new_op/test_example.py installs one, too
def test_as_a_package(fresh_environment: Place, drivers: list[dict[str, str]]) -> None:
    place = fresh_environment
    said = place.new_op("gate", *GATE, "--plugin", "my-ops")
    assert "pip install -e my-ops" in said
    place.new_op("plain", "--plugin", "my-ops")
    place.new_op(*LONG, "--plugin", "my-ops")
    place.run("python", "-m", "vkmnn.codegen", "--check", "--shaders", "my-ops/my_ops")
    place.lint(".", folder="my-ops")
    place.run("pip", "install", "./my-ops")
    (place.folder / "my-ops" / "my_ops").rename(place.folder / "gone")  # the installed one is used
    shown = place.run("vkmnn", "ops", "--plugins")
    for words in ("my-ops 0.1.0", "op type Gate", "converter of my_ops::Plain since opset 1"):
        assert words in shown
    for env in drivers:
        said = place.pytest("my-ops/tests", env=env)
        assert "passed" in said
        assert "skipped" not in said or not env
