"""Which names the reference has, on which page."""

import ast
import importlib
import inspect
import re

from rookery import algorithms

LAYERS = {
    "problems": (
        "Problems and their oracles",
        "Losses and their derivatives. The methods of a problem are its *oracles*: an algorithm "
        "calls them with the variables and a sample of a client's rows. They know nothing about "
        "clients.",
        {"rookery": ["Bilevel", "Minimax", "Composition", "LocalComposition", "Meta",
                     "MultiSequence", "SingleLevel"],
         "rookery.problem": ["PersonalBilevel", "Conditional", "XRisk", "GaussNewton",
                             "OverPairs", "OverBatch", "masked_mean"],
         "rookery.problem.sample": ["Rows"],
         "rookery.problem.batch_norm": None,
         "rookery.problem.constraints": ["Constrained"]},
    ),
    "zoo": ("Zoo: problems with known solutions", "For tests and for trying things out.",
            {"rookery.zoo": None}),
    "clients": (
        "Clients: whose data", "Populations, partitions and data sets.",
        {"rookery": ["Population"], "rookery.partition": None, "rookery.datasets": None},
    ),
    "taking-part": (
        "Who takes part, when, and what it is worth",
        "Cohorts, availability, delays, and how replies become one value.",
        {"rookery.participation": None, "rookery.availability": None, "rookery.delays": None,
         "rookery.aggregate": None, "rookery.program.privacy": None,
         "rookery.program.row_privacy": ["RowPrivate"]},
    ),
    "program": (
        "The words of fed: for authors of algorithms",
        "An algorithm is a program in these words; engines interpret them.",
        {"rookery": ["AbstractAlgorithm"], "rookery.program": None, "rookery.tree": None},
    ),
    "parts": (
        "Parts: step rules, series, codecs, estimators",
        "What algorithms are composed of, and what may stand where a step size stands.",
        {"rookery.parts": None},
    ),
    "engines": ("Engines: where rounds are computed", "The same program, interpreted differently.",
                {"rookery": ["Compiled", "Eager"]}),
    "remote": (
        "Remote: clients in other processes and at other sites",
        "The engine over messages, its policy and its transports.",
        {"rookery.remote": None, "rookery.remote.study": ["Study", "JobFailed"],
         "rookery.remote.transports.ray.transport": ["Ray"]},
    ),
    "runner": (
        "Runs: run, sweep, tune, and what they leave", "One run, many runs, and their records.",
        {"rookery": ["run", "sweep", "tune", "Run", "load_solution", "cite"],
         "rookery.runner.run_state": ["Result"],
         "rookery.runner.history": ["History", "ClientHistory", "HistoryFile"],
         "rookery.runner.tune": ["Tuning"],
         "rookery.metrics": ["OfSolution", "OnServer", "OnClients"],
         "rookery.stop": None},
    ),
    "report": (
        "Reports, trackers and the doctor", "Curves, tables, pages, and what is wrong with a run.",
        {"rookery.report.comparison": ["Comparison", "Curve"],
         "rookery.report.tables": ["final_table", "cost_table"],
         "rookery.report.markup": ["markdown", "latex"],
         "rookery.report.write": ["PlotSettings", "write_report", "write_only_page"],
         "rookery.doctor": None, "rookery.tracking": None},
    ),
    "models": ("Models and adapters", "Small models, and modules of other libraries.",
               {"rookery.models": None}),
    "tasks": ("Tasks: ready-made problems on real data", "What [task] in a TOML file names.",
              {"rookery.tasks": None}),
}  # fmt: skip

ELSEWHERE = {"rookery.program.AbstractAlgorithm", "rookery.participation.Cohort"}
"""Second names of what has an entry already."""


def resolve(path: str) -> object:
    """The object with a dotted name; an attribute of a package may stand for a module."""
    place, found = path.split("."), importlib.import_module("rookery")
    for i, name in enumerate(place[1:], start=2):
        try:
            found = getattr(found, name)
        except AttributeError:
            found = importlib.import_module(".".join(place[:i]))
    return found


def public_names(path: str) -> list[str]:
    """What a module offers: ``__all__``, or what it defines or imports as ``name as name``.

    >>> {"load", "pad_sequences"} <= {*public_names("rookery.datasets")}
    True
    """
    module = resolve(path)
    if hasattr(module, "__all__"):
        return sorted(name for name in module.__all__ if f"{path}.{name}" not in ELSEWHERE)
    passed_on = {
        alias.name
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    names = []
    for name, thing in vars(module).items():
        is_own = name in passed_on or getattr(thing, "__module__", "") == module.__name__
        if f"{path}.{name}" in ELSEWHERE:
            continue
        if name[0] != "_" and is_own and callable(thing) and inspect.getdoc(thing):
            names.append(name)
    return sorted(names, key=str.lower)


def entries() -> dict[str, list[str]]:
    """The full names on every page of a layer."""
    return {
        page: [
            f"{module}.{name}"
            for module, names in modules.items()
            for name in (public_names(module) if names is None else names)
        ]
        for page, (_, _, modules) in LAYERS.items()
    }


def algorithm_names() -> dict[str, str]:
    """The full name of every algorithm."""
    top = {name: f"rookery.{name}" for name in algorithms.__all__ if name != "parts"}
    return top | {name: f"rookery.algorithms.{name}" for name in algorithms.GROUPED}


def heading(text: str, line: str = "=") -> str:
    """A title of reStructuredText."""
    return f"{text}\n{line * len(text)}\n"


def escaped(line: str) -> str:
    r"""A line whose bars and stars are mathematics, not markup.

    >>> print(escaped("|x - x*| and ``a*b`` of :class:`Run`"))
    \|x - x\*\| and ``a*b`` of :class:`Run`
    >>> print(escaped("inner_rounds: T."))
    inner_rounds: \T.
    """
    pieces = re.split(r"(``.+?``|`[^`]+`(?!`))", line)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"([|*])", r"\\\1", pieces[i])
        pieces[i] = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", pieces[i])
    whole = "".join(pieces)
    # "T." and "D. A. Author" are no items of a list
    return re.sub(r"^(\s*(?:\w+: )?)(\w\.)(?=\s|$)", r"\1\\\2", whole)
