# pyright: reportMissingImports=false
"""Can a PyTorch network be trained by clients together and handed back to PyTorch?

The last layer is fitted by the inner level, the convolutions by the outer level on held-out rows: a
shared representation. Needs ``pip install -e '.[torch,digits]'``.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import rookery as rk

torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
)
apply, params = rk.models.from_torch(network, patches=True)  # patches: faster on a CPU
head = {name: value for name, value in params.items() if name.startswith("4.")}
features = {name: value for name, value in params.items() if name not in head}


def outer(x, y, example):
    """Cross-entropy on validation rows."""
    return rk.models.cross_entropy(apply({**x, **y}, example["image"]), example["label"])


def inner(x, y, example):
    """Cross-entropy on training rows, with a small ridge on the last layer."""
    return outer(x, y, example) + 0.005 * sum(jnp.sum(leaf**2) for leaf in y.values())


digits = rk.datasets.load("digits")
data = {"image": digits.train["inputs"].reshape(-1, 1, 8, 8), "label": digits.train["labels"]}
clients = rk.partition.shards(data["label"], 10, shards_per_client=3)
parts = rk.partition.split(clients, fractions={"train": 0.5, "validation": 0.5})
result = rk.run(
    rk.FedNest(outer_lr=0.2, inner_lr=0.2, inner_steps=5, ihgp=rk.parts.FedIHGPSum(terms=5)),
    rk.Bilevel(outer, inner),
    rk.Population.from_parts(data, parts),
    start=(features, head),
    rounds=30,
)
x, y = result.solution
rk.models.to_torch({**x, **y}, network)

with torch.no_grad():
    logits = network(torch.from_numpy(digits.test["inputs"].reshape(-1, 1, 8, 8)))
accuracy = np.mean(logits.argmax(1).numpy() == digits.test["labels"])
print(f"accuracy of the PyTorch network: {accuracy:.3f}")

plt.imshow(network[0].weight.detach().numpy()[:, 0].reshape(-1, 3), cmap="gray")
plt.title("filters of the first layer")
plt.savefig("filters.png")

# %%
# What was learnt: from_torch makes a pure function of the parameters, and to_torch puts the
# trained ones back; in between, every algorithm can use the network.
