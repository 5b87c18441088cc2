"""The study of test_flare.py: an instance of the engines' contract, chosen by a variable."""

import os
import sys
from pathlib import Path

import jax
import numpy as np

import rookery as rk
from rookery.remote import SecureAggregation

sys.path.append(str(Path(__file__).parent.parent / "contract"))
from instances import INSTANCES  # pyright: ignore[reportMissingImports]

jax.config.update("jax_enable_x64", True)

CASES = {
    "FedNest": "random length, partial, mini-batch",
    "FedMBO": "random lengths",
    "FedMSA": "bilevel, warmed up",
    "Scaffold": "unequal local steps",
    "AFBO": "active, random local iterations",
}
NAME = os.environ.get("ROOKERY_TEST_ALGORITHM", "FedNest")
secure = SecureAggregation() if "ROOKERY_TEST_SECURE" in os.environ else None
CASE = CASES[NAME] if secure is None else "sum, everyone, full batch"
ZOO, algorithm = INSTANCES[NAME][CASE]
problem, start = ZOO.problem, ZOO.start
EVERYONE = rk.Population.stacked(ZOO.data)
sites = {"site-1": EVERYONE.n_clients - 1, "site-2": 1}
population = rk.Population.elsewhere(EVERYONE.example("train"), EVERYONE.n_clients)


def load(site):
    """The first site has all clients but the last one."""
    mine = slice(None, -1) if site == "site-1" else slice(-1, None)
    return rk.Population.stacked(jax.tree.map(lambda a: np.asarray(a)[mine], ZOO.data))


def main(engine, directory, population=population):
    """Three rounds."""
    return rk.run(
        algorithm, problem, population, start, rounds=3, engine=engine, directory=directory,
        evaluate_every=2,
    )  # fmt: skip
