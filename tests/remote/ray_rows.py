"""What clients load in processes of their own, where some of them behave badly."""

import time

import jax
import numpy as np
from world import POPULATION

from rookery.remote import Worker

SECONDS = 2.0  # of the slow client; the others need some 20 ms


def own(client):
    """The client's rows, as the server knows them."""
    return {"train": POPULATION.rows(client, "train")}


def own_but_nan_at_4(client):
    """Rows with NaN, on client 4."""
    factor = np.nan if client == 4 else 1.0
    return jax.tree.map(lambda a: a * factor, own(client))


def own_but_slow_at_1(client):
    """The client's rows; the process of client 1 takes its time from now on."""
    if client == 1:
        quick = Worker.answering

        def slow(self, data):
            time.sleep(SECONDS)
            return quick(self, data)

        Worker.answering = slow
    return own(client)
