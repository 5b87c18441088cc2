"""A small run of every algorithm, for the tests that hold for all of them.

An algorithm is looked up by its name in ``rookery.experiment.registry.ALGORITHMS``. Each has at least one
instance, with sampled clients and mini-batches where they make sense, on a problem that is tiny:
compiling is what takes the time.
"""

import math
from typing import Any

import jax.numpy as jnp

import rookery as rk

NOISY = rk.zoo.quadratic_bilevel(n_clients=4, rows=3, noise=0.3)
SCALAR = rk.zoo.scalar_bilevel()
TINY = rk.zoo.quadratic_bilevel(n_clients=3, x_size=1, y_size=2, rows=3, noise=0.3)
SADDLE = rk.zoo.curved_saddle(n_clients=3, x_size=1, y_size=2, rows=3, noise=0.3)
LOSSES = rk.zoo.quadratic_losses(n_clients=3, size=2, rows=3, noise=0.3)
ROBUST = rk.zoo.robust_quadratic(n_clients=3, size=2, rows=3, noise=0.3)
MAML = rk.zoo.cubic_maml(n_clients=3, size=2, rows=3, noise=0.3)
CHAIN = rk.zoo.linear_chain(n_clients=3, sizes=(1, 2), rows=3, noise=0.3)

PARTIAL: dict[str, Any] = {"clients": 2, "batch_size": 2}
START = jnp.zeros(2)

INSTANCES: dict[str, dict[str, tuple[Any, rk.AbstractAlgorithm]]] = {
    "FedNest": {
        "random length, partial, mini-batch": (
            NOISY,
            rk.FedNest(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=2,
                inner_steps=3,
                outer_steps=2,
                ihgp=rk.parts.FedIHGP(terms=4, lipschitz=5.0),
                clients=2,
                batch_size=2,
                anchor_batch=2,
            ),
        ),
        "sum, everyone, full batch": (
            NOISY,
            rk.FedNest(
                outer_lr=0.05, inner_lr=0.1, ihgp=rk.parts.FedIHGPSum(terms=2, lipschitz=5.0)
            ),
        ),
        "estimated lipschitz, unequal local steps": (
            NOISY,
            rk.FedNest(
                outer_lr=rk.parts.PerCall(0.05),
                inner_lr=rk.parts.PerCall(0.1),
                inner_steps=(1, 2, 3, 1),
                outer_steps=(2, 1, 1, 2),
                ihgp=rk.parts.FedIHGP(
                    terms=3, lipschitz=rk.parts.PowerIteration(iterations=3, every=2)
                ),
                clients=3,
                batch_size=1,
            ),
        ),
        "clients drawn with replacement": (
            NOISY,
            rk.FedNest(
                outer_lr=0.05,
                inner_lr=0.1,
                ihgp=rk.parts.FedIHGP(terms=3, lipschitz=5.0),
                clients=rk.participation.WithReplacement(5),
                batch_size=2,
            ),
        ),
        "one number": (
            SCALAR,
            rk.FedNest(0.1, 0.1, ihgp=rk.parts.FedIHGP(terms=3, lipschitz=3.0), clients=1),
        ),
        "minimax": (SADDLE, rk.FedNest(0.05, 0.1, 2, 2, 2, **PARTIAL)),
        "composition": (CHAIN, rk.FedNest(0.05, 0.1, 2, 2, inner_start=START, **PARTIAL)),
    },
    "FedNestSGD": {
        "unequal local steps": (
            TINY,
            rk.FedNestSGD(0.05, 0.1, 2, (1, 2, 3), ihgp=rk.parts.FedIHGP(3, 5.0), **PARTIAL),
        )
    },
    "LFedNest": {
        "bilevel": (TINY, rk.LFedNest(0.05, 0.1, 2, 2, 2, rk.parts.LocalNeumann(3), **PARTIAL))
    },
    "LFedNestSVRG": {
        "unequal local steps": (
            TINY,
            rk.LFedNestSVRG(
                0.05, 0.1, 1, 2, (2, 1, 3), rk.parts.LocalNeumannSum(2, 5.0), **PARTIAL
            ),
        )
    },
    "LFedNestNonAlt": {
        "composition": (CHAIN, rk.LFedNestNonAlt(0.05, 0.1, 2, 2, inner_start=START, **PARTIAL))
    },
    "FedMBO": {
        "random lengths": (
            TINY,
            rk.FedMBO(0.05, 0.1, 2, rk.parts.PHE(4, 5.0, chains=4), **PARTIAL),
        ),
        "sum": (
            TINY,
            rk.FedMBO(
                0.05,
                0.1,
                1,
                rk.parts.PHESum(2, rk.parts.PowerIteration(3), rk.participation.Uniform(2)),
                **PARTIAL,
            ),
        ),
    },
    "AFBO": {
        "active, random local iterations": (
            TINY,
            rk.AFBO(
                0.05,
                0.1,
                2,
                rk.parts.APHESum(2, rk.parts.PowerIteration(2, 2)),
                inner_steps=rk.parts.Between(1, 3),
                batch_size=2,
            ),
        ),
        "all stale, random length": (
            TINY,
            rk.AFBO(
                0.05,
                0.1,
                1,
                rk.parts.APHERandom(3, 5.0),
                rk.parts.StaleHessians(),
                (1, 2, 3),
                0,
                inner_staleness=1,
                batch_size=2,
            ),
        ),
    },
    "AFLBilevel": {
        "one product, nobody is waited for": (
            TINY,
            rk.AFLBilevel(0.05, 0.1, 1, rk.parts.APHEPaper(2, 5.0), wait_for=1, first_wait_for=1),
        )
    },
    "AFACD": {
        "random local steps": (
            LOSSES,
            rk.AFACD(0.1, 0.2, rk.parts.Between(1, 3), wait_for=1, staleness=1, batch_size=2),
        )
    },
    "AFACS": {"unequal local steps": (LOSSES, rk.AFACS(0.1, 0.2, (1, 2, 3), batch_size=2))},
    "FedBuff": {"unequal local steps": (LOSSES, rk.FedBuff(0.1, 2, (1, 2, 3), 0.9, batch_size=2))},
    "ADBO": {
        "mini-batch, half are waited for": (
            TINY,
            rk.ADBO(
                0.05, 0.1, admm=rk.parts.ADMM(2), cut_every=2, max_cuts=2, staleness=1, batch_size=2
            ),
        )
    },
    "SDBO": {
        "full batch": (TINY, rk.SDBO(0.05, 0.1, admm=rk.parts.ADMM(1), cut_every=2, max_cuts=1))
    },
    "Prometheus": {
        "ring, mini-batch": (
            TINY,
            rk.Prometheus(0.05, 0.1, adjoint=rk.parts.LocalNeumannSum(2, 5.0), batch_size=2),
        )
    },
    "Nested": {
        "PHE with FedInn": (
            TINY,
            rk.Nested(
                rk.parts.FedInn(0.1, 2), rk.parts.ServerStep(0.05, rk.parts.PHE(3, 5.0)), **PARTIAL
            ),
        )
    },
    "AID": {
        "conjugate gradients": (TINY, rk.AID(0.05, 0.1, 1, rk.parts.FederatedCG(2), **PARTIAL))
    },
    "StocBiO": {"bilevel": (TINY, rk.StocBiO(0.05, 0.1, 1, 1, 0.2, **PARTIAL))},
    "ALSET": {"bilevel": (TINY, rk.ALSET(0.2, 0.4, 9, 1, 2, 5.0, **PARTIAL))},
    "TTSA": {"bilevel": (TINY, rk.TTSA(0.05, 0.1, 2, 5.0, **PARTIAL))},
    "FedAvgS": {
        "alternating": (SADDLE, rk.FedAvgS(0.05, 0.1, (1, 2, 3), rk.parts.Alternating(), **PARTIAL))
    },
    "ScaffoldS": {
        "unequal local steps": (
            SADDLE,
            rk.ScaffoldS(
                outer_lr=0.05,
                inner_lr=rk.parts.PerCall(0.1),
                local_steps=(1, 2, 3),
                server_lr=0.9,
                **PARTIAL,
            ),
        )
    },
    "GDA": {"partial": (SADDLE, rk.GDA(0.05, 0.1, **PARTIAL))},
    "AlternatingGDA": {"partial": (SADDLE, rk.AlternatingGDA(0.05, 0.1, **PARTIAL))},
    "Extragradient": {"partial": (SADDLE, rk.Extragradient(0.05, 0.1, **PARTIAL))},
    "FedMSA": {
        "bilevel, warmed up": (
            TINY,
            rk.FedMSA(
                outer_lr=0.05,
                inner_lr=(0.1, rk.parts.Decay(0.1, 0.9)),
                local_steps=2,
                first_batch=1,
                inner_radius=(math.inf, 0.5),
                warm_up=rk.parts.BilevelWarmUp(
                    rk.parts.FedInnSGD(0.1), 1, rk.parts.FedIHGPSum(1, 5.0)
                ),
                **PARTIAL,
            ),
        ),
        "composition, random output": (
            CHAIN,
            rk.FedMSA(0.05, 0.1, 2, renewal=0.5, output=rk.parts.RandomIterate(), **PARTIAL),
        ),
    },
    "STSA": {"minimax": (SADDLE, rk.STSA(0.05, 0.1, **PARTIAL))},
    "SOBA": {"bilevel": (TINY, rk.SOBA(0.05, 0.1, **PARTIAL))},
    "SCGD": {"two layers": (CHAIN, rk.SCGD(0.05, 0.5, **PARTIAL))},
    "ComposedSGD": {"two layers": (CHAIN, rk.ComposedSGD(0.05, **PARTIAL))},
    "NASA": {"two layers": (CHAIN, rk.NASA(0.1, **PARTIAL))},
    "FedAvg": {"unequal local steps": (LOSSES, rk.FedAvg(0.1, (1, 2, 3), **PARTIAL))},
    "FedProx": {"partial": (LOSSES, rk.FedProx(rk.parts.PerCall(0.1), 0.5, 2, **PARTIAL))},
    "Scaffold": {"unequal local steps": (LOSSES, rk.Scaffold(0.1, (1, 2, 3), 0.9, **PARTIAL))},
    "QFedAvg": {"partial": (LOSSES, rk.QFedAvg(0.1, 0.5, 2, **PARTIAL))},
    "DRFA": {
        "falling step": (
            LOSSES,
            rk.DRFA(0.1, rk.parts.Decay(0.1, 0.9), 3, loss_batch_size=1, floor=1e-3, **PARTIAL),
        )
    },
    "AgnosticFL": {"mini-batch": (LOSSES, rk.AgnosticFL(0.1, 0.1, batch_size=2))},
    "PerFedAvg": {
        "Hessian-free": (MAML, rk.PerFedAvg(0.1, 2, rk.parts.HessianFree(), **PARTIAL)),
    },
    "ComFedL": {
        "composition": (ROBUST, rk.ComFedL(0.01, 2, outer_batch_size=1, **PARTIAL)),
        "MAML, first-order, one batch": (
            MAML,
            rk.ComFedL(0.1, 2, hessian=rk.parts.FirstOrder(), shared_batch=True, **PARTIAL),
        ),
        "robust, normalised": (LOSSES, rk.ComFedL(0.1, 2, 0.5, **PARTIAL)),
        "robust MAML, stale level": (
            MAML,
            rk.ComFedL(0.1, (1, 2, 3), 0.5, rk.parts.Normalised(stale_scalar=True), **PARTIAL),
        ),
        "robust, literal": (LOSSES, rk.ComFedL(0.1, 1, 2.0, rk.parts.Literal(3.0), clients=2)),
    },
}
