"""ADBO on a quadratic problem with NumPy and a heap of events; matrices where it has vectors.

The derivative of φ is carried forwards with the rounds of ADMM, as a dense Jacobian, so it has
nothing in common with the recursion that runs backwards in exchanges.
"""

from dataclasses import dataclass, field

import numpy as np
from naive_afbo import Naive


@dataclass
class Cut:
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    k: float
    multiplier: float = 0.0

    def at(self, v, y, z):
        return self.a @ v + np.sum(self.b * y) + self.c @ z + self.k


@dataclass
class NaiveADBO(Naive):
    cuts: list[Cut] = field(default_factory=list)

    def __post_init__(self):
        super().__post_init__()
        self.v, self.z = self.x, self.y
        self.xs, self.ys = (np.tile(a, (self.m, 1)) for a in (self.x, self.y))
        self.theta = np.zeros_like(self.xs)
        for worker, x, y in zip(self.workers["outer"], self.xs, self.ys, strict=True):
            worker.latest = np.concatenate([x, y])

    def force(self, of, like) -> np.ndarray:
        forces = [cut.multiplier * getattr(cut, of) for cut in self.cuts]
        return np.sum([np.zeros_like(like), *forces], axis=0)

    def primal_step(self, i, x, y, theta, force):
        a, d = self.algorithm, self.data
        f_x = d["r"][i] + self.zoo.m0 * x + d["E"][i] @ y
        f_y = d["Q"][i] @ (y - d["d"][i]) + d["E"][i].T @ x
        return np.concatenate([x - a.outer_lr * (f_x + theta), y - a.inner_lr * (f_y + force)])

    def phi(self, v, y, z):
        """φ_i, φ_z, and their Jacobians in v."""
        admm, d, m = self.algorithm.admm, self.data, self.m
        mu, psi = admm.penalty, np.zeros_like(y)
        dy, dz, dpsi = np.zeros((m, y.shape[1], v.size)), np.zeros((z.size, v.size)), 0.0
        for _ in range(admm.rounds):
            g = np.einsum("iab,ib->ia", d["H"], y) - d["B"] @ v - d["c"]
            dg = np.einsum("iab,ibc->iac", d["H"], dy) - d["B"]
            y = y - admm.lr * (g + psi + mu * (y - z))
            dy = dy - admm.lr * (dg + dpsi + mu * (dy - dz))
            z = z - admm.server_lr * np.sum(mu * (z - y) - psi, axis=0)
            dz = dz - admm.server_lr * np.sum(mu * (dz - dy) - dpsi, axis=0)
            psi = psi + admm.multiplier_lr * (y - z)
            dpsi = dpsi + admm.multiplier_lr * (dy - dz)
        return y, z, dy, dz

    def new_cut(self):
        a, v, y, z = self.algorithm, self.v, self.ys, self.z
        p, q, K = 8 * v.size, 8 * z.size, a.admm.rounds
        costs = [p + 2 * q] + (K - 1) * [2 * q] + K * [p + 3 * q]
        for exchange, nbytes in enumerate(costs, start=1):
            self.spend(range(self.m), exchange, nbytes)
        phi, phi_z, dphi, dphi_z = self.phi(v, y, z)
        slope = -2 * (np.einsum("iab,ia->b", dphi, y - phi) + dphi_z.T @ (z - phi_z))
        cut = Cut(slope, 2 * (y - phi), 2 * (z - phi_z), 0.0)
        h = np.sum((y - phi) ** 2) + np.sum((z - phi_z) ** 2)
        cut.k = h - a.tolerance - cut.at(v, y, z)
        self.cuts = [cut for cut in self.cuts if cut.multiplier > 0]
        if len(self.cuts) == a.max_cuts:
            self.cuts.remove(min(self.cuts, key=lambda cut: cut.multiplier))
        self.cuts.append(cut)

    def play_round(self):
        a, m = self.algorithm, self.m
        p, q = 8 * self.v.size, 8 * self.z.size
        forces = self.force("b", self.ys)

        def sent(i):
            return self.xs[i], self.ys[i], self.theta[i], forces[i]

        wait_for = getattr(a, "wait_for", m) or -(-m // 2)
        self.poll("outer", sent, self.primal_step, lambda i: 3 * (p + q), wait_for, a.staleness)
        latest = np.stack([np.asarray(w.latest) for w in self.workers["outer"]])
        self.xs, self.ys = latest[:, : self.v.size], latest[:, self.v.size :]
        self.v = self.v - a.server_outer_lr * (self.force("a", self.v) - self.theta.sum(0))
        self.z = self.z - a.server_inner_lr * self.force("c", self.z)
        for cut in self.cuts:
            slope = cut.at(self.v, self.ys, self.z) - a.cut_damping * cut.multiplier
            cut.multiplier = max(0.0, cut.multiplier + a.cut_lr * slope)
        for i in self.arrived["outer"]:
            apart = self.xs[i] - self.v - a.consensus_damping * self.theta[i]
            self.theta[i] += a.consensus_lr * apart
        if (self.round + 1) % a.cut_every == 0 and self.round < (a.cuts_until or np.inf):
            self.new_cut()
        self.round += 1
