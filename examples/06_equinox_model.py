"""Can an Equinox model be split between the two levels as it is?

A module is a pytree, and so are its parts: one goes to the outer level, one to the inner level, and
what is no array stays where it is.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import rookery as rk

model = eqx.nn.MLP(in_size=64, out_size=10, width_size=32, depth=1, key=jax.random.key(0))
no_leaf = jax.tree.map(lambda _: False, model)
last_layer = eqx.tree_at(lambda m: (m.layers[-1].weight, m.layers[-1].bias), no_leaf, (True, True))
head, rest = eqx.partition(model, last_layer)
features, static = eqx.partition(rest, eqx.is_array)


def logits(x, y, example):
    """The model put together again."""
    return eqx.combine(x, y, static)(example["inputs"])


def outer(x, y, example):
    """Cross-entropy."""
    return -jax.nn.log_softmax(logits(x, y, example))[example["labels"]]


def inner(x, y, example):
    """Cross-entropy with a small ridge on the last layer."""
    return outer(x, y, example) + 0.005 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(y))


def accuracy(x, y, example):
    """Whether the largest logit is the label's."""
    return (jnp.argmax(logits(x, y, example)) == example["labels"]).astype(float)


digits = rk.datasets.load("digits")
clients = rk.partition.shards(digits.train["labels"], 10, shards_per_client=2)
parts = rk.partition.split(clients, fractions={"train": 0.5, "validation": 0.5})

result = rk.run(
    rk.FedNest(outer_lr=0.1, inner_lr=0.2, inner_steps=5, ihgp=rk.parts.FedIHGPSum(terms=5)),
    rk.Bilevel(outer, inner),
    rk.Population.from_parts(digits.train, parts),
    start=(features, head),
    rounds=50,
    evaluate=[rk.metrics.OnServer({"accuracy": accuracy}, digits.test)],
)
for row in result.history:
    print(f"round {row['round']:>3}: accuracy {row['accuracy']:.3f}")
trained = eqx.combine(*result.solution, static)
said = jnp.argmax(trained(digits.test["inputs"][0]))
print(f"The first test digit is a {digits.test['labels'][0]}; the model says {said}.")

plt.plot(result.history["round"], result.history["accuracy"])
plt.xlabel("round")
plt.ylabel("accuracy on test digits")
plt.savefig("equinox.png")

# %%
# What was learnt: a module is a pytree, and so are its parts: equinox.partition makes the outer
# and the inner variable, equinox.combine puts the trained model together.
