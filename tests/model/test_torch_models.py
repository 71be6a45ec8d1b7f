"""Programs of torch.export, TorchScript and compiled modules match PyTorch's own results."""

from __future__ import annotations

import copy
import io
import json
import logging
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import vkmnn
from vkmnn.cli.app import app
from vkmnn.errors import ConversionError, InvalidInputError, ModelFileError

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
import vkmnn.torch  # noqa: E402 - after the skip

nn = torch.nn
Tensor: Any = torch.Tensor  # what TorchScript reads in annotations

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from-pytorch.md"


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 5)

    def forward(self, image: Tensor) -> Any:
        return self.last(torch.relu_(self.norm(self.conv(image))).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, batch_first=True, bidirectional=True)

    def forward(self, words: Tensor) -> Any:
        return self.lstm(self.words(words))[0]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


class Choice(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y.cos() + 1, lambda y: y * 3, (x,))


class Ring(nn.Module):
    """Writes buffers in place: by a slice, and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.arange(12.0).reshape(4, 3))
        self.register_buffer("count", torch.tensor(5), persistent=False)
        self.register_buffer("scale", torch.full((3,), 2.0))
        self.register_buffer("faded", torch.ones(2, dtype=torch.float16))

    def forward(self, x: Tensor) -> Any:
        self.rows[:3] = self.rows[1:].clone()
        self.rows[3:] = x.sum(0) * self.scale
        self.count += 1
        self.faded.mul_(0.5)
        return self.rows * self.count + self.faded.sum().float(), self.rows


class Nested(nn.Module):
    def forward(self, pair: Any, *, by: dict[str, Any], twice: bool = False) -> Any:
        total = pair[0] + pair[1] * by["factor"]
        return {"total": total * 2 if twice else total, "rest": [pair[0] - 1, 7]}


def program_of(module: Any, *args: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        return torch.export.export(module, args, **options)


def saved(program: Any, path: Path) -> Path:
    torch.export.save(program, path)
    return path


def check(session: vkmnn.InferenceSession, module: Any, *args: Any) -> None:
    """Run twice: equal to PyTorch's within 1e-4 of the range."""
    for _ in range(2):
        with torch.no_grad():
            want = module(*(one.clone() for one in args))
        wanted = want if isinstance(want, tuple) else (want,)
        names = [info.name for info in session.get_inputs()]
        made = session.run(None, dict(zip(names, (one.numpy() for one in args), strict=True)))
        assert len(made) == len(wanted)
        for one, right in zip(made, wanted, strict=True):
            assert one.shape == tuple(right.shape)
            limit = 1e-4 * max(1.0, float(right.abs().max()))
            np.testing.assert_allclose(one, right.numpy(), rtol=0, atol=limit)


def test_an_open_batch_keeps_its_name(tmp_path: Path) -> None:
    module = Cnn().eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = program_of(module, torch.randn(2, 3, 8, 8), dynamic_shapes=({0: batch},))
    session = vkmnn.InferenceSession(program)
    assert [(one.name, one.shape) for one in session.get_inputs()] == [
        ("image", ["batch", 3, 8, 8])
    ]
    assert session.get_outputs()[0].shape == ["batch", 5]
    for count in (1, 3):
        check(session, module, torch.randn(count, 3, 8, 8))
    path = saved(program, tmp_path / "cnn.pt2")
    vkmnn.convert(path, tmp_path / "cnn.vkmnn")
    for one in (path, path.read_bytes(), tmp_path / "cnn.vkmnn"):
        check(vkmnn.InferenceSession(one), module, torch.randn(4, 3, 8, 8))


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (Recurrent, lambda: torch.randint(0, 11, (2, 4))),
        (Block, lambda: torch.randn(2, 5, 8)),
        (Choice, lambda: torch.randn(3, 4)),
    ],
)
def test_programs(make: Callable[[], Any], given: Callable[[], Any]) -> None:
    module = make().eval()
    session = vkmnn.InferenceSession(program_of(module, given()))
    check(session, module, given())
    check(session, module, -given().abs() if make is Choice else given())


@pytest.mark.parametrize("from_file", [False, True])
def test_written_buffers_are_kept(from_file: bool, tmp_path: Path) -> None:
    module = Ring().eval()
    batch = torch.export.Dim("batch", min=1, max=9)
    program = program_of(copy.deepcopy(module), torch.randn(2, 3), dynamic_shapes=({0: batch},))
    model = saved(program, tmp_path / "ring.pt2") if from_file else program
    session = vkmnn.InferenceSession(model)
    assert len(session.get_inputs()) == 1
    fresh = copy.deepcopy(module)
    for count in (2, 1, 3):  # two runs of each
        check(session, module, torch.randn(count, 3))
    session.reset_state()
    check(session, fresh, torch.randn(2, 3))
    vkmnn.convert(model, tmp_path / "ring.vkmnn")
    check(vkmnn.InferenceSession(tmp_path / "ring.vkmnn"), Ring().eval(), torch.randn(2, 3))
    assert float(program.state_dict["rows"][0, 0]) == 0.0  # the program itself is as it was


def test_batch_norm_in_training_updates_its_statistics() -> None:
    module = nn.BatchNorm1d(3)
    session = vkmnn.InferenceSession(program_of(copy.deepcopy(module), torch.randn(4, 3)))
    check(session, module, torch.randn(4, 3))
    assert {"running_mean", "running_var"} <= {
        re.sub("^state/", "", state.input) for state in session._states
    }


def test_an_input_that_is_written_becomes_an_output_too() -> None:
    class Writer(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x.mul_(2).sum()

    session = vkmnn.InferenceSession(program_of(Writer().eval(), torch.randn(3)))
    x = np.array([1, 2, 3], np.float32)
    total, written = session.run(None, {"x": x})
    assert session.get_outputs()[1].name == "x/next"
    assert total == 12
    np.testing.assert_array_equal(written, x * 2)
    tensor = torch.from_numpy(x.copy())
    assert vkmnn.torch.compile(Writer().eval(), (tensor.clone(),))(tensor) == 12
    np.testing.assert_array_equal(tensor.numpy(), x * 2)


def test_compile_takes_and_returns_what_the_module_does() -> None:
    pair, factor = [torch.randn(2, 3), torch.randn(2, 3)], torch.randn(3)
    module = Nested().eval()
    compiled = vkmnn.torch.compile(module, (pair,), {"by": {"factor": factor}, "twice": True})
    for _ in range(2):
        made = compiled(pair, by={"factor": factor}, twice=True)
        want = module(pair, by={"factor": factor}, twice=True)
        assert made["rest"][1] == 7
        torch.testing.assert_close(made["total"], want["total"])
        torch.testing.assert_close(made["rest"][0], want["rest"][0])
    with pytest.raises(InvalidInputError, match="compiled with True"):
        compiled(pair, by={"factor": factor}, twice=False)
    with pytest.raises(InvalidInputError, match="other arguments"):
        compiled(pair)
    with pytest.raises(InvalidInputError, match=r"for training\n.*module.eval"):
        vkmnn.torch.compile(Nested(), (pair,))
    with pytest.raises(InvalidInputError, match="not str"):
        vkmnn.torch.compile("module", (pair,))


def test_compiled_modules_have_open_sizes_and_states() -> None:
    batch = torch.export.Dim("batch", min=1, max=9)
    module = Ring().eval()
    compiled = vkmnn.torch.compile(
        copy.deepcopy(module), (torch.randn(2, 3),), dynamic_shapes=({0: batch},)
    )
    assert compiled.session.get_inputs()[0].shape == ["batch", 3]
    first = None
    for count in (1, 2, 3):
        x = torch.randn(count, 3)
        made = compiled(x)
        first = first or (x, [one.clone() for one in made])
        for one, right in zip(made, module(x), strict=True):
            torch.testing.assert_close(one, right)
    compiled.reset_state()
    for one, right in zip(compiled(first[0]), first[1], strict=True):
        torch.testing.assert_close(one, right)


def test_results_that_are_inputs_or_equal() -> None:
    class Passes(nn.Module):
        def forward(self, x: Any, y: Any, by: int) -> Any:
            double = y * by
            return x, None, double, x, double

    x, y = torch.randn(3), torch.randn(2)
    made = vkmnn.torch.compile(Passes().eval(), (x, y, 2))(x, y, 2)
    for one, right in zip(made, (x, None, y * 2, x, y * 2), strict=True):
        assert (one is None) == (right is None)
        if right is not None:
            torch.testing.assert_close(one, right)


def test_weights_lie_outside_the_protobuf() -> None:
    """Large ones, of which two are one."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(100, 64)
            self.last = nn.Linear(64, 100, bias=False)
            self.last.weight = self.words.weight

        def forward(self, words: Any) -> Any:
            return self.last(self.words(words))

    module, words = Tied().eval(), torch.randint(0, 100, (2, 5))
    session = vkmnn.InferenceSession(program_of(module, words))
    with torch.no_grad():
        right = module(words).numpy()
        module.words.weight.zero_()  # the session has weights of its own
    np.testing.assert_allclose(session.run(None, {"words": words.numpy()})[0], right, atol=1e-4)


def test_operators_that_the_exporter_lacks() -> None:
    """Attention on three and five axes, stable sorts, embedding bags; all run on the device."""

    class Forms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            modes = ("sum", "mean", "max")
            self.bags = nn.ModuleList(
                nn.EmbeddingBag(9, 4, mode=mode, padding_idx=2) for mode in modes
            )
            self.last = nn.EmbeddingBag(9, 4, mode="sum", include_last_offset=True)

        def forward(self, x: Tensor, words: Tensor, starts: Tensor, shares: Tensor) -> Any:
            attend = nn.functional.scaled_dot_product_attention
            made = [attend(x, x, x), attend(x[0], x[0], x[0], is_causal=True)]
            mask = torch.ones(5, 5).tril()
            made.append(attend(*[x[None, :, None].expand(2, -1, 3, -1, -1)] * 3, attn_mask=mask))
            made += (x * 2).round().sort(dim=1, stable=True)
            made.append((x * 2).round().argsort(dim=2, descending=True, stable=True))
            made += [bag(words) for bag in self.bags]
            made += [bag(words.flatten(), starts) for bag in self.bags]
            made += [self.bags[0](words, per_sample_weights=shares)]
            return (*made, self.last(words.flatten(), starts))

    def args(batch: int, rows: int) -> tuple[Any, ...]:
        words = torch.randint(0, 9, (rows, 4))
        return torch.randn(batch, 5, 8), words, torch.tensor([0, 2, 5]), torch.rand(rows, 4)

    batch, rows = (torch.export.Dim(name, min=1, max=9) for name in ("batch", "rows"))
    module = Forms().eval()
    sizes = ({0: batch}, {0: rows}, None, {0: rows})
    session = vkmnn.InferenceSession(
        program_of(module, *args(2, 3), dynamic_shapes=sizes), require_device=True
    )
    check(session, module, *args(2, 3))
    check(session, module, *args(4, 5))


def test_fused_layers_of_transformers() -> None:
    """Which PyTorch takes without gradients, and which traces hold."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            make = nn.TransformerEncoderLayer
            self.layer = make(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
            one = make(8, 2, 16, 0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(one, 2, enable_nested_tensor=False)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor, hidden: Tensor) -> Any:
            causal = torch.ones(5, 5).triu(1).bool()
            made = self.layers(x, src_key_padding_mask=hidden), self.layers(x, mask=causal)
            return (*made, self.layer(x), *self.attention(x, x, x))

    module = Layers().eval()
    x, hidden = torch.randn(2, 5, 8), torch.arange(5).expand(2, 5) > 3
    with torch.no_grad():
        compiled = torch.compile(module, backend="vkmnn", options={"fallback": "raise"})
        for one, right in zip(compiled(x, hidden), module(x, hidden), strict=True):
            torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-4)
        traced = torch.jit.trace(module, (x, hidden))
        assert "_transformer_encoder_layer_fwd" in str(traced.inlined_graph)
        made = vkmnn.torch.compile(traced, (x, hidden))(x, hidden)
        for one, right in zip(made, module(x, hidden), strict=True):
            torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-4)


def test_operators_without_a_form_in_onnx_are_named() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return torch.special.modified_bessel_k1(x)

    with pytest.raises(ConversionError, match=r"aten\.special_modified_bessel_k1"):
        vkmnn.InferenceSession(program_of(Odd().eval(), torch.randn(3)))


# --- TorchScript --------------------------------------------------------------------------------


class Loops(nn.Module):
    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        for _ in range(int(times)):
            x = x * 0.5 + 1 if bool(x.sum() > 4) else x - 1
        return x


class Uneven(nn.Module):
    """The older exporter takes no adaptive pooling whose windows differ in size."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(x, (3, 3))


def test_traced_files(tmp_path: Path) -> None:
    module = Cnn().eval()
    path = tmp_path / "cnn.pt"
    torch.jit.save(torch.jit.trace(module, torch.randn(1, 3, 8, 8)), path)
    with pytest.raises(ConversionError, match=r"shapes of its inputs: image\n.*input_shapes"):
        vkmnn.InferenceSession(path)
    for shape in ((2, 3, 8, 8), ("n", 3, 8, 8)):
        session = vkmnn.InferenceSession(path, input_shapes={"image": shape})
        assert session.get_inputs()[0].shape == list(shape)
        check(session, module, torch.randn(2, 3, 8, 8))
    check(session, module, torch.randn(5, 3, 8, 8))


def test_traced_files_with_integers_as_inputs(tmp_path: Path) -> None:
    module = Recurrent().eval()
    path = tmp_path / "lstm.pt"
    torch.jit.save(torch.jit.trace(module, torch.zeros(2, 4, dtype=torch.int64)), path)
    session = vkmnn.InferenceSession(path, input_shapes={"words": (2, 4)})
    check(session, module, torch.randint(0, 11, (2, 4)))


class Masked(nn.Module):
    """Takes indices, a mask of whole numbers, one of truths, a subscript and floats."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)

    def forward(self, ids: Tensor, mask: Tensor, keep: Tensor, at: Tensor, by: Tensor) -> Tensor:
        x = self.words(ids.unsqueeze(0)[0]) * by
        scores = (1.0 - mask[:, None, :].to(torch.float32)) * -1e4
        x = torch.softmax(x @ x.transpose(1, 2) + scores, -1) @ x
        return x.masked_fill(keep.unsqueeze(-1), 0.0)[:, at]


@pytest.mark.parametrize("scripted", [False, True])
def test_types_of_script_inputs_follow_from_their_uses(
    scripted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    module = Masked().eval()
    args = (
        torch.randint(0, 11, (2, 4)),
        torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]),
        torch.tensor([[True, False, False, True]] * 2),
        torch.tensor([2, 0]),
        torch.rand(1),
    )
    names = ["ids", "mask", "keep", "at", "by"]
    stream = io.BytesIO()
    torch.jit.save(torch.jit.script(module) if scripted else torch.jit.trace(module, args), stream)
    shapes = {name: tuple(arg.shape) for name, arg in zip(names, args, strict=True)}
    with caplog.at_level(logging.WARNING, "vkmnn"):
        session = vkmnn.InferenceSession(stream.getvalue(), "cpu", input_shapes=shapes)
    types = [one.dtype for one in session.get_inputs()]
    assert types == ["int64", "int64", "bool", "int64", "float32"]
    assert "guesses: 'by' is float32 (" in caplog.text
    [y] = session.run(None, {name: arg.numpy() for name, arg in zip(names, args, strict=True)})
    torch.testing.assert_close(torch.from_numpy(y), module(*args), rtol=1e-4, atol=1e-4)


class Pictured(nn.Module):
    """Converts both inputs to the type of the weights: an image, and a mask by way of truths."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2, padding="valid")

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        x = self.conv(image.to(dtype=self.conv.weight.dtype)).flatten(2)
        return x.permute(0, -1, 1).masked_fill(~mask.to(torch.bool).unsqueeze(-1), 0.0)


def test_converted_inputs_of_layers_are_floats() -> None:
    """Axes that permute counts from the end are counted from the front, too."""
    module = Pictured().eval()
    args = (torch.rand(1, 3, 3, 3), torch.tensor([[1, 0, 1, 1]]))
    stream = io.BytesIO()
    torch.jit.save(torch.jit.trace(module, args), stream)
    shapes = {"image": (1, 3, 3, 3), "mask": (1, 4)}
    session = vkmnn.InferenceSession(stream.getvalue(), "cpu", input_shapes=shapes)
    assert [one.dtype for one in session.get_inputs()] == ["float32", "int64"]
    [y] = session.run(None, {name: x.numpy() for name, x in zip(shapes, args, strict=True)})
    torch.testing.assert_close(torch.from_numpy(y), module(*args), rtol=1e-4, atol=1e-4)


def test_the_exporter_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    module = torch.jit.trace(Uneven().eval(), torch.randn(1, 2, 7, 7))
    vkmnn.torch.compile(module, (torch.randn(1, 2, 7, 7),))
    assert "graph(" not in capfd.readouterr().out


def test_script_inputs_have_the_type_of_the_weights(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.BytesIO()
    module = Cnn().eval().double()
    torch.jit.save(torch.jit.trace(module, torch.rand(1, 3, 8, 8).double()), stream)
    with caplog.at_level(logging.WARNING, "vkmnn"):
        session = vkmnn.InferenceSession(
            stream.getvalue(), "cpu", input_shapes={"image": (1, 3, 8, 8)}
        )
    assert [one.dtype for one in session.get_inputs()] == ["float64"]
    assert "guesses" not in caplog.text


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        (["run", "MODEL", "-d", "cpu", "-s", "2,3,8,8"], "[2, 5]"),
        (["run", "MODEL", "-d", "cpu", "-i", "image=FILE"], "[3, 5]"),
        (["run", "MODEL", "-d", "cpu", "-s", "image=2,3,8,8", "--compare", "cpu"], "[2, 5]"),
        (["info", "MODEL", "-s", "image=2,3,8,8"], "FLOP per run with image [2, 3, 8, 8]"),
        (["plan", "MODEL", "-s", "image=2,3,8,8", "--as", "nvidia-h200", "--alone"], "cnn.pt"),
        (["compare", "MODEL", "-d", "cpu", "--with", "cpu", "-i", "image=FILE"], "[3, 5]"),
        (["convert", "MODEL", "OUT", "-s", "image=2,3,8,8"], "cnn.vkmnn"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_pass_shapes_on(command: list[str], printed: str, tmp_path: Path) -> None:
    places = {name: tmp_path / file for name, file in
              {"MODEL": "cnn.pt", "FILE": "x.npy", "OUT": "cnn.vkmnn"}.items()}  # fmt: skip
    torch.jit.save(torch.jit.trace(Cnn().eval(), torch.randn(1, 3, 8, 8)), places["MODEL"])
    np.save(places["FILE"], np.ones((3, 3, 8, 8), np.float32))
    words = [
        re.sub("MODEL|FILE|OUT", lambda found: str(places[found[0]]), word) for word in command
    ]
    done = CliRunner().invoke(app, words, catch_exceptions=False, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert printed in done.output


def test_commands_say_how_to_give_shapes(tmp_path: Path) -> None:
    path = tmp_path / "cnn.pt"
    torch.jit.save(torch.jit.trace(Cnn().eval(), torch.randn(1, 3, 8, 8)), path)
    with pytest.raises(ConversionError, match="--shape image=1,3,224,224"):
        CliRunner().invoke(app, ["run", str(path)], catch_exceptions=False)
    with pytest.raises(InvalidInputError, match="there is no input and no dimension 'y'"):
        CliRunner().invoke(app, ["run", str(path), "-s", "y=1,3,8,8"], catch_exceptions=False)


def test_scripted_modules_have_control_flow() -> None:
    module = torch.jit.script(Loops().eval())
    x = torch.randn(2, 3)
    compiled = vkmnn.torch.compile(module, (x, torch.tensor(3)))
    for count in (3, 5):
        torch.testing.assert_close(compiled(x, torch.tensor(count)), module(x, torch.tensor(count)))


def test_what_the_older_exporter_refuses_takes_the_second_road(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = torch.jit.trace(Uneven().eval(), torch.randn(1, 2, 7, 7))
    x = torch.randn(1, 2, 7, 7)
    with caplog.at_level(logging.WARNING, "vkmnn"):
        compiled = vkmnn.torch.compile(module, (x,))
    assert "recorded" not in caplog.text
    assert [one.name for one in compiled.session.get_inputs()] == ["x"]
    torch.testing.assert_close(compiled(x), module(x))


def test_recordings_say_what_they_fix(caplog: pytest.LogCaptureFixture) -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = nn.functional.adaptive_avg_pool2d(x, (3, 3))
            if bool(y.sum() > 0):
                y = y + 1
            return y

    module = torch.jit.script(Both().eval())
    x = torch.rand(1, 2, 7, 7)
    with caplog.at_level(logging.WARNING, "vkmnn"):
        compiled = vkmnn.torch.compile(module, (x,))
    torch.testing.assert_close(compiled(x), module(x))
    # Another version of torch may export the branch itself.
    assert "are fixed" in caplog.text or not compiled(-x).sum() > 0


def test_scripted_attention_takes_the_third_road() -> None:
    module = torch.jit.script(Block().eval())
    x = torch.randn(2, 3, 8)
    compiled = vkmnn.torch.compile(module, (x,))
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)


def test_scripts_that_write_are_refused() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sum", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            part = self.sum[:2]
            part += x[:2]
            return self.sum * 2

    for module in (torch.jit.script(Writes()), torch.jit.trace(Writes(), torch.ones(3))):
        with pytest.raises(
            ConversionError, match=r"writes its own buffer or attribute 'sum'(?s:.*)compile"
        ):
            vkmnn.torch.compile(module, (torch.ones(3),))


class Segmenter(nn.Module):
    """Writes in place into what a dictionary holds, which may be anything for an analysis."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        held = {"out": nn.functional.hardswish(self.norm(self.conv(image)), inplace=True)}
        return {"seen": held["out"].add_(1)}


def test_traces_that_write_into_results_are_no_writers_of_buffers() -> None:
    module, image = Segmenter().eval(), torch.randn(1, 3, 8, 8)
    traced = torch.jit.trace(module, image, strict=False)
    with vkmnn.torch.compile(traced, (image,), device="cpu").session as session:
        [y] = session.run(None, {"image": image.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), module(image)["seen"], rtol=1e-4, atol=1e-4)


def test_branches_that_write_buffers_are_refused() -> None:
    class Maybe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sum", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            if bool(x.sum() < 0):
                self.sum.add_(x)
            return self.sum * 2

    with pytest.raises(ConversionError, match="writes its own buffer or attribute 'sum'"):
        vkmnn.torch.compile(torch.jit.script(Maybe()), (torch.ones(3),))


def test_a_refused_trace_is_left_as_it_was() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sum", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.sum.add_(x)

    traced = torch.jit.trace(Sums(), torch.ones(3))
    before = traced.sum.clone()
    with pytest.raises(ConversionError, match="writes its own buffer or attribute 'sum'"):
        vkmnn.torch.compile(traced, (torch.ones(3),))
    assert torch.equal(traced.sum, before)


# --- files that are not to be trusted -----------------------------------------------------------


def rewritten(data: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """Return an archive with other members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            content = change(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return stream.getvalue()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    batch = torch.export.Dim("batch", min=1, max=9)
    program = program_of(nn.Linear(3, 2).eval(), torch.randn(2, 3), dynamic_shapes=({0: batch},))
    return saved(program, tmp_path_factory.mktemp("pt2") / "linear.pt2").read_bytes()


def test_archives_that_were_written_again(archive: bytes, tmp_path: Path) -> None:
    """What the next tests change is otherwise read."""
    script = tmp_path / "linear.pt"
    torch.jit.save(torch.jit.script(nn.Linear(3, 2)), script)
    for data, shapes in ((archive, None), (script.read_bytes(), {"input": (2, 3)})):
        again = rewritten(data, lambda _, content: content)
        session = vkmnn.InferenceSession(again, "cpu", input_shapes=shapes)
        name = session.get_inputs()[0].name
        assert session.run(None, {name: np.ones((2, 3), np.float32)})[0].shape == (2, 2)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("evil"),)


def evil_pickle() -> bytes:
    stream = io.BytesIO()
    torch.save(Evil(), stream)
    return stream.getvalue()


def model_text(old: str, new: str) -> Callable[[str, bytes], bytes]:
    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return data
        text = data.decode()
        assert old in text
        return text.replace(old, new).encode()

    return change


def pickled_weight(name: str, data: bytes) -> bytes:
    if name.endswith("model_weights_config.json"):
        document = json.loads(data)
        for entry in document["config"].values():
            entry["use_pickle"] = True
        return json.dumps(document).encode()
    return evil_pickle() if "/weights/weight_" in name else data


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda name, data: evil_pickle() if "sample_inputs" in name else data, "a pickle of more"),
        (pickled_weight, "a pickle of more"),
        (model_text("torch.ops.aten.linear.default", "torch.os.system"), "neither an operator"),
        (
            model_text("Symbol('s", "__import__('os').mkdir('evil') or Symbol('s"),
            "neither an operator",
        ),
        (model_text('"graph_module"', '"graph_modul"'), "cannot be loaded"),
        (lambda name, data: data[:10] if name.endswith("model.json") else data, "is damaged at"),
        (lambda name, data: None if name.endswith("model.json") else data, "cannot be loaded"),
    ],
)
def test_hostile_files_run_nothing(
    change: Callable[[str, bytes], bytes | None],
    words: str,
    archive: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ModelFileError, ConversionError), match=words):
        vkmnn.InferenceSession(rewritten(archive, change))
    assert not (tmp_path / "evil").exists()


def test_unknown_compressions_are_refused(archive: bytes) -> None:
    """A member says how it is compressed, in the archive's list of members."""
    entry = archive.index(b"PK\x01\x02")
    changed = archive[: entry + 10] + b"\x63" + archive[entry + 11 :]
    with pytest.raises(ModelFileError, match="is damaged at"):
        vkmnn.InferenceSession(changed)


def test_compiled_libraries_are_refused(archive: bytes) -> None:
    stream = io.BytesIO(archive)
    with zipfile.ZipFile(stream, "a") as more:
        more.writestr("linear/data/aotinductor/model/model.so", b"\x7fELF")
    with pytest.raises(ConversionError, match="AOTInductor"):
        vkmnn.InferenceSession(stream.getvalue())


def test_damaged_scripts(tmp_path: Path) -> None:
    path = tmp_path / "linear.pt"
    torch.jit.save(torch.jit.script(nn.Linear(3, 2)), path)
    damaged = rewritten(path.read_bytes(), lambda _, data: data[: len(data) // 2])
    with pytest.raises(ConversionError, match="cannot be loaded by PyTorch"):
        vkmnn.InferenceSession(damaged)


def test_weights_alone_are_refused(tmp_path: Path) -> None:
    for name in ("weights.pt", "weights.pth", "weights.pt2"):
        torch.save(nn.Linear(3, 2).state_dict(), tmp_path / name)
        with pytest.raises(ModelFileError, match=r"is a PyTorch archive(?s:.*)torch.onnx.export"):
            vkmnn.InferenceSession(tmp_path / name)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) > 1
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)  # noqa: S102 - the page is ours
