"""Can sequences be coupled that are no gradients of losses?

The critic z follows the values of the actor's policy x; the actor goes by what the critic says.
Neither map is the gradient of a loss. Each client has a world of its own; only the mean counts.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rookery as rk
from rookery.problem.sample import Rows

jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
n_clients, n_actions, n_features, discount = 6, 2, 3, 0.9


def actor(blocks, world):
    """Against the critic's advice, with some inertia."""
    x, z = blocks
    return x - world["advice"] @ z


def critic(blocks, world):
    """The mean error of z by temporal differences, with the reward that the policy earns."""
    x, z = blocks
    now, later = world["features"], world["next_features"]
    reward = world["reward"] - world["action"] @ x
    return -now * (reward + discount * later @ z - now @ z)


rows = 200
worlds = {
    "features": rng.normal(size=(n_clients, rows, n_features)),
    "action": rng.normal(size=(n_clients, rows, n_actions)),
    "advice": 0.3 * rng.normal(size=(n_clients, rows, n_actions, n_features)),
}
worlds["next_features"] = 0.5 * worlds["features"] + rng.normal(size=worlds["features"].shape)
own = rng.normal(size=(n_clients, 1, n_features))  # what is rewarded differs from world to world
worlds["reward"] = np.sum(worlds["features"] * (1 + own), axis=-1)
problem = rk.MultiSequence(actor, (critic,))
everything = Rows(jax.tree.map(lambda a: jnp.asarray(a.reshape(-1, *a.shape[2:])), worlds))

ends = {}
for steps in (1, 10):
    fedmsa = rk.FedMSA(outer_lr=0.02, inner_lr=0.1, local_steps=steps, clients=3)
    start = (np.zeros(n_actions), np.zeros(n_features))
    result = rk.run(fedmsa, problem, rk.Population.stacked(worlds), start, rounds=200)
    residuals = [float(jnp.linalg.norm(m)) for m in problem.maps(result.solution, everything)]
    ends[steps] = residuals
    print(f"local steps: {steps}; {result.ledger.exchanges} exchanges; norms of the maps:", end=" ")
    print(f"actor {residuals[0]:.1e}, critic {residuals[1]:.1e}")

for (steps, residuals), shift in zip(ends.items(), (-0.2, 0.2), strict=True):
    plt.bar(np.arange(2) + shift, residuals, width=0.4, label=f"local steps: {steps}")
plt.yscale("log")
plt.xticks([0, 1], ["actor", "critic"])
plt.ylabel("norm of the mean map")
plt.legend()
plt.savefig("time_scales.png")

# %%
# What was learnt: FedMSA finds the common zero of the mean maps, with local steps too: they cost
# no exchange and leave no bias.
