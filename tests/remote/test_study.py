"""A study as its parties read it, with messages over threads."""

import io
import sys
from importlib.util import find_spec

import jax
import numpy as np
import pytest
from rich.console import Console

import rookery as rk
from rookery.cli.main import main
from rookery.remote import Faults, InProcess, Policy, Remote
from rookery.remote.study import NAMES, Study, module_name
from rookery.remote.transports.monitor import Monitored


def study() -> Study:
    return Study.read("flare_study")


def by_sites(client, program, algorithm, state, plan):
    """A client made by its site alone, as on another machine."""
    (site,) = [s for s, clients in study().sites.items() if client in clients]
    return study().workers(site)[client]


@pytest.mark.slow
def test_a_server_without_rows_and_sites_with_theirs_give_the_compiled_numbers(tmp_path):
    import flare_study

    engine = Remote(InProcess(Faults(), by_sites), Policy(wait_for=300.0))
    got = flare_study.main(engine, tmp_path / "sites")
    want = flare_study.main(rk.Compiled(), tmp_path / "compiled", flare_study.EVERYONE)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), got.state, want.state)
    assert got.ledger == want.ledger


def test_sites_number_their_clients_on():
    assert study().sites == {"site-1": range(0, 3), "site-2": range(3, 4)}


GOOD = """
import numpy as np
import rookery as rk
zoo = rk.zoo.quadratic_losses(n_clients=2, size=2, rows=3)
problem, algorithm, start = zoo.problem, rk.FedAvg(lr=0.1, local_steps=2), zoo.start
sites = ("a", "b")
everyone = rk.Population.stacked(zoo.data)
population = rk.Population.elsewhere(everyone.example("train"), 2)
def load(site):
    return rk.Population.stacked({k: v[:1] for k, v in zoo.data.items()})
def main(engine, directory):
    pass
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A study in a file, which is forgotten after the test."""

    def written(*changes):
        text = GOOD
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / "some_study.py"
        file.write_text(text)
        return file

    monkeypatch.setattr(sys, "path", [*sys.path])
    yield written
    sys.modules.pop("some_study", None)


def test_a_study_can_be_named_by_its_file_here_and_by_its_module_alone_elsewhere(write):
    file = write()
    with pytest.raises(ValueError, match="name of a Python module"):
        Study.read(str(file))
    assert Study.read(module_name(file)).name == "some_study"


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("def main", "def other", "has no main"),
        ('("a", "b")', '("a",)', "have 1 clients, but its population has 2"),
        ('("a", "b")', '"ab"', "name at least one site"),
        ('("a", "b")', '{"a": 0, "b": 2}', "must be at least 1"),
        ("def main", "secure = True\n\n\ndef main", "secure must be a SecureAggregation"),
        ("rk.FedAvg(lr=0.1, local_steps=2)", "rk.FedNest(outer_lr=0.1, inner_lr=0.1)", "FedNest"),
    ],
)
def test_what_is_wrong_with_a_study_is_said_at_once(write, old, new, match):
    with pytest.raises((ValueError, TypeError), match=match):
        Study.read(module_name(write((old, new))))


def test_a_study_that_is_not_here_is_missed_by_name():
    with pytest.raises(ValueError, match="no module 'nowhere'"):
        Study.read("nowhere")
    with pytest.raises(ValueError, match=r"no file nowhere\.py"):
        module_name("nowhere.py")
    assert "load" in NAMES


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("v[:1]", "v[:2]", "returned 2 clients, but sites gives it 1"),
        ("v[:1]", "v[:1].astype(np.float16)", "float16.*wanted"),
    ],
)
def test_a_site_whose_rows_are_otherwise_says_so(write, old, new, match):
    with pytest.raises(ValueError, match=match):
        Study.read(module_name(write((old, new)))).workers("a")


def test_an_unknown_site_is_refused(write):
    with pytest.raises(ValueError, match="'c'"):
        Study.read(module_name(write())).workers("c")


def test_traffic_is_shown_with_names_bytes_and_those_missing():
    zoo = rk.zoo.quadratic_losses(n_clients=3, size=2, rows=3)
    population = rk.Population.stacked(zoo.data, names=["north", "south", "west"])
    console = Console(record=True, file=io.StringIO(), width=200)
    transport = Monitored(InProcess(Faults(crashes={1: 2})), console, every=1e-6)
    rk.run(
        rk.FedAvg(lr=0.1, local_steps=2), zoo.problem, population, zoo.start, rounds=3,
        engine=Remote(transport, Policy(60.0, 0.5, back_off=0.01)),
    )  # fmt: skip
    text = console.export_text()
    assert "Before gradient_steps, 3 of 3 clients alive:" in text
    *_, end, north, crashed, _ = text.splitlines()
    assert end == "At the end, 2 of 3 clients alive:"
    assert "north: 4 replies to 4 requests, " in north and "kB down" in north and "kB up" in north
    assert "south: 2 replies to 4 requests" in crashed and "its process has died" in crashed


@pytest.mark.skipif(find_spec("nvflare") is not None, reason="NVIDIA FLARE is installed")
def test_without_flare_its_commands_say_what_to_install(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["flare-stop", "--kit", str(tmp_path)])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "pip install -e '.[flare]'" in error and "Traceback" not in error
