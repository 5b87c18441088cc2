"""The bias of each hypergradient estimator against the length N of its series.

A quadratic bilevel problem with heterogeneous clients, every client asked and with all its rows, at
a point (x, y*(x)). What is left is the truncated series; the estimators of random length are
averaged over their lengths by drawing them often. Writes bias.json and bias.png beside itself:

    python experiments/theory_linear_speedup/bias.py
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rookery as rk
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.two_level import NestedState
from rookery.engines.engine import Program
from rookery.engines.traced import TracedFederation

HERE = Path(__file__).parent
LENGTHS = (1, 2, 4, 8, 16)
DRAWS = 4000  # of the random estimators, each with 64 chains or one
CONDITION, L = 3.0, 3.0


def main() -> None:
    """Measure and draw."""
    jax.config.update("jax_enable_x64", True)
    zoo = rk.zoo.quadratic_bilevel(n_clients=8, heterogeneity=0.5, condition=CONDITION)
    x = np.ones(3)
    y = zoo.inner_solution(x)
    exact = zoo.hypergradient(x)
    population = jax.tree.map(jnp.asarray, rk.Population.stacked(zoo.data))
    program = Program(zoo.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    # |f_y| (1 - 1/κ)^N |G_xy| / μ, μ and the norms taken from the mean matrices
    H, B = zoo.H.mean((0, 1)), zoo.B.mean((0, 1))
    mu = np.linalg.eigvalsh(H)[0]
    f_y = np.linalg.norm(H @ zoo.adjoint(x, y))
    bound = [np.linalg.norm(B, 2) * f_y / mu * (1 - mu / L) ** n for n in LENGTHS]

    def bias(estimator, n_draws: int) -> tuple[float, float]:
        """The norm of the mean error, and the standard error of that mean."""

        def one(key):
            fed, everyone = TracedFederation(program, 0, None), rk.participation.Everyone()
            state = NestedState(jnp.asarray(x), jnp.asarray(y), jnp.zeros(()))
            return estimator(Context(fed, zoo.problem, everyone), state, key)[0]

        keys = jax.random.split(jax.random.key(0), n_draws)
        drawn = jax.jit(jax.vmap(one))(keys)
        error = jnp.linalg.norm(jnp.std(drawn, 0)) / jnp.sqrt(n_draws)
        return float(jnp.linalg.norm(jnp.mean(drawn, 0) - exact)), float(error)

    chains = rk.participation.WithReplacement(64)
    estimators = {
        "FedIHGP": (lambda n: rk.parts.FedIHGP(terms=n, lipschitz=L), 64 * DRAWS),
        "FedIHGPSum": (lambda n: rk.parts.FedIHGPSum(terms=n, lipschitz=L), 1),
        "PHE": (lambda n: rk.parts.PHE(terms=n, lipschitz=L, chains=chains), DRAWS),
        "PHESum": (lambda n: rk.parts.PHESum(terms=n, lipschitz=L, chains=chains), DRAWS),
    }
    found = {
        name: [bias(make(n), draws) for n in LENGTHS] for name, (make, draws) in estimators.items()
    }
    figure, panel = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name, values in found.items():
        means, errors = zip(*values, strict=True)
        panel.errorbar(LENGTHS, means, errors, marker="o", capsize=3, label=name)
    panel.plot(LENGTHS, bound, "k--", label=r"bound  $(1 - \mu/L)^N\, |B|\, |f_y| / \mu$")
    panel.set(
        yscale="log", xlabel="N", ylabel="norm of the bias", title="Bias of the hypergradient"
    )
    panel.grid(alpha=0.3)
    panel.legend()
    figure.savefig(HERE / "bias.png", dpi=150)
    content = {"N": LENGTHS, "draws": DRAWS, "bound": bound, "bias and its standard error": found}
    (HERE / "bias.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
