"""Why not let every client compute its own hypergradient?

It is wrong for clients that differ, as the mean of hypergradients is not that of the means.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rookery as rk

jax.config.update("jax_enable_x64", True)


class LocalHypergradient(rk.AbstractAlgorithm):
    """Every client solves its own inner problem; the server averages the outer gradients."""

    outer_lr: float
    inner_lr: float = 0.2

    def check(self, problem, n_clients):
        """Anything goes."""

    def init(self, problem, x, y):
        """Only x is kept between rounds."""
        return x, y

    def round(self, fed, problem, state, key):
        """One exchange: x down, the clients' hypergradients up."""
        x, y = state
        cohort = fed.sample(rk.participation.Everyone(), key)
        x_i, y_i = fed.broadcast(cohort, x, y)
        h, y = fed.mean(fed.map(own_hypergradient, x_i, y_i, key=key, problem=problem, me=self))
        return x - self.outer_lr * h, y

    def solution(self, state):
        """(x, y)."""
        return state


def own_hypergradient(client, x, y, *, problem, me):
    """f_x - g_xy v with the client's own y and v, both by plain gradient descent."""
    data = client.draw("train", None, client.key)

    def descend(_, carry):
        y, v = carry
        residual = problem.inner_hvp(x, y, v, data) - problem.outer_grad_y(x, y, data)
        return y - me.inner_lr * problem.inner_grad_y(x, y, data), v - me.inner_lr * residual

    y, v = client.repeat(100, descend, (y, jnp.zeros_like(y)))
    return problem.outer_grad_x(x, y, data) - problem.inner_cross(x, y, v, data), y


zoo = rk.zoo.quadratic_bilevel(n_clients=6)
nested = rk.FedNest(outer_lr=0.1, inner_lr=0.2, ihgp=rk.parts.FedIHGPSum(terms=40, lipschitz=4.0))
errors = {}
for algorithm in (LocalHypergradient(outer_lr=0.1), nested):
    population = rk.Population.stacked(zoo.data)
    result = rk.run(algorithm, zoo.problem, population, zoo.start, rounds=400)
    error = np.linalg.norm(result.solution[0] - zoo.solution()[0])
    errors[type(algorithm).__name__] = error
    print(f"{type(algorithm).__name__}: |x - x*| = {error:.1e}", result.ledger)

plt.bar(list(errors), list(errors.values()))
plt.yscale("log")
plt.ylabel("distance from the solution")
plt.savefig("own_algorithm.png")

# %%
# What was learnt: an algorithm is a class with a round, written in the words of fed. The mean of
# the clients' own hypergradients is not the hypergradient of the mean problem.
