"""Who holds which rows, if arrays are dealt to unequal clients?"""

import matplotlib.pyplot as plt
import numpy as np

import rookery as rk

rng = np.random.default_rng(0)
labels = rng.integers(0, 3, 900)
inputs = rng.normal(size=(900, 5)) + labels[:, None]

# who has which rows: any list of row numbers will do, or one of the ready-made partitions
parts = rk.partition.dirichlet(labels, 8, alpha=0.5, min_per_client=10, seed=0)
splits = rk.partition.split(parts, fractions={"train": 0.6, "validation": 0.2, "test": 0.2})
weights = [len(rows) for rows in parts]  # in every mean a client counts by its size
population = rk.Population.from_parts({"x": inputs, "label": labels}, splits, weights=weights)

for client in range(population.n_clients):
    mine = population.rows(client, "train")["label"]
    classes = np.bincount(mine, minlength=3)
    print(f"client {client}: {len(mine):>3} training rows, classes {classes}")
print("weights:", population.weights.round(3))

counts = [np.bincount(population.rows(i, "train")["label"], minlength=3) for i in range(8)]
plt.stackplot(range(8), np.transpose(counts), labels=["class 0", "class 1", "class 2"], step="mid")
plt.xlabel("client")
plt.ylabel("training rows")
plt.legend()
plt.savefig("who_holds_what.png")

# %%
# What was learnt: a partition is a list of row numbers per client; a small alpha makes clients
# that see few classes. Look at the clients before anything is trained.
