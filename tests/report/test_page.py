import json
import math
import re
from dataclasses import replace
from html import escape, unescape
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rookery.report.comparison import (
    AXES,
    Comparison,
    Curve,
    cost_to_reach,
    final_values,
    mean_and_interval,
    paired_test,
)
from rookery.report.page import render
from rookery.report.statistics import interval
from rookery.report.summary import summary
from rookery.report.tables import number, plus_minus
from rookery.runner.history import ClientHistory, History

EVIL = "</script><!--<b onclick='x'>&amp;\u2028 __DATA__ __TITLE__ \\u003c"

PROBE = """<script>
const out = {errors: []};
window.onerror = message => out.errors.push(message);
const pick = (id, value) => { $(id).value = value; $(id).dispatchEvent(new Event("change")); };
const look = () => ({
  x: $("x-label").textContent, y: $("y-label").textContent,
  lines: [...document.querySelectorAll("path.line")].map(path => path.getAttribute("d")),
});
const table = id => [...$(id).rows].map(row => [...row.cells].map(cell => cell.textContent));
out.start = look();
out.band = band(data.curves[0], "exchanges", "accuracy");
pick("axis", "megabytes_up"); out.megabytes = look();
$("log-y").click(); out.log = look();
$("log-x").click(); out.loglog = look();
const button = document.querySelector("#legend button");
button.click(); out.pressed = button.getAttribute("aria-pressed"); out.hidden = look();
button.click();
pick("metric", "loss"); out.loss = look(); out.direction = $("direction").value;
pick("metric", "accuracy");
$("target").value = "0.55"; $("target").dispatchEvent(new Event("input"));
out.final = table("final"); out.cost = table("cost");
pick("reference", "2"); out.paired = table("paired");
const frame = document.querySelector("#chart > svg").getBoundingClientRect();
const at = {clientX: frame.left + 90, clientY: frame.top + 90};
document.querySelector("#chart > svg").dispatchEvent(new PointerEvent("pointermove", at));
out.readout = $("readout").hidden ? null : $("readout").textContent;
for (const axis of Object.keys(data.axes)) pick("axis", axis);
for (const button of document.querySelectorAll("#legend button")) button.click();
out.empty = document.querySelector("#chart > svg").textContent;
console.log("probe was here");
document.body.append(Object.assign(document.createElement("pre"), {
  id: "probe", textContent: JSON.stringify(out)}));
</script>"""


SPENT = [n for n in AXES if n not in ("hessian_vectors", "epsilon")]  # these runs need none


def curve(name, cost, top, metrics=("accuracy", "loss")):
    runs = []
    for seed in range(3):
        rows = []
        for k in range(6):
            e = cost * k * (10 + seed)  # every seed at other costs
            row = {"round": k, "exchanges": e, "messages": e, "bytes_down": 3000 * e}
            row |= {"bytes_up": 2500 * e, "gradients": e, "hessian_vectors": 0, "seconds": e / 7}
            measured = {
                "accuracy": top * k / 5 + 0.013 * seed**top,
                "loss": math.exp(-k * top) - 0.01,
            }
            rows.append(row | {name: measured[name] for name in metrics})
        runs.append(History(rows))
    return Curve(name, runs, [5, 6, 7])


@pytest.fixture
def comparison():
    curves = [curve("FedNest", 9, 0.9), curve(EVIL, 700, 0.6), curve("C", 1, 0.4, ("accuracy",))]
    curves[0].runs[1].rows[3]["accuracy"] = math.nan
    curves[1].runs[0].rows[5]["loss"] = None
    settings = {"FedNest": {"lr": [0.1, math.inf], "nested": {"text": EVIL}}}
    return Comparison(EVIL, curves, settings, {"jax": "0.10"}, EVIL)


def content(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def test_the_page_holds_the_runs_and_gaps_are_null(comparison):
    data = content(render(comparison, metric="loss", axis="round"))
    assert (data["metric"], data["axis"], data["metrics"]) == (
        "loss",
        "round",
        ["accuracy", "loss"],
    )
    assert data["axes"] == {name: AXES[name].label for name in SPENT}
    assert data["labels"] == {"accuracy": "accuracy", "loss": "loss"}
    run = data["curves"][0]["runs"][1]
    assert set(run["axes"]) == set(SPENT)
    assert run["axes"]["exchanges"] == [0, 99, 198, 297, 396, 495]
    assert run["metrics"]["accuracy"] == [
        pytest.approx(0.18 * k + 0.013) if k != 3 else None for k in range(6)
    ]
    assert data["curves"][1]["runs"][0]["metrics"]["loss"][5] is None
    assert list(data["curves"][2]["runs"][0]["metrics"]) == ["accuracy"]
    assert data["reach"] == [0, 0, pytest.approx(12.7062047), pytest.approx(4.30265273)]
    assert data["curves"][0]["seeds"] == [5, 6, 7] and data["versions"] == {"jax": "0.10"}


def test_text_cannot_break_out(comparison):
    page = render(comparison)
    data = content(page)
    assert data["title"] == data["notes"] == data["curves"][1]["name"] == EVIL
    assert data["curves"][0]["settings"] == {"lr": [0.1, "inf"], "nested": {"text": EVIL}}
    assert page.count("</script>") == 2 and "<!--" not in page and "<b onclick" not in page
    (title,) = re.findall(r"<title>(.*?)</title>", page, re.S)
    assert unescape(title) == EVIL


def test_the_page_needs_no_network(comparison):
    page = render(comparison)
    assert set(re.findall(r"https?://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<link|<img|<iframe|@import|url\(|\ssrc=|fetch\(", page)


def test_wrong_choices_say_so(comparison):
    with pytest.raises(ValueError, match=r"'f1'.*accuracy, loss"):
        render(comparison, metric="f1")
    with pytest.raises(ValueError, match="axis 'bytes'"):
        render(comparison, axis="bytes")


def test_a_cost_that_no_run_had_is_an_axis_only_on_request(comparison):
    assert "hessian_vectors" not in content(render(comparison))["axes"]
    assert "hessian_vectors" in content(render(comparison, axis="hessian_vectors"))["axes"]


def test_runs_without_metrics_make_a_page_of_costs(tmp_path, browse):
    (tmp_path / "p.html").write_text(
        render(Comparison("t", [curve("c", 1, 1, ()), curve("d", 2, 1, ())]))
    )
    document, console = browse(tmp_path / "p.html")
    assert console == []
    assert "measured no metric" in document and "<svg" in document
    (final,) = re.findall(r'<table id="final">(.*?)</table>', document, re.S)
    assert "exchanges" in final and "<td>55</td>" in final  # 5 rounds of 10, 11 and 12
    assert 'id="chart-section"' not in document and 'id="paired-section"' not in document


def test_the_declared_target_is_the_first_that_the_page_shows(comparison, tmp_path, browse):
    text = render(comparison, metric="accuracy", target=0.123, higher_is_better=False)
    show = "<script>document.body.append($('target').value + '|' + $('direction').value)</script>"
    (tmp_path / "p.html").write_text(text.replace("</body>", show + "</body>"), encoding="utf-8")
    assert "0.123|-1" in browse(tmp_path / "p.html")[0]


def test_the_page_lists_the_clients_by_name(comparison, tmp_path, browse):
    rows = [{"round": 5, "metric": "loss/each", "clients": {EVIL: 0.25, "Oslo": None}}]
    own = replace(comparison.curves[0], per_client=[ClientHistory(rows)] * 3)
    (tmp_path / "p.html").write_text(render(Comparison("t", [own, comparison.curves[2]])))
    document, console = browse(tmp_path / "p.html")
    assert console == []
    (table,) = re.findall(r'<table id="clients">(.*?)</table>', document, re.S)
    texts = [unescape(cell) for cell in re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", table, re.S)]
    assert texts == ["client", "FedNest", EVIL, "0.25", "Oslo", "—"]
    (tmp_path / "p.html").write_text(render(comparison))
    assert 'id="clients"' not in browse(tmp_path / "p.html")[0]


def test_the_page_shows_what_diverged(comparison, tmp_path, browse):
    good, wild = comparison.curves[0], curve("wild", 3, 0.5)
    for row in wild.runs[1].rows[1:]:
        row["accuracy"] = 1e30 if row["round"] < 4 else None
    wild = Curve("wild", wild.runs, wild.seeds, diverged={6: 4})
    (tmp_path / "p.html").write_text(render(Comparison("t", [good, wild])))
    document, console = browse(tmp_path / "p.html")
    assert console == []
    assert document.count('class="cross"') == 1
    (note,) = re.findall(r'<p id="diverged">(.*?)</p>', document, re.S)
    assert note == "wild: diverged at round 4, seed 6."
    (final,) = re.findall(r'<table id="final">(.*?)</table>', document, re.S)
    assert "<td>diverged at round 4, seed 6</td>" in final and "<td>no</td>" in final
    # the others set the limits: the highest tick is about 1, not 1e30
    ticks = re.findall(r'text-anchor="end">([^<]*)<', document)
    assert max(float(tick.replace(",", "")) for tick in ticks) <= 1.2


def test_the_page_shows_what_the_doctor_found(comparison, tmp_path, browse):
    sick: Any = {
        "round": 5,
        "verdicts": [{"name": "noise", "finding": EVIL, "advice": "Take larger batches."}],
        "sentences": ["The series of the adjoint contracts."],
        "curvature": [{"round": 0, "L": 2.5, "largest": 1.5, "smallest": None}],
        "figures": {"norm of v": 3.0},
        "notes": ["One checkpoint is damaged."],
    }
    sound: Any = {**sick, "verdicts": [], "sentences": [], "curvature": [], "notes": []}
    first = replace(comparison.curves[0], examined={5: sick, 7: sound})
    (tmp_path / "p.html").write_text(render(Comparison("t", [first, comparison.curves[2]])))
    document, console = browse(tmp_path / "p.html")
    assert console == []
    (found,) = re.findall(r'<div id="doctor">(.*?)</section>', document, re.S)
    text = unescape(found)
    assert text.count("<summary>") == 2 and "seed 5: <strong>noise</strong>" in text
    assert f"{EVIL} Take larger batches." in text and "series of the adjoint contracts" in text
    assert "<td>2.5</td><td>1.5</td><td>—</td>" in text and "seed 7: nothing wrong" in text
    (tmp_path / "p.html").write_text(render(comparison))
    assert 'id="doctor"' not in browse(tmp_path / "p.html")[0]
    with pytest.raises(ValueError, match=r"examined names the seeds \[9\]"):
        replace(first, examined={9: sound})


def bold(document):
    (final,) = re.findall(r'<table id="final">(.*?)</table>', document, re.S)
    return re.findall(r"<strong>(.*?)</strong>", final)


def test_only_a_metric_with_a_known_direction_has_a_best_value(tmp_path, browse):
    curves = [Curve(f"c{i}", [History([{**row, "size": 3.0 + i, "loss": 2.0 + i}])])
              for i, row in enumerate(curve("c", 1, 1, ()).runs[0].rows[-2:])]  # fmt: skip
    (tmp_path / "p.html").write_text(render(Comparison("t", curves), metric="size"))
    document, console = browse(tmp_path / "p.html")
    assert console == [] and bold(document) == ["2"]
    assert "Whether more or less size is better is not declared" in document
    (tmp_path / "p.html").write_text(
        render(Comparison("t", curves, goals={"size": "max"}), metric="size")
    )
    document, _ = browse(tmp_path / "p.html")
    assert bold(document) == ["2", "4"]
    assert '<p id="summary">c1 ends with the largest size, 4, before c0 with 3 (one' in document


def test_the_page_begins_with_what_was_found_and_with_the_declared_axes(comparison):
    data = content(render(replace(comparison, findings=["One.", EVIL]), log_x=True))
    assert data["summary"] == f"One.\n{EVIL}"
    assert (data["log_x"], data["log_y"]) == (True, False)


@pytest.mark.parametrize(("ends", "is_said"), [((1.0, 1.1, 2.0), True), ((5.0, 5.1), False)])
def test_a_best_value_whose_interval_is_not_clear_of_the_next_says_so(ends, is_said):
    others = [ends[0] - 0.5, ends[0] - 0.45] if is_said else [1.0, 1.1]
    curves = [
        Curve(name, [History([{"round": 0, "size": end}]) for end in values])
        for name, values in (("best", ends), ("next", others))
    ]
    said = summary(Comparison("", curves, goals={"size": "max"}), "size")
    assert said.startswith("best ends with the largest size")
    assert ("the two intervals overlap" in said) == is_said


def test_the_page_says_who_holds_what_and_when_it_was_made(comparison, tmp_path, browse):
    held: Any = {"label": "labels", "classes": ["0", EVIL], "clients": {"Oslo": [3, 0]}}
    made = replace(comparison, holdings={**held, "n_clients": 5}, wall_seconds=150.0)
    (tmp_path / "p.html").write_text(render(made))
    document, console = browse(tmp_path / "p.html")
    assert console == []
    (table,) = re.findall(r'<table id="holdings">(.*?)</table>', document, re.S)
    texts = [unescape(text) for text in re.findall(r">([^<]+)<", table)]
    assert texts == ["client", "0", EVIL, "rows", "Oslo", "3", "·", "3"]
    assert "the first 1 of 5 clients" in document
    assert re.search(r"Written on 20\d\d-\d\d-\d\d .* The longest run took 2\.5 minutes", document)
    (tmp_path / "p.html").write_text(render(comparison))
    assert 'id="holdings"' not in browse(tmp_path / "p.html")[0]


def test_more_than_eight_curves_are_small_multiples(tmp_path, browse):
    many = [curve(f"c{i}", 1 + i, 0.5) for i in range(9)]
    show = "<script>$('multiples').click()</script></body>"
    for end, panels in (("</body>", 9), (show, 1)):
        page = render(Comparison("t", many)).replace("</body>", end)
        (tmp_path / "p.html").write_text(page, encoding="utf-8")
        document, console = browse(tmp_path / "p.html")
        (chart,) = re.findall(r'<div id="chart".*?</div>\s*<p', document, re.S)
        assert console == [] and chart.count('role="img"') == panels
        assert chart.count('class="line"') == 9  # a panel draws its own, the others are faint


def test_every_control_can_be_reached_by_the_keyboard(comparison, tmp_path, browse):
    tell = """<script>
    const all = [...document.querySelectorAll("button, select, input, summary, .scroll")];
    const lost = all.filter(one => { one.focus(); return document.activeElement !== one; });
    document.body.append(`${all.length} controls, lost: ${lost.map(one => one.outerHTML)}.`);
    </script></body>"""
    held: Any = {"label": "labels", "classes": ["0"], "clients": {"Oslo": [3]}, "n_clients": 1}
    page = render(replace(comparison, holdings=held)).replace("</body>", tell)
    (tmp_path / "p.html").write_text(page, encoding="utf-8")
    document, _ = browse(tmp_path / "p.html")
    (count,) = re.findall(r"(\d+) controls, lost: \.", document)
    assert int(count) >= 19  # 5 of the chart, 3 curves and their settings, 3 of tables, 5 tables


def test_a_browser_draws_the_page(comparison, tmp_path, browse):
    (tmp_path / "page.html").write_text(render(comparison))
    document, console = browse(tmp_path / "page.html")
    assert console == []
    assert len(re.findall(r'<path class="line" d="M[\d.]+,', document)) == 3
    (shown,) = re.findall(r'<h1 id="title">(.*?)</h1>', document, re.S)
    assert unescape(shown) == EVIL


def test_the_page_does_not_scroll_sideways(comparison, tmp_path, browse):
    """In frames as wide as a screen and as a telephone, with names that do not fit a line."""
    long = replace(comparison.curves[0], name="a curve with a name of many words " * 3)
    page = render(Comparison("a_title_without_a_place_to_break_" * 4, [long, comparison.curves[1]]))
    tell = "parent.document.body.append(`${innerWidth}:${document.documentElement.scrollWidth};`)"
    page = escape(page.replace("</body>", f"<script>{tell}</script></body>"))
    frame = '<iframe style="width: {}px; height: 900px; border: 0" srcdoc="{}"></iframe>'
    frames = "".join(frame.format(width, page) for width in (1200, 480, 360))
    (tmp_path / "p.html").write_text(f"<!doctype html><body>{frames}</body>", encoding="utf-8")
    found = re.findall(r"(\d+):(\d+);", browse(tmp_path / "p.html")[0])
    assert sorted(int(inner) for inner, _ in found) == [360, 480, 1200]
    assert all(int(wide) <= int(inner) for inner, wide in found), found


def test_the_controls_of_the_page_work(comparison, tmp_path, browse):
    page = render(comparison)
    probed = page.replace("</body>", PROBE + "</body>")
    (tmp_path / "probed.html").write_text(probed, encoding="utf-8")
    document, console = browse(tmp_path / "probed.html")
    assert len(console) == 1 and "probe was here" in console[0]
    (text,) = re.findall(r'<pre id="probe">(.*?)</pre>', document, re.S)
    out = json.loads(unescape(text))
    assert out["errors"] == []

    assert (out["start"]["x"], out["megabytes"]["x"]) == ("exchanges", "megabytes up")
    lines = [out[step]["lines"] for step in ("start", "log", "loglog", "hidden", "loss")]
    assert all(a != b for a, b in pairwise(lines))
    assert out["start"]["lines"][0].count("M") == 2  # the gap lifts the pen
    assert not any("NaN" in path for step in lines for path in step)
    assert out["pressed"] == "false" and out["hidden"]["lines"][0] == ""
    assert out["loss"]["y"] == "loss" and out["direction"] == "-1"
    assert "accuracy" in out["readout"] and "megabytes up" in out["readout"]
    assert out["empty"] == "Nothing to draw."

    expected = mean_and_interval(comparison.curves[0], "exchanges", "accuracy")
    got = [[row["x"], row["mean"], row.get("low"), row.get("high")] for row in out["band"]]
    np.testing.assert_allclose(np.array(got, float).T, expected, rtol=1e-6, atol=1e-9)

    header, *rows = out["cost"]
    assert header == ["curve", "reached", *(AXES[name].label for name in SPENT)]
    for row, one in zip(rows, comparison.curves, strict=True):
        costs = [cost_to_reach(one, "accuracy", 0.55, axis) for axis in SPENT]
        assert row[1] == f"{costs[0].reached}/{costs[0].total}"
        assert row[2:] == [plus_minus(cost.interval) for cost in costs]
    for row, one in zip(out["final"][1:], comparison.curves, strict=True):
        expected = plus_minus(interval(final_values(one, "accuracy")))
        assert row[:3] == [one.name, "5, 6, 7", expected]

    header, *rows = out["paired"]
    assert [row[0] for row in rows] == ["FedNest", EVIL]  # all but the one they are held against
    for row, one in zip(rows, comparison.curves, strict=False):
        test = paired_test(one, comparison.curves[2], "accuracy")
        assert row[1:3] == ["3", plus_minus(test.interval)]
        assert [float(p) for p in row[3:]] == [
            float(number(test.p_student)),
            float(number(test.p_flips)),
        ]
