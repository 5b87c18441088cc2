"""Whose labels can be trusted, if nobody may look at another hospital's rows?

The outer variable is a weight per hospital. The inner problem trains on the weighted rows, the
outer problem measures the result on a few rows of each hospital that were checked by hand.
"""

import jax
import jax.numpy as jnp
import numpy as np
import tables

import rookery as rk

table = tables.load(wrong=0.7)
rng = np.random.default_rng(1)
clean = rng.choice(["validation", "test", "train"], len(table["label"]), p=[0.2, 0.3, 0.5])
table["split"] = np.where(table["is_wrong"], "train", clean)
table["number"] = np.array([tables.HOSPITALS.index(name) for name in table["hospital"]])
fields = {name: name for name in ("input", "label", "number")}
population = rk.Population.from_table(table, client="hospital", splits="split", fields=fields)


def error(x, y, row):
    """Cross-entropy of a linear classifier."""
    return rk.models.cross_entropy(row["input"] @ y, row["label"])


def weighted(x, y, row):
    """The same, as much as the hospital is trusted, with a small ridge."""
    return jax.nn.sigmoid(x[row["number"]]) * error(x, y, row) + 0.01 * jnp.sum(y**2)


result = rk.run(
    rk.FedNest(outer_lr=10.0, inner_lr=0.2, inner_steps=5, ihgp=rk.parts.FedIHGPSum(terms=10)),
    rk.Bilevel(error, weighted),
    population,
    start=(jnp.zeros(8), jnp.zeros((table["input"].shape[1], table["label"].max() + 1))),
    rounds=60,
    directory=f"{tables.NAME}-cleaning",
)
for name, trust in zip(population.names, jax.nn.sigmoid(result.solution[0]), strict=True):
    print(f"{name:>8}: labels trusted to {trust:.2f}")
