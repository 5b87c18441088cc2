"""One Byzantine client of seven: many lies of it at once, in one compiled program.

A lie is a number, so all lies about an algorithm, on several problems, are lanes of one program.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

import rookery as rk
from rookery.engines.engine import Program
from rookery.engines.rounds import one_round
from rookery.program.aggregate import AbstractRobust
from rookery.program.algorithm import first_state

CLIENTS = 7
PROBLEMS = 6
LIARS = np.arange(PROBLEMS) % CLIENTS  # who lies in each problem
LIES = ("none", "NaN", "large", "largest float", "sign flip", "ALIE", "losses", "Hessian")
ROWS = LIES.index("Hessian")
"""The lie that the client does not tell in its replies: it computes them from false rows."""


class Liar(AbstractRobust):
    """A rule that one client lies to, in every upload.

    Args:
        rule: what the server uses.
        lie: the number of a lie.
        who: the client that tells it.
    """

    rule: AbstractRobust
    lie: Int[Array, ""]
    who: Int[Array, ""]

    def combine(self, replies, weights):
        return self.rule.combine(jax.tree.map(self.sent, replies), weights)

    def largest(self, values, active):
        return self.rule.largest(self.sent(values), active)

    @property
    def fewest(self):
        return self.rule.fewest

    @property
    def most(self):
        return self.rule.most

    def tolerated(self, slots):
        return self.rule.tolerated(slots)

    def sent(self, leaf):
        """The replies as the server gets them."""
        own, others = leaf[self.who], jnp.arange(leaf.shape[0], dtype=jnp.int32) != self.who
        others = others.astype(leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))
        mean = jnp.sum(others * leaf, axis=0) / jnp.sum(others)
        variance = jnp.sum(others * jnp.square(leaf - mean[None]), axis=0) / jnp.sum(others)
        huge = jnp.full_like(own, 1e6)
        lies = [
            own,
            jnp.full_like(own, jnp.nan),
            1e6 * own + huge,
            jnp.full_like(own, jnp.finfo(leaf.dtype).max),
            -own,
            mean - jnp.sqrt(variance),  # a little is enough
            huge if leaf.ndim == 1 else own,  # numbers are losses, norms and curvatures
            own,
        ]
        return leaf.at[self.who].set(jnp.stack(lies)[self.lie])


def alone(part: Any) -> Any:
    """An algorithm, or a part of one, with everyone, all rows and as many steps for each client."""
    if not is_dataclass(part) or isinstance(part, type | rk.parts.Optimiser):
        return part
    changed = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if not field.init:
            continue
        if field.name == "clients":
            changed["clients"] = CLIENTS if type(part) is rk.DRFA else rk.participation.Everyone()
        elif field.name == "batch_size":
            changed["batch_size"] = None
        elif field.name.endswith("steps") and isinstance(value, tuple):
            changed[field.name] = 2
        elif field.name == "alpha" and isinstance(value, tuple):
            changed["alpha"] = 0.7
        elif is_dataclass(value):
            changed[field.name] = alone(value)
    return replace(part, **changed)


def make(zoo: Any, seed: int) -> Any:
    """A problem of the same kind for seven clients that differ a little."""
    ours: dict[str, Any] = {"n_clients": CLIENTS, "heterogeneity": 0.3, "seed": seed}
    match type(zoo).__name__:
        case "QuadraticBilevel":
            return rk.zoo.quadratic_bilevel(x_size=2, y_size=2, **ours)
        case "QuadraticSaddle":
            return rk.zoo.saddle(curvature=1.0, x_size=2, y_size=2, **ours)
        case "QuadraticLosses":
            return rk.zoo.quadratic_losses(size=2, **ours)
        case "RobustQuadratic":
            return rk.zoo.robust_quadratic(size=2, **ours)
        case "CubicMAML":
            return rk.zoo.cubic_maml(size=2, **ours)
        case "PersonalQuadratic":
            return rk.zoo.personal_quadratic(x_size=2, y_size=2, **ours)
        case "LinearChain":
            return rk.zoo.linear_chain(sizes=(2, 2), **ours)
        case "ConditionalQuadratic":
            return rk.zoo.conditional_quadratic(size=2, draws=4, m_in=2, **ours)
        case "PairRisk":
            return rk.zoo.pair_risk(**ours)
    raise AssertionError(type(zoo))


def start_of(zoo: Any, algorithm: Any) -> Any:
    """Far from the solution, so that what a lie leaves behind on the way there can add up.

    Cubes and exponentials, which are the weights of ComFedL, allow no such start.
    """
    if isinstance(algorithm, rk.ComFedL) or type(zoo).__name__ in ("CubicMAML", "RobustQuadratic"):
        return zoo.start
    return jax.tree.map(lambda a: np.full_like(a, 10), zoo.start)


def without(zoo: Any, client: int) -> Any:
    """The problem of the other clients."""

    def others(leaf):
        return np.delete(leaf, client, 0) if isinstance(leaf, np.ndarray) else leaf

    return jax.tree.map(others, zoo)


def gradient(zoo: Any, solution: Any) -> float:
    """The norm of the gradient, or infinity where it overflows."""
    at = getattr(zoo, "hypergradient", None) or zoo.gradient
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(at(np.asarray(solution[0]))))
    return norm if np.isfinite(norm) else np.inf


def first_gradients(zoo, algorithm) -> np.ndarray:
    """[problems]: the norm of the honest clients' gradient before the first round."""
    zoos = [make(zoo, seed) for seed in range(PROBLEMS)]
    return np.array(
        [
            gradient(without(z, int(who)), start_of(z, algorithm))
            for z, who in zip(zoos, LIARS, strict=True)
        ]
    )


def gradients(zoo, algorithm, rounds, rule) -> np.ndarray:
    """[lies, problems]: the norm of the honest clients' gradient after the rounds."""
    zoos = [make(zoo, seed) for seed in range(PROBLEMS)]
    algorithm = alone(algorithm)
    algorithm.check(zoos[0].problem, CLIENTS)
    template = rk.Population.stacked(zoos[0].data)
    state = first_state(algorithm, zoos[0].problem, CLIENTS, start_of(zoos[0], algorithm))

    def data_of(problem: int, lie: int):
        def one(array):
            rows = np.array(array)
            if lie == ROWS:
                rows[LIARS[problem]] *= -10
            return rows.reshape(-1, *rows.shape[2:])

        return jax.tree.map(one, zoos[problem].data)

    lanes = [(lie, p) for lie in range(len(LIES)) for p in range(PROBLEMS)]
    data = jax.tree.map(lambda *rows: np.stack(rows), *(data_of(p, lie) for lie, p in lanes))
    lies, who = np.array([(lie, LIARS[p]) for lie, p in lanes], np.int32).T

    def end(state, data, lie, who):
        population = replace(jax.tree.map(jnp.asarray, template), data=data)
        program = Program(zoos[0].problem, population, rk.delays.Clock(), Liar(rule, lie, who))

        def once(round, state):
            return one_round(program, algorithm, None, state, jax.random.key(0), round)[0]

        return algorithm.solution(lax.fori_loop(0, rounds, once, state))

    together = jax.jit(jax.vmap(end, (None, 0, 0, 0)))
    ends = jax.tree.map(np.asarray, together(state, data, lies, who))
    found = [
        gradient(without(zoos[p], LIARS[p]), jax.tree.map(lambda a, i=i: a[i], ends))
        for i, (_, p) in enumerate(lanes)
    ]
    return np.array(found).reshape(len(LIES), PROBLEMS)
