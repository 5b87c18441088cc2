"""How to cite an algorithm: its paper and this library, as BibTeX."""

import importlib.metadata
import importlib.resources
import re

from rookery import check

LIBRARY = """@software{{rookery,
  title = {{rookery: federated nested optimisation on JAX}},
  author = {{{{The rookery maintainers}}}},
  version = {{{version}}},
  year = {{2026}}
}}"""
WITHOUT_PAPER = ("GDA", "Nested")
"""Older than papers, or a frame for several: only the library is cited."""


def cite(algorithm: object) -> str:
    """BibTeX entries of an algorithm's papers and of rookery.

    Args:
        algorithm: an algorithm, its class, or its name. For a class of your own there is the
            entry of rookery alone; a name must be one of rookery's.

    >>> print(cite("FedBuff").splitlines()[0])
    @inproceedings{nguyen2022fedbuff,
    """
    papers = {entry: algorithms_of(entry) for entry in _entries()}
    if isinstance(algorithm, str):
        check.one_of("algorithm", algorithm, {*WITHOUT_PAPER}.union(*papers.values()))
    names = _names_of(algorithm)
    entries = [entry for entry, algorithms in papers.items() if names & {*algorithms}]
    shown = [re.sub(r",\n  algorithms = \{.*?\}", "", entry) for entry in entries]
    return "\n\n".join([*shown, LIBRARY.format(version=importlib.metadata.version("rookery"))])


def algorithms_of(entry: str) -> list[str]:
    """The algorithms that an entry of papers.bib belongs to.

    >>> algorithms_of("@misc{key, algorithms = {FedAvg, FedProx}}")
    ['FedAvg', 'FedProx']
    """
    found = re.search(r"algorithms = \{(.*?)\}", entry)
    return [] if found is None else found[1].split(", ")


def _names_of(algorithm: object) -> set[str]:
    """What an algorithm is called; one that another function configured has that one's name."""
    if isinstance(algorithm, str):
        return {algorithm}
    if callable(algorithm):  # a class, or a function that configures one
        return {algorithm.__name__}
    return {str(getattr(algorithm, "name", "")), type(algorithm).__name__}


def _entries() -> list[str]:
    text = (importlib.resources.files("rookery") / "papers.bib").read_text(encoding="utf-8")
    return re.findall(r"^@.*?^\}", text, flags=re.MULTILINE | re.DOTALL)
