"""Models by path, address, name of the hub, zip archive and folder: one rule for all faces."""

from __future__ import annotations

import hashlib
import json
import socket
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.hub import COMMIT, Site, cache_repository, serving
from vkmnn.cli.app import run_cli
from vkmnn.errors import BudgetError, InvalidInputError, ModelError, ModelFileError
from vkmnn.onnxruntime import InferenceSession
from vkmnn.sources import hub as hub_module
from vkmnn.sources import zips
from vkmnn.sources.locate import locate, model_file, model_folder, pull, task_model
from vkmnn.sources.names import HubName, Url, read_name, title_of

A = "a" * 64


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with nothing in it, with caches of its own."""
    for name in ("VKMNN_OFFLINE", "HF_HUB_OFFLINE", "HF_TOKEN", "VKMNN_MAX_DOWNLOAD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path / "cache"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as found:
        yield found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the HF_HOME of an empty cache of the hub."""
    constants = pytest.importorskip("huggingface_hub.constants")
    folder = tmp_path / "hf"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    return folder


@pytest.fixture
def hub(site: Site, home: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Serve a hub, which huggingface_hub asks."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", site.address)
    template = site.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    return site


def network(external: str = "", factor: float = 2.0) -> bytes:
    """Return a model of y = x · factor, x [2, 3]; its constant may lie in another file."""
    constant = numpy_helper.from_array(np.full((2, 3), factor, np.float32), "w")
    if external:
        constant.ClearField("raw_data")
        constant.data_location = TensorProto.EXTERNAL
        entry = constant.external_data.add()
        entry.key, entry.value = "location", external
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"], name="product")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


WEIGHTS = np.full((2, 3), 2, np.float32).tobytes()
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def doubles(model: Any) -> None:
    with vkmnn.InferenceSession(model, "cpu") as session:
        (y,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(y, 2 * X)


# --- the rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", HubName("owner/name")),
        ("owner/name@v1.0", HubName("owner/name", "", "v1.0")),
        ("owner/name:onnx/model.onnx", HubName("owner/name", "onnx/model.onnx")),
        ("owner/Name-0.5B.v2:q4@refs/pr/1", HubName("owner/Name-0.5B.v2", "q4", "refs/pr/1")),
        ("hf://owner/name.onnx", HubName("owner/name.onnx")),
        ("https://huggingface.co/owner/name", HubName("owner/name")),
        ("https://huggingface.co/o/n/tree/v2/", HubName("o/n", "", "v2")),
        ("https://huggingface.co/o/n/blob/main/a/b.onnx", HubName("o/n", "a/b.onnx", "main")),
        (
            "https://huggingface.co/o/n/resolve/main/b.onnx",
            Url("https://huggingface.co/o/n/resolve/main/b.onnx"),
        ),
        ("https://host/a%20b.onnx?x=1", Url("https://host/a%20b.onnx?x=1")),
        (f"https://host/m.onnx#sha256={A}", Url("https://host/m.onnx", A)),
        ("http://localhost:8000/m.onnx", Url("http://localhost:8000/m.onnx")),
        *[
            (path, None)
            for path in (
                "m.onnx", "models/m.onnx", "models/m.tflite:serve", "./owner/name", "../a/b",
                "/a/b", "~/a/b", "a/b/c", "a", "", "C:/models", r"a\b", "owner/m.gguf",
                "owner/m.zip",
                "owner/name:", "owner/name@", "a/b.prototxt", "a/b.caffemodel", "a/b.safetensors",
                "owner/name@../x",
            )
        ],
    ],
)  # fmt: skip
def test_what_a_text_names(text: str, expected: object) -> None:
    assert read_name(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://host/m.onnx", "http:// is not supported"),
        ("ftp://host/m.onnx", "ftp:// is not supported"),
        ("s3://bucket/m.onnx", "s3:// is not supported"),
        ("file:///etc/passwd", "without a host"),
        ("https:///m.onnx", "without a host"),
        ("https://[::1/m.onnx", "not a valid URL"),
        ("https://host/m.onnx#sha256=12", "not a digest"),
        ("https://host/a b.onnx", "white space"),
        ("https://me:secret@host/a.onnx", "a user name"),
        ("hf://owner", "not a valid name of a model on the Hub"),
        ("hf://owner/name:../x", "not a valid name of a model on the Hub"),
        ("owner/name:a/../../x", "not a valid name of a model on the Hub"),
        ("owner/name@a/../b", "not a valid name of a model on the Hub"),
    ],
)
def test_names_that_are_refused(no_network: None, text: str, words: str) -> None:
    for face in (read_name, vkmnn.load):
        with pytest.raises(ModelFileError, match=words) as caught:
            face(text)
        assert caught.value.hint or "valid" in words
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("typed", ["models/net", "models/net.onnx", "models/new", "models/net:q4"])
def test_typing_errors_of_paths_download_nothing(no_network: None, typed: str) -> None:
    Path("models").mkdir()
    for face in (vkmnn.load, vkmnn.InferenceSession, vkmnn.llm.load, locate):
        with pytest.raises(ModelError, match=r"there is no f|no such file") as caught:
            face(typed)
        if not typed.endswith(".onnx"):
            assert f"hf://{typed}" in str(caught.value.hint)


def test_a_path_is_a_path(no_network: None) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        vkmnn.load(Path("owner/name"))
    with pytest.raises(ModelFileError, match="was passed as a path"):
        vkmnn.load(Path("https://host/m.onnx"))
    Path("owner").mkdir()
    Path("owner/name").write_bytes(network())
    doubles("owner/name")
    assert model_file("owner/name") == "owner/name"


@pytest.mark.parametrize(
    ("model", "title"),
    [
        ("owner/name:q4@v1", "name"),
        ("https://h/d/net.v1.onnx?x=1", "net.v1"),
        ("a/net.onnx", "net"),
    ],
)
def test_titles(model: str, title: str) -> None:
    assert title_of(model) == title


# --- folders and archives ------------------------------------------------------------------------


def folder_of(where: Path, *names: str) -> Path:
    for name in names:
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        is_network = name.endswith(".onnx")
        path.write_bytes(network() if is_network else b"{}")
    return where


@pytest.mark.parametrize(
    "names",
    [
        ("net.onnx", "README.md"),
        ("model.onnx", "model_fp16.onnx", "model-int8.onnx"),
        ("onnx/model.onnx", "onnx/model_q4.onnx", "config.json", "preprocessor_config.json"),
    ],
)
def test_folders_with_one_network(names: tuple[str, ...]) -> None:
    folder = folder_of(Path("some"), *names)
    doubles(folder)
    doubles(str(folder))
    plain = min((one for one in names if one.endswith(".onnx")), key=len)
    assert model_file(folder) == folder / plain


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("a.onnx", "b.onnx"), "folder of 2 models"),
        (("model_index.json", "unet/model.onnx"), "pipeline of diffusers"),
        (("config.json", "model.onnx"), "language model"),
        (("saved_model.pb", "variables/variables.index"), "SavedModel"),
        (("notes.txt",), "folder"),
    ],
)
def test_folders_of_other_kinds(no_network: None, names: tuple[str, ...], words: str) -> None:
    folder = folder_of(Path("some"), *names)
    with pytest.raises(ModelError, match=words) as caught:
        vkmnn.load(folder)
    assert caught.value.hint


def archive(path: Path, members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as file:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = how
            file.writestr(info, content)
    return path


def test_archives() -> None:
    inner = archive(Path("net.zip"), {"net/net.onnx": network("w.bin"), "net/w.bin": WEIGHTS})
    doubles(inner)
    doubles("net.zip")
    first = model_file("net.zip")
    assert isinstance(first, Path)
    assert model_file("net.zip") == first
    archive(Path("net.zip"), {"other.onnx": network()})
    changed = model_file("net.zip")
    assert isinstance(changed, Path)
    assert changed.name == "other.onnx"


def _link(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        info = zipfile.ZipInfo("m.onnx")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(info, "/etc/passwd")


def _encrypted(path: Path) -> None:
    archive(path, {"m.onnx": network()}, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    path.write_bytes(bytes(data))


def _lying(path: Path) -> None:
    """The table of contents states a smaller size than the member has."""
    archive(path, {"m.onnx": bytes(80 << 20)})
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = (1000).to_bytes(4, "little")
    path.write_bytes(bytes(data))


def _damaged(path: Path) -> None:
    archive(path, {"m.onnx": network() * 50})
    data = bytearray(path.read_bytes())
    data[60:90] = bytes(30)
    path.write_bytes(bytes(data))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "traversal": (lambda path: archive(path, {"../m.onnx": network()}), "outside its folder"),
    "inner": (lambda path: archive(path, {"a/../../m.onnx": network()}), "outside its folder"),
    "absolute": (lambda path: archive(path, {"/tmp/m.onnx": network()}), "outside its folder"),
    "drive": (lambda path: archive(path, {"C:m.onnx": network()}), "outside its folder"),
    "backslash": (lambda path: archive(path, {r"..\m.onnx": network()}), "outside its folder"),
    "twice": (
        lambda path: archive(path, {"m.onnx": network(), "M.onnx": network()}),
        "twice",
    ),
    "bomb": (lambda path: archive(path, {"m.onnx": bytes(80 << 20)}), "exceeds the unpacked size"),
    "many": (
        lambda path: archive(path, {f"{n}.txt": b"" for n in range(zips.MAX_MEMBERS + 1)}),
        "10,001 files",
    ),
    "link": (_link, "a link"),
    "encrypted": (_encrypted, "encrypted"),
    "lying": (_lying, "damaged|more bytes"),
    "damaged": (_damaged, "damaged"),
    "no archive": (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(40)), "damaged"),
}


@pytest.mark.parametrize("kind", BAD)
def test_archives_that_are_refused(tmp_path: Path, kind: str) -> None:
    make, words = BAD[kind]
    make(Path("m.zip"))
    with pytest.raises(ModelError, match=words) as caught:
        model_file("m.zip")
    assert caught.value.hint
    left = [path for path in (tmp_path / "cache").rglob("*") if path.suffix != ".lock"]
    assert [path for path in left if path.is_file()] == []
    assert not (tmp_path / "m.onnx").exists()


def test_archives_of_other_formats_are_not_unpacked(tmp_path: Path) -> None:
    archive(Path("torch.zip"), {"archive/data.pkl": b"", "archive/data/0": b""})
    with pytest.raises(ModelError, match="PyTorch"):
        vkmnn.load("torch.zip")
    assert not (tmp_path / "cache" / "unpacked").exists()


# --- addresses -----------------------------------------------------------------------------------


def test_addresses(site: Site) -> None:
    site.files["/d/net.onnx"] = network("data/w.bin")
    site.files["/d/data/w.bin"] = WEIGHTS
    address = f"{site.address}/d/net.onnx"
    doubles(address)
    assert site.asked == ["GET /d/net.onnx", "GET /d/data/w.bin"]
    doubles(address)
    assert len(site.asked) == 2
    site.files["/d/net.onnx"] = network(factor=3)
    doubles(address)
    found = pull(address)
    assert found.path.name == "net.onnx"
    (y,) = vkmnn.InferenceSession(address, "cpu").run(None, {"x": X})
    np.testing.assert_array_equal(y, 3 * X)


def test_addresses_offline(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["/net.onnx"] = network()
    address = f"{site.address}/net.onnx"
    model_file(address)
    for name in ("VKMNN_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")
        doubles(address)
        with pytest.raises(ModelFileError, match="downloads are disabled"):
            model_file(f"{address}?other")
        monkeypatch.delenv(name)
    assert site.asked == ["GET /net.onnx"]


def test_digests(site: Site) -> None:
    site.files["/net.onnx"] = network()
    right = hashlib.sha256(network()).hexdigest()
    doubles(f"{site.address}/net.onnx#sha256={right}")
    wrong = f"{site.address}/net.onnx#sha256={A}"
    for _ in range(2):
        with pytest.raises(ModelFileError, match=f"the digest sha256={right}, not {A}"):
            model_file(wrong)


def test_archives_and_other_formats_at_addresses(site: Site, tmp_path: Path) -> None:
    site.files["/all.zip"] = archive(Path("z.zip"), {"a/net.onnx": network()}).read_bytes()
    doubles(f"{site.address}/all.zip")
    doubles(f"{site.address}/all.zip?download=1")
    vkmnn.convert(network(), "n.vkmnn", external_data=True)
    site.files["/n.vkmnn"] = Path("n.vkmnn").read_bytes()
    site.files["/n.vkmnn.data"] = Path("n.vkmnn.data").read_bytes()
    doubles(f"{site.address}/n.vkmnn")
    assert title_of(f"{site.address}/n.vkmnn") == "n"


@pytest.mark.parametrize(
    ("path", "words", "kind"),
    [
        ("/none.onnx", "there is no such file", ModelFileError),
        ("/page.onnx", "a web page, not a model", ModelFileError),
        ("/cut.onnx", "it ended after", ModelFileError),
        ("/empty.onnx", "it ended after", ModelFileError),
        ("/outside.onnx", "outside its folder", ModelFileError),
        ("/lacks.onnx", "'lacks.onnx' needs it", ModelFileError),
        ("/away.onnx", "http:// is not supported", ModelFileError),
        ("/file.onnx", "is not allowed", ModelFileError),
        ("/loop.onnx", "redirect", ModelFileError),
        ("/large.onnx", "it has 5,000 bytes", BudgetError),
    ],
)
def test_downloads_that_fail(
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    words: str,
    kind: type[ModelError],
) -> None:
    monkeypatch.setenv("VKMNN_MAX_DOWNLOAD", "4k")
    site.files |= {
        "/page.onnx": b"<!DOCTYPE html><html>",
        "/cut.onnx": network(),
        "/empty.onnx": b"",
        "/outside.onnx": network("../w.bin"),
        "/lacks.onnx": network("w.bin"),
        "/away.onnx": "http://example.com/m.onnx",
        "/file.onnx": "file:///etc/passwd",
        "/loop.onnx": "/loop.onnx",
        "/large.onnx": bytes(5000),
    }
    site.cut.add("/cut.onnx")
    for _ in range(2):  # nothing is cached
        with pytest.raises(kind, match=words) as caught:
            model_file(site.address + path)
        assert caught.value.hint
    kept = [one for one in (tmp_path / "cache").rglob("*") if one.name == ".complete"]
    assert kept == []


def test_redirections_are_followed(site: Site) -> None:
    site.files |= {"/a.onnx": "/b.onnx", "/b.onnx": network()}
    doubles(f"{site.address}/a.onnx")


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(ModelFileError, match="cannot be downloaded") as caught:
        model_file(f"http://127.0.0.1:{port}/m.onnx")
    assert "network" in str(caught.value.hint)


def _quantize(model: str) -> None:
    pytest.importorskip("onnxruntime")
    vkmnn.quantize(model, "q.onnx", weights="int8", compare=False)


# --- the hub -------------------------------------------------------------------------------------

NET = {
    "README.md": b"#",
    "config.json": b"{}",
    "preprocessor_config.json": b"{}",
    "onnx/model.onnx": network("model.onnx_data"),
    "onnx/model.onnx_data": WEIGHTS,
    "onnx/model_q4.onnx": network("elsewhere.bin"),
    "onnx/elsewhere.bin": WEIGHTS,
    "model.safetensors": bytes(100),
}


def test_networks_of_the_hub(hub: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.repositories["someone/net"] = NET
    doubles("someone/net")
    small = ["config.json", "preprocessor_config.json"]
    assert set(hub.fetched) <= {*small, "onnx/model.onnx", "onnx/model.onnx_data"}
    assert hub.tokens == {"Bearer hf_secret"}
    hub.asked.clear()
    for name in (
        "someone/net:q4",
        "hf://someone/net:model_q4.onnx",
        "someone/net:onnx/model_q4.onnx",
    ):
        doubles(name)
    assert set(hub.fetched) == {"onnx/model_q4.onnx"}  # its data is a blob that is there
    pinned = f"someone/net:onnx/model.onnx@{COMMIT}"
    hub.asked.clear()
    doubles(pinned)
    assert hub.asked == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("someone/other", "there is no such repository"),
        ("someone/net@nosuch", "there is no such revision"),
        ("someone/net:nosuch", "has no file 'nosuch'"),
        ("someone/two", "has 2 models"),
        ("someone/llm", "is a language model"),
        ("someone/sd", "is a pipeline of diffusers"),
        ("someone/none", "has no model that vkmnn reads"),
    ],
)
def test_names_of_the_hub_that_fail(hub: Site, name: str, words: str) -> None:
    hub.repositories |= {
        "someone/net": NET,
        "someone/two": {"a.onnx": b"", "b.onnx": b""},
        "someone/llm": LLM,
        "someone/sd": {"model_index.json": b"{}", "unet/model.onnx": b""},
        "someone/none": {"pytorch_model.bin": b""},
    }
    with pytest.raises(ModelFileError, match=words) as caught:
        vkmnn.load(name)
    assert caught.value.hint
    assert hub.fetched == []


LLM = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "onnx/model.onnx": b"0",
    "onnx/model_fp16.onnx": b"1",
    "onnx/model_q4.onnx": b"2",
    "onnx/model_q4f16.onnx": b"3",
    "onnx/model_q4f16.onnx_data": b"4",
    "model.safetensors": b"5",
}
GGUF = {f"m-{kind}.gguf": kind.encode() for kind in ("BF16", "Q4_K_M", "Q8_0", "Q2_K")}
SPLIT = {f"m-Q8_0-0000{n}-of-00002.gguf": bytes([n]) for n in (1, 2)}
SMALL = {"config.json", "tokenizer.json"}


@pytest.mark.parametrize(
    ("files", "name", "variant", "fetched"),
    [
        (LLM, "x/m", None, {"onnx/model_q4f16.onnx", "onnx/model_q4f16.onnx_data", *SMALL}),
        (LLM, "x/m", "fp32", {"onnx/model.onnx", *SMALL}),
        (LLM, "x/m:q4", None, {"onnx/model_q4.onnx", *SMALL}),
        (LLM, "x/m:onnx/model_fp16.onnx", None, {"onnx/model_fp16.onnx", *SMALL}),
        (GGUF, "x/m", None, {"m-Q4_K_M.gguf"}),
        (GGUF, "x/m:Q8_0", None, {"m-Q8_0.gguf"}),
        (GGUF, "x/m:m-Q2_K.gguf", None, {"m-Q2_K.gguf"}),
        (SPLIT | {"config.json": b"{}"}, "x/m", None, {*SPLIT, "config.json"}),
        (
            {"model.safetensors": b"1", "config.json": b"{}", "pytorch_model.bin": b"2"},
            *("x/m", None),
            {"model.safetensors", "config.json"},
        ),
        (
            {"a/genai_config.json": b"{}", "a/m.onnx": b"1", "b/genai_config.json": b"3"},
            *("x/m:a", None),
            {"a/genai_config.json", "a/m.onnx"},
        ),
        (
            {"model_index.json": b"{}", "unet/model.onnx": b"1", "unet/x.safetensors": b"2"},
            *("x/m", None),
            {"model_index.json", "unet/model.onnx"},
        ),
    ],
)
def test_models_of_several_files(
    hub: Site, files: dict[str, bytes], name: str, variant: str | None, fetched: set[str]
) -> None:
    hub.repositories["x/m"] = files
    found = model_folder(name, variant=variant)
    there = {
        path.relative_to(found.path).as_posix() for path in found.path.rglob("*") if path.is_file()
    }
    inner = {one.removeprefix("a/") for one in fetched} if ":a" in name else fetched
    assert there == inner or found.path.name in fetched
    assert found.commit == COMMIT
    blobs = {hashlib.sha256(files[one]).hexdigest() for one in fetched}
    assert {hashlib.sha256(files[one]).hexdigest() for one in hub.fetched} == blobs


def test_networks_that_are_built_from_a_description(hub: Site) -> None:
    hub.repositories["x/m"] = {"model.safetensors": b"1", "config.json": b"{}"}
    found = model_file("x/m")
    assert isinstance(found, Path)
    assert (found / "model.safetensors").is_file()


def test_archives_of_several_files() -> None:
    files = {name: content for name, content in LLM.items() if "safetensors" not in name}
    archive(Path("llm.zip"), {f"some/{name}": content for name, content in files.items()})
    found = model_folder("llm.zip", variant="q4")
    assert (found.path / "onnx" / "model_q4.onnx").read_bytes() == LLM["onnx/model_q4.onnx"]
    assert found.variant == "q4"
    with pytest.raises(ModelError, match="language model"):
        vkmnn.load("llm.zip")


def test_offline_is_true_or_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_OFFLINE", "maybe")
    with pytest.raises(InvalidInputError, match="neither true nor false"):
        model_file("https://host/m.onnx")


def test_a_variant_that_a_repository_lacks(hub: Site) -> None:
    hub.repositories["x/m"] = LLM
    with pytest.raises(InvalidInputError, match="no variant 'q8'") as caught:
        model_folder("x/m", variant="q8")
    assert "fp16, fp32, q4, q4f16" in str(caught.value.hint)
    with pytest.raises(InvalidInputError, match="has the revision 'main'"):
        model_folder("x/m@main", "v2")


def test_links_out_of_the_cache_are_refused(home: Path, tmp_path: Path) -> None:
    snapshot = cache_repository(home, "someone/net", NET)
    secret = tmp_path / "secret.bin"
    secret.write_bytes(WEIGHTS)
    data = snapshot / "onnx" / "model.onnx_data"
    for target in (data, data.resolve()):
        target.unlink()
        target.symlink_to(secret)
        with pytest.raises(ModelError, match="outside the model's folder"):
            vkmnn.load(snapshot / "onnx" / "model.onnx")
        target.unlink()
        cache_repository(home, "someone/net", NET)


@pytest.mark.parametrize("variable", ["VKMNN_OFFLINE", "HF_HUB_OFFLINE"])
def test_the_hubs_cache_offline(
    home: Path, no_network: None, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    cache_repository(home, "someone/net", NET)
    other = {**NET, "onnx/model.onnx": network()}
    cache_repository(home, "someone/net", other, "d" * 40, "v2")
    cache_repository(home, "someone/llm", LLM)
    before = {path: path.lstat().st_mtime_ns for path in home.rglob("*")}
    doubles("someone/net")
    doubles("someone/net@v2")
    doubles(f"hf://someone/net@{'d' * 40}")
    assert model_file("someone/net@v2") != model_file("someone/net")
    assert model_folder("someone/llm", variant="q4").variant == "q4"
    assert pull("someone/net").commit == COMMIT
    _quantize("someone/net")
    for name in ("someone/other", "someone/net@v3", f"someone/net@{'e' * 40}"):
        with pytest.raises(ModelFileError, match="downloads are disabled"):
            model_file(name)
    assert {path: path.lstat().st_mtime_ns for path in home.rglob("*")} == before


def test_the_hub_is_down(hub: Site, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_repository(home, "someone/net", NET)
    constants = pytest.importorskip("huggingface_hub.constants")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
    doubles("someone/net")
    with pytest.raises(ModelFileError, match="cannot be downloaded"):
        model_file("someone/other")


def test_repositories_that_are_too_large(hub: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["someone/net"] = NET
    monkeypatch.setenv("VKMNN_MAX_DOWNLOAD", "100")
    with pytest.raises(BudgetError, match="its files have"):
        model_file("someone/net")
    assert hub.fetched == []


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch, no_network: None) -> None:
    def missing(package: str, what: str, extra: str = "llm") -> Any:
        raise vkmnn.MissingExtraError(what, hint=f"pip install 'vkmnn[{extra}]'")

    monkeypatch.setattr(hub_module, "need", missing)
    with pytest.raises(vkmnn.MissingExtraError) as caught:
        vkmnn.load("owner/name")
    assert "vkmnn[hub]" in str(caught.value.hint)


# --- every face, every command -------------------------------------------------------------------


FACES: dict[str, Callable[[Any], object]] = {
    "InferenceSession": lambda model: vkmnn.InferenceSession(model, "cpu"),
    "load": lambda model: vkmnn.load(model, "cpu"),
    "Interpreter": vkmnn.Interpreter,
    "onnxruntime": lambda model: InferenceSession(model, providers=["CPUExecutionProvider"]),
    "convert": lambda model: vkmnn.convert(model, "out.vkmnn"),
    "quantize": _quantize,
}


@pytest.mark.parametrize("face", FACES)
def test_every_face_takes_every_name(site: Site, face: str) -> None:
    site.files["/net.onnx"] = network()
    folder_of(Path("folder"), "net.onnx")
    archive(Path("net.zip"), {"net.onnx": network()})
    for model in (f"{site.address}/net.onnx", "net.zip"):
        FACES[face](model)
    if face != "onnxruntime":  # refuses folders, as onnxruntime does
        FACES[face]("folder")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "-d", "cpu"),
        ("info",),
        ("convert", "out.vkmnn"),
        ("quantize", "out.onnx", "-w", "int8", "--no-compare"),
        ("plan", "--as", "nvidia-h200", "--alone"),
    ],
)
def test_commands_take_every_name(
    site: Site, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    if command[0] == "quantize":
        pytest.importorskip("onnxruntime")
    site.files["/net.onnx"] = network()
    folder_of(Path("folder"), "net.onnx")
    archive(Path("net.zip"), {"net.onnx": network()})
    for model in (f"{site.address}/net.onnx", "folder", "net.zip"):
        assert run_cli([command[0], model, *command[1:]]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert run_cli([command[0], "folder/nte.onnx", *command[1:]]) == 1
    assert "no such file" in capsys.readouterr().err


def test_servers_take_every_name(site: Site) -> None:
    pytest.importorskip("starlette")
    from vkmnn.serve.models import load_models

    site.files["/net.onnx"] = network()
    folder_of(Path("folder"), "net.onnx")
    archive(Path("x.zip"), {"net.onnx": network()})
    digest = hashlib.sha256(network()).hexdigest()
    address = f"{site.address}/net.onnx?a=b#sha256={digest}"
    models = load_models([address, f"other={address}", "folder", "x.zip"], "cpu")
    try:
        assert list(models.networks) == ["net", "other", "folder", "x"]
    finally:
        models.close()


def test_info_lists_a_repository(hub: Site, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repositories |= {"someone/net": NET, "someone/llm": LLM}
    assert run_cli(["info", "someone/net"]) == 0
    told = capsys.readouterr()
    assert f"someone/net at {COMMIT[:12]}" in told.out
    assert "vkmnn run someone/net:onnx/model_q4.onnx" in told.err
    assert run_cli(["info", "someone/net", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    sizes = {one["file"]: (one["bytes"], one["default"]) for one in whole["models"]}
    assert sizes["onnx/model.onnx"] == (len(NET["onnx/model.onnx"]) + len(WEIGHTS), True)
    assert not sizes["onnx/model_q4.onnx"][1]
    assert run_cli(["info", "someone/llm", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    taken = [one["file"] for one in whole["models"] if one["default"]]
    assert taken == ["onnx/model_q4f16.onnx"]
    assert hub.fetched == []


def test_pull(hub: Site, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repositories["someone/net"] = NET
    assert run_cli(["pull", "someone/net", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert {"command", "vkmnn", "model", "path", "bytes"} < whole.keys()
    assert whole["commit"] == COMMIT
    assert onnx.load(whole["path"], load_external_data=False).graph.node[0].name == "product"
    assert run_cli(["pull", "someone/net"]) == 0
    assert f"pin it: someone/net@{COMMIT}" in capsys.readouterr().err.replace("\n", "")
    Path("net.onnx").write_bytes(network())
    for path in ("net.onnx", "nosuch.onnx"):
        assert run_cli(["pull", path]) == 1
        assert "is a path" in capsys.readouterr().err


def test_pipelines_take_every_name(hub: Site) -> None:
    pytest.importorskip("PIL")
    from tests.pipelines.networks import classifier

    classifier(Path("net.onnx"))
    model = Path("net.onnx").read_bytes()
    hub.files["/net.onnx"] = model
    labels = {str(number): f"kind {number}" for number in range(10)}
    config = json.dumps({"id2label": labels}).encode()
    hub.repositories["x/m"] = {
        "config.json": config,
        "preprocessor_config.json": b"{}",
        "onnx/model.onnx": model,
        "onnx/model_q4.onnx": b"other",
    }
    archive(Path("net.zip"), {"net.onnx": model})
    picture = np.zeros((8, 8, 3), np.uint8)
    for name in (f"{hub.address}/net.onnx", "x/m", "net.zip"):
        with vkmnn.pipeline("classify", name, device="cpu") as pipe:
            found = pipe(picture)
        if name == "x/m":
            assert str(found[0].name).startswith("kind ")


def test_a_repository_of_several_networks_for_a_task(hub: Site) -> None:
    parts = {f"onnx/{role}_model{end}.onnx": role.encode() + end.encode()
             for role in ("vision", "text") for end in ("", "_q4")}  # fmt: skip
    hub.repositories["x/clip"] = {**parts, "config.json": b"{}", "preprocessor_config.json": b"{}"}
    folder = task_model("x/clip")
    assert isinstance(folder, Path)
    assert sorted(path.name for path in (folder / "onnx").iterdir()) == [
        "text_model.onnx", "vision_model.onnx"
    ]  # fmt: skip
    folder_of(Path("local"), "a.onnx", "b.onnx")
    assert task_model("local") == "local"
    assert task_model("nosuch.onnx") == "nosuch.onnx"
