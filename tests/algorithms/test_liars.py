"""One Byzantine client of seven: with a robust rule the others' gradient ends about as small."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena import solve

import rookery as rk
from rookery.program.aggregate import AbstractRobust, Median

BILEVEL = rk.zoo.quadratic_bilevel(n_clients=7, x_size=2, y_size=2, heterogeneity=0.3)
LOSSES = rk.zoo.quadratic_losses(n_clients=7, size=2, heterogeneity=0.3)


class Liar(AbstractRobust):
    """A rule whose first client sends something else, in every upload."""

    rule: AbstractRobust
    lie: str

    def combine(self, replies, weights):
        return self.rule.combine(self.sent(replies), weights)

    @property
    def fewest(self):
        return self.rule.fewest

    @property
    def most(self):
        return self.rule.most

    def tolerated(self, slots):
        return self.rule.tolerated(slots)

    def sent(self, replies):
        """The replies as the server gets them."""

        def one(leaf):
            others = leaf[1:]
            lies = {
                "NaN": jnp.full_like(leaf[0], jnp.nan),
                "large": 1e6 * leaf[0] + 1e6,
                "largest float": jnp.full_like(leaf[0], jnp.finfo(leaf.dtype).max),
                "sign flip": -leaf[0],
                "ALIE": jnp.mean(others, axis=0) - jnp.std(others, axis=0),  # a little is enough
                "losses": jnp.full_like(leaf[0], 1e6) if leaf.ndim == 1 else leaf[0],
            }
            return leaf.at[0].set(lies[self.lie])

        return jax.tree.map(one, replies)


LIES = ("NaN", "large", "largest float", "sign flip", "ALIE", "losses")
ALGORITHMS = {
    "FedAvg": (LOSSES, rk.FedAvg(lr=0.1, local_steps=2), 100),
    "Scaffold": (LOSSES, rk.Scaffold(lr=0.1, local_steps=2), 100),
    "QFedAvg": (LOSSES, rk.QFedAvg(lr=0.1, q=0.5, local_steps=2), 100),
    "FedNest": (BILEVEL, rk.FedNest(outer_lr=0.1, inner_lr=0.1, inner_steps=2), 200),
}


def honest_gradient(zoo, algorithm, rounds, rule):
    """The norm of the gradient of the six honest clients' problem at the end."""
    honest = jax.tree.map(lambda a: a[1:] if eqx.is_array_like(a) and np.ndim(a) else a, zoo)
    result = solve(zoo, algorithm, rounds, aggregate=rule, guard=None)
    assert result.status == "finished"
    gradient = honest.hypergradient if zoo is BILEVEL else honest.gradient
    return float(np.linalg.norm(gradient(np.asarray(result.solution[0]))))


def ends_within_twice(name, lie):
    zoo, algorithm, rounds = ALGORITHMS[name]
    start = jax.tree.map(lambda a: a[1:] if eqx.is_array_like(a) and np.ndim(a) else a, zoo)
    first = (start.hypergradient if zoo is BILEVEL else start.gradient)(zoo.start[0])
    without = honest_gradient(zoo, algorithm, rounds, Median())
    with_liar = honest_gradient(zoo, algorithm, rounds, Liar(Median(), lie))
    # a twentieth of the start's: what the bias of a rule may differ by where it happens to be small
    return with_liar <= max(2 * without, 0.05 * float(np.linalg.norm(first)))


@pytest.mark.parametrize("lie", ["NaN", "large"])
def test_one_liar_of_seven_changes_little(lie):
    assert ends_within_twice("FedAvg", lie)


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_liar_of_seven_under_every_lie(name, lie):
    assert ends_within_twice(name, lie)
