"""The tables of the recipes: eight hospitals, made up from a seed, and the digits.

A recipe runs on the hospitals, or on the digits if it is called with the word ``digits``.
"""

import sys

import numpy as np

import rookery as rk

NAME = "digits" if "digits" in sys.argv[1:] else "hospitals"
HOSPITALS = ("Arendal", "Bergen", "Drammen", "Hamar", "Molde", "Oslo", "Skien", "Voss")


def load(wrong: float = 0.0, special: float = 1.0, seed: int = 0) -> dict[str, np.ndarray]:
    """The columns hospital, its number, input, label and is_wrong, one row per case.

    Args:
        wrong: the fraction of labels that are wrong, at the first three hospitals.
        special: what the main effects are multiplied with at the two smallest hospitals.
        seed: of everything that is drawn.
    """
    rng = np.random.default_rng(seed)
    inputs, labels, owner = (digits if NAME == "digits" else patients)(rng, special)
    is_wrong = (rng.random(len(labels)) < wrong) & (owner < 3)
    labels = np.where(is_wrong, (labels + 1) % (labels.max() + 1), labels)
    return {
        "hospital": np.array(HOSPITALS)[owner],
        "number": owner,
        "input": inputs.astype(np.float32),
        "label": labels,
        "is_wrong": is_wrong,
    }


def patients(rng, special):
    """1,200 patients: five measurements matter, ten do not."""
    owner = rng.choice(8, 1200, p=np.array([6, 5, 4, 3, 2, 2, 1, 1]) / 24)
    truth = np.append([2, -2, 1, -1, 1], np.zeros(10)) + 0.2 * rng.normal(size=(8, 15))
    truth[6:, :2] *= special
    inputs = rng.normal(size=(1200, 15)) + 0.3 * rng.normal(size=(8, 15))[owner]
    odds = np.sum(inputs * truth[owner], axis=1) + 0.5 * rng.logistic(size=1200)
    return inputs, (odds > 0).astype(int), owner


def digits(rng, special):
    """1,200 handwritten digits; every hospital sees some classes more often than others."""
    data = rk.datasets.load("digits").train
    parts = rk.partition.dirichlet(data["labels"], 8, alpha=1.0, min_per_client=60, seed=0)
    rows = np.concatenate(parts)
    owner = np.repeat(np.arange(8), [len(part) for part in parts])
    kept = np.sort(rng.permutation(len(rows))[:1200])
    return data["inputs"][rows[kept]], data["labels"][rows[kept]], owner[kept]
