"""Model files with weights in the forms of kernels: the same results, without packing."""

from __future__ import annotations

import gc
import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from vkmnn.cli.app import run_cli
from vkmnn.converter.native.write import WriteOptions, write_model
from vkmnn.errors import InvalidInputError, ModelError
from vkmnn.ir import PACKING, Array, PackedForm
from vkmnn.opening import load_network
from vkmnn.vulkan.gemm.codes import CodeForm, _codes
from vkmnn.vulkan.gemm.families.coop import ConvCoop, ConvTaps
from vkmnn.vulkan.gemm.families.gemv import ConvGemv
from vkmnn.vulkan.gemm.families.halo import ConvHalo
from vkmnn.vulkan.gemm.operands import _right_constant
from vkmnn.vulkan.gemm.weights import pack_channels, pack_panels, words_of
from vkmnn.vulkan.recording import PackedConstant

PICTURE = {"N": 1, "H": 32, "W": 32}


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the forms that are packed, among those that files keep."""
    found: Counter[str] = Counter()
    usual = PackedConstant.array

    def counted(constant: PackedConstant, name: str) -> Array:
        found[constant.form] += constant.words > 0
        return usual(constant, name)

    monkeypatch.setattr(PackedConstant, "array", counted)
    return found


def converted(name: str, path: Path, **options: Any) -> dict[str, Array]:
    """Write a small network as a file, and return inputs for it."""
    model, sizes = NETWORKS[name].build(), PICTURE if name != "bert" else {"N": 1, "L": 16}
    named = {dim.dim_param for info in model.graph.input for dim in info.type.tensor_type.shape.dim}
    sizes = {dim: size for dim, size in sizes.items() if dim in named}
    vkmnn.convert(model, path, sizes=sizes, **options)
    return make_feeds(model, tuple(sizes.values()))


def run(path: Path, feeds: dict[str, Array], **options: Any) -> list[Any]:
    with vkmnn.InferenceSession(path, **options) as session:
        return list(session.run(None, feeds))


@pytest.mark.parametrize("precision", ["high", "normal"])
@pytest.mark.parametrize("name", ["resnet", "mobilenet_v2", "vit", "bert"])
def test_same_results_without_packing(
    name: str, precision: Any, validation: bool, packings: Counter[str], tmp_path: Path
) -> None:
    plain, path = tmp_path / "plain.vkmnn", tmp_path / "packed.vkmnn"
    converted(name, plain, precision=precision)
    feeds = converted(name, path, precision=precision, packed=True)
    options: dict[str, Any] = {"precision": precision, "validation": validation}
    expected = run(plain, feeds, **options)
    assert packings.total()
    packings.clear()
    found = run(path, feeds, **options)
    assert not packings.total()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_does_not_fit_is_packed(packings: Counter[str], tmp_path: Path) -> None:
    """Another precision, another device, a copy with rounded weights, forms that are not known."""
    plain, path = tmp_path / "plain.vkmnn", tmp_path / "packed.vkmnn"
    converted("resnet", plain)
    feeds = converted("resnet", path, packed=True)
    cases: list[tuple[Path, dict[str, Any]]] = [
        (path, {"precision": "normal"}),
        (path, {"device": "cpu"}),
        (renamed(path, tmp_path / "other.vkmnn"), {}),
    ]
    for file, options in cases:
        packings.clear()
        found = run(file, feeds, **options)
        assert packings.total() or options == {"device": "cpu"}
        for one, other in zip(found, run(plain, feeds, **options), strict=True):
            np.testing.assert_array_equal(one, other)
    rounded, again = tmp_path / "rounded.vkmnn", tmp_path / "again.vkmnn"
    vkmnn.convert(path, rounded, precision="normal")
    vkmnn.convert(plain, again, precision="normal")
    for one, other in zip(run(rounded, feeds), run(again, feeds), strict=True):
        np.testing.assert_array_equal(one, other)


def renamed(path: Path, target: Path) -> Path:
    """Write a file again with forms of the same sizes that a device with other kernels chose."""
    graph = load_network(path).graph
    forms = [
        replace(form, form=f"{form.form}:wide", packed=np.zeros_like(form.packed), device="other")
        for form in graph.packed
    ]
    write_model(replace(graph, packed=forms), target, WriteOptions())
    return target


@pytest.mark.parametrize("external", [False, True])
def test_weights_stay_where_they_are_mapped(
    external: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the device reads mapped files, constants that need no packing are not copied."""
    path = tmp_path / "packed.vkmnn"
    feeds = converted("resnet", path, packed=True, external_data=external)
    with vkmnn.InferenceSession(path) as session:
        if "file_memory" not in session.device.features:
            pytest.skip("the device copies what files hold")
        plan = session._session.core.current
        assert plan is not None
        places = plan.segments[0]._memory.constants  # type: ignore[attr-defined]
        copied = [place.range.nbytes for place in places if place.arena.file is None]
        assert sum(copied) < sum(place.range.nbytes for place in places) / 20
        session.release_model()
        gc.collect()
        found = session.run(None, feeds)
    monkeypatch.setenv("VKMNN_DISABLE_FEATURES", "file_memory")
    for one, other in zip(found, run(path, feeds), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_copy_keeps_the_forms(packings: Counter[str], tmp_path: Path) -> None:
    path, copy = tmp_path / "packed.vkmnn", tmp_path / "copy.vkmnn"
    feeds = converted("resnet", path, packed=True, external_data=True)
    vkmnn.convert(path, copy)
    packings.clear()
    run(copy, feeds)
    assert not packings.total()


@pytest.mark.parametrize("size", [0, 4, -4])
def test_forms_of_another_size_are_refused(size: int, tmp_path: Path) -> None:
    """Kernels read as many words as they expect: fewer must not be bound."""
    path = tmp_path / "packed.vkmnn"
    converted("resnet", path, packed=True)
    graph = load_network(path).graph

    def changed(form: PackedForm) -> PackedForm:
        flat = form.packed.reshape(-1)
        longer = np.concatenate([flat, np.zeros(max(size, 0), flat.dtype)])
        return replace(form, packed=longer[: flat.size + size if size else 0])

    damaged = tmp_path / "damaged.vkmnn"
    write_model(replace(graph, packed=[*map(changed, graph.packed)]), damaged, WriteOptions())
    with pytest.raises(ModelError, match="the packed form"):
        vkmnn.InferenceSession(damaged)


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no shapes"):
        vkmnn.convert(NETWORKS["resnet"].build(), tmp_path / "net.vkmnn", packed=True)
    with pytest.raises(InvalidInputError, match="as they are"):
        converted("resnet", tmp_path / "net.vkmnn", packed=True, device="cpu")
    assert list(tmp_path.iterdir()) == []


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, path = tmp_path / "net.onnx", tmp_path / "net.vkmnn"
    source.write_bytes(NETWORKS["resnet"].build().SerializeToString())
    sizes = [word for dim, size in PICTURE.items() for word in ("--static-shapes", f"{dim}={size}")]
    assert run_cli(["convert", str(source), str(path), "--packed", *sizes]) == 0
    assert run_cli(["info", str(path)]) == 0
    device = load_network(path).graph.packed[0].device
    assert f"packed for {device}" in capsys.readouterr().out


def test_forms_are_what_their_names_say() -> None:
    """If a packing changes and its name does not, increase PACKING in vkmnn/ir/graph.py."""
    w = np.arange(2 * 9 * 6 * 4, dtype=np.float32).reshape(18, 6, 4)
    b = np.arange(2 * 6 * 10, dtype=np.float32).reshape(2, 6, 10)
    form = CodeForm(bits=4, block=32, depth=64, columns=40)
    codes = np.arange(40 * 2 * 16, dtype=np.uint8).reshape(40, 2, 16)
    packed = {
        "blocked:2": pack_panels(w, 2, 2),
        "single": pack_channels(w),
        "gemv": ConvGemv.pack(None, w, 1),  # type: ignore[arg-type]
        "coop": ConvCoop.pack(None, w, 2),  # type: ignore[arg-type]
        "taps": ConvTaps.pack(None, w[:, :3], 1),  # type: ignore[arg-type]
        "halo": ConvHalo.pack(None, w.reshape(8, 6, 9), 2),  # type: ignore[arg-type]
        "bytes": words_of(pack_panels(w % 100, 1, 1).astype(np.int32), -3),
        "matmul_b": _right_constant(b, True, 8, None),
        "codes": _codes(codes, form),
    }
    digests = {
        name: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:8]
        for name, array in packed.items()
    }
    assert digests == {
        "blocked:2": "78a5d60f",
        "single": "e52c717a",
        "gemv": "bfaa29f3",
        "coop": "43d5e793",
        "taps": "ad8ee597",
        "halo": "9c8e302c",
        "bytes": "5245447a",
        "matmul_b": "57307f58",
        "codes": "96d4dc59",
    }
    assert PACKING == 1
