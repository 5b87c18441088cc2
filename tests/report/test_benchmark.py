import json
import math
import re
from html import unescape
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

import rookery as rk
from experiments.benchmark import __main__ as command
from experiments.benchmark import entrants, measuring, page, scoring, suite, tables
from experiments.benchmark.measuring import Cell, Measurement, Size
from rookery.algorithms import SimFBO
from rookery.clients.datasets import Dataset
from rookery.experiment.registry import ALGORITHMS

SMALL = Size(exchanges=6, evaluations=2, grid=(2, 1), extensions=1, seeds=(0, 1), lanes=2)


def line(name, ends, per_exchange=1.0, form="bilevel", task="t", split="iid", **other):
    """A line of the results: curves that rise straight from 0 to their ends in ten exchanges."""
    exchanges = [0, 5, 10]
    runs = [
        {
            "value": [0.0, end / 2, end],
            "exchanges": exchanges,
            "megabytes": [e * per_exchange for e in exchanges],
            "gradients": [e * 2 for e in exchanges],
            "seconds": [e * 3.0 for e in exchanges],
        }
        for end in ends
    ]
    slow = [{"seconds": [e * 30.0 for e in exchanges]} for _ in ends]
    found = {
        "algorithm": name,
        "task": task,
        "form": form,
        "data": "d",
        "split": split,
        "metric": "accuracy",
        "rounds": 10,
        "budgets": {"exchanges": 10, "megabytes": 5, "gradients": 40, "seconds, slow": 150},
        "setting": {"lr": 0.1},
        "edge": [],
        "widened": [],
        "tried": [{"setting": {"lr": 0.1}, "holdout": 0.5, "test": 0.4}],
        "curves": {"even": runs, "slow": slow},
        "size": {"exchanges": 10, "grid": [3, 1], "extensions": 2, "seeds": list(range(len(ends)))},
        "cpu_seconds": 1.0,
    }
    return found | other


def test_values_at_equal_costs():
    one = line("A", [0.8, 0.6], per_exchange=2.0)
    assert scoring.values_at(one, "exchanges") == [0.8, 0.6]
    assert scoring.values_at(one, "megabytes") == [0.2, 0.15]  # after 2.5 exchanges
    assert scoring.values_at(one, "seconds, slow") == [0.4, 0.3]  # values of the first delays
    assert scoring.is_spent(one, "megabytes") and not scoring.is_spent(one, "gradients")
    assert scoring.values_at(one, "gradients") == [0.8, 0.6]  # what it ended with
    assert scoring.values_at(one | {"curves": None}, "exchanges") == [0.0, 0.0]


def test_ranks_and_their_intervals():
    lines = [
        line(name, ends, task=task)
        for task, all_ends in {"t": ([0.9, 0.9], [0.5, 0.5]), "u": ([0.2, 0.9], [0.5, 0.5])}.items()
        for name, ends in zip("AB", all_ends, strict=True)
    ]
    own = scoring.standings(lines)[("A", "bilevel")]
    assert own.ranks["exchanges"] == [0.0, 0.5]  # first in t; first and last in u
    mean, half = own.interval("exchanges")
    assert mean == 0.25 and half == pytest.approx(12.706 * 0.25, rel=1e-4)  # two contests
    assert own.wins == 2  # in u its mean is 0.55
    assert scoring.ranks([0.5, 0.9, 0.5]) == [2.5, 1.0, 2.5]


def test_costs_to_the_target_and_profiles():
    lines = [line("A", [0.9]), line("B", [0.45]), line("C", [0.85])]
    assert scoring.target(lines) == pytest.approx(0.81)
    assert scoring.costs_to_target(lines[1], "exchanges", 0.81) == [math.inf]
    assert scoring.cost_to([0, 10, 20, 30], [0.0, 0.3, 0.7, 0.2], 0.5) == 15.0
    shares = scoring.profile(lines, [1.0, 1.05, 1.1])
    assert shares == {"A": [1, 1, 1], "B": [0, 0, 0], "C": [0, 0, 1]}  # 0.9 / 0.85 = 1.059


def test_the_sentence_says_where_an_algorithm_is_strong():
    lines = [
        line(name, ends, cost, split=split)
        for split, values in {"iid": (0.9, 0.6, 0.3), "sorted": (0.5, 0.6, 0.3)}.items()
        for name, ends, cost in zip("ABC", ([v] for v in values), (9.0, 1.0, 1.0), strict=True)
    ]
    standings = scoring.standings(lines)
    text = scoring.regime("A", standings[("A", "bilevel")], 3)
    assert "rank 1.5" in text and "weakest per byte (3.0)" in text
    assert "better on iid clients (1.0) than on label-sorted clients (2.0)" in text
    assert "diverged" not in text


def test_regret_is_that_of_the_choice():
    tried = [(0.5, 0.4), (0.6, 0.3), (None, 0.9)]
    entries = [{"setting": {}, "holdout": h, "test": t} for h, t in tried]
    assert tables.regret(line("A", [0.1], tried=entries)) == pytest.approx(0.1)


def test_an_algorithm_enters_by_its_name_alone(monkeypatch):
    def mine(*, outer_lr, inner_lr, local_steps=1, batch_size=None, clients=None):
        return rk.SOBA(outer_lr=outer_lr, inner_lr=inner_lr, batch_size=batch_size, clients=clients)

    def unknown(*, outer_lr, temperature):
        raise AssertionError("is never made")

    for name, fn in {"Mine": mine, "Unknown": unknown}.items():
        monkeypatch.setitem(cast(dict, ALGORITHMS), name, fn)
    task = suite.task("regularisation", "bilevel", "digits", "iid")
    own = entrants.entering("Mine", task)
    assert own.steps == ("outer_lr", "inner_lr")
    assert own.fixed == {"clients": 10, "batch_size": 32, "local_steps": 5}
    assert own.grid((1.0, 0.1), (3, 3)) == {
        "outer_lr": [0.2, 1.0, 5.0],
        "inner_lr": [0.02, 0.1, 0.5],
    }
    assert len(entrants.entrant("FedAvg").grid((1.0, 0.1), (3, 3))["lr"]) == 9  # as many runs
    with pytest.raises(ValueError, match="Unknown needs temperature"):
        entrants.entering("Unknown", task)
    with pytest.raises(TypeError, match="FedAvg solves SingleLevel"):
        entrants.entering("FedAvg", task)


def test_a_server_with_a_rule_of_its_own_steps_as_its_clients_do():
    task = suite.task("regularisation", "bilevel", "digits", "iid")
    made = entrants.entering("SimFBO", task).make(outer_lr=0.5, inner_lr=0.25)
    assert isinstance(made, SimFBO) and made.server_lr == (0.5, 0.25, 0.25)


def fake(best, cost=lambda round: 1):
    """Sweeps whose metric is best at a step size, and diverges above 10; cost: of a round."""

    def swept(self, settings, seeds, rounds, every, delays=""):
        found = []
        for setting in settings:
            lr, inner_lr = setting["outer_lr"], setting["inner_lr"]
            value = 1 - (abs(math.log(lr / best)) + abs(math.log(inner_lr / 0.5))) / 20
            status = "diverged" if lr > 10 else "finished"
            metrics = {"accuracy": np.array([value]), "holdout_accuracy": np.array([value])}
            done = min(rounds, 2) if rounds == measuring.PROBE else rounds  # the probe diverges
            spent = np.cumsum([0, *map(cost, range(1, done + 1))])
            history = {"round": np.arange(done + 1), "exchanges": spent, **metrics}
            found += [SimpleNamespace(history=history, status=status)] * len(seeds)
        return found

    return swept


@pytest.mark.parametrize(
    ("best", "widened", "tried", "setting", "edge"),
    [
        (1.0, 0, 9, 1.0, []),  # inside
        (0.04, 1, 12, 0.04, [("outer_lr", "low")]),  # one more value is the best, and the last
        (100.0, 1, 12, 5.0, []),  # beyond it runs diverge
    ],
)
def test_a_choice_at_the_edge_extends_the_grid(monkeypatch, best, widened, tried, setting, edge):
    monkeypatch.setattr(Measurement, "_swept", fake(best, lambda round: 4))
    size = Size(extensions=1, exchanges=22)
    own = Measurement(Cell("SOBA", "regularisation", "bilevel", "digits", "iid"), size)
    assert own.rounds == 5  # of four exchanges each
    found = own.tuned()
    assert len(found.widened) == widened and len(found.tried) == tried
    assert found.setting is not None and found.setting["outer_lr"] == pytest.approx(setting)
    assert [e for e in found.edge if e[0] == "outer_lr"] == edge


@pytest.mark.parametrize(
    ("cost", "rounds"),
    [
        (lambda round: 1, 100),
        (lambda round: 3 if round == 1 else 2, 49),  # the first round costs more
        (lambda round: 61 if round % 50 == 0 else 1, 49),  # so does every fiftieth
        (lambda round: 11 if round % 5 == 2 else 1, 31),  # the probe has seen more than is usual
        (lambda round: 200, 1),  # more than there are: one round at least
    ],
)
def test_rounds_cost_as_many_exchanges_as_there_are(monkeypatch, cost, rounds):
    monkeypatch.setattr(Measurement, "_swept", fake(1.0, cost))
    cell = Cell("SOBA", "regularisation", "bilevel", "digits", "iid")
    assert Measurement(cell, Size(exchanges=100)).rounds == rounds


def test_a_setting_that_is_refused_counts_like_one_that_diverges(monkeypatch):
    monkeypatch.setattr(Measurement, "_swept", fake(1.0))
    own = Measurement(Cell("SOBA", "regularisation", "bilevel", "digits", "iid"), SMALL)
    values = own._tried(
        {0: {"outer_lr": 1.0, "inner_lr": 0.5}, 1: {"outer_lr": -1.0, "inner_lr": 0.5}}, [0], 1.0
    )
    assert values == [[1.0], [None]]
    assert [one["holdout"] for one in own.tried] == [1.0, None]


def test_natural_clients_are_a_split_of_their_own():
    def is_possible(form, data, split):
        return command.is_possible(Cell("FedAvg", "AUC", form, data, split))

    assert is_possible("minimax", "villages", "natural") and is_possible("X-risk", "digits", "iid")
    assert not is_possible("minimax", "villages", "iid")
    assert not is_possible("minimax", "digits", "natural")
    assert not is_possible("X-risk", "digits", "sorted")  # clients lack one of the kinds
    labels = np.arange(400) % 2
    rows = {"inputs": np.zeros((400, 2), np.float32), "labels": labels.astype(np.int32)}
    some = Dataset("mine", rows, rows, (), owners=np.arange(400) % 25)
    parts = suite.owners(some, "natural")
    assert len(parts) == 20 and all(len(set(p % 25)) == 1 for p in parts)


def test_the_command_takes_its_options_in_any_order(monkeypatch, tmp_path, capsys):
    path = tmp_path / "none.jsonl"
    arguments = ["run", "--quick", str(path), "--forms", "personal", "--minutes", "0"]
    monkeypatch.setattr("sys.argv", ["benchmark", *arguments])
    monkeypatch.setattr(command, "quick_cells", lambda: [])
    command.main()
    assert capsys.readouterr().out == "0 of 0 cells are done\n"


def test_budgets_are_those_of_the_task():
    task = suite.task("regularisation", "bilevel", "digits", "iid")
    found = measuring.budgets(task, 10)
    numbers = 2 * (64 * 10 + 10)  # x and y have the same shape
    assert found["megabytes"] == pytest.approx(5 * 10 * 2 * 4 * numbers / 1e6)
    assert found["gradients"] == 10 * 10 * 32 * 5
    assert found["seconds, even"] < found["seconds, heavy-tailed"] < found["seconds, stragglers"]


@pytest.mark.slow
def test_a_cell_is_measured_once(tmp_path):
    cell = Cell("SOBA", "regularisation", "bilevel", "digits", "sorted")
    path = tmp_path / "results.jsonl"
    for _ in range(2):
        command.run(path, [cell], quick=True, minutes=None)
    (found,) = command.read(path)
    assert found["rounds"] == 20 and len(found["curves"]) == 3
    first = found["curves"]["heavy-tailed"][0]
    assert first["exchanges"] == [0, 5, 10, 15, 20] and first["value"][-1] > first["value"][0]
    others = [found["curves"][name] for name in ("even", "stragglers")]
    assert all(list(run) == ["seconds"] for runs in others for run in runs)
    assert others[0][0]["seconds"][-1] < first["seconds"][-1] < others[1][0]["seconds"][-1]
    path.write_text(path.read_text() + '{"algorithm": "SO')  # killed while it wrote
    assert len(command.read(path)) == 1


PROBE = """<script>
const out = {};
const rows = id => [...$(id).tBodies[0].rows].map(row => row.cells[0].textContent);
const press = (id, label) => [...$(id).querySelectorAll("th button")]
  .find(b => b.textContent === label).click();
out.cells = rows("cells"); out.standing = rows("standing"); out.count = $("count").textContent;
press("cells", "algorithm"); out.byName = rows("cells");
press("cells", "algorithm"); out.byNameBack = rows("cells");
press("cells", "at equal megabytes"); out.byBytes = rows("cells");
$("form").value = "minimax"; $("form").dispatchEvent(new Event("change"));
out.minimax = rows("cells"); out.standingMinimax = rows("standing");
out.lines = document.querySelectorAll("#profile path").length;
$("form").value = ""; $("form").dispatchEvent(new Event("change"));
$("name").value = "b<"; $("name").dispatchEvent(new Event("input"));
out.named = rows("cells"); out.sentences = [...$("regimes").children].map(li => li.textContent);
document.body.append(Object.assign(document.createElement("pre"), {
  id: "probe", textContent: JSON.stringify(out)}));
</script>"""


def test_the_page_sorts_and_filters(tmp_path, browse):
    evil = "B</script><b>"
    lines = [
        line("A", [0.9], 4.0),
        line(evil, [0.8], 1.0),
        line("C", [0.7], 1.0, form="minimax"),
    ]
    path = tmp_path / "page.html"
    page.write_page(lines, path, tables.about(lines))
    text = path.read_text()
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    path.write_text(text.replace("</body>", PROBE + "</body>"))
    document, console = browse(path)
    assert console == []
    (probe,) = re.findall(r'<pre id="probe">(.*?)</pre>', document, re.S)
    out = json.loads(unescape(probe))
    assert out["cells"] == ["A", evil, "C"] and out["count"] == "3 of 3 cells"  # the best first
    assert out["byName"] == ["A", evil, "C"] and out["byNameBack"] == ["C", evil, "A"]
    assert out["byBytes"] == [evil, "C", "A"]  # A spends four times as much
    assert out["minimax"] == out["standingMinimax"] == ["C"] and out["lines"] == 1
    assert out["named"] == [evil] and out["sentences"][0].startswith(f"{evil}: rank")
    assert len(out["standing"]) == 3


def test_the_tables_name_every_contest():
    text = tables.tables([line("A", [0.9]), line("B", [0.5], curves=None, setting=None)])
    assert "**t, d, iid**: accuracy; the target is 0.810" in text
    assert "| B | 0.000 ± 0.000 |" in text and "none: all diverged" in text
