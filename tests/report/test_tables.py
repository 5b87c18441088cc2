import math

import pytest
from rich.console import Console

from rookery.report.comparison import Comparison, Curve
from rookery.report.statistics import Interval
from rookery.report.tables import (
    client_table,
    cost_table,
    final_table,
    number,
    paired_table,
    plus_minus,
)
from rookery.runner.history import ClientHistory, History


def curve(name, ends, megabytes):
    runs = [
        History(
            [
                {
                    "round": k,
                    "exchanges": 100 * k,
                    "bytes_up": megabytes * 1_000_000 * k,
                    "bytes_down": 3 * megabytes * 1_000_000 * k,
                    "seconds": 12.5 * k,
                    "accuracy": end * k,
                }
                for k in range(2)
            ]
        )
        for end in ends
    ]
    return Curve(name, runs)


@pytest.fixture
def comparison():
    other = History([{"round": 0, "exchanges": 7, "bytes_up": 0, "bytes_down": 0, "seconds": 0.0}])
    other.rows[0]["loss"] = math.nan
    return Comparison(
        "[red]title",
        [curve("[bold]wide", [0.8, 0.9, 1.0], 2000), curve("thin", [0.5], 1), Curve("o", [other])],
    )


def cells(table):
    """The rows as they are printed."""
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    rows = [line for line in lines if line.startswith(("│", "┃"))]
    return lines[0].strip(), [
        [c.strip() for c in row[1:-1].replace("┃", "│").split("│")] for row in rows
    ]


def test_final_values_and_costs(comparison):
    title, rows = cells(final_table(comparison))
    assert title == "[red]title"
    assert rows == [
        "curve|seeds|accuracy|loss|exchanges|megabytes up|megabytes down|virtual seconds".split(
            "|"
        ),
        ["[bold]wide", "3", "0.90 ± 0.25", "—", "100", "2,000", "6,000", "12.5"],
        ["thin", "1", "0.5", "—", "100", "1", "3", "12.5"],
        ["o", "1", "—", "—", "7", "0", "0", "0"],
    ]


def test_a_cost_that_no_run_had_has_no_column(comparison):
    for one in comparison.curves:
        for run in one.runs:
            for row in run.rows:
                row["seconds"] = 0.0
    for table in (final_table(comparison), cost_table(comparison, "accuracy", 0.5)):
        assert cells(table)[1][0][-1] == "megabytes down"


def test_final_table_of_chosen_columns(comparison):
    _, rows = cells(final_table(comparison, metrics=["accuracy"], axes=["round"]))
    assert rows[:2] == [
        ["curve", "seeds", "accuracy", "rounds"],
        ["[bold]wide", "3", "0.90 ± 0.25", "1"],
    ]


def test_the_epsilon_of_private_runs_is_a_column(comparison):
    for row in comparison.curves[1].runs[0].rows:
        row["epsilon"] = 0.25 * row["round"]
    _, rows = cells(final_table(comparison, metrics=["accuracy"]))
    assert [row[-1] for row in rows] == ["epsilon", "—", "0.25", "—"]
    assert "epsilon" not in comparison.metrics


def test_cost_to_target(comparison):
    title, rows = cells(cost_table(comparison, "accuracy", 0.9, axes=["exchanges", "megabytes"]))
    assert title == "[red]title: cost of accuracy ≥ 0.9"
    # two of three seeds get there, after 100 and 90 exchanges: 95 ± 12.706 * 5
    assert rows == [
        ["curve", "reached", "exchanges", "megabytes in all"],
        ["[bold]wide", "2/3", "95 ± 64", "7,600 ± 5,082"],
        ["thin", "0/1", "—", "—"],
        ["o", "—", "—", "—"],
    ]
    title, rows = cells(cost_table(comparison, "accuracy", 0.1, higher_is_better=False))
    assert title.endswith("accuracy ≤ 0.1") and rows[2][:3] == ["thin", "1/1", "0"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Interval(0.87654, 0.86454, 0.88854), "0.877 ± 0.012"),
        (Interval(12345.6, 12222.2, 12469.0), "12,346 ± 123"),
        (Interval(2e-5, 1e-5, 3e-5), "2e-05 ± 1e-05"),
        (Interval(0.5, 0.5, 0.5), "0.5"),
        (Interval(math.nan, math.nan, math.nan), "—"),
    ],
)
def test_plus_minus(value, text):
    assert plus_minus(value) == text


def test_number():
    values = [0, 0.123456, -1234567.8, 1.234e-5, math.nan]
    assert [number(v) for v in values] == ["0", "0.1235", "-1,234,568", "1.23e-05", "—"]


def test_differences_are_taken_seed_by_seed_against_the_best():
    curves = [curve("a", [0.5, 0.6, 0.7], 1), curve("b", [0.6, 0.75, 0.9], 1), curve("c", [0.1], 1)]
    title, rows = cells(paired_table(Comparison("t", curves), "accuracy"))
    assert "against 'b'" in title
    assert rows[1][:3] == ["a", "3", "-0.15 ± 0.12"] and rows[1][4] == "0.25"  # 2 / 2^3
    assert rows[2] == ["c", "1", "-0.5", "—", "1"]
    title, rows = cells(paired_table(Comparison("t", curves), "accuracy", higher_is_better=False))
    assert "against 'c'" in title


def test_the_final_table_says_what_diverged():
    wild = curve("wild", [0.5, 0.6, 0.7], 1)
    wild = Curve("wild", wild.runs, [4, 5, 6], diverged={4: 12, 6: 3})
    _, rows = cells(final_table(Comparison("t", [wild, curve("calm", [0.1], 1)]), axes=["round"]))
    assert rows[0] == ["curve", "seeds", "accuracy", "rounds", "diverged"]
    assert rows[1] == ["wild", "3", "—", "1", "diverged at round 12, seed 4"]
    assert rows[2][-1] == "diverged at round 3, seed 6"
    assert rows[3] == ["calm", "1", "0.1", "1", "no"]
    _, rows = cells(cost_table(Comparison("t", [wild]), "accuracy", 0.55))
    assert rows[1][1] == "2/3, diverged"


def test_an_unmeasured_metric_is_an_error_that_names_it(comparison):
    for table in (lambda: paired_table(comparison, "f1"), lambda: cost_table(comparison, "f1", 1)):
        with pytest.raises(ValueError, match=r"'f1'.*accuracy"):
            table()


def of_clients(**values):
    return ClientHistory(
        [{"round": k, "metric": "loss/each", "clients": {n: v - k for n, v in values.items()}}
         for k in range(2)]
    )  # fmt: skip


def test_a_row_for_every_client_by_name():
    runs = curve("c", [0.5, 0.6], 1).runs
    both = Curve("c", runs, per_client=[of_clients(Lund=2, Oslo=3), of_clients(Lund=3, Oslo=3)])
    one = Curve("d", runs[:1], per_client=[of_clients(Lund=5)])
    comparison = Comparison("t", [both, one, Curve("e", runs)])
    title, rows = cells(client_table(comparison, "loss/each"))
    assert title == "t: loss/each of each client"
    assert rows == [["client", "c", "d"], ["Lund", "1.5 ± 6.4", "4"], ["Oslo", "2", "—"]]
    title, rows = cells(client_table(comparison, "loss/each", most=1))
    assert title.endswith("the first 1 of 2") and len(rows) == 2
    with pytest.raises(ValueError, match=r"'accuracy'.*loss/each"):
        client_table(comparison, "accuracy")


def test_equal_differences_have_no_t_test():
    curves = [curve("a", [0.5, 0.6, 0.7], 1), curve("b", [0.6, 0.7, 0.8], 1)]
    _, rows = cells(paired_table(Comparison("t", curves), "accuracy"))
    assert rows[1] == ["a", "3", "-0.1", "—", "0.25"]
