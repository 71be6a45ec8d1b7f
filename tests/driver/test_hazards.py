"""Dependencies between commands, under synchronisation validation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.driver.conftest import FLOAT, Places, record_scale, scaling
from vkmnn.errors import ValidationLayerError
from vkmnn.runtime import CommandRecorder, Device, Shader

MakePlaces = Callable[..., Places]
MakeShader = Callable[..., Shader]

pytestmark = pytest.mark.validation

# The steps of a program, each (source, target), and the barriers that it needs.
CHAINS = {
    "read after write": ([(0, 1), (1, 2)], 1),
    "write after read": ([(0, 1), (2, 0)], 1),
    "write after write": ([(0, 1), (2, 1)], 1),
    "independent": ([(0, 1), (0, 2), (3, 4)], 0),
    "in place": ([(0, 0), (0, 0)], 1),
    "dead write, made visible to reads only, written again": (
        [(0, 1), (0, 2), (2, 3), (0, 1)],
        2,
    ),
    "levels": ([(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)], 2),
    "reused memory": ([(0, 1), (1, 2), (2, 1), (1, 2), (2, 0)], 4),
}
# Layers as old as 1.3.239 do not report two shader writes of one range.
VISIBLE = [
    case for case, (_, barriers) in CHAINS.items() if barriers and "write after w" not in case
]


@pytest.mark.parametrize("case", CHAINS)
def test_chains(validated: Device, scale: Shader, make_places: MakePlaces, case: str) -> None:
    steps, barriers = CHAINS[case]
    places = make_places(validated, 7, 64)
    values = np.arange(7.0)
    for place, value in enumerate(values):
        places.write(place, np.full(16, value, np.float32))
    recorder = validated.recorder()
    for source, target in steps:
        record_scale(recorder, scale, [places.at(source), places.at(target)], 2.0)
        values[target] = 2 * values[source]
    with recorder.finish() as commands:
        commands.run()
    assert recorder.barrier_count == barriers
    for place, value in enumerate(values):
        assert places.read(place).tolist() == [value] * 16


@pytest.mark.parametrize("case", VISIBLE)
def test_a_missing_barrier_raises(
    validated: Device,
    scale: Shader,
    make_places: MakePlaces,
    case: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CommandRecorder, "_barrier", lambda self, dst: None)
    places = make_places(validated, 7, 64)
    with pytest.raises(ValidationLayerError, match="SYNC-HAZARD"):
        scaling(validated, scale, places, CHAINS[case][0])


def test_empty_ranges_are_tracked_apart(
    validated: Device, make_shader: MakeShader, make_places: MakePlaces
) -> None:
    """A dispatch that binds nothing of a buffer does not wait for one that writes it."""
    shader = make_shader(
        "maybe",
        """
        layout(push_constant) uniform P { uint count; };
        layout(binding = 0) writeonly buffer X { float x[]; };
        layout(binding = 1) writeonly buffer Y { float y[]; };
        void main() { if (count > 0) x[0] = 1.0; if (count == 0) y[0] = 2.0; }
        """,
        "x:w:f32 y:w:f32",
        push=4,
    )
    places = make_places(validated, 2, 64)
    recorder = validated.recorder()
    pipeline = validated.pipeline(shader)
    recorder.dispatch(pipeline, [places.at(0), places.at(1, 0)], bytes([1, 0, 0, 0]))
    recorder.dispatch(pipeline, [places.at(0, 0), places.at(1)], bytes(4))
    with recorder.finish() as commands:
        commands.run()
    same_buffer = not validated.info.limits.whole_buffers  # and so the same bytes for empty ranges
    assert recorder.barrier_count <= int(same_buffer)
    assert (places.read(0)[0], places.read(1)[0]) == (1, 2)


def test_transfers_between_dispatches(
    validated: Device, scale: Shader, make_places: MakePlaces
) -> None:
    word = int(np.float32(1.5).view(np.uint32))
    places = make_places(validated, 3, 40)
    recorder = validated.recorder()
    recorder.fill(places.at(0), word)
    record_scale(recorder, scale, [places.at(0), places.at(1)], 2.0)
    recorder.copy(places.at(1), places.at(2))
    recorder.fill(places.at(1))
    record_scale(recorder, scale, [places.at(2), places.at(0)], 2.0)
    with recorder.finish() as commands:
        for _ in range(2):
            commands.run()
            results = [places.read(place).tolist() for place in range(3)]
            assert results == [[6.0] * 10, [0.0] * 10, [3.0] * 10]


def test_command_buffers_in_a_row_see_each_other(
    validated: Device, scale: Shader, make_places: MakePlaces
) -> None:
    """Submitted without waiting in between."""
    places = make_places(validated, 2, 64)
    places.write(0, np.ones(16, np.float32))
    chain = [scaling(validated, scale, places, [(0, 1), (1, 0)]) for _ in range(4)]
    for commands in chain:
        commands.submit()
    for commands in chain:
        commands.wait()
        commands.destroy()
    assert places.read(0).tolist() == [4.0**4] * 16


def test_random_programs(validated: Device, scale: Shader, make_places: MakePlaces) -> None:
    random = np.random.default_rng(7)
    count, size = 8, 200
    places = make_places(validated, count, FLOAT * size)
    for _ in range(10):
        expected = random.standard_normal((count, size)).astype(np.float32)
        for place, row in enumerate(expected):
            places.write(place, row)
        recorder = validated.recorder()
        for _ in range(30):
            length = int(random.integers(1, size))
            source, target = (int(place) for place in random.integers(0, count, 2))
            ranges = [places.at(place, FLOAT * length) for place in (source, target)]
            action = random.choice(["scale", "copy", "fill"], p=[0.7, 0.15, 0.15])
            if action == "scale":
                record_scale(recorder, scale, ranges, 0.5)
                expected[target, :length] = 0.5 * expected[source, :length]
            elif action == "fill":
                recorder.fill(ranges[1])
                expected[target, :length] = 0
            elif source != target:
                recorder.copy(*ranges)
                expected[target, :length] = expected[source, :length]
        with recorder.finish() as commands:
            commands.run()
        for place, row in enumerate(expected):
            np.testing.assert_array_equal(places.read(place), row)


def test_a_fault_that_only_the_layer_sees_raises_with_its_id(
    validated: Device, make_shader: MakeShader, make_places: MakePlaces
) -> None:
    """A shader that uses a binding that its description leaves out."""
    shader = make_shader(
        "undeclared",
        """
        layout(binding = 0) writeonly buffer Y { float y[]; };
        layout(binding = 1) writeonly buffer Z { float z[]; };
        void main() { y[0] = 1.0; z[0] = 1.0; }
        """,
        "y:w:f32",
    )
    places = make_places(validated, 1, 64)
    with pytest.raises(ValidationLayerError, match="VUID-"):
        validated.recorder().dispatch(validated.pipeline(shader), [places.at(0)])
    validated.wait_idle()
