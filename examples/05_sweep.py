"""Which step size is best, over several seeds?"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console

import rookery as rk
from rookery.report.comparison import Comparison, Curve
from rookery.report.tables import final_table

zoo = rk.zoo.quadratic_bilevel(n_clients=6, rows=5, noise=0.3, dtype=np.float32)
x_star = zoo.solution()[0].astype(np.float32)


def distance(x, y):
    """How far x is from the solution."""
    return {"distance": jnp.linalg.norm(x - x_star)}


rates, seeds = (0.02, 0.05, 0.1), (0, 1, 2, 3)
runs = [
    rk.Run(
        rk.FedNest(outer_lr=rate, inner_lr=0.1, clients=3, batch_size=2),
        zoo.start,
        seed,
        title=f"outer_lr={rate}",
    )
    for rate in rates
    for seed in seeds
]
results = rk.sweep(
    runs,
    zoo.problem,
    rk.Population.stacked(zoo.data),
    rounds=200,
    evaluate=[rk.metrics.OfSolution(distance)],
    console=Console(),
)
curves = [
    Curve(f"outer_lr={rate}", [r.history for r in results[4 * i : 4 * i + 4]], list(seeds))
    for i, rate in enumerate(rates)
]
Console().print(final_table(Comparison("Step sizes of FedNest", curves)))

plt.figure(layout="constrained")
for curve in curves:
    rounds = curve.runs[0]["round"]
    plt.semilogy(rounds, np.mean([run["distance"] for run in curve.runs], axis=0), label=curve.name)
plt.xlabel("round")
plt.ylabel("mean distance")
plt.legend()
plt.savefig("sweep.png")

# %%
# What was learnt: twelve runs are one compiled program. The longest step is the fastest here, and
# its noise is the largest at the end.
