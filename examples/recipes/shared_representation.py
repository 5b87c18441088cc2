"""Which features serve all hospitals, if each has few labels?

The outer variable is the network's body, learned on validation rows. The inner problem trains its
last layer.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import tables

import rookery as rk

table = tables.load()
fields = {"input": "input", "label": "label"}
splits = {"train": 0.4, "validation": 0.3, "test": 0.3}
population = rk.Population.from_table(table, client="hospital", fields=fields, splits=splits)
rng, n_classes = np.random.default_rng(0), table["label"].max() + 1
body = rk.models.dense_init(rng, table["input"].shape[1], 16)


def error(body, head, row):
    """Cross-entropy of the last layer on the features."""
    features = jax.nn.relu(rk.models.dense(body, row["input"]))
    return rk.models.cross_entropy(features @ head, row["label"])


result = rk.run(
    rk.FedNest(outer_lr=0.05, inner_lr=0.05, inner_steps=10),
    rk.Bilevel(error, lambda x, y, row: error(x, y, row) + 0.01 * jnp.sum(y**2)),
    population,
    start=(body, jnp.zeros((16, n_classes))),
    rounds=60,
    evaluate=[rk.metrics.OnClients(losses={"error": error})],
    directory=(saved := f"representation-{tables.NAME}"),
)
first, last = result.history["error/mean"][[0, -1]]
print(f"test error with the learned features: {first:.3f} -> {last:.3f}")
print(f"The model is in {saved}/solution.safetensors.")

plt.plot(result.history["round"], result.history["error/mean"])
plt.xlabel("round")
plt.ylabel("test error")
plt.savefig("representation.png")

# %%
# What was learnt: features are learnt on validation rows and the last layer on training rows, so
# that few labels suffice for each.
