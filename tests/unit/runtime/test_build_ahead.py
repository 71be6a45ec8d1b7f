"""Pipelines are built before they are asked for, and failures are those of who asks."""

from __future__ import annotations

import pytest

from vkmnn.errors import InvalidInputError
from vkmnn.runtime import Device, Shader
from vkmnn.shaders import load_shader


@pytest.fixture
def shaders() -> list[Shader]:
    return [
        load_shader(name) for name in ("copy_buffer", "winograd_in_2_f32", "gather_1_f32_buffer")
    ]


def test_what_was_built_ahead_is_found(own_device: Device, shaders: list[Shader]):
    before = own_device.counts["pipelines"]
    own_device.build_ahead([(shader, {}) for shader in shaders])
    made = [own_device.pipeline(shader) for shader in shaders]
    own_device.end_ahead()
    assert own_device.counts["pipelines"] == before + len(shaders)
    assert [pipeline.shader for pipeline in made] == shaders


def test_failures_are_those_of_who_asks(own_device: Device, shaders: list[Shader]):
    wrong = shaders[0], {"NO_SUCH": 1}
    own_device.build_ahead([wrong, wrong, *((shader, {}) for shader in shaders)])
    for shader in shaders:
        own_device.pipeline(shader)
    own_device.end_ahead()
    own_device.end_ahead()
    with pytest.raises(InvalidInputError, match="NO_SUCH"):
        own_device.pipeline(*wrong)


def test_a_device_closes_meanwhile(own_device: Device, shaders: list[Shader]):
    own_device.build_ahead([(shader, {}) for shader in shaders])
    own_device.close()
    own_device.end_ahead()
    with pytest.raises(InvalidInputError, match="closed"):
        own_device.pipeline(shaders[0])
