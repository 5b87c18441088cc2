"""Asynchronous single-level methods on quadratic losses, with a heap, copies and NumPy alone.

It shares nothing with the engines but the clock's draws of how long a job takes. Times are
absolute, and a model is copied by hand when a client receives it.
"""

import heapq
from typing import Any

import jax.numpy as jnp
import numpy as np

CLOSE = 1e-9


def gradients_along(zoo, i, w, lr, steps):
    """The gradients at the points of client i's local steps from w."""
    found = []
    for _ in range(steps):
        found.append(zoo.gradients(w)[i])
        w = w - lr * found[-1]
    return found


class Naive:
    """A server that waits for results; ``play`` gives those that arrive, with their staleness."""

    def __init__(self, zoo: Any, clock: Any):
        self.zoo, self.clock, self.m = zoo, clock, len(zoo.H)
        self.now, self.version = 0.0, 0
        self.numbers = [0] * self.m
        self.heap: list[tuple[float, int, int, np.ndarray]] = []  # end, client, version, its copy
        self.idle = set(range(self.m))

    def play(self, w, wait_for, bound=None):
        """(client, staleness, the model that it had received) of every arrival, by client."""
        for i in sorted(self.idle):
            _, delay = self.clock.job("inner", jnp.int32(i), self.numbers[i], jnp.asarray(self.now))
            end = self.now + float(delay)
            heapq.heappush(self.heap, (end, i, self.version, np.array(w)))
            self.numbers[i] += 1
        self.idle, arrived = set(), []
        while True:
            while self.heap and self.heap[0][0] <= self.now + CLOSE:
                _, i, version, copy = heapq.heappop(self.heap)
                arrived.append((i, self.version - version, copy))
                self.idle.add(i)
            oldest = min((version for _, _, version, _ in self.heap), default=self.version)
            is_late = bound is not None and self.version - oldest >= bound and bool(self.heap)
            if len(arrived) >= wait_for and not is_late:
                break
            self.now = self.heap[0][0]
        self.version += 1
        return sorted(arrived, key=lambda a: a[0])
