"""Your own data: deal any arrays out to clients, unequal ones too, and look at what each has."""

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
