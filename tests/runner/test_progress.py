"""The bar of a resumed sweep on a narrow terminal."""

import io
import re
import sys
from types import SimpleNamespace

from rich.console import Console

from rookery.runner.progress import RunProgress

ROW = {"round": 250, "exchanges": 9, "holdout_accuracy": 0.812345, "loss": 0.1234567}


def shown(width, *, rounds=120_000, done=200):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system="standard")
    with RunProgress(console, n_batches=1, rounds=rounds) as bar:
        bar.begin("FedNest with a title of many words (12 runs)", 0, done)
        first = bar.completed
        bar.advanced(done + 50, 100.0, 12)
        bar.measured(ROW, "FedNest")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    return first, [line for line in re.split(r"[\r\n]+", text) if line.strip()][-2:]


def test_a_resumed_run_counts_the_rounds_it_had_done():
    first, (line, _) = shown(120)
    assert first == 200
    assert "250/120000" in line.replace(" ", "")
    assert "-" not in line.replace("0:00:00", "").split("250/")[0][-8:]


def test_eighty_columns_have_room_for_bar_time_left_and_measurements():
    _, (line, below) = shown(80)
    assert len(line.rstrip()) <= 80
    assert re.search(r"[━╸╺]{10}", line)
    assert "0:19:58" in line  # 119,750 rounds at 100 a second
    assert "1.2e+03 rounds/s" in line
    assert "holdout_accuracy 0.8123" in below and "loss 0.1235" in below


def test_a_log_file_has_lines_instead_of_a_bar(monkeypatch):
    monkeypatch.setattr("rookery.runner.progress.LINE_SECONDS", -1.0)
    file = io.StringIO()
    with RunProgress(Console(file=file, width=100), n_batches=2, rounds=300) as bar:
        bar.begin("FedNest", 1, 0)
        bar.measured(ROW, "FedNest")
    assert file.getvalue().startswith("[550/600] FedNest: round 250")


def test_a_notebook_has_one_bar_that_is_redrawn_in_place(monkeypatch):
    shown = []

    def display(picture, display_id):
        assert display_id is True
        shown.append(picture)
        return SimpleNamespace(update=shown.append)

    fake = SimpleNamespace(display=display, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=fake))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    console = Console(file=io.StringIO(), force_jupyter=True, width=100)
    with RunProgress(console, n_batches=1, rounds=300) as bar:
        bar.begin("a < b", 0, 0)
        for done in range(10, 260, 10):  # too fast for a picture each
            bar.advanced(done, 100.0, 1)
        bar.measured(ROW, "FedNest")
    assert len(shown) < 5
    assert "a &lt; b" in shown[0] and 'value="0.0000"' in shown[0] and "compiling" in shown[0]
    assert 'value="0.8333"' in shown[-1] and "250 / 300" in shown[-1] and "left" not in shown[-1]
    assert "holdout_accuracy 0.8123" in shown[-1]
    quiet = Console(file=io.StringIO(), force_jupyter=True, quiet=True)
    shown.clear()
    with RunProgress(quiet, n_batches=1, rounds=300) as bar:
        bar.begin("FedNest", 0, 0)
    assert not shown
