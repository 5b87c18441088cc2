"""FedAvg with rookery, through its runner."""

import jax
import jax.numpy as jnp
import task

import rookery as rk
from rookery import models

c = task.config()
images, labels = task.data(c)
layers = [{"w": w, "b": b} for w, b in task.start(c)]
start = tuple(layers) if c.model == "mlp" else {"convolutions": layers[:2], "head": layers[2:]}


def loss(params, row):
    """Cross-entropy of one example."""
    if c.model == "mlp":
        logits = models.mlp(params, row["image"].ravel())
    else:
        logits = models.cnn(params, row["image"])
    return models.cross_entropy(logits, row["label"])


population = rk.Population.stacked({"image": images, "label": labels})
algorithm = rk.FedAvg(lr=c.lr, local_steps=c.steps, clients=c.cohort, batch_size=c.batch)
problem = rk.SingleLevel(loss)
mean_loss = jax.jit(
    lambda params, images, labels: jnp.mean(
        jax.vmap(loss, in_axes=(None, 0))(params, {"image": images, "label": labels})
    )
)

for rounds, done in task.turns():
    result = rk.run(algorithm, problem, population, (start,), rounds=rounds)
    jax.block_until_ready(result.solution)
    (start,) = result.solution
    done(mean_loss, start, images[0], labels[0])
