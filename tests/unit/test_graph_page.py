"""The page of `vkmnn info --html`, and the file of `--onnx`: the optimised network, for people."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.model.networks import NETWORKS
from tests.unit.test_profile_page import CHROMIUM, Outline
from vkmnn.cli.app import run_cli
from vkmnn.cli.graph_page import Drawn, graph_page
from vkmnn.converter.onnx.export import DOMAIN, onnx_model
from vkmnn.core.placement import PlacedOp, Placement
from vkmnn.core.profile import Profile, ProfileEntry
from vkmnn.opening import load_network


def blocks(count: int, scoped: bool = True) -> onnx.ModelProto:
    """Return a chain of blocks of three nodes, with a connection around each."""
    nodes = []
    last = "x"
    for number in range(count):
        start, at = last, f"/model/block.{number}" if scoped else f"n{number}"
        for place, kind in enumerate(("MatMul", "Softmax", "Add")):
            name = f"{kind}_{number}_{place}"
            inputs = {"MatMul": [last, "w"], "Softmax": [last], "Add": [last, start]}[kind]
            separator = "/" if scoped else "_"
            nodes.append(helper.make_node(kind, inputs, [name], name=f"{at}{separator}{kind}"))
            last = name
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in ("x", last)]
    weights = [numpy_helper.from_array(np.full((4, 4), 0.1, np.float32), "w")]
    graph = helper.make_graph(nodes, "</script><b>", infos[:1], infos[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def content(page: str) -> dict[str, Any]:
    """Return the network that a page holds."""
    match = re.search(r'<script type="application/json" id="network">(.*?)</script>', page)
    assert match
    found: dict[str, Any] = json.loads(match[1])
    return found


def test_from_nodes_to_ops_and_kernels() -> None:
    network = load_network(NETWORKS["resnet"].build())
    first, second = network.graph.ops[:2]
    placement = Placement(
        (
            PlacedOp(first.name, first.type, first.source, "VULKAN", ""),
            PlacedOp("lowered", "Raster", second.source, "CPU", "too small", "vkmnn", ("old",)),
        ),
        "VULKAN",
        1,
    )
    steps = [
        ProfileEntry(first.name, first.type, first.source, "VULKAN", "conv_a", 10.0),
        ProfileEntry(first.name, first.type, first.source, "VULKAN", "conv_b", 2.5),
        ProfileEntry("other", "Raster", second.source, "CPU", "", 4.0),
    ]
    profile = Profile(tuple(steps), "VULKAN", 3, 12.5, 20.0, 1.0)
    page = graph_page(Drawn(network, {}, placement, profile), "net", "somewhere")
    Outline(page)
    ops = {op["name"]: op for op in content(page)["ops"]}
    convolution = ops["Conv_0"]
    assert convolution["nodes"] == [
        "Conv_0 (Conv)",
        "BatchNormalization_1 (BatchNormalization)",
        "Relu_2 (Relu)",
    ]
    assert convolution["kernels"] == ["conv_a: 10.0 µs", "conv_b: 2.5 µs"]
    assert convolution["us"] == 12.5
    assert convolution["where"] == "VULKAN"
    assert (ops[second.name]["where"], ops[second.name]["us"]) == ("CPU", 4.0)
    assert ops[second.name]["why"] == "too small; old"
    assert ops["x"]["type"] == "input"
    assert "1 off the device" not in page
    assert "<b>1</b><span>op off the device</span>" in page


@pytest.mark.parametrize("name", ["resnet", "bert", "unet"])
def test_edges_are_the_tensors_between_ops(name: str) -> None:
    network = load_network(NETWORKS[name].build())
    whole = content(graph_page(Drawn(network), "net", ""))
    ops = whole["ops"]
    assert len(ops) == len(network.graph.ops) + len(network.graph.inputs) + len(
        network.graph.outputs
    )
    made = {name: op.name for op in network.graph.ops for name in op.outputs}
    made |= {info.name: info.name for info in network.graph.inputs}
    expected = {
        (made[tensor], op.name)
        for op in network.graph.ops
        for tensor in op.inputs
        if tensor in made
    } | {(made[info.name], info.name) for info in network.graph.outputs if info.name in made}
    named = {(ops[a]["name"], ops[b]["name"]) for a, b, _ in whole["edges"]}
    assert named == expected
    assert all(a < b for a, b, _ in whole["edges"])


def test_scopes_are_paths_and_long_networks_without_names_have_parts() -> None:
    scoped = content(graph_page(Drawn(load_network(blocks(3))), "net", ""))
    inner = [op for op in scoped["ops"] if op["nodes"]]
    assert inner[0]["path"] == ["model", "block.0"]
    plain = content(graph_page(Drawn(load_network(blocks(200, scoped=False))), "net", ""))
    paths = [op["path"] for op in plain["ops"] if op["nodes"]]
    assert paths[0] == ["ops 1 to 50"]
    assert len(paths) > 400
    assert all(paths)


def test_the_page_is_one_file_and_escapes_names() -> None:
    page = graph_page(Drawn(load_network(blocks(1))), "</title><script>", "<b>")
    Outline(page)
    assert "</title><script>" not in page.replace("</title>\n<style>", "")
    assert not re.search(r"(src|href)=|@import|url\(", page)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, page, fused = (tmp_path / name for name in ("m.onnx", "m.html", "fused.onnx"))
    onnx.save(NETWORKS["resnet"].build(), model)
    arguments = ["info", str(model), "-s", "1,3,32,32", "--html", str(page)]
    assert run_cli([*arguments, "-d", "cpu", "--profile", "--onnx", str(fused)]) == 0
    ops = [op for op in content(page.read_text("utf-8"))["ops"] if op["nodes"]]
    assert all(op["where"] == "CPU" for op in ops)
    assert sum(op["us"] for op in ops) > 0
    made = onnx.load(fused)
    onnx.checker.check_model(made)
    (first,) = [info for info in made.graph.value_info if info.name == "t2"]
    assert [dim.dim_value for dim in first.type.tensor_type.shape.dim] == [1, 8, 16, 16]
    capsys.readouterr()
    assert run_cli(["info", str(model), "--profile"]) == 1
    assert "--html" in capsys.readouterr().err
    assert run_cli(["info", str(model), "--html", str(tmp_path / "none" / "m.html")]) == 1
    assert "page cannot be written" in capsys.readouterr().err
    converted = ["convert", str(model), str(tmp_path / "m.vkmnn"), "--onnx", str(fused)]
    assert run_cli(converted) == 0
    assert {node.domain for node in onnx.load(fused).graph.node} == {DOMAIN}


@pytest.mark.parametrize("name", [*NETWORKS])
def test_files_for_viewers_are_valid(name: str) -> None:
    graph = load_network(NETWORKS[name].build()).graph
    model = onnx_model(graph)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == [op.type for op in graph.ops]
    assert [node.doc_string for node in model.graph.node] == [op.source for op in graph.ops]
    weights = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    for key, array in weights.items():
        np.testing.assert_array_equal(array, graph.constants[key])
    used = {name for op in graph.ops for name in op.inputs} & graph.constants.keys()
    assert used <= weights.keys()
    declared = {info.name for info in model.graph.value_info}
    assert graph.infos.keys() & graph.producers().keys() - graph.output_names() <= declared


def test_weights_that_are_too_large_are_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    from vkmnn.converter.onnx import export

    monkeypatch.setattr(export, "_MAX_WEIGHTS", 10)
    model = onnx_model(load_network(blocks(1)).graph)
    onnx.checker.check_model(model)
    assert not model.graph.initializer
    assert "w" in [info.name for info in model.graph.input]


def test_what_the_host_costs() -> None:
    ops = (
        PlacedOp("a", "MatMul", "", "VULKAN", "", flops=300),
        PlacedOp("b", "Sort", "", "CPU", "no kernel", flops=100),
    )
    placement = Placement(ops, "VULKAN", 2)
    assert placement.away_share == 0.25
    assert "25.0 % of the operations off the device" in str(placement)
    unknown = Placement((*ops, PlacedOp("c", "If", "", "onnxruntime", "")), "VULKAN", 2)
    assert unknown.away_share is None
    assert "%" not in str(unknown)
    entries = (
        ProfileEntry("a", "MatMul", "", "VULKAN", "k", 30.0),
        ProfileEntry("copy to host", "Copy", "", "VULKAN", "", 5.0),
        ProfileEntry("b", "Sort", "", "CPU", "", 10.0),
    )
    profile = Profile(entries, "VULKAN", 1, 35.0, 50.0, 1.0)
    assert (profile.away_us, profile.crossings_us) == (10.0, 5.0)
    from vkmnn.cli.profile import _summary

    assert "steps off the device take 10 µs, 22.2 % of all steps" in _summary(profile)


def test_placement_counts_operations() -> None:
    with vkmnn.InferenceSession(NETWORKS["resnet"].build(), "cpu") as session:
        session.prepare([{"x": (1, 3, 32, 32)}])
        convolutions = [op for op in session.placement() if op.type == "Convolution"]
        assert convolutions
        assert all(op.flops > 1000 for op in convolutions)
        assert session.placement().away_share == 0.0


READER = """
<script>
const seen = { boxes: boxes.length, scopes: boxes.filter((box) => box.scope).length };
document.getElementById("all").click();
seen.all = boxes.length;
seen.apart = boxes.every((a) => boxes.every((b) =>
  a === b || a.layer !== b.layer || Math.abs(a.x - b.x) >= W + GAP_X - 1e-6));
seen.down = data.edges.every(([from, to]) =>
  boxes.find((box) => box.key === from).y < boxes.find((box) => box.key === to).y);
document.getElementById("few").click();
seen.few = boxes.length;
search.value = "block.7/Softmax";
search.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
seen.found = document.querySelector("#detail dd").textContent;
seen.picked = document.querySelectorAll(".box.picked").length;
document.querySelector("#detail button").click();
seen.closed = boxes.length;
paint.value = "where";
paint.dispatchEvent(new Event("change"));
document.querySelector("thead th:nth-child(2) button").click();
seen.sorted = document.querySelector("#ops tbody tr").cells[1].textContent;
document.body.dataset.seen = JSON.stringify(seen);
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_the_page_works_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "graph.html"
    page = graph_page(Drawn(load_network(blocks(60))), "net", "somewhere")
    path.write_text(page.replace("</body>", READER + "</body>"), "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    done = subprocess.run(
        [CHROMIUM, *options, f"--user-data-dir={tmp_path / 'user'}", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    match = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert match, done.stderr[-1000:]
    seen = json.loads(match[1].replace("&quot;", '"'))
    assert (seen["boxes"], seen["scopes"], seen["few"]) == (62, 60, 3)
    assert seen["all"] > 150
    assert seen["apart"]
    assert seen["down"]
    assert "block.7/Softmax" in seen["found"]
    assert seen["picked"] == 1
    assert seen["closed"] == 3
    assert seen["sorted"] == "BinaryOp"
