"""Warming up on several devices at once: all kernels are ready, and nothing is left behind."""

from __future__ import annotations

import logging

import pytest

from tests.runtime.conftest import MakeShader
from vkmnn.errors import DeviceError, ShaderError
from vkmnn.runtime import Device, DeviceType, Shader, SpecConstant, warm_up


@pytest.fixture
def helped(own_device: Device, monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    """Let two further devices help from the first kernel on; return those that do."""
    if own_device.info.type is not DeviceType.CPU:
        pytest.skip("only CPU devices compile at the first dispatch")
    monkeypatch.setattr(warm_up, "COLD_S", 0.0)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    opened: list[Device] = []
    open_again = own_device.open_again

    def spy() -> Device:
        opened.append(open_again())
        return opened[-1]

    monkeypatch.setattr(own_device, "open_again", spy)
    return opened


@pytest.fixture
def shader(make_shader: MakeShader) -> Shader:
    """A kernel with a constant, so that there may be many pipelines."""
    return make_shader(
        "constant",
        """
        layout(constant_id = 0) const uint n = 1;
        layout(binding = 0) writeonly buffer Y { uint y[]; };
        void main() { y[0] = n; }
        """,
        "y:w:i32",
        spec=(SpecConstant("n", 0, "uint", 1),),
    )


def test_all_are_warm_in_the_end(own_device: Device, helped: list[Device], shader: Shader) -> None:
    before = own_device.stats()
    with own_device.start_pipelines([(shader, {"n": n}) for n in range(30)], warm_up=True) as batch:
        made = batch.result()
    assert [pipeline.spec["n"] for pipeline in made] == list(range(30))
    assert all(pipeline.warm for pipeline in made)
    assert len(helped) == 2
    assert all(helper.closed and not helper.stats() for helper in helped)
    assert own_device.stats().get("buffers") == before.get("buffers")
    with own_device.start_pipelines([(shader, {"n": n}) for n in range(30)], warm_up=True) as batch:
        assert batch.result() == made


def test_a_kernel_that_cannot_be_built_is_reported(
    own_device: Device, helped: list[Device], shader: Shader
) -> None:
    broken = Shader(**{**vars(shader), "name": "broken", "spirv": lambda: b""})
    wanted = [(broken if n % 3 == 2 else shader, {"n": n}) for n in range(9)]
    with (
        own_device.start_pipelines(wanted, warm_up=True) as batch,
        pytest.raises(ShaderError, match="broken"),
    ):
        batch.result()
    assert all(helper.closed for helper in helped)


@pytest.mark.usefixtures("helped")
def test_a_helper_that_fails_costs_no_more_than_time(
    own_device: Device,
    shader: Shader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse() -> Device:
        raise DeviceError("no device is left")

    monkeypatch.setattr(own_device, "open_again", refuse)
    with (
        caplog.at_level(logging.WARNING, "vkmnn"),
        own_device.start_pipelines([(shader, {"n": n}) for n in range(9)], warm_up=True) as batch,
    ):
        made = batch.result()
    assert len(made) == 9
    assert all(pipeline.warm for pipeline in made)
    assert "no device is left" in caplog.text


def test_waiting_is_not_compiling(
    own_device: Device, helped: list[Device], shader: Shader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a warm-up takes long, but little processor time: no thread should help."""
    monkeypatch.setattr(warm_up.time, "process_time", lambda: 0.0)
    with own_device.start_pipelines([(shader, {"n": n}) for n in range(9)], warm_up=True) as batch:
        assert all(pipeline.warm for pipeline in batch.result())
    assert helped == []
