"""Which inputs deserve a penalty, if validation rows stay with the clients?

A loss takes the variables and one example. The library averages over examples and clients.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np

import rookery as rk


def outer(a, w, example):
    """Validation error of the weights."""
    return (example["input"] @ w - example["target"]) ** 2


def inner(a, w, example):
    """Training error plus a penalty on each weight, whose strength is the outer variable."""
    return (example["input"] @ w - example["target"]) ** 2 + jax.nn.sigmoid(a) @ w**2


rng = np.random.default_rng(0)
inputs = rng.normal(size=(600, 10)).astype(np.float32)
truth = np.where(np.arange(10) < 3, 1.0, 0.0).astype(np.float32)  # seven inputs mean nothing
targets = (inputs @ truth + rng.normal(size=600)).astype(np.float32)
parts = rk.partition.split(
    rk.partition.given_sizes(600, (240, 180, 120, 60)), fractions={"train": 0.5, "validation": 0.5}
)
population = rk.Population.from_parts({"input": inputs, "target": targets}, parts)

result = rk.run(
    rk.FedNest(outer_lr=3.0, inner_lr=0.05, inner_steps=5, ihgp=rk.parts.FedIHGPSum(terms=20)),
    rk.Bilevel(outer, inner),
    population,
    start=(np.zeros(10, np.float32), np.zeros(10, np.float32)),
    rounds=500,
)
a, weights = result.solution
print("penalties of the inputs that matter:  ", jax.nn.sigmoid(a[:3]).round(3))
print("penalties of those that mean nothing: ", jax.nn.sigmoid(a[3:]).round(3))
print(f"{result.ledger.exchanges} exchanges, {result.ledger.bytes_up / 1e6:.2f} MB up")

plt.bar(range(10), jax.nn.sigmoid(a), color=["C0"] * 3 + ["C1"] * 7)
plt.xlabel("input; the first three matter")
plt.ylabel("penalty")
plt.savefig("penalties.png")

# %%
# What was learnt: a loss takes the variables and one example, and that is all. The inputs that
# mean nothing get large penalties, and no client has shown a row.
