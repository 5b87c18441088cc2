"""A study of two clinics: a penalty per input, tuned on validation rows that never leave a clinic.

The server and both clinics have a copy of this file. `python clinics.py` simulates all of them.
"""

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import rookery as rk

jax.config.update("jax_enable_x64", True)


def outer(a, w, example):
    """Validation error of the weights."""
    return (example["input"] @ w - example["target"]) ** 2


def inner(a, w, example):
    """Training error plus a penalty on each weight, whose strength is the outer variable."""
    return (example["input"] @ w - example["target"]) ** 2 + jax.nn.sigmoid(a) @ w**2


def penalties(a, w):
    """The metrics: only three of the ten inputs carry information."""
    strength = jax.nn.sigmoid(a)
    return {"useful": jnp.mean(strength[:3]), "useless": jnp.mean(strength[3:])}


problem = rk.Bilevel(outer, inner)
algorithm = rk.FedNest(
    outer_lr=3.0, inner_lr=0.05, inner_steps=5, ihgp=rk.parts.FedIHGPSum(terms=10)
)
start = (np.zeros(10), np.zeros(10))
sites = ("clinic-1", "clinic-2")
row = {"input": np.zeros(10), "target": np.zeros(())}
population = rk.Population.elsewhere(row, len(sites), splits=("train", "validation"), names=sites)


def load(site):
    """A clinic's own rows; made up here, yours would read a file."""
    rng = np.random.default_rng(sites.index(site))
    inputs = rng.normal(size=(200, 10))
    targets = inputs[:, :3].sum(axis=1) + rng.normal(size=200)
    rows = {"train": [np.arange(100)], "validation": [np.arange(100, 200)]}
    return rk.Population.from_parts({"input": inputs, "target": targets}, rows)


def main(engine, directory, population=population):
    """The server's program."""
    return rk.run(
        algorithm, problem, population, start, rounds=20, engine=engine, directory=directory,
        evaluate=[rk.metrics.OfSolution(penalties)], evaluate_every=5, console=Console(),
    )  # fmt: skip


if __name__ == "__main__":
    everyone = rk.Population.joined([load(site) for site in sites], names=sites)
    result = main(rk.Compiled(), "runs/clinics", everyone)
    print(result.status, result.history.rows[-1])
