"""Can a loss compare two rows, to rank rare positive rows first (AUC)?

A loss over pairs sees two rows of one client, a loss or metric over a batch sees many and their
weights. A parameter named key would be a random key per pair, for dropout.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rookery as rk
from rookery.problem import OverBatch, OverPairs


def ranking(w, first, second):
    """Squared hinge: a positive row should score 1 above a negative one."""
    applies = (first["label"] == 1) & (second["label"] == 0)
    margin = (first["input"] - second["input"]) @ w
    return jnp.where(applies, jnp.maximum(0.0, 1.0 - margin) ** 2, 0.0)


def auc(w, rows, weights):
    """The share of positive-negative pairs in the right order; rows of weight 0 are padding."""
    score = rows["input"] @ w
    is_positive = (rows["label"] == 1) & (weights > 0)
    is_negative = (rows["label"] == 0) & (weights > 0)
    applies = is_positive[:, None] & is_negative[None]
    return jnp.sum(applies & (score[:, None] > score[None])) / jnp.maximum(jnp.sum(applies), 1)


rng = np.random.default_rng(0)
inputs = rng.normal(size=(600, 5)).astype(np.float32)
labels = (inputs @ np.arange(1, 6) / 5 + rng.normal(size=600) > 2.2).astype(np.int32)  # one in ten
parts = rk.partition.given_sizes(600, (300, 150, 100, 50))
population = rk.Population.from_parts({"input": inputs, "label": labels}, {"train": parts})

result = rk.run(
    rk.FedAvg(lr=0.5, local_steps=5, batch_size=64),  # 64 pairs, drawn from all pairs of a client
    rk.SingleLevel(OverPairs(ranking)),
    population,
    start=(np.zeros(5, np.float32),),
    rounds=60,
    evaluate=[rk.metrics.OnClients(scores={"auc": OverBatch(auc)}, split="train")],
)
mean, worst = (result.history.last(f"auc/{name}") for name in ("mean", "worst"))
print(f"AUC: {mean:.2f} in the mean, {worst:.2f} of the worst client")

plt.plot(result.history["round"], result.history["auc/mean"], label="mean of the clients")
plt.plot(result.history["round"], result.history["auc/worst"], label="worst client")
plt.xlabel("round")
plt.ylabel("AUC")
plt.legend()
plt.savefig("auc.png")

# %%
# What was learnt: OverPairs and OverBatch stand wherever a loss or a metric stands, under every
# algorithm.
