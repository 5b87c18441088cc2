"""How strongly should each input be regularised, if no hospital shows its validation rows?

The outer variable is a penalty per input. The inner problem trains the weights with it.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import tables

import rookery as rk

table = tables.load()
fields = {"input": "input", "label": "label"}
splits = {"train": 0.2, "validation": 0.5, "test": 0.3}
population = rk.Population.from_table(table, client="hospital", fields=fields, splits=splits)
n, n_classes = table["input"].shape[1], table["label"].max() + 1


def error(x, y, row):
    """Cross-entropy of a linear classifier."""
    return rk.models.cross_entropy(row["input"] @ y, row["label"])


result = rk.run(
    rk.FedNest(outer_lr=20.0, inner_lr=0.3, inner_steps=10, ihgp=rk.parts.FedIHGPSum(terms=20)),
    rk.Bilevel(error, lambda x, y, row: error(x, y, row) + jnp.exp(x) @ jnp.sum(y**2, axis=1)),
    population,
    start=(jnp.full(n, -4.0), jnp.zeros((n, n_classes))),
    rounds=50,
    evaluate=[rk.metrics.OnClients(losses={"error": error})],
    directory=(saved := f"regularisation-{tables.NAME}"),
)
x, y = result.solution
print(f"test error {result.history['error/mean'][-1]:.3f}")
print("the three smallest penalties have inputs", *sorted(jnp.argsort(x)[:3].tolist()))
# in another program, at any later time:
x, y = rk.load_solution(saved, like=result.solution)

plt.bar(range(n), jnp.exp(x))
plt.xlabel("input")
plt.ylabel("penalty")
plt.savefig("penalties.png")

# %%
# What was learnt: inputs that carry information keep small penalties; a grid over as many numbers
# would be out of reach.
