"""Every algorithm can be cited, with the paper that its file names."""

import importlib
import re

import pytest

import rookery as rk
from rookery import algorithms
from rookery.citation import WITHOUT_PAPER

NAMES = sorted({*algorithms.__all__, *algorithms.GROUPED} - {"parts"})


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_is_cited_with_the_paper_of_its_file(name):
    text = rk.cite(getattr(algorithms, name))
    assert "@software{rookery" in text and "algorithms =" not in text
    papers = re.findall(r"@(?:inproceedings|article|misc)\{", text)
    assert bool(papers) == (name not in WITHOUT_PAPER)
    assert rk.cite(name) == text
    head = importlib.import_module(getattr(algorithms, name).__module__).__doc__ or ""
    for number in re.findall(r"eprint = \{(.*?)\}", text):
        assert number in head
    assert text.count("{") == text.count("}")


def test_an_instance_and_a_name_do_as_well():
    assert rk.cite(rk.FedAvg(lr=0.1)) == rk.cite(rk.FedAvg) == rk.cite("FedAvg")


def test_an_algorithm_of_ones_own_has_the_entry_of_rookery_alone():
    class MyOwn:
        pass

    assert rk.cite(MyOwn) == rk.cite(MyOwn()) == rk.cite("Nested")


def test_a_misspelt_name_is_an_error():
    with pytest.raises(ValueError, match=r"FedNst.*'FedNest'"):
        rk.cite("FedNst")
