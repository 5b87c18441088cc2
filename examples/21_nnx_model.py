# pyright: reportMissingImports=false
"""Does dropout work, if Hessians and differences need the same mask twice?

A loss with a parameter ``key`` gets one for every row, which seeds the dropout; metrics use the
network in evaluation mode. Needs ``pip install -e '.[flax,digits]'``.
"""

import matplotlib.pyplot as plt
from flax import nnx

import rookery as rk


class Network(nnx.Module):
    """One hidden layer."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.out = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        """Logits of a batch."""
        return self.out(self.dropout(nnx.relu(self.hidden(x))))


network = Network(nnx.Rngs(0))
train, params = rk.models.from_nnx(network)
network.eval()
evaluate, _ = rk.models.from_nnx(network)


def loss(w, example, key):
    """Cross-entropy with dropout."""
    return rk.models.cross_entropy(train(w, example["inputs"], key), example["labels"])


def accuracy(w, example):
    """Whether the label has the largest logit, without dropout."""
    return rk.models.is_correct(evaluate(w, example["inputs"]), example["labels"])


digits = rk.datasets.load("digits")
clients = rk.partition.dirichlet(digits.train["labels"], 10, alpha=0.5, min_per_client=10)
result = rk.run(
    rk.FedAvg(lr=0.3, local_steps=10, batch_size=32),
    rk.SingleLevel(loss),
    rk.Population.from_parts(digits.train, {"train": clients}),
    start=(params,),
    rounds=40,
    evaluate=[rk.metrics.OnServer({"accuracy": accuracy}, digits.test)],
)
rk.models.to_nnx(result.solution[0], network)
right = (network(digits.test["inputs"]).argmax(1) == digits.test["labels"]).mean()
print(f"accuracy measured in the run {result.history.last('accuracy'):.3f}, by Flax {right:.3f}")

plt.plot(result.history["round"], result.history["accuracy"])
plt.xlabel("round")
plt.ylabel("accuracy on test digits")
plt.savefig("nnx.png")

# %%
# What was learnt: a loss with a parameter key gets one key per row and draw, the same at both
# points of a difference. Metrics use the network in evaluation mode.
