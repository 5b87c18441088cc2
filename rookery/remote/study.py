"""A study that several parties carry out: one module, which each of them has a copy of.

It is an ordinary module with these names:

    problem      what is solved
    algorithm    the server program
    start        initial values of the problem's variables
    sites        names of the parties that have data: a tuple if each is one client, or else a
                 dictionary with the number of clients of each
    population   what the server knows of the clients: ``Population.elsewhere(...)``
    load(site)   a site's own rows, as a population of its clients; called at that site alone
    main(engine, directory)
                 what the server does: ``rk.run(..., engine=engine, directory=directory)``. Results
                 in the order in which they really come are had of
                 ``Remote(engine.transport, engine.policy, in_real_time=True)``
    policy       what to do about clients that do not answer; may be left out

Server and sites read the module on their own, and agree on a fingerprint of it before the first
step: neither code nor data of a party goes to another.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rookery import check
from rookery.clients.population import Population
from rookery.program.algorithm import AbstractAlgorithm, first_state, numbers_to_arrays
from rookery.remote.client.worker import Worker
from rookery.remote.protocol.tracing import trace_round
from rookery.remote.server.policy import Policy
from rookery.types import Tree

NAMES = ("problem", "algorithm", "start", "sites", "population", "load", "main")


class JobFailed(RuntimeError):
    """A study that the parties did not finish; what was done until then is kept."""


@dataclass(frozen=True)
class Study:
    """What the module of a study holds, checked.

    Attributes:
        sites: by site, the numbers of its clients.
    """

    name: str
    problem: Any
    algorithm: AbstractAlgorithm
    start: tuple[Tree, ...]
    sites: Mapping[str, range]
    population: Population
    load: Callable[[str], Population]
    main: Callable[..., Any]
    policy: Policy

    @classmethod
    def read(cls, name: str) -> "Study":
        """Import a module and check it, or raise and say what it lacks.

        The name may have come from another party, so it is one of a module that Python finds here,
        and never a path.
        """
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"a study is named as modules are, got {name!r}.")
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0]:
                raise
            raise ValueError(
                f"there is no module {name!r} here. Every party needs a copy where its Python "
                "looks for modules, on PYTHONPATH for example."
            ) from error
        if missing := [wanted for wanted in NAMES if not hasattr(module, wanted)]:
            raise ValueError(
                f"the study {name!r} has no {', '.join(missing)}. A study needs "
                f"{', '.join(NAMES)}; see rookery.remote.study."
            )
        sites = _numbered(module.sites)
        population = module.population
        n_clients = sum(map(len, sites.values()))
        if population.n_clients != n_clients:
            raise ValueError(
                f"the sites of {name!r} have {n_clients} clients, its population "
                f"{population.n_clients}."
            )
        module.algorithm.check(module.problem, n_clients)
        module.problem.check(module.start, population.example)
        start = jax.tree.map(jnp.asarray, tuple(module.start))
        module.algorithm.check_start(module.problem, start, population.example)
        policy = getattr(module, "policy", None)
        return cls(
            name, module.problem, module.algorithm, start, sites, population, module.load,
            module.main, policy if policy is not None else Policy(),
        )  # fmt: skip

    def workers(self, site: str, *, is_checked: bool = True) -> dict[int, Worker]:
        """The clients of a site, with its rows.

        Args:
            site: the site's name.
            is_checked: whether replies carry a checksum of their arrays.
        """
        mine = self.sites[check.one_of("site", site, tuple(self.sites))]
        rows = self.load(site)
        if rows.n_clients != len(mine):
            raise ValueError(
                f"load({site!r}) gave {rows.n_clients} clients; by the study it has {len(mine)}."
            )
        rows.check_rows(f"site {site!r}")
        rows = rows.among(self.population, mine.start)
        state = first_state(self.algorithm, self.problem, self.population.n_clients, self.start)
        plan = trace_round(numbers_to_arrays(self.algorithm), self.problem, rows, state)
        shared = (self.problem, self.algorithm, jax.device_put(rows), state, plan)
        return {client: Worker(client, *shared, is_checked=is_checked) for client in mine}


def module_name(study: str | Path) -> str:
    """The name of a study that is given by its name, or by its file.

    Python looks in the folder of the file for modules from then on.
    """
    file = Path(study)
    if file.suffix != ".py":
        return str(study)
    if not file.is_file():
        raise ValueError(f"there is no file {study}.")
    sys.path.insert(0, str(file.resolve().parent))
    return file.stem


def _numbered(sites: Any) -> dict[str, range]:
    counts = dict(sites) if isinstance(sites, Mapping) else dict.fromkeys(sites, 1)
    if not counts or isinstance(sites, str):
        raise ValueError(f"sites must name at least one site, as ('site-1',), got {sites!r}.")
    numbered, first = {}, 0
    for site, count in counts.items():
        check.count(f"the number of clients of {site!r}", count)
        numbered[site] = range(first, first + count)
        first += count
    return numbered
