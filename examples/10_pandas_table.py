"""How does a table with a column of hospitals become one client per hospital?

Any table with named columns will do: pandas, polars, Arrow, or a dictionary of arrays.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import rookery as rk

rng = np.random.default_rng(0)
size = 800
hospital = rng.choice(["Bergen", "Bodø", "Oslo", "Tromsø"], size, p=[0.2, 0.05, 0.6, 0.15])
age, dose = rng.normal(60 + 5 * (hospital == "Bodø"), 10), rng.uniform(0, 2, size)
ill = np.where(0.1 * (age - 60) - dose + 0.5 * rng.normal(size=size) > -1, "yes", "no")
table = pd.DataFrame({"hospital": hospital, "age": (age - 60) / 10, "dose": dose, "ill": ill})

population = rk.Population.from_table(
    table,
    client="hospital",
    splits={"train": 0.7, "test": 0.3},
    fields={"input": ["age", "dose"], "label": "ill"},
    encode={"ill": ["no", "yes"]},
    weights="rows",
)
description = population.describe("label", classes=["no", "yes"])
print(description)
description.save("who_holds_what.png")


def loss(w, example):
    """Logistic loss."""
    return jax.nn.softplus((1 - 2 * example["label"]) * (example["input"] @ w[:2] + w[2]))


def accuracy(w, example):
    """Whether the sign is right."""
    return ((example["input"] @ w[:2] + w[2] > 0) == (example["label"] == 1)).astype(float)


result = rk.run(
    rk.FedAvg(lr=0.5, local_steps=5),
    rk.SingleLevel(loss),
    population,
    start=(jnp.zeros(3),),
    rounds=30,
    evaluate=[rk.metrics.OnClients({"accuracy": accuracy}, split="test", per_client=True)],
)
for name, share in result.per_client.last("accuracy/each").items():
    print(f"{name:<6} accuracy {share:.2f}")

shares = result.per_client.last("accuracy/each")
plt.bar(list(shares), list(shares.values()))
plt.ylabel("accuracy on test rows")
plt.savefig("accuracy.png")

# %%
# What was learnt: from_table deals the rows by a column, encodes text and checks every value.
# Metrics by client show whom the common model serves.
