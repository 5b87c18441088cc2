"""A study: one Python module that describes a run of several parties; each has a copy.

The module defines these names:

    problem      the problem
    algorithm    the algorithm
    start        initial values of the problem's variables
    sites        names of the parties with data: a tuple if each is one client, otherwise a
                 dictionary with the number of clients of each
    population   what the server knows about the clients: ``Population.elsewhere(...)``
    load(site)   a site's own rows, as a population of its clients; called only at that site
    main(engine, directory)
                 the server's program: ``rk.run(..., engine=engine, directory=directory)``. For
                 results in the order of their arrival use
                 ``Remote(engine.transport, engine.policy, in_real_time=True)``
    policy       a :class:`~rookery.remote.Policy`; optional
    secure       a :class:`~rookery.remote.SecureAggregation`, if replies are to be masked; optional

Server and sites each load their own copy, and the handshake compares fingerprints before the first
step. No party sends code or data to another. A site loads only a study that it has joined and that
has not changed since (:mod:`rookery.remote.client.site_policy`).
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp

from rookery import check
from rookery.clients.population import Population
from rookery.program.algorithm import (
    AbstractAlgorithm,
    check_constraints,
    first_state,
    numbers_to_arrays,
)
from rookery.remote.client.enforcer import Enforcer
from rookery.remote.client.site_policy import SitePolicy
from rookery.remote.client.worker import Worker
from rookery.remote.protocol.secure import SecureAggregation
from rookery.remote.protocol.tracing import trace_round
from rookery.remote.server.policy import Policy
from rookery.types import Problem, Tree

NAMES = ("problem", "algorithm", "start", "sites", "population", "load", "main")


class JobFailed(RuntimeError):
    """A job that did not finish; its checkpoints are kept, so it can be resumed.

    >>> try:
    ...     raise JobFailed("the job was aborted after round 12")
    ... except JobFailed as error:
    ...     print("To be resumed:", error)
    To be resumed: the job was aborted after round 12
    """


@dataclass(frozen=True)
class Study:
    """The contents of a study's module, checked; made by :meth:`read`.

    A study is a file that every party has; here a module is filled by hand:

    >>> import rookery as rk
    >>> zoo = rk.zoo.quadratic_losses(n_clients=2)
    >>> clinics = sys.modules["clinics"] = ModuleType("clinics")
    >>> clinics.problem, clinics.start = zoo.problem, zoo.start
    >>> clinics.algorithm, clinics.sites = rk.FedAvg(lr=0.1), ("clinic-1", "clinic-2")
    >>> def load(site):
    ...     i = clinics.sites.index(site)
    ...     return rk.Population.stacked(jax.tree.map(lambda rows: rows[i : i + 1], zoo.data))
    >>> clinics.load = load
    >>> clinics.population = rk.Population.elsewhere(load("clinic-1").example("train"), 2)
    >>> clinics.main = lambda engine, directory: None
    >>> study = Study.read("clinics")
    >>> study.sites
    {'clinic-1': range(0, 1), 'clinic-2': range(1, 2)}
    >>> list(study.workers("clinic-2"))
    [1]

    Attributes:
        name: name of the module.
        problem: the problem.
        algorithm: the algorithm.
        start: initial values of the problem's variables.
        sites: by site, the numbers of its clients.
        population: what the server knows about the clients.
        load: loads a site's rows, at the site.
        main: the server's program.
        policy: deadlines, retries, and how many replies are enough.
        secure: the settings of secure aggregation, if replies are masked.
    """

    name: str
    problem: Problem
    algorithm: AbstractAlgorithm
    start: tuple[Tree, ...]
    sites: Mapping[str, range]
    population: Population
    load: Callable[[str], Population]
    main: Callable[..., object]
    policy: Policy
    secure: SecureAggregation | None

    @classmethod
    def read(cls, name: str) -> "Study":
        """Import a module and check it; raises with what it lacks.

        The name may come from another party, so it must name a module on Python's path: a file
        path is refused.
        """
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"a study must be the name of a Python module, got {name!r}.")
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0]:
                raise
            raise ValueError(
                f"there is no module {name!r} here. Every party needs a copy of the study on its "
                "PYTHONPATH."
            ) from error
        return cls._of(name, module)

    @classmethod
    def joined(cls, name: str, policy: SitePolicy, folder: str | Path) -> "Study":
        """Load a study that this party has joined; refused if it has not, or the file has changed.

        The very bytes whose hash was compared are run; nothing is imported by the name.

        Args:
            name: its name, which another party may have chosen.
            policy: has the hashes of the joined studies.
            folder: where joining has copied them to.
        """
        source = policy.source_of(name, folder)
        module = ModuleType(name)
        module.__file__ = str(Path(folder) / f"{name}.py")
        sys.modules[name] = module
        exec(compile(source, module.__file__, "exec"), module.__dict__)
        return cls._of(name, module)

    @classmethod
    def _of(cls, name: str, module: ModuleType) -> "Study":
        if missing := [wanted for wanted in NAMES if not hasattr(module, wanted)]:
            raise ValueError(
                f"study {name!r} has no {', '.join(missing)}. A study defines {', '.join(NAMES)}; "
                "see help('rookery.remote.study')."
            )
        sites = _numbered(module.sites)
        population = module.population
        n_clients = sum(map(len, sites.values()))
        if population.n_clients != n_clients:
            raise ValueError(
                f"study {name!r}: its sites have {n_clients} clients, but its population has "
                f"{population.n_clients}."
            )
        module.algorithm.check(module.problem, n_clients)
        check_constraints(module.algorithm, module.problem)
        module.problem.check(module.start, population.example)
        start = jax.tree.map(jnp.asarray, tuple(module.start))
        module.algorithm.check_start(module.problem, start, population.example)
        policy, secure = getattr(module, "policy", None), getattr(module, "secure", None)
        if not isinstance(secure, SecureAggregation | None):
            raise TypeError(f"study {name!r}: secure must be a SecureAggregation, got {secure!r}.")
        return cls(
            name, module.problem, module.algorithm, start, sites, population, module.load,
            module.main, policy if policy is not None else Policy(),
            secure,
        )  # fmt: skip

    @property
    def client_names(self) -> list[str]:
        """The clients' names: those of the population, or else made of their sites' names."""
        if self.population.names is not None:
            return [*self.population.names]
        return [f"{site}, client {c}" for site, clients in self.sites.items() for c in clients]

    def workers(
        self, site: str, *, is_checked: bool = True, enforcer: Enforcer | None = None
    ) -> dict[int, Worker]:
        """The workers of a site's clients, with the site's rows.

        Args:
            site: the site's name.
            is_checked: whether the checksum of replies covers their arrays.
            enforcer: enforces the site's policy; None answers whatever the server asks for.
        """
        own = self.sites[check.one_of("site", site, tuple(self.sites))]
        rows = self.load(site)
        if rows.n_clients != len(own):
            raise ValueError(
                f"load({site!r}) returned {rows.n_clients} clients, but sites gives it {len(own)}."
            )
        rows.check_rows(f"site {site!r}")
        rows = rows.among(self.population, own.start)
        state = first_state(self.algorithm, self.problem, self.population.n_clients, self.start)
        algorithm = numbers_to_arrays(self.algorithm)
        plan = trace_round(algorithm, self.problem, rows, state, secure=self.secure)
        shared = (self.problem, self.algorithm, jax.device_put(rows), state, plan)
        return {
            client: Worker(client, *shared, is_checked=is_checked, enforcer=enforcer)
            for client in own
        }


def module_name(study: str | Path) -> str:
    """The module name of a study, given by name or by file.

    The folder of a file is added to Python's path.

    >>> module_name("clinics")
    'clinics'
    """
    file = Path(study)
    if file.suffix != ".py":
        return str(study)
    if not file.is_file():
        raise ValueError(f"study: there is no file {study}.")
    sys.path.insert(0, str(file.resolve().parent))
    return file.stem


def _numbered(sites: Mapping[str, int] | Iterable[str]) -> dict[str, range]:
    counts = dict(sites) if isinstance(sites, Mapping) else dict.fromkeys(sites, 1)
    if not counts or isinstance(sites, str):
        raise ValueError(f"sites must name at least one site, such as ('site-1',), got {sites!r}.")
    numbered, first = {}, 0
    for site, count in counts.items():
        check.count(f"the number of clients of {site!r}", count)
        numbered[site] = range(first, first + count)
        first += count
    return numbered
