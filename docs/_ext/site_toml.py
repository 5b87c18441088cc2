"""The reference of the TOML file, from the code that reads it."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping

import equinox as eqx
from site_names import escaped, heading

from rookery.experiment import config, registry
from rookery.program.delays import Clock
from rookery.runner.guard import Guard
from rookery.runner.sweep import sweep

EXAMPLE = """.. code-block:: toml

   title = "Step sizes of FedNest"
   claim = "A longer outer step is faster until it diverges."

   [task]
   name = "quadratic"
   n_clients = 6

   [algorithm]
   name = "FedNest"
   outer_lr = 0.05
   inner_lr = 0.1
   clients = 3                    # or { name = "Weighted", n = 3 }

   [run]
   rounds = 100
   seeds = [0, 1, 2]

   [curves."short steps"]

   [curves."long steps".algorithm]
   outer_lr = 0.1
"""
TOP = {
    "title": "headline of the report",
    "claim": "what the experiment is to show; printed and kept with the results",
    "data": "a data set, for tasks that need one",
    "partition": "how its rows are dealt to clients",
    "task": "the problem",
    "algorithm": "the algorithm",
    "clock": "delays and availability, for virtual time",
    "engine": "what computes the rounds; Compiled if the table is missing",
    "run": "how long, how often, with which seeds",
    "guard": "the guard against breakdowns, or ``guard = false``",
    "curves": "a table per curve, with what it changes in data, partition, task, algorithm, clock "
    "and engine; the key is its label",
    "tune": "the grid that ``rookery tune`` chooses from",
    "plot": "what the report draws",
}
RUN = {
    "rounds": "number of rounds; needed",
    "seconds": "virtual seconds that a run may last",
    "seeds": "a list; every curve is run with each, [0] by default",
    "batch": "how many runs go into one compiled program",
    "precision": "float32, the default, or float64",
    "stop": "a table, or a list of tables, each a rule that ends runs early",
    "keep": 'keep the best iterate, as "best:accuracy:max"',
}
TUNE = {
    "grid": 'by key, values as "algorithm.outer_lr" = [0.01, 0.1], or a range as '
    "{ low = 0.001, high = 10.0 }; needed",
    "without": "by curve, keys of the grid that it does not have",
    "metric": "what decides; needed",
    "goal": "min or max; needed",
    "unseen": "a metric of other rows, recorded with every trial: it gives the regret of the "
    "choice and decides nothing",
    "rounds": "rounds of a trial; those of [run] by default",
    "seconds": "virtual seconds of a trial",
    "seeds": "seeds of the trials; other than those of [run], to be fair",
    "confirm": "further seeds for the best settings, before one is chosen",
    "trials": "how many settings a search of ranges begins with",
    "extend": "how often a range may be widened where the best value is at its end",
    "sampler": "halton or optuna: what proposes settings in ranges",
}
PLOT = {
    "metrics": "metrics to draw; tables use the first",
    "axes": "costs to draw against: " + ", ".join(config.AXES),
    "log_x": "whether the costs have a logarithmic axis",
    "log_y": "whether the metrics have one",
    "target": "a value of the first metric; a table says what it cost to reach it",
    "higher_is_better": "whether the first metric has to rise; by default what its evaluation, "
    "or its name, says",
}
GROUPS = {
    "algorithm": ("Algorithms", "``[algorithm]``", registry.PROGRAMS),
    "part": ("Parts", "a table inside ``[algorithm]`` or ``[clock]``", registry.PARTS),
    "task": ("Tasks", "``[task]``", registry.TASKS),
    "partition": ("Partitions", "``[partition]``; ``clients`` is the number of clients and "
                  "``fractions`` the shares of the splits", registry.PARTITIONS),
    "data": ("Data sets", "``[data]``; ``holdout`` and ``long_tail`` may stand there too",
             registry.DATASETS),
    "engine": ("Engines", "``[engine]``", registry.ENGINES),
    "rule": ("Rules that end runs", "``stop`` in ``[run]``", registry.STOP_RULES),
}  # fmt: skip
GIVEN = {"dataset", "parts", "labels", "n_samples", "owners", "n_clients", "directory", "name"}


def described(fn: Callable) -> dict[str, str]:
    """The descriptions of parameters in the docstrings of a function, or of a class and its bases.

    >>> described(Clock)["seed"]
    'of the delays and the availability alone.'
    """
    found: dict[str, str] = {}
    for owner in fn.__mro__ if isinstance(fn, type) else (fn,):
        doc = inspect.getdoc(owner) if "__doc__" in vars(owner) or not isinstance(fn, type) else ""
        found = described_by(doc or "") | found
    return found


def described_by(doc: str) -> dict[str, str]:
    r"""The descriptions of parameters in one docstring.

    >>> described_by("Steps.\n\nArgs:\n    lr: size of\n        a step.\n")
    {'lr': 'size of a step.'}
    """
    inside = re.search(r"^Args:\n((?:    .*\n?|\n)+)", doc, flags=re.MULTILINE)
    each = r"^    (\w+): (.*(?:\n        .*)*)"
    pairs = re.findall(each, inside[1], flags=re.MULTILINE) if inside else []
    return {name: " ".join(text.split()) for name, text in pairs}


def default_of(fn: Callable, parameter: inspect.Parameter) -> str:
    """The default as it is written in a file; empty if the key is needed."""
    value = parameter.default
    if value is parameter.empty:
        return "needed"
    if dataclasses.is_dataclass(fn):
        fields = {each.name: each for each in dataclasses.fields(fn)}
        each = fields.get(parameter.name)
        if each is not None and each.default_factory is not dataclasses.MISSING:
            value = each.default_factory()
    return written(value)


def written(value: object) -> str:
    """A value as TOML has it, or a table's name."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, eqx.Module):
        return f'{{ name = "{type(value).__name__}" }}'
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return str(list(value))
    if isinstance(value, (int, float, str)):
        return repr(value).replace("'", '"')
    return "see the reference"


def keys_of(fn: Callable) -> list[tuple[str, str, str]]:
    """Name, default and meaning of every key that a table with this name may have."""
    texts = {"label": "a name for tables and messages instead of the algorithm's"} | described(fn)
    return [
        (name, default_of(fn, parameter), texts.get(name, ""))
        for name, parameter in inspect.signature(fn).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in GIVEN
    ]


def table(rows: list[tuple[str, ...]], heads: tuple[str, ...], widths: str) -> str:
    """A table of reStructuredText."""
    lines = [".. list-table::", f"   :widths: {widths}", "   :header-rows: 1", ""]
    for row in (heads, *rows):
        lines += [
            f"   {'* -' if i == 0 else '  -'} {escaped(cell)}".rstrip()
            for i, cell in enumerate(row)
        ]
    return "\n".join(lines) + "\n"


def named(texts: Mapping[str, str], valid: tuple[str, ...], more: Mapping[str, str]) -> str:
    """A table of keys, all of those that the code accepts and no other."""
    assert set(texts) <= set(valid), set(texts) - set(valid)
    rows = [(f"``{key}``", texts.get(key) or more[key]) for key in valid]
    return table(rows, ("key", "meaning"), "25 75")


def toml_page() -> str:
    """The page."""
    lines = [
        heading("The TOML file: tables and keys"),
        "An experiment is a TOML file. A table with a ``name`` stands for an object, and its other "
        "keys are the object's arguments: a name of rookery, ``module:attribute`` for code of your "
        "own, or an entry point of an installed package. ``rookery show FILE`` checks a file and "
        "prints the cost of a round without reading data. A name or key that does not exist is an "
        "error that shows the nearest valid one. The code that reads files writes this page.",
        "",
        EXAMPLE,
        heading("Tables", "-"),
        named(TOP, config.TABLES, {}),
        heading("[run]", "-"),
        named(RUN, config.RUN_KEYS, described(sweep)),
        heading("[guard]", "-"),
        table(
            [(f"``{k}``", f"``{d}``", t) for k, d, t in keys_of(Guard)],
            ("key", "default", "meaning"),
            "20 15 65",
        ),
        heading("[clock]", "-"),
        table(
            [(f"``{k}``", f"``{d}``", t) for k, d, t in keys_of(Clock)],
            ("key", "default", "meaning"),
            "20 25 55",
        ),
        heading("[tune]", "-"),
        named(TUNE, config.TUNE_KEYS, {}),
        heading("[plot]", "-"),
        named(PLOT, config.PLOT_KEYS, {}),
    ]
    for kind, (title, where, names) in GROUPS.items():
        lines += [heading(title, "-"), f"Named in {where}.", ""]
        if kind == "data":
            from rookery.clients import datasets

            rows = [(f"``{name}``", text) for name, text in datasets.available().items()]
            lines.append(table(rows, ("name", "what it is"), "25 75"))
            continue
        for name in sorted(names, key=str.lower):
            line = (inspect.getdoc(names[name]) or "").splitlines()[0]

            lines += [heading(name, "~"), escaped(line), ""]
            if keys := keys_of(names[name]):
                rows = [(f"``{k}``", f"``{d}``", t) for k, d, t in keys]
                lines.append(table(rows, ("key", "default", "meaning"), "20 25 55"))
    return "\n".join(lines)
