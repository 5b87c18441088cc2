"""The bias of each hypergradient estimator against the length N of its series.

A quadratic bilevel problem with heterogeneous clients, every client asked and with all its rows, at
a point (x, y*(x)). What is left is the truncated series; the estimators of random length are
averaged over their lengths by drawing them often. Writes bias.json and bias.png beside itself:

    python experiments/theory_linear_speedup/bias.py
    python experiments/theory_linear_speedup/bias.py draw    # the picture alone, from bias.json
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import rookery as rk
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.two_level import NestedState
from rookery.engines.engine import Program
from rookery.engines.traced import TracedFederation
from rookery.report.curves import save_figure, tidy
from rookery.report.palette import STROKES, colour_of

HERE = Path(__file__).parent
LENGTHS = (1, 2, 4, 8, 16)
DRAWS = 4000  # of the random estimators, each with 64 chains or one
CONDITION, L = 3.0, 3.0
LOOKS = {
    "FedIHGP": ("FedNest", 0),
    "FedIHGPSum": ("FedNest", 1),
    "PHE": ("FedMBO", 0),
    "PHESum": ("FedMBO", 1),
}
"""The algorithm that an estimator belongs to, and a stroke."""


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
    content = {"N": LENGTHS, "draws": DRAWS, "bound": bound, "bias and its standard error": found}
    (HERE / "bias.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))
    draw(content)


def draw(content: dict) -> None:
    """The bias of every estimator with its standard error, and the bound."""
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    panel = figure.subplots()
    for name, values in content["bias and its standard error"].items():
        means, errors = np.array(values).T
        below = np.minimum(errors, 0.9 * means)  # a logarithm has no zero
        algorithm, stroke = LOOKS[name]
        panel.errorbar(
            content["N"], means, [below, errors], marker="os"[stroke], capsize=3, label=name,
            color=colour_of(algorithm), ls=STROKES[stroke],
        )  # fmt: skip
    bound = r"bound  $(1 - \mu/L)^N\, |B|\, |f_y| / \mu$"
    panel.plot(content["N"], content["bound"], color="#999999", ls=":", lw=1.5, label=bound)
    panel.set(yscale="log", xlabel="N, the length of the series")
    panel.set_ylabel("norm of the bias of the hypergradient")
    tidy(panel)
    figure.legend(loc="outside upper left", ncols=5, frameon=False)
    save_figure(figure, HERE / "bias.png", 160)


if __name__ == "__main__":
    if sys.argv[1:] == ["draw"]:
        draw(json.loads((HERE / "bias.json").read_text()))
    else:
        main()
