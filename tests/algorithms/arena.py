"""Where algorithms and their parts meet the zoo: common to the tests of this folder."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import rookery as rk
from rookery.algorithms.shared.adjoint import AbstractAdjoint
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.two_level import NestedState
from rookery.engines.eager import EagerFederation
from rookery.engines.engine import Program
from rookery.engines.round_costs import ledgers
from rookery.engines.rounds import many_rounds
from rookery.engines.traced import TracedFederation
from rookery.program.algorithm import first_state


class Given(AbstractAdjoint):
    """An adjoint that is known beforehand."""

    v: jax.Array

    def solve(self, system, L, key):
        return self.v, L


def federation(zoo, is_eager=False, weights=None):
    """One round's federation, to call a part by itself."""
    stacked = rk.Population.stacked(zoo.data, weights=weights)
    program = Program(
        zoo.problem, jax.tree.map(jnp.asarray, stacked), rk.delays.Clock(), rk.aggregate.Mean()
    )
    return EagerFederation(program, 0) if is_eager else TracedFederation(program, 0, None)


def ledger(fed):
    """What the words of a traced federation have cost so far."""
    return ledgers(jax.tree.map(lambda a: a[None], fed.costs))[0]


def context(zoo, clients=None, batch_size=None, **options):
    """What a part of a round is called with; everyone takes part if no clients are given."""
    rule = clients or rk.participation.Everyone()
    return Context(federation(zoo, **options), zoo.problem, rule, batch_size)


def at(x, y):
    """The state at a point, before L was estimated."""
    return NestedState(jnp.asarray(x), jnp.asarray(y), jnp.zeros(()))


def solve(zoo, algorithm, rounds, seed=0, **kwargs):
    """A whole run."""
    population = rk.Population.stacked(zoo.data)
    return rk.run(algorithm, zoo.problem, population, zoo.start, rounds=rounds, seed=seed, **kwargs)


def trajectory(zoo, algorithm, rounds, every=1, **kwargs):
    """[times, size of x], the iterates x."""
    size = len(zoo.start[0])
    track = rk.metrics.OfSolution(lambda x, *_: {f"x{i}": x[i] for i in range(size)})
    kwargs = {**kwargs, "evaluate": [track], "evaluate_every": every}
    history = solve(zoo, algorithm, rounds, **kwargs).history
    return np.stack([history[f"x{i}"] for i in range(size)], axis=1)


def means(zoo, weights=None):
    """The clients' mean matrices."""
    return {name: np.average(a.mean(1), axis=0, weights=weights) for name, a in zoo.data.items()}


def f_y(zoo, x, y, weights=None):
    """The mean outer gradient in y of a quadratic bilevel problem."""
    m = means(zoo, weights)
    Qd = np.average(np.einsum("crij,crj->ci", zoo.Q, zoo.d), axis=0, weights=weights)
    return m["Q"] @ y - Qd / zoo.d.shape[1] + m["E"].T @ x


def clients_of(zoo):
    """Every client as a problem of its own."""
    for i in range(zoo.H.shape[0]):
        yield rk.zoo.QuadraticBilevel(**{k: a[i : i + 1] for k, a in zoo.data.items()}, m0=zoo.m0)


def bilevel_maps(zoo):
    """The maps (f_x - g_xy v, g_y, g_yy v - f_y) of every client, as functions of x, y, v."""

    def of(one):
        m = {name: a.mean((0, 1)) for name, a in one.data.items()}

        def maps(x, y, v):
            f_y = m["Q"] @ (y - m["d"]) + m["E"].T @ x
            f_x = m["r"] + one.m0 * x + m["E"] @ y
            return [f_x + m["B"].T @ v, m["H"] @ y - m["B"] @ x - m["c"], m["H"] @ v - f_y]

        return maps

    return [of(one) for one in clients_of(zoo)]


def saddle_fields(zoo):
    """The saddle field M_i u - k_i of every client on u = (x, y), as pairs M_i, k_i."""
    fields = []
    for D, A, b, R in zip(*(a.mean(1) for a in zoo.data.values()), strict=True):
        fields.append((np.block([[R, -A.T], [A, D]]), np.concatenate([np.zeros(len(R)), b])))
    return fields


def pooled(zoo):
    """The same problem with all rows at one client, which is the centralised case."""
    rows = {name: a.reshape(1, -1, *a.shape[2:]) for name, a in zoo.data.items()}
    return eqx.tree_at(lambda z: [getattr(z, n) for n in rows], zoo, list(rows.values()))


def round_by_round(zoo, algorithm, rounds, engine, seed=0):
    """The state before and after every round, and what it cost, each round called by itself."""
    population = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    runner = engine.prepare(program, [algorithm])
    state = first_state(algorithm, zoo.problem, population.n_clients, zoo.start)
    for round in range(rounds):
        (new,) = runner.advance([state], [jax.random.key(seed)], round, [1])
        yield round, state, new.state, new.ledgers[0]
        state = new.state


def advance(zoo, algorithm, rounds, engine=None, seed=0, clock=None, weights=None):
    """The state after some rounds, and their ledgers."""
    population = rk.Population.stacked(zoo.data, weights=weights)
    program = Program(zoo.problem, population, clock or rk.delays.Clock(), rk.aggregate.Mean())
    algorithm.check(zoo.problem, population.n_clients)
    state = first_state(algorithm, zoo.problem, population.n_clients, zoo.start)
    runner = (engine or rk.Eager()).prepare(program, [algorithm])
    (done,) = runner.advance([state], [jax.random.key(seed)], 0, [rounds])
    return done.state, done.ledgers


def end_of(zoo, algorithm, rounds, seed):
    """The state after some rounds, traced, so that it can be mapped over seeds."""
    population = rk.Population.stacked(zoo.data)
    program = Program(zoo.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    state = first_state(algorithm, zoo.problem, population.n_clients, zoo.start)
    return many_rounds(program, algorithm, None, rounds, state, jax.random.key(seed), 0, rounds)[0]


def assert_close(a, b, **tolerance):
    jax.tree.map(lambda u, w: np.testing.assert_allclose(u, w, **tolerance), a, b)
