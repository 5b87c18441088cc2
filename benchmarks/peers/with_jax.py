"""FedAvg written by hand in JAX.

All local steps of a client are one compiled call, and Python loops over the cohort. Of the ways
that were tried (all clients in a vmap, a compiled loop over them, one call per step) this was the
fastest, with either network.
"""

import jax
import jax.numpy as jnp
import numpy as np
import task
from jax import lax
from nets import loss

c = task.config()
images, labels = (jnp.asarray(a) for a in task.data(c))
params = jax.tree.map(jnp.asarray, task.start(c))


@jax.jit
def train(params, images, labels, key):
    """All local steps of a client."""

    def step(params, key):
        drawn = jax.random.randint(key, (c.batch,), 0, c.rows)
        gradient = jax.grad(loss)(params, images[drawn], labels[drawn])
        return jax.tree.map(lambda p, g: p - c.lr * g, params, gradient), None

    return lax.scan(step, params, jax.random.split(key, c.steps))[0]


@jax.jit
def mean(ends):
    """The mean of the clients' parameters."""
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *ends)


rng, key = np.random.default_rng(0), jax.random.key(0)
for rounds, done in task.turns():
    for _ in range(rounds):
        key, *keys = jax.random.split(key, c.cohort + 1)
        cohort = rng.choice(c.clients, c.cohort, replace=False)
        params = mean(
            [train(params, images[i], labels[i], k) for i, k in zip(cohort, keys, strict=True)]
        )
    jax.block_until_ready(params)
    done(loss, params, images[0], labels[0])
