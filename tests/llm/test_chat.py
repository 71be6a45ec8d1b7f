"""`vkmnn chat`: messages, commands, settings, Ctrl-C and history."""

from __future__ import annotations

import io
import json
import os
import re
import select
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.llm import tiny
from vkmnn.cli import chat, chat_history
from vkmnn.cli.app import run_cli
from vkmnn.cli.chat_commands import COMMANDS
from vkmnn.cli.chat_history import History
from vkmnn.cli.chat_input import MORE, PROMPT, Entry, read_entry
from vkmnn.cli.chat_state import Chat
from vkmnn.llm.language_model import LanguageModel

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

INTERRUPT = "^C"


class Keys(io.StringIO):
    """A terminal on which lines are typed; the line "^C" is Ctrl-C."""

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1) -> str:
        line = super().readline(-1 if size is None else size)
        if line.rstrip("\n") == INTERRUPT:
            raise KeyboardInterrupt
        return line


class Talk(NamedTuple):
    """A finished chat: status, output, and what the model was asked."""

    status: int
    out: str
    err: str
    prompts: list[list[dict[str, str]]]
    options: list[dict[str, Any]]


Talker = Callable[..., Talk]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.optimum_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def talk(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Talker:
    """Return a function that holds a chat; `stop` is the piece at which Ctrl-C is pressed."""
    whole = LanguageModel.pieces
    monkeypatch.setattr(chat_history, "data_folder", lambda: tmp_path / "data")

    def run(
        text: str, *arguments: str, typed: bool = True, stop: int = -1, model: Path = folder
    ) -> Talk:
        prompts, options = [], []

        def pieces(self: LanguageModel, prompt: Any, most: int | None, **how: Any) -> Iterator[Any]:
            prompts.append([dict(one) for one in prompt])
            options.append({"max_tokens": most, **how})
            for number, piece in enumerate(whole(self, prompt, most, **how)):
                if number == stop and len(prompts) == 1:
                    raise KeyboardInterrupt
                yield piece

        monkeypatch.setattr(LanguageModel, "pieces", pieces)
        monkeypatch.setattr("sys.stdin", Keys(text) if typed else io.StringIO(text))
        capsys.readouterr()
        status = run_cli(["chat", str(model), "-m", "4", "--no-stats", *arguments])
        return Talk(status, *capsys.readouterr(), prompts, options)

    return run


def _contents(prompt: list[dict[str, str]]) -> list[str]:
    return [one["content"] for one in prompt if one["role"] != "assistant"]


# --- entries -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "wanted", "command"),
    [
        (["hello "], "hello", False),
        (["/help"], "/help", True),
        (["//help"], "/help", False),
        (["one \\", "two\\", "three", "four"], "one \ntwo\nthree", False),
        (["/system one\\", "two"], "/system one\ntwo", True),
        (["one\\"], "one", False),
        (['"""one"""', "two"], "one", False),
        (['"""', "  one", "", "/help", '"""', "two"], "  one\n\n/help", False),
        (['"""/help', 'two"""'], "/help\ntwo", False),
        (['"""//one', "two"], "//one\ntwo", False),
    ],
)
def test_entries(lines: list[str], wanted: str, command: bool) -> None:
    prompts, left = [], iter(lines)

    def line(prompt: str) -> str:
        prompts.append(prompt)
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    entry = read_entry(line)
    assert (entry.text if command else entry.message) == wanted
    assert entry.is_command == command
    assert prompts == [PROMPT, *[MORE] * (len(prompts) - 1)]


def test_an_entry_is_bounded(talk: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkmnn.cli.chat_input.MAX_CHARACTERS", 20)
    long = '"""\n' + "much\n" * 9 + '"""\n'
    assert "more than 20 characters" in talk(long, typed=False).err
    assert talk(long, typed=False).status == 1
    assert talk("x" * 40 + "\n", typed=False).status == 1
    assert talk(f"{long}hello\n").status == 0


# --- conversations -------------------------------------------------------------------------------


def test_a_pipe_shows_no_prompts(talk: Talker) -> None:
    found = talk('hello\n"""\ntwo\nlines\n"""\nlast\n', typed=False)
    assert found.status == 0
    assert [_contents(one)[-1] for one in found.prompts] == ["hello", "two\nlines", "last"]
    assert len(found.prompts[-1]) == 5
    for text in (PROMPT, MORE, "\x1b"):
        assert text not in found.out + found.err
    assert found.out.count("\n") >= 3


def test_a_terminal_shows_prompts_and_ignores_empty_lines(talk: Talker) -> None:
    found = talk("\n\nhello\\\nyou\n\n/exit\nnever\n")
    assert found.status == 0
    assert [_contents(one) for one in found.prompts] == [["hello\nyou"]]
    assert found.err.count(PROMPT) == 5
    assert found.err.count(MORE) == 1
    assert "/help" in found.err


def test_commands_change_the_conversation(talk: Talker) -> None:
    found = talk(
        "one\ntwo\n/undo\nthree\n/retry\n/system be brief\nfour\n/clear\nfive\n"
        '/system ""\nsix\n/system\n'
    )
    assert found.status == 0
    assert [_contents(one) for one in found.prompts] == [
        ["one"],
        ["one", "two"],
        ["one", "three"],
        ["one", "three"],
        ["be brief", "one", "three", "four"],
        ["be brief", "five"],
        ["five", "six"],
    ]
    assert found.prompts[2] == found.prompts[3]
    assert found.prompts[4][0]["role"] == "system"
    assert "system prompt: none" in found.err


def test_another_answer_has_another_seed(talk: Talker) -> None:
    found = talk("one\n/retry\n/retry\n", "--seed", "5", "-t", "1")
    assert [one["seed"] for one in found.options] == [5, 6, 7]
    assert "same answer" not in found.err
    assert "same answer" in talk("one\n/retry\n").err


MISTAKES = (
    ("/hlep", "did you mean /help?"),
    ("/zzz", "commands: /help, /clear"),
    ("/", "commands: /help"),
    ("/clear all", "/clear takes no argument"),
    ("/save", "/save needs FILE"),
    ("/save talk.txt", "no known suffix"),
    ("/save no/folder/talk.json", "cannot be written"),
    ("/load no.json", "no.json"),
    ("/undo", "no message to undo"),
    ("/retry", "no message to answer again"),
    ("/set tempature 1", "did you mean temperature?"),
    ("/set temperature", "needs a value"),
    ("/set temperature warm", "give a number, or default"),
    ("/set temperature -1", "from 0 to 100"),
    ("/set top-p 0", "top_p is 0"),
    ("/set top-k 1.5", "give a whole number"),
    ("/set max-tokens 0", "1 or more"),
    ("/set stats perhaps", "on or off"),
    ("x" * 2000, "hint"),
)


@pytest.mark.parametrize("typed", [True, False])
def test_mistakes_end_nothing(talk: Talker, typed: bool) -> None:
    text = "".join(f"{line}\n" for line, _ in MISTAKES)
    found = talk(f"{text}hello\n", "-c", "60", typed=typed)
    errors = re.findall(r"error: .*(?:\nhint: .*)?", found.err)
    assert len(errors) == len(MISTAKES)
    for error, (line, words) in zip(errors, MISTAKES, strict=True):
        assert words in error, line
    assert _contents(found.prompts[-1]) == ["hello"]
    assert found.status == (0 if typed else 1)


def test_help_lists_every_command(talk: Talker) -> None:
    shown = talk("/help\n/?\n").err
    page = (Path(__file__).parents[2] / "docs" / "language-models.md").read_text("utf-8")
    for name, command in COMMANDS.items():
        assert shown.count(f"{name} {command.argument}".strip()) >= 2
        assert f"`{name}" in page


def test_settings(talk: Talker) -> None:
    found = talk(
        "one\n/set temperature 0.5\n/set top-k=3\n/set MIN_P 0.1\n/set max-tokens 2\ntwo\n"
        "/set temperature default\n/set max-tokens default\n/set max-tokens 3\nthree\n/set\n",
        "--top-p", "0.9",
    )  # fmt: skip
    first, second, third = found.options
    assert (first["temperature"], first["top_p"], first["max_tokens"]) == (None, 0.9, 4)
    assert second["temperature"] == 0.5
    assert (second["top_k"], second["min_p"], second["max_tokens"]) == (3, 0.1, 2)
    assert (third["temperature"], third["max_tokens"]) == (None, 3)
    assert re.search(r"top-p 0\.9 ", found.err)
    assert "stats off" in found.err
    assert "ends after 2 tokens" in found.err


def test_defaults_of_the_model(talk: Talker, tmp_path: Path) -> None:
    model = tiny.optimum_folder(tmp_path / "model")
    values = {"do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05}
    (model / "generation_config.json").write_text(json.dumps(values), "utf-8")
    (first, second) = talk("one\n/set temperature 2\n/set temperature default\ntwo\n",
                           "--top-k", "7", model=model).options  # fmt: skip
    assert first == second
    assert (first["temperature"], first["top_k"], first["top_p"]) == (0.6, 7, 1.0)
    assert first["repetition_penalty"] == 1.05
    (only,) = talk("one\n", "-t", "0", model=model).options
    assert only["temperature"] == 0
    assert run_cli(["chat", str(model), "--min-p", "2"]) == 1


def test_statistics(talk: Talker) -> None:
    assert "tok/s" not in talk("one\n").err
    found = talk("/stats\none\n/stats\n/set stats on\ntwo\n")
    assert re.search(r"answers +0 with 0 tokens", found.err)
    assert re.search(r"answers +1 with [1-4] token", found.err)
    assert "of 512 tokens" in found.err
    assert found.err.count("tok/s") == 4
    assert "tok/s" not in found.out


# --- files ---------------------------------------------------------------------------------------


def test_a_conversation_is_saved_and_loaded(talk: Talker, tmp_path: Path) -> None:
    saved, page = tmp_path / "my talk.json", tmp_path / "talk.md"
    first = talk(f"/system short\none\ntwo\n/save {saved}\n/save {page}\n")
    document = json.loads(saved.read_text("utf-8"))
    assert document["messages"][:4] == first.prompts[1]
    assert len(document["messages"]) == 5
    text = page.read_text("utf-8")
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == [
        "System", "User", "Assistant", "User", "Assistant",
    ]  # fmt: skip
    second = talk(f"/load {saved}\nthree\n/retry\n")
    for prompt in second.prompts:
        assert prompt == [*document["messages"], {"role": "user", "content": "three"}]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[" * 100_000,
        "{}",
        '{"messages": 3}',
        '[{"role": "user"}]',
        '[{"role": "tool", "content": "x"}]',
        '[{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]',
        '[{"role": ["user"], "content": "x"}]',
    ],
    ids=range(9),
)
def test_damaged_files_leave_the_conversation(talk: Talker, tmp_path: Path, content: str) -> None:
    path = tmp_path / "talk.json"
    path.write_text(content, "utf-8")
    found = talk(f"one\n/load {path}\ntwo\n")
    assert "error: " in found.err
    assert "hint: " in found.err
    assert _contents(found.prompts[-1]) == ["one", "two"]


def test_a_message_without_an_answer_is_answered(talk: Talker, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    messages = [{"role": "user", "content": "one"}]
    path.write_text(json.dumps(messages), "utf-8")
    assert talk(f"/load {path}\n/retry\n").prompts == [messages]


# --- Ctrl-C --------------------------------------------------------------------------------------


def test_ctrl_c_ends_the_answer_only(talk: Talker) -> None:
    found = talk("one\ntwo\n", "-m", "40", stop=9)
    assert found.status == 0
    part = found.prompts[1][1]
    assert part["role"] == "assistant"
    assert part["content"]
    assert found.out.startswith(part["content"] + "\n")
    assert "stopped; this part stays" in found.err


def test_ctrl_c_before_the_first_word_drops_the_message(talk: Talker) -> None:
    found = talk("one\ntwo\n", stop=0)
    assert _contents(found.prompts[1]) == ["two"]
    assert "as before" in found.err


def test_ctrl_c_after_the_answer_drops_the_message(
    talk: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = Chat.count, []

    def count(self: Chat, answer: Any) -> None:
        calls.append(answer)
        if len(calls) == 1:
            raise KeyboardInterrupt
        whole(self, answer)

    monkeypatch.setattr(Chat, "count", count)
    assert [_contents(one) for one in talk("one\ntwo\n").prompts] == [["one"], ["two"]]


def test_ctrl_c_ends_a_chat_in_a_pipe(talk: Talker) -> None:
    found = talk("one\ntwo\n", typed=False, stop=0)
    assert found.status == 130
    assert len(found.prompts) == 1


def test_ctrl_c_twice_at_the_prompt_ends_the_chat(talk: Talker) -> None:
    found = talk(f"{INTERRUPT}\none\n{INTERRUPT}\n{INTERRUPT}\nnever\n")
    assert found.status == 130
    assert [_contents(one) for one in found.prompts] == [["one"]]
    assert found.err.count("press Ctrl-C again") == 2
    dropped = talk(f'"""\nhalf\n{INTERRUPT}\n{INTERRUPT}\nwhole\n')
    assert dropped.status == 0
    assert [_contents(one) for one in dropped.prompts] == [["whole"]]


def test_an_interrupted_template_does_not_answer_the_next_time(folder: Path) -> None:
    from vkmnn.llm.templates import ChatTemplate

    template = ChatTemplate("{{ text }}")
    assert template.write({"text": "one"}) == "one"
    process = template._worker._process
    assert process is not None
    assert process.stdout is not None

    class Interrupted:
        def readline(self) -> bytes:
            raise KeyboardInterrupt

        def close(self) -> None: ...

    process.stdout.close()
    process.stdout = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        template.write({"text": "two"})
    assert template.write({"text": "three"}) == "three"


_ON_A_TERMINAL = """
import fcntl, sys, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from vkmnn.cli.app import run_cli
from vkmnn.llm.language_model import LanguageModel
whole = LanguageModel.pieces
def pieces(*arguments, **how):
    for piece in whole(*arguments, **how):
        time.sleep(0.05)
        yield piece
LanguageModel.pieces = pieces
sys.exit(run_cli(sys.argv[1:]))
"""


def _is_awake(process: int) -> bool:
    """Return whether a process runs or waits for a processor, where the system tells."""
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text("utf-8").rpartition(")")[2].split()[0] != "S"


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are a thing of POSIX")
def test_keys_on_a_terminal(folder: Path, tmp_path: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path),
                   "TERM": "dumb"}  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_A_TERMINAL, "chat", str(folder)],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = ""

    def until(wanted: str) -> None:
        nonlocal shown
        end = time.monotonic() + 60
        while not re.search(wanted, shown):
            assert time.monotonic() < end, (wanted, shown)
            if select.select([ours], [], [], 1)[0]:
                try:
                    shown += os.read(ours, 65536).decode("utf-8", "replace")
                except OSError:  # Linux: the other side is closed
                    break
        assert re.search(wanted, shown), (wanted, shown)
        shown = ""

    def rest() -> None:
        """Wait until the process has slept for half a second."""
        end, since = time.monotonic() + 60, time.monotonic()
        while time.monotonic() < since + 0.5:
            assert time.monotonic() < end
            time.sleep(0.02)
            if _is_awake(process.pid):
                since = time.monotonic()

    try:
        until(r"ends the chat\s+> ")
        os.write(ours, b"hello\n")
        until(r"hello\r?\n\W*\w")
        os.write(ours, b"\x03")
        until(r"stopped; this part stays(.|\s)*\n> ")
        os.write(ours, b"/hlep\n")
        until(r"did you mean /help(.|\s)*> ")
        os.write(ours, b"abc")
        until(r"abc")
        rest()  # Python misses a signal right before readline waits for a key
        os.write(ours, b"\x03")  # drops what is typed
        until(r"\n> ")
        rest()
        os.write(ours, b"\x03")
        until(r"press Ctrl-C again(.|\s)*\n> ")
        rest()
        os.write(ours, b"\x03")
        until(r"the chat is over")
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    kept = tmp_path / "vkmnn" / "chat_history"
    if sys.platform == "linux":
        assert kept.read_text("utf-8") == "hello\n/hlep\n"


# --- history -------------------------------------------------------------------------------------


def test_history_is_private_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_history, "MAX_LINES", 3)
    path = tmp_path / "data" / "history"
    history = History(path)
    assert history.lines() == []
    for line in ("one", "one", " ", "two", "x" * 5000, "three"):
        history.add(line)
    assert history.lines() == ["one", "two", "three"]
    History(path).add("four")  # of another chat
    history.add("five")
    assert History(path).lines() == ["three", "four", "five"]
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["history"]


def test_history_that_cannot_be_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history")
    for _ in range(2):
        history.add("one")
    assert caplog.text.count("the history of chats is off") == 1
    assert History(None).lines() == []


def test_history_is_kept_unless_told_otherwise(talk: Talker, tmp_path: Path) -> None:
    path = tmp_path / "data" / "chat_history"
    talk("/help\n", "--no-history")
    talk("/help\n", typed=False)
    assert not path.exists()
    talk("/help\nhello\n")
    assert path.read_text("utf-8") == "/help\nhello\n"


def test_a_user_without_a_home_has_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def data_folder() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(chat_history, "data_folder", data_folder)
    assert chat_history.history_file() is None
    assert chat.Start("", {}, True, True).history
    assert Entry("x").message == "x"
