import io
import random
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console

from regard.draw.terminal import HEAT_COLOURS, duration, heat, hills, progress, quantity, visible
from regard.training.progress import Lines, LivePanel, Silent, display

ROW = {
    "step": 200, "loss": 2.34561, "lr": 3e-4, "tokens_per_second": 18234.0, "mfu": 0.1249, "grad_norm": 0.7,
    "elapsed": 13.0, "eta": 80.0,
}  # fmt: skip
HOSTILE = "a [red]fox[/red] [/] \x1b[31m\x00\r\x9b \u202e 狐狸 🦊 \ud800 e\u0301" * 3 + "\n" + "狐" * 300


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def open_terminal(monkeypatch):
    """Return a function that makes standard error a terminal of 70 by 24; pytest would undo it earlier."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "70", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)

    def open_terminal():
        monkeypatch.setattr(sys, "stderr", Terminal())
        return sys.stderr

    return open_terminal


def run(shown):
    with shown:
        shown.log({**ROW, "step": 100, "loss": 4.0})
        shown.log(ROW)
        shown.evaluated({"step": 100, "valid_loss": 2.5, "best": True})
        shown.evaluated({"step": 200, "valid_loss": 2.75, "best": False})
        shown.sample(HOSTILE)
        shown.say("saved runs/[x]")


def without_colors(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_plain_lines(capsys):
    with display(2000, None, "write [4 layers]") as shown:
        assert isinstance(shown, Lines)
        shown.log(ROW)
        shown.log({"step": 210, "loss": float("nan"), "mfu": None, "eta": None})
        shown.evaluated({"step": 200, "valid_loss": 2.31, "best": True})
        shown.evaluated({"step": 300, "valid_loss": 2.32, "best": False, "by": None})
        shown.evaluated({"step": 400, "valid_loss": 2.33, "valid_f1": 0.5, "best": True, "by": "f1"})
        shown.sample("a fox\nand [a] \x1b[2J")
        shown.say("saved")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "write [4 layers]",
        "step 200/2000  loss 2.3456  grad 0.7  18.2k tok/s  mfu 12%  left 1m20s",
        "step 210/2000  loss nan",
        "step 200  valid 2.3100 (best)",
        "step 300  valid 2.3200",
        "step 400  valid 2.3300, f1 0.5000 (best)",
        "    a fox",
        r"    and [a] \x1b[2J",
        "saved",
    ]


def test_silent(capsys):
    run(Silent())
    assert capsys.readouterr() == ("", "")


def test_live_panel_on_a_terminal(open_terminal, capsys):
    terminal = open_terminal()
    shown = display(2000, None, "write [4 layers]")
    assert isinstance(shown, LivePanel)
    run(shown)
    text = without_colors(terminal.getvalue())
    last = text[text.rindex("write [4 layers]") :]
    for expected in ("step 200/2000", "left 1m20s", "loss 2.3456", "grad 0.7",
                     "valid 2.7500 (best 2.5000 at step 100)", "18.2k tok/s",
                     "mfu 12%", "4.00", "█", "狐狐"):  # fmt: skip
        assert expected in last
    assert "saved runs/[x]" in text
    assert capsys.readouterr().out == ""


def test_control_characters_of_a_sample_do_not_reach_the_terminal(open_terminal):
    terminal = open_terminal()
    with display(None, 2.0, "write") as shown:
        shown.sample("[red]x[/red] \x1b]0;title\x07 \x9b31m")
    assert r"[red]x[/red] \x1b]0;title\x07 \x9b31m" in terminal.getvalue()
    assert "\x1b]0;title" not in terminal.getvalue()


def test_no_color(open_terminal, monkeypatch):
    def colors():
        terminal = open_terminal()
        run(display(2000, None, "write"))
        assert "loss 2.3456" in terminal.getvalue()
        return re.findall(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|9[0-7])[0-9;]*m", terminal.getvalue())

    assert colors() != []
    monkeypatch.setenv("NO_COLOR", "1")
    assert colors() == []


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_simple_terminals_get_lines(open_terminal, monkeypatch, term):
    open_terminal()
    assert isinstance(display(10, None, "write"), LivePanel)
    monkeypatch.setenv("TERM", term)
    assert isinstance(display(10, None, "write"), Lines)


@pytest.mark.parametrize("size", [(20, 5), (7, 3), (2, 2), (1, 1)])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_tiny_terminals(size, encoding):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")  # as Python opens stderr
    console = Console(file=file, force_terminal=True, width=size[0], height=size[1])
    run(LivePanel(console, 2000, 1.0, "write"))
    file.flush()
    assert raw.getvalue().endswith(b"\x1b[?25h")  # the cursor is back


def test_progress_follows_the_limit_that_is_nearer():
    def bar_of(total_steps, minutes):
        console = Console(file=io.StringIO(), force_terminal=True, width=80)
        shown = LivePanel(console, total_steps, minutes, "write")
        shown.log(ROW)  # step 200 after 13 seconds
        return next(shown._progress().columns[0].cells).completed

    assert bar_of(2000, None) == 0.1
    assert bar_of(None, 13 / 60 * 4) == pytest.approx(0.25)
    assert bar_of(2000, 13 / 60 * 4) == pytest.approx(0.25)
    assert bar_of(100, None) == 1.0
    assert bar_of(None, None) == 0.0


def test_an_error_leaves_the_terminal_as_it_was(open_terminal):
    terminal, shown = open_terminal(), display(2000, None, "write")

    def interrupted():
        with shown:
            assert "\x1b[?25l" in terminal.getvalue()  # the cursor is hidden
            shown.log(ROW)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sys.stderr is terminal
    assert terminal.getvalue().endswith("\x1b[?25h")
    assert not shown.live.is_started


def test_progress_bar(open_terminal, capsys):
    terminal = open_terminal()
    with progress("scoring [x]", total=7) as advance:
        advance(3)
        print("an answer")
        advance(4)
    assert "scoring [x]" in without_colors(terminal.getvalue())
    assert "7/7" in without_colors(terminal.getvalue())
    assert capsys.readouterr().out == "an answer\n"


def test_progress_is_silent_elsewhere(capsys):
    with progress("scoring") as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")


def test_hills():
    assert hills([0.0, 1.0, 2.0, 3.0], width=9, height=2, ink=" .#") == ["  .#", ".###"]
    assert hills([1.0, 3.0, 8.0, 8.0, 0.0], width=2, height=1, ink=" .#") == [".#"]  # means 2 and 16/3
    assert hills([5.0], width=3, height=2, ink=" .#") == [" ", "."]
    assert hills([1.7e308, -1.7e308], width=2, height=1, ink=" .#") == ["#."]
    assert hills([1.7e308] * 3, width=1, height=1, ink=" .#") == ["."]


LOOKS = [[0.05, 0.1, 0.15, 0.7], [0.05, 0.15, 0.7, 0.1], [0.1, 0.6, 0.25, 0.05], [0.3, 0.3, 0.2, 0.2]]
ANSWER, QUESTION = ["I", "am", "fine", "."], ["hi", "how", "are", "you"]


def test_heat():
    assert heat(LOOKS, ANSWER, QUESTION).splitlines() == [
        "     hi  how are you",
        "   I         ░░░░████  you",
        "  am     ░░░░████      are",
        "fine     ████░░░░      how",
        "   . ▒▒▒▒▒▒▒▒░░░░░░░░  hi",
    ]
    shades = dict(zip(" ░▒▓█", " .:*#", strict=True))
    shaded = "".join(shades.get(c, c) for c in heat(LOOKS, ANSWER, QUESTION))
    assert heat(LOOKS, ANSWER, QUESTION, ascii_only=True) == shaded
    assert heat(LOOKS, ANSWER, QUESTION, width=18).splitlines() == [
        "     hi",
        "     │ how",
        "     │ │ are",
        "     │ │ │ you",
        "   I     ░░██  you",
        "  am   ░░██    are",
        "fine   ██░░    how",
        "   . ▒▒▒▒░░░░  hi",
    ]


def test_heat_of_long_and_wide_words():
    looks, words = [[0.0, 1.0, 0.5, 0.2], [1.0, 0.0, 0.0, 0.7]], ["strawberry", "a", "狐狸狐狸", "jam"]
    assert heat(looks, ["狐狸", "x"], words, width=30).splitlines() == [
        "     strawberry",
        "     │     狐狸狐狸",
        "     │  a  │  jam",
        "狐狸    ███▒▒▒░░░  a",
        "   x ███      ▓▓▓  strawberry",
    ]


def test_heat_that_is_too_wide_goes_on_below():
    looks = [[0.0, 0.0, 0.0, 0.0, 1.0], [1.0, 0.5, 0.5, 0.5, 0.5]]
    assert heat(looks, ["x", "y"], ["as", "b", "c", "d", "strawberry"], width=8).splitlines() == [
        "  as",
        "  │ b c",
        "x",
        "y ██▒▒▒▒",
        "  d str…",
        "x   ██",
        "y ▒▒▒▒",
    ]


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_heat_is_never_too_wide_and_its_rows_stand_below_each_other(colour, ascii_only):
    chance = random.Random(7)
    labels = [
        "I",
        "strawberries",
        "né",
        "狐狸",
        "狐狸" * 5,
        "🦊",
        "e\u0301",
        "\x1b[2J",
        "a\nb",
        "",
        " ",
        "\ud800",
    ]
    for _ in range(300):
        rows, columns = (chance.choices(labels, k=chance.randint(1, 13)) for _ in range(2))
        looks = [[chance.random() ** 3 for _ in columns] for _ in rows]
        width = chance.choice([1, 2, 3, 5, 8, 13, 21, 34, 55, 80, 144])
        picture = heat(looks, rows, columns, width, colour, ascii_only)
        lines = without_colors(picture).split("\n")
        assert all(cell_len(line) <= width for line in lines)
        assert all(c.isprintable() for line in lines for c in line)
        assert not ascii_only or picture.isascii()
        painted = [re.findall(r"\x1b\[48;5;(\d+)m( +)\x1b\[0m", line) for line in picture.split("\n")]
        assert sum(map(len, painted)) == (len(rows) * len(columns) if colour else 0)
        if colour:
            starts = {cell_len(line.split("\x1b")[0]) for line in picture.split("\n") if "\x1b" in line}
            assert len(starts) == 1


def test_heat_darkens_as_weights_grow():
    rising = [[i / 99 for i in range(100)]]
    (shades,) = heat(rising, ["x"], ["y"] * 100, width=400).splitlines()[-1:]
    levels = [" ░▒▓█".index(c) for c in shades[2:302]]
    assert levels == sorted(levels)
    assert {levels.count(level) for level in range(5)} == {60}
    painted = heat(rising, ["x"], ["y"] * 100, width=400, colour=True)
    order = [HEAT_COLOURS.index(int(n)) for n in re.findall(r"48;5;(\d+)m", painted)]
    assert order == sorted(order)
    assert set(order) == set(range(len(HEAT_COLOURS)))
    bright = [
        0.2126 * c.red + 0.7152 * c.green + 0.0722 * c.blue
        for c in (Color.from_ansi(n).get_truecolor() for n in HEAT_COLOURS)
    ]
    assert bright == sorted(bright, reverse=True)


def test_heat_of_little():
    assert heat([], [], ["a"]) == heat([[]], ["a"], []) == ""
    assert heat([[0.0]], ["x"], ["y"]).splitlines() == ["  y", "x      y"]
    assert "█" in heat([[float("nan"), 0.5]], ["x"], ["y", "z"])
    with pytest.raises(ValueError, match="zip"):
        heat([[0.1, 0.2]], ["x", "y"], ["a", "b"])


def test_visible():
    assert visible("a\tb\x7f\nc\u200e\ud800é狐") == "a\\tb\\x7f\nc\\u200e\\ud800é狐"


@pytest.mark.parametrize(("seconds", "words"), [
    (0, "0s"), (-3, "0s"), (59.4, "59s"), (59.6, "1m00s"), (80, "1m20s"), (3599.9, "1h00m"), (7500, "2h05m"),
    (273600, "3d04h"), (float("inf"), "?"), (float("nan"), "?"),
])  # fmt: skip
def test_duration(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(("number", "words"), [
    (0, "0"), (3.456, "3.46"), (234, "234"), (999.7, "1.0k"), (18234, "18.2k"), (182_340, "182k"),
    (99_960, "100k"), (999_600, "1.0M"), (1_530_000, "1.5M"), (7.1e9, "7.1B"), (3e15, "3000T"),
])  # fmt: skip
def test_quantity(number, words):
    assert quantity(number) == words


def test_import_is_cheap():
    code = (
        "import sys, regard.training.progress, regard.draw.curve; print({'torch', 'rich'} & set(sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "set()\n"


def test_the_rate_has_the_name_of_what_is_counted(capsys):
    shown = Lines(20, "title")
    row = {"step": 2, "loss": 1.0}
    shown.log(row | {"images_per_second": 3214.0, "tokens_per_second": 633e3})
    shown.log(row | {"target_tokens_per_second": 31.2e3, "tokens_per_second": 64e3, "mfu": 0.5})
    shown.log(row | {"seconds_of_sound_per_second": 512.0, "tokens_per_second": 64e3})
    shown.log(row | {"tokens_per_second": 3.0, "mfu": 0.001, "first_step_seconds": 12.4})
    ends = [line.split("loss 1.0000  ")[1] for line in capsys.readouterr().err.splitlines()]
    assert ends == [
        "3.2k images/s",
        "31.2k target tok/s  mfu 50%",
        "512 seconds of sound/s",
        "first step 12s",
    ]
