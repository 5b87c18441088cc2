"""AFBO on a quadratic problem, as an event simulation with a heap, objects and NumPy alone.

It shares nothing with the engines but the clock's draws: which seconds a job takes, when a client
comes. Times are absolute, events are handled one by one, models are copied by hand.
"""

import heapq
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from rookery.algorithms.afbo.running import RunningAdjoint

CLOSE = 1e-9


@dataclass
class Worker:
    """A client with respect to one kind of jobs."""

    comes: float = 0.0
    delay: float = 0.0
    number: int = 0
    is_new: bool = True
    job: dict[str, Any] | None = None
    latest: np.ndarray | None = None


@dataclass
class Naive:
    zoo: Any
    clock: Any
    algorithm: Any
    now: float = 0.0
    round: int = 0
    staleness: list[int] = field(default_factory=list)

    def __post_init__(self):
        data = {k: v[:, 0] for k, v in self.zoo.data.items()}
        self.data, self.m = data, data["H"].shape[0]
        self.x, self.y = (np.array(a) for a in self.zoo.start)
        self.v = np.zeros_like(self.y)
        self.workers = {kind: [Worker() for _ in range(self.m)] for kind in ("inner", "outer")}
        self.versions = {"inner": 0, "outer": 0}
        self.arrived = {"inner": set(range(self.m)), "outer": set(range(self.m))}

    # ---- what clients compute

    def inner_result(self, i, x, y):
        a, d = self.algorithm, self.data
        E = a.inner_steps[i] if isinstance(a.inner_steps, tuple) else a.inner_steps
        size, gradients = a.inner_lr if a.local_lr is None else a.local_lr, []
        for _ in range(E):
            gradients.append(d["H"][i] @ y - d["B"][i] @ x - d["c"][i])
            y = y - size * gradients[-1]
        return np.mean(gradients, axis=0)

    def inner_result_with_residual(self, i, x, y, v):
        """All local iterations of a job are at the values received, and on all rows: equal."""
        d = self.data
        g = d["H"][i] @ y - d["B"][i] @ x - d["c"][i]
        return np.stack([g, d["H"][i] @ v - d["Q"][i] @ (y - d["d"][i]) - d["E"][i].T @ x])

    def outer_result(self, i, x, y, v):
        d = self.data
        return d["r"][i] + self.zoo.m0 * x + d["E"][i] @ y + d["B"][i].T @ v

    # ---- asynchronous and synchronous exchanges

    def poll(self, kind, values, compute, nbytes, wait_for, bound):
        workers, version, events = self.workers[kind], self.versions[kind], []
        for i, w in enumerate(workers):
            if w.job is not None:
                heapq.heappush(events, (w.job["end"], i, "end"))
                continue
            if w.is_new:
                here = jnp.asarray(w.comes)
                comes, delay = self.clock.job(kind, jnp.int32(i), w.number, here)
                w.comes, w.delay, w.is_new = float(comes), float(delay), False
            heapq.heappush(events, (max(w.comes, self.now), i, "begin"))
        finished = set()
        while True:
            while events and events[0][0] <= self.now + CLOSE:
                time, i, what = heapq.heappop(events)
                w = workers[i]
                if what == "begin":
                    copies = [np.array(v) for v in values(i)]
                    end = time + w.delay + nbytes(i) * self.seconds_per_byte
                    w.job = {"values": copies, "version": version, "end": end}
                    w.number += 1
                    heapq.heappush(events, (end, i, "end"))
                else:
                    finished.add(i)
            at_work = [w for i, w in enumerate(workers) if w.job and i not in finished]
            stale = bound is not None and any(
                version - w.job["version"] >= bound for w in at_work if w.job
            )
            if len(finished) >= wait_for and not stale:
                break
            self.now = max(self.now, events[0][0])  # never faster than from event to event
        for i in sorted(finished):
            w = workers[i]
            assert w.job is not None
            w.latest = compute(i, *w.job["values"])
            self.staleness.append(version - w.job["version"])
            w.job, w.is_new, w.comes = None, True, self.now
        self.versions[kind], self.arrived[kind] = version + 1, finished

    def mean_of_latest(self, kind, like):
        latest = [w.latest for w in self.workers[kind]]
        return sum(np.zeros_like(like) if one is None else one for one in latest) / self.m

    def ask(self, who, exchange, reply, nbytes):
        self.spend(who, exchange, nbytes)
        return np.mean([reply(i) for i in who], axis=0)

    def spend(self, who, exchange, nbytes):
        """The time of a synchronous exchange."""
        slowest = 0.0
        for i in who:
            arguments = (jnp.array([i], jnp.int32), jnp.array([True]), jnp.array([float(nbytes)]))
            seconds = self.clock.exchange_seconds("inner", self.round, exchange, *arguments)
            slowest = max(slowest, float(seconds))
        self.now += slowest

    @property
    def seconds_per_byte(self):
        return 0.0 if self.clock.bandwidth is None else 1 / self.clock.bandwidth

    def play_round_without_hops(self):
        a, m = self.algorithm, self.m
        p, q = 8 * self.x.size, 8 * self.y.size
        wait_for, first = a.wait_for or -(-m // 2), a.first_wait_for or m
        for _ in range(a.inner_rounds):
            values, k = (self.x, self.y, self.v), wait_for if self.versions["inner"] else first
            compute, bound = self.inner_result_with_residual, a.inner_staleness
            self.poll("inner", lambda i, v=values: v, compute, lambda i: p + 4 * q, k, bound)
            moved = np.stack([self.y, self.v])
            self.y, self.v = moved - a.inner_lr * self.mean_of_latest("inner", moved)
        values, k = (self.x, self.y, self.v), wait_for if self.versions["outer"] else first
        nbytes, bound = (lambda i: 2 * p + 2 * q), a.outer_staleness
        self.poll("outer", lambda i: values, self.outer_result, nbytes, k, bound)
        self.x = self.x - a.outer_lr * self.mean_of_latest("outer", self.x)

    def play_round(self):
        if isinstance(self.algorithm.aphe, RunningAdjoint):
            return self.play_round_without_hops()
        a, d, m = self.algorithm, self.data, self.m
        p, q = 8 * self.x.size, 8 * self.y.size
        half = a.wait_for or -(-m // 2)
        first = a.first_wait_for or m
        for _ in range(a.inner_rounds):
            k = half if self.versions["inner"] else first
            values, nbytes = (self.x, self.y), (lambda i: p + q + q)
            bound = a.inner_staleness
            self.poll("inner", lambda i, v=values: v, self.inner_result, nbytes, k, bound)
            self.y = self.y - a.inner_lr * self.mean_of_latest("inner", self.y)
        x, y, L, who = self.x, self.y, a.aphe.lipschitz, sorted(self.arrived["outer"])
        exchange = a.inner_rounds
        t = self.ask(
            who, exchange, lambda i: d["Q"][i] @ (y - d["d"][i]) + d["E"][i].T @ x, p + 2 * q
        )
        t = v = t / L
        for _ in range(a.aphe.terms):
            exchange += 1
            t = t - self.ask(who, exchange, lambda i, t=t: d["H"][i] @ t, 2 * q) / L
            v = v + t
        k = half if self.versions["outer"] else first
        nbytes = lambda i: q + p + (0 if i in who else p + q)  # noqa: E731
        self.poll("outer", lambda i: (x, y, v), self.outer_result, nbytes, k, a.outer_staleness)
        self.x = x - a.outer_lr * self.mean_of_latest("outer", x)
        self.round += 1
