"""A small run of every algorithm, for the tests that hold for all of them.

An algorithm is looked up by its name in ``rookery.experiment.registry.ALGORITHMS``. Each has at
least one instance, with sampled clients and mini-batches where they make sense, on a problem that
is tiny: compiling is what takes the time. ``golden.json`` has the numbers of ``INSTANCES``, but not
those of ``OPTIMISED``, where optimisers stand in the place of step sizes.
"""

import math
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import optax

import rookery as rk
from rookery.algorithms import (
    BOME,
    CMSOBA,
    CODASCA,
    CSOBA,
    EFSOBA,
    F2SA,
    FCSG,
    FCSGM,
    FESSGDA,
    IMAML,
    AccFCSGM,
    AggITD,
    BRFedBi,
    BRFedBiM,
    BRFedBiP,
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedBiO,
    FedBiOAcc,
    FedBiOAccLocal,
    FedBiOLocal,
    FedDyn,
    FedEx,
    FedExP,
    FedGDAGT,
    FedNormSGDA,
    FedNormSGDAPlus,
    FedNova,
    FedPAQ,
    FedRep,
    FedSGDAM,
    FeDXL,
    FedYogi,
    MemFBO,
    Mime,
    MimeLite,
    OptimisticGDA,
    PFedMe,
    ProxSkipVIP,
    Scafflix,
    Scaffnew,
    ShroFBO,
    SimFBO,
)

NOISY = rk.zoo.quadratic_bilevel(n_clients=4, rows=3, noise=0.3)
SCALAR = rk.zoo.scalar_bilevel()
TINY = rk.zoo.quadratic_bilevel(n_clients=3, x_size=1, y_size=2, rows=3, noise=0.3)
SADDLE = rk.zoo.saddle(curvature=1.0, n_clients=3, x_size=1, y_size=2, rows=3, noise=0.3)
LOSSES = rk.zoo.quadratic_losses(n_clients=3, size=2, rows=3, noise=0.3)
ROBUST = rk.zoo.robust_quadratic(n_clients=3, size=2, rows=3, noise=0.3)
MAML = rk.zoo.cubic_maml(n_clients=3, size=2, rows=3, noise=0.3)
PERSONAL = rk.zoo.personal_quadratic(n_clients=3, x_size=1, y_size=2, rows=3, noise=0.3)
CHAIN = rk.zoo.linear_chain(n_clients=3, sizes=(1, 2), rows=3, noise=0.3)

CONDITIONAL = rk.zoo.conditional_quadratic(n_clients=3, size=2, draws=4, m_in=2, rows=3, noise=0.3)
PAIRS = rk.zoo.pair_risk(n_clients=3, rows=3, noise=0.3)

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
            rk.FedNest(
                outer_lr=0.1, inner_lr=0.1, ihgp=rk.parts.FedIHGP(terms=3, lipschitz=3.0), clients=1
            ),
        ),
        "minimax": (
            SADDLE,
            rk.FedNest(
                outer_lr=0.05, inner_lr=0.1, inner_rounds=2, inner_steps=2, outer_steps=2, **PARTIAL
            ),
        ),
        "composition": (
            CHAIN,
            rk.FedNest(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=2,
                inner_steps=2,
                inner_start=START,
                **PARTIAL,
            ),
        ),
        "steps not given": (TINY, rk.FedNest(inner_steps=2, **PARTIAL)),
    },
    "FedNestSGD": {
        "unequal local steps": (
            TINY,
            rk.FedNestSGD(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=2,
                inner_steps=(1, 2, 3),
                ihgp=rk.parts.FedIHGP(terms=3, lipschitz=5.0),
                **PARTIAL,
            ),
        )
    },
    "LFedNest": {
        "bilevel": (
            TINY,
            rk.LFedNest(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=2,
                inner_steps=2,
                outer_steps=2,
                adjoint=rk.parts.LocalNeumann(terms=3),
                **PARTIAL,
            ),
        )
    },
    "LFedNestSVRG": {
        "unequal local steps": (
            TINY,
            rk.LFedNestSVRG(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=1,
                inner_steps=2,
                outer_steps=(2, 1, 3),
                adjoint=rk.parts.LocalNeumannSum(terms=2, lipschitz=5.0),
                **PARTIAL,
            ),
        )
    },
    "LFedNestNonAlt": {
        "composition": (
            CHAIN,
            rk.LFedNestNonAlt(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_steps=2,
                outer_steps=2,
                inner_start=START,
                **PARTIAL,
            ),
        )
    },
    "FedMBO": {
        "random lengths": (
            TINY,
            rk.FedMBO(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=2,
                hypergradient=rk.parts.PHE(terms=4, lipschitz=5.0, chains=4),
                **PARTIAL,
            ),
        ),
        "sum": (
            TINY,
            rk.FedMBO(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=1,
                hypergradient=rk.parts.PHESum(
                    terms=2,
                    lipschitz=rk.parts.PowerIteration(iterations=3),
                    chains=rk.participation.Uniform(2),
                ),
                **PARTIAL,
            ),
        ),
        "steps not given": (TINY, rk.FedMBO(**PARTIAL)),
    },
    "AFBO": {
        "active, random local iterations": (
            TINY,
            rk.AFBO(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=2,
                aphe=rk.parts.APHESum(
                    terms=2, lipschitz=rk.parts.PowerIteration(iterations=2, every=2)
                ),
                hessians=rk.parts.ActiveHessians(),
                inner_steps=rk.parts.RandomSteps(1, 3),
                batch_size=2,
            ),
        ),
        "all stale, random length": (
            TINY,
            rk.AFBO(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=1,
                aphe=rk.parts.APHERandom(terms=3, lipschitz=5.0),
                hessians=rk.parts.StaleHessians(),
                inner_steps=(1, 2, 3),
                local_lr=0,
                inner_staleness=1,
                batch_size=2,
            ),
        ),
        "steps not given": (
            TINY,
            rk.AFBO(aphe=rk.parts.APHESum(), hessians=rk.parts.ActiveHessians(), batch_size=2),
        ),
        "running adjoint, steps not given": (
            TINY,
            rk.AFBO(inner_steps=rk.parts.RandomSteps(1, 3), batch_size=2),
        ),
        "running adjoint, one is waited for": (
            TINY,
            rk.AFBO(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=2,
                inner_steps=(1, 2, 3),
                wait_for=1,
                first_wait_for=2,
                inner_staleness=None,
                outer_staleness=2,
                batch_size=2,
            ),
        ),
    },
    "AFLBilevel": {
        "one product, nobody is waited for": (
            TINY,
            rk.AFLBilevel(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=1,
                series=rk.parts.APHEPaper(terms=2, lipschitz=5.0),
                wait_for=1,
                first_wait_for=1,
            ),
        )
    },
    "AFACD": {
        "random local steps": (
            LOSSES,
            rk.AFACD(
                lr=0.1,
                server_lr=0.2,
                local_steps=rk.parts.RandomSteps(1, 3),
                wait_for=1,
                staleness=1,
                batch_size=2,
            ),
        )
    },
    "AFACS": {
        "unequal local steps": (
            LOSSES,
            rk.AFACS(lr=0.1, server_lr=0.2, local_steps=(1, 2, 3), batch_size=2),
        )
    },
    "FedBuff": {
        "unequal local steps": (
            LOSSES,
            rk.FedBuff(lr=0.1, buffer_size=2, local_steps=(1, 2, 3), server_lr=0.9, batch_size=2),
        )
    },
    "ADBO": {
        "mini-batch, half are waited for": (
            TINY,
            rk.ADBO(
                outer_lr=0.05,
                inner_lr=0.1,
                admm=rk.parts.ADMM(rounds=2),
                cut_every=2,
                max_cuts=2,
                staleness=1,
                batch_size=2,
            ),
        )
    },
    "SDBO": {
        "full batch": (
            TINY,
            rk.SDBO(
                outer_lr=0.05, inner_lr=0.1, admm=rk.parts.ADMM(rounds=1), cut_every=2, max_cuts=1
            ),
        )
    },
    "Prometheus": {
        "ring, mini-batch": (
            TINY,
            rk.Prometheus(
                outer_lr=0.05,
                inner_lr=0.1,
                adjoint=rk.parts.LocalNeumannSum(terms=2, lipschitz=5.0),
                batch_size=2,
            ),
        )
    },
    "Nested": {
        "PHE with FedInn": (
            TINY,
            rk.Nested(
                inner=rk.parts.FedInn(lr=0.1, local_steps=2),
                outer=rk.parts.ServerStep(
                    lr=0.05, hypergradient=rk.parts.PHE(terms=3, lipschitz=5.0)
                ),
                **PARTIAL,
            ),
        )
    },
    "AID": {
        "conjugate gradients": (
            TINY,
            rk.AID(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=1,
                adjoint=rk.parts.FederatedCG(iterations=2),
                **PARTIAL,
            ),
        )
    },
    "StocBiO": {
        "bilevel": (
            TINY,
            rk.StocBiO(
                outer_lr=0.05, inner_lr=0.1, inner_rounds=1, terms=1, adjoint_lr=0.2, **PARTIAL
            ),
        )
    },
    "ALSET": {
        "bilevel": (
            TINY,
            rk.ALSET(
                outer_lr=0.2,
                inner_lr=0.4,
                horizon=9,
                inner_rounds=1,
                terms=2,
                lipschitz=5.0,
                **PARTIAL,
            ),
        )
    },
    "TTSA": {
        "bilevel": (TINY, rk.TTSA(outer_lr=0.05, inner_lr=0.1, terms=2, lipschitz=5.0, **PARTIAL))
    },
    "FedAvgS": {
        "alternating": (
            SADDLE,
            rk.FedAvgS(
                outer_lr=0.05,
                inner_lr=0.1,
                local_steps=(1, 2, 3),
                order=rk.parts.Alternating(),
                **PARTIAL,
            ),
        )
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
    "CODASCA": {
        "stages of two rounds": (
            SADDLE,
            CODASCA(
                outer_lr=0.05,
                inner_lr=0.1,
                mu=0.5,
                stage_rounds=2,
                local_steps=(1, 2, 3),
                **PARTIAL,
            ),
        )
    },
    "GDA": {"partial": (SADDLE, rk.GDA(outer_lr=0.05, inner_lr=0.1, **PARTIAL))},
    "AlternatingGDA": {
        "partial": (SADDLE, rk.AlternatingGDA(outer_lr=0.05, inner_lr=0.1, **PARTIAL))
    },
    "Extragradient": {
        "partial": (SADDLE, rk.Extragradient(outer_lr=0.05, inner_lr=0.1, **PARTIAL))
    },
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
                    inner=rk.parts.FedInnSGD(lr=0.1),
                    inner_rounds=1,
                    adjoint=rk.parts.FedIHGPSum(terms=1, lipschitz=5.0),
                ),
                **PARTIAL,
            ),
        ),
        "composition, random output": (
            CHAIN,
            rk.FedMSA(
                outer_lr=0.05,
                inner_lr=0.1,
                local_steps=2,
                renewal=0.5,
                output=rk.parts.RandomIterate(),
                **PARTIAL,
            ),
        ),
        "steps not given": (TINY, rk.FedMSA(local_steps=2, **PARTIAL)),
        "penalty": (
            TINY,
            rk.FedMSA(
                outer_lr=0.01,
                inner_lr=0.1,
                local_steps=2,
                view=rk.parts.PenaltyView(sigma=20.0),
                **PARTIAL,
            ),
        ),
    },
    "STSA": {"minimax": (SADDLE, rk.STSA(outer_lr=0.05, inner_lr=0.1, **PARTIAL))},
    "SOBA": {"bilevel": (TINY, rk.SOBA(outer_lr=0.05, inner_lr=0.1, **PARTIAL))},
    "SimFBO": {
        "unequal local steps": (
            TINY,
            SimFBO(
                outer_lr=0.05,
                inner_lr=0.1,
                server_lr=(0.05, 0.2, 0.1),
                local_steps=(1, 2, 3),
                inner_radius=(math.inf, 0.5),
                **PARTIAL,
            ),
        ),
        "steps not given": (TINY, SimFBO(local_steps=2, **PARTIAL)),
    },
    "ShroFBO": {
        "unequal local steps": (
            TINY,
            ShroFBO(
                outer_lr=0.05,
                inner_lr=0.1,
                server_lr=0.1,
                local_steps=(1, 2, 3),
                weighting="normalised",
                **PARTIAL,
            ),
        ),
        "compressed, error feedback": (
            TINY,
            ShroFBO(
                outer_lr=0.05,
                inner_lr=0.1,
                server_lr=0.1,
                local_steps=(1, 2, 3),
                codec=rk.parts.TopK(1),
                error_feedback=True,
                **PARTIAL,
            ),
        ),
    },
    "FedBiO": {
        "local momentum": (
            TINY,
            FedBiO(
                outer_lr=0.05,
                inner_lr=0.1,
                local_steps=2,
                estimator=rk.parts.MomentumEstimator(0.5),
                first_batch=1,
                **PARTIAL,
            ),
        ),
        "PAGE": (
            TINY,
            FedBiO(
                outer_lr=0.05,
                inner_lr=0.1,
                local_steps=2,
                estimator=rk.parts.PAGE(0.5),
                **PARTIAL,
            ),
        ),
        "compressed": (
            TINY,
            FedBiO(
                outer_lr=0.05, inner_lr=0.1, local_steps=2, codec=rk.parts.RandK(0.5), **PARTIAL
            ),
        ),
        "one sample, unbiased": (
            TINY,
            FedBiO(
                outer_lr=0.05,
                inner_lr=0.1,
                local_steps=2,
                view=rk.parts.BilevelView(one_sample=True),
                weighting="unbiased",
                **PARTIAL,
            ),
        ),
    },
    "FedBiOAcc": {
        "falling rate": (
            TINY,
            FedBiOAcc(
                outer_lr=0.05,
                inner_lr=(0.1, 0.08),
                local_steps=2,
                estimator=rk.parts.STORM(0.5, rk.parts.PowerDecay(1.0, 1 / 3)),
                **PARTIAL,
            ),
        )
    },
    "F2SA": {
        "symmetric": (TINY, F2SA(outer_lr=0.05, inner_lr=(0.1, 0.2), inner_rounds=2, **PARTIAL)),
        "one-sided, growing penalty": (
            TINY,
            F2SA(
                outer_lr=0.05,
                inner_lr=0.1,
                inner_rounds=1,
                penalty=rk.parts.PenaltyView(rk.parts.Growing(5.0, 1.0, 7.0), symmetric=False),
                **PARTIAL,
            ),
        ),
    },
    "MemFBO": {
        "unequal local steps": (
            TINY,
            MemFBO(
                outer_lr=0.05,
                inner_lr=0.1,
                server_lr=0.1,
                local_steps=(1, 2, 3),
                normalised=True,
                **PARTIAL,
            ),
        )
    },
    "BOME": {"partial": (TINY, BOME(lr=0.05, inner_lr=0.1, inner_rounds=2, **PARTIAL))},
    "CSOBA": {
        "stochastic rounding": (
            TINY,
            CSOBA(outer_lr=0.05, inner_lr=0.1, codec=rk.parts.StochasticRounding(3), **PARTIAL),
        ),
        "bfloat16": (TINY, CSOBA(outer_lr=0.05, inner_lr=0.1, codec=rk.parts.BFloat16())),
    },
    "CMSOBA": {
        "rand-k": (TINY, CMSOBA(outer_lr=0.05, inner_lr=0.1, codec=rk.parts.RandK(0.5), **PARTIAL))
    },
    "EFSOBA": {
        "top-k": (TINY, EFSOBA(outer_lr=0.05, inner_lr=0.1, codec=rk.parts.TopK(1), **PARTIAL))
    },
    "FedPAQ": {
        "error feedback": (
            LOSSES,
            FedPAQ(
                lr=0.1,
                local_steps=(1, 2, 3),
                codec=rk.parts.TopK(1),
                error_feedback=True,
                **PARTIAL,
            ),
        ),
        "plain": (
            LOSSES,
            FedPAQ(lr=0.1, local_steps=2, codec=rk.parts.StochasticRounding(5), **PARTIAL),
        ),
        "random entries": (LOSSES, FedPAQ(lr=0.1, codec=rk.parts.RandK(1), **PARTIAL)),
        "bfloat16": (LOSSES, FedPAQ(lr=0.1, codec=rk.parts.BFloat16(), **PARTIAL)),
    },
    "BRFedBi": {
        "plain": (TINY, BRFedBi(outer_lr=0.05, inner_lr=0.1, **PARTIAL)),
        "cached momenta": (
            TINY,
            BRFedBi(outer_lr=0.05, inner_lr=0.1, momentum=0.5, cached=True, **PARTIAL),
        ),
    },
    "BRFedBiM": {"partial": (TINY, BRFedBiM(outer_lr=0.05, inner_lr=0.1, **PARTIAL))},
    "BRFedBiP": {
        "partial": (TINY, BRFedBiP(outer_lr=0.05, inner_lr=0.1, page=rk.parts.PAGE(0.5), **PARTIAL))
    },
    "AggITD": {"partial": (TINY, AggITD(outer_lr=0.05, inner_lr=0.1, inner_rounds=3, **PARTIAL))},
    "IMAML": {
        "Newton steps, conjugate gradients": (
            PERSONAL,
            IMAML(
                outer_lr=0.05,
                local_steps=2,
                inner=rk.parts.NewtonSteps(iterations=2),
                adjoint=rk.parts.LocalCG(iterations=2),
                **PARTIAL,
            ),
        ),
        "gradient steps, series": (
            PERSONAL,
            IMAML(
                outer_lr=0.05,
                local_steps=(1, 2, 3),
                server_lr=0.5,
                inner=rk.parts.GradientSteps(0.1, steps=2),
                adjoint=rk.parts.LocalNeumannSum(terms=2),
                **PARTIAL,
            ),
        ),
    },
    "FedRep": {
        "unequal local steps": (
            PERSONAL,
            FedRep(outer_lr=0.05, inner_lr=0.1, inner_steps=2, local_steps=(1, 2, 3), **PARTIAL),
        )
    },
    "FedBiOLocal": {
        "two local steps": (
            PERSONAL,
            FedBiOLocal(outer_lr=0.05, inner_lr=(0.1, 0.08), local_steps=2, **PARTIAL),
        )
    },
    "FedBiOAccLocal": {
        "falling rate, first batch": (
            PERSONAL,
            FedBiOAccLocal(
                outer_lr=0.05,
                inner_lr=0.1,
                local_steps=2,
                estimator=rk.parts.STORM((0.3, 0.5, 0.7), rk.parts.PowerDecay(0.9, 1 / 3)),
                first_batch=1,
                batch_size=2,
            ),
        )
    },
    "PFedMe": {
        "partial": (
            LOSSES,
            PFedMe(lr=0.05, mu=2.0, inner_lr=0.1, inner_steps=2, local_steps=(1, 2, 3), **PARTIAL),
        )
    },
    "Ditto": {
        "partial": (
            LOSSES,
            Ditto(lr=0.1, own_lr=0.05, mu=0.5, local_steps=2, own_steps=3, **PARTIAL),
        )
    },
    "FedDyn": {
        "unequal local steps": (LOSSES, FedDyn(lr=0.1, alpha=0.5, local_steps=(1, 2, 3), **PARTIAL))
    },
    "Scaffnew": {"mini-batch": (LOSSES, Scaffnew(lr=0.1, probability=0.5, batch_size=2))},
    "Scafflix": {
        "mini-batch": (
            LOSSES,
            Scafflix(
                lr=0.1,
                probability=0.5,
                alpha=(0.2, 1.0, 0.7),
                own_steps=2,
                own_lr=0.1,
                batch_size=2,
            ),
        )
    },
    "FedEx": {
        "adaptive": (
            LOSSES,
            FedEx(
                settings=(
                    rk.parts.LocalSetting(lr=0.1, local_steps=2, momentum=0.5),
                    rk.parts.LocalSetting(lr=0.05, local_steps=3, mu=0.5),
                ),
                validation_split="train",
                **PARTIAL,
            ),
        )
    },
    "FedExP": {"partial": (LOSSES, FedExP(lr=0.1, epsilon=0.1, local_steps=2, **PARTIAL))},
    "Mime": {"unequal local steps": (LOSSES, Mime(lr=0.1, local_steps=(1, 2, 3), **PARTIAL))},
    "MimeLite": {"partial": (LOSSES, MimeLite(lr=0.1, beta=0.5, local_steps=2, **PARTIAL))},
    "FedNormSGDA": {
        "unequal local steps": (
            SADDLE,
            FedNormSGDA(
                outer_lr=0.05, inner_lr=0.1, server_lr=0.1, local_steps=(1, 2, 3), **PARTIAL
            ),
        )
    },
    "FedNormSGDAPlus": {
        "a snapshot for two rounds": (
            SADDLE,
            FedNormSGDAPlus(
                outer_lr=0.05,
                inner_lr=0.1,
                server_lr=(0.05, 0.1),
                snapshot_rounds=2,
                local_steps=(1, 2, 3),
                **PARTIAL,
            ),
        )
    },
    "FedSGDAM": {
        "partial": (
            SADDLE,
            FedSGDAM(
                outer_lr=0.05,
                inner_lr=0.1,
                local_steps=2,
                estimator=rk.parts.STORM(0.5),
                **PARTIAL,
            ),
        )
    },
    "OptimisticGDA": {
        "partial": (SADDLE, OptimisticGDA(outer_lr=0.05, inner_lr=0.1, local_steps=2, **PARTIAL))
    },
    "FedGDAGT": {
        "mini-batch": (SADDLE, FedGDAGT(outer_lr=0.05, inner_lr=0.1, local_steps=2, batch_size=2))
    },
    "FESSGDA": {
        "partial": (
            SADDLE,
            FESSGDA(
                outer_lr=0.05,
                inner_lr=0.1,
                local_steps=2,
                smoothing=1.0,
                beta=0.5,
                outer_server_lr=0.9,
                **PARTIAL,
            ),
        )
    },
    "ProxSkipVIP": {"mini-batch": (SADDLE, ProxSkipVIP(lr=0.05, probability=0.5, batch_size=2))},
    "FCSG": {
        "unequal local steps": (
            CONDITIONAL,
            FCSG(outer_lr=0.1, local_steps=(1, 2, 3), **PARTIAL),
        )
    },
    "FCSGM": {
        "partial": (
            CONDITIONAL,
            FCSGM(
                outer_lr=0.1,
                local_steps=2,
                estimator=rk.parts.MomentumEstimator(0.5),
                **PARTIAL,
            ),
        )
    },
    "AccFCSGM": {
        "first batch": (
            CONDITIONAL,
            AccFCSGM(
                outer_lr=0.1,
                local_steps=2,
                estimator=rk.parts.STORM(0.5),
                first_batch=1,
                **PARTIAL,
            ),
        )
    },
    "FeDXL": {
        "drawn entries, refreshed": (
            PAIRS,
            FeDXL(
                lr=0.1,
                gamma=0.8,
                beta=0.5,
                local_steps=2,
                pool_batch=4,
                refresh=2,
                **PARTIAL,
            ),
        )
    },
    "SCGD": {"two layers": (CHAIN, rk.SCGD(outer_lr=0.05, inner_lr=0.5, **PARTIAL))},
    "ComposedSGD": {"two layers": (CHAIN, rk.ComposedSGD(outer_lr=0.05, **PARTIAL))},
    "NASA": {"two layers": (CHAIN, rk.NASA(lr=0.1, **PARTIAL))},
    "FedAvg": {
        "unequal local steps": (LOSSES, rk.FedAvg(lr=0.1, local_steps=(1, 2, 3), **PARTIAL))
    },
    "FedProx": {
        "partial": (LOSSES, rk.FedProx(lr=rk.parts.PerCall(0.1), mu=0.5, local_steps=2, **PARTIAL))
    },
    "Scaffold": {
        "unequal local steps": (
            LOSSES,
            rk.Scaffold(lr=0.1, local_steps=(1, 2, 3), server_lr=0.9, **PARTIAL),
        ),
        "option I": (LOSSES, rk.Scaffold(lr=0.1, local_steps=2, option="I", **PARTIAL)),
    },
    "QFedAvg": {"partial": (LOSSES, rk.QFedAvg(lr=0.1, q=0.5, local_steps=2, **PARTIAL))},
    "DRFA": {
        "falling step": (
            LOSSES,
            rk.DRFA(
                lr=0.1,
                ascent_lr=rk.parts.Decay(0.1, 0.9),
                local_steps=3,
                loss_batch_size=1,
                floor=1e-3,
                **PARTIAL,
            ),
        )
    },
    "AgnosticFL": {"mini-batch": (LOSSES, rk.AgnosticFL(lr=0.1, ascent_lr=0.1, batch_size=2))},
    "PerFedAvg": {
        "Hessian-free": (
            MAML,
            rk.PerFedAvg(lr=0.1, local_steps=2, hessian=rk.parts.HessianFree(), **PARTIAL),
        ),
    },
    "ComFedL": {
        "composition": (ROBUST, rk.ComFedL(lr=0.01, local_steps=2, outer_batch_size=1, **PARTIAL)),
        "MAML, first-order, one batch": (
            MAML,
            rk.ComFedL(
                lr=0.1, local_steps=2, hessian=rk.parts.FirstOrder(), shared_batch=True, **PARTIAL
            ),
        ),
        "robust, normalised": (LOSSES, rk.ComFedL(lr=0.1, local_steps=2, gamma=0.5, **PARTIAL)),
        "robust MAML, stale level": (
            MAML,
            rk.ComFedL(
                lr=0.1,
                local_steps=(1, 2, 3),
                gamma=0.5,
                weighting=rk.parts.NormalisedWeights(stale_scalar=True),
                **PARTIAL,
            ),
        ),
        "robust, literal": (
            LOSSES,
            rk.ComFedL(
                lr=0.1, local_steps=1, gamma=2.0, weighting=rk.parts.PrintedWeights(3.0), clients=2
            ),
        ),
        "steps not given": (ROBUST, rk.ComFedL(local_steps=2, **PARTIAL)),
    },
}

ADAM = rk.parts.Optimiser(optax.adam, learning_rate=0.05)
KEPT = rk.parts.Optimiser(optax.adam, learning_rate=0.05, keep=True)
MOMENTUM = rk.parts.Optimiser(optax.sgd, learning_rate=0.05, momentum=0.5)
FALLING = rk.parts.Optimiser(optax.sgd, learning_rate=rk.parts.Decay(0.1, 0.5), momentum=0.5)


def first(name: str, **rules: object) -> tuple[Any, rk.AbstractAlgorithm]:
    """The first instance of an algorithm, with other step rules."""
    zoo, algorithm = next(iter(INSTANCES[name].values()))
    return zoo, replace(algorithm, **rules)


def nested(name: str, inner: object, outer: object) -> tuple[Any, rk.AbstractAlgorithm]:
    """The same for a configuration of Nested."""
    zoo, algorithm = next(iter(INSTANCES[name].values()))
    assert isinstance(algorithm, rk.Nested)
    parts: Any = (algorithm.inner, algorithm.outer)  # all that are used here have an lr
    inner, outer = (replace(part, lr=lr) for part, lr in zip(parts, (inner, outer), strict=True))
    return zoo, replace(algorithm, inner=inner, outer=outer)


OPTIMISED: dict[str, tuple[Any, rk.AbstractAlgorithm]] = {
    "FedNest": first("FedNest", inner_lr=KEPT, outer_lr=MOMENTUM),
    "FedNestSGD": nested("FedNestSGD", KEPT, ADAM),
    "LFedNest": nested("LFedNest", MOMENTUM, KEPT),
    "LFedNestSVRG": nested("LFedNestSVRG", KEPT, KEPT),
    "LFedNestNonAlt": first("LFedNestNonAlt", inner_lr=KEPT, outer_lr=FALLING),
    "FedMBO": first("FedMBO", inner_lr=FALLING, outer_lr=ADAM),
    "AFBO": first("AFBO", inner_lr=MOMENTUM, outer_lr=ADAM),
    "AFLBilevel": first("AFLBilevel", inner_lr=ADAM, outer_lr=MOMENTUM, local_lr=0.1),
    "AFACD": first("AFACD", lr=MOMENTUM, server_lr=ADAM),
    "AFACS": first("AFACS", lr=ADAM, server_lr=FALLING),
    "FedBuff": first("FedBuff", lr=MOMENTUM, server_lr=ADAM),
    "Nested": nested("Nested", KEPT, MOMENTUM),
    "AID": nested("AID", ADAM, MOMENTUM),
    "StocBiO": nested("StocBiO", MOMENTUM, ADAM),
    "FedAvgS": first("FedAvgS", inner_lr=KEPT, outer_lr=MOMENTUM),
    "ScaffoldS": first("ScaffoldS", server_lr=ADAM),
    "CODASCA": first("CODASCA", server_lr=MOMENTUM),
    "GDA": first("GDA", inner_lr=MOMENTUM, outer_lr=ADAM),
    "AlternatingGDA": first("AlternatingGDA", inner_lr=ADAM, outer_lr=FALLING),
    "Extragradient": first("Extragradient", inner_lr=ADAM, outer_lr=MOMENTUM),
    "FedMSA": first("FedMSA", inner_lr=(0.1, KEPT), outer_lr=MOMENTUM),
    "STSA": first("STSA", inner_lr=ADAM, outer_lr=MOMENTUM),
    "SOBA": first("SOBA", inner_lr=(MOMENTUM, ADAM), outer_lr=ADAM),
    "SimFBO": first("SimFBO", inner_lr=KEPT, server_lr=ADAM),
    "ShroFBO": first("ShroFBO", inner_lr=MOMENTUM, server_lr=FALLING),
    "FedBiO": first("FedBiO", inner_lr=(0.1, ADAM), outer_lr=MOMENTUM),
    "FedBiOAcc": first("FedBiOAcc", outer_lr=KEPT),
    "F2SA": first("F2SA", inner_lr=(0.1, ADAM), outer_lr=MOMENTUM),
    "MemFBO": first("MemFBO", inner_lr=KEPT, server_lr=ADAM),
    "BOME": first("BOME", lr=MOMENTUM, inner_lr=ADAM),
    "CSOBA": first("CSOBA", inner_lr=(0.1, ADAM), outer_lr=MOMENTUM),
    "CMSOBA": first("CMSOBA", inner_lr=ADAM),
    "EFSOBA": first("EFSOBA", outer_lr=ADAM),
    "FedPAQ": first("FedPAQ", lr=MOMENTUM, server_lr=ADAM),
    "BRFedBi": first("BRFedBi", inner_lr=(0.1, ADAM), outer_lr=MOMENTUM),
    "BRFedBiM": first("BRFedBiM", inner_lr=ADAM),
    "BRFedBiP": first("BRFedBiP", outer_lr=ADAM),
    "AggITD": first("AggITD", outer_lr=ADAM),
    "IMAML": first("IMAML", outer_lr=MOMENTUM, server_lr=ADAM),
    "FedRep": first("FedRep", inner_lr=ADAM, outer_lr=MOMENTUM),
    "FedBiOLocal": first("FedBiOLocal", inner_lr=(0.1, ADAM), server_lr=MOMENTUM),
    "FedBiOAccLocal": first("FedBiOAccLocal", inner_lr=ADAM),
    "PFedMe": first("PFedMe", lr=MOMENTUM, server_lr=ADAM),
    "Ditto": first("Ditto", lr=MOMENTUM, own_lr=ADAM),
    "FedDyn": first("FedDyn", lr=MOMENTUM),
    "FedEx": first("FedEx", server_lr=MOMENTUM),
    "FedExP": first("FedExP", lr=KEPT),
    "Scafflix": first("Scafflix", own_lr=MOMENTUM),
    "FedNormSGDA": first("FedNormSGDA", inner_lr=KEPT, server_lr=ADAM),
    "FedNormSGDAPlus": first("FedNormSGDAPlus", inner_lr=KEPT, server_lr=ADAM),
    "FedSGDAM": first("FedSGDAM", inner_lr=ADAM),
    "OptimisticGDA": first("OptimisticGDA", outer_lr=MOMENTUM),
    "FedGDAGT": first("FedGDAGT", inner_lr=MOMENTUM),
    "FESSGDA": first("FESSGDA", inner_lr=KEPT),
    "FCSG": first("FCSG", outer_lr=KEPT),
    "FCSGM": first("FCSGM", outer_lr=ADAM),
    "AccFCSGM": first("AccFCSGM", outer_lr=MOMENTUM),
    "SCGD": first("SCGD", outer_lr=ADAM),
    "ComposedSGD": first("ComposedSGD", outer_lr=MOMENTUM),
    "FedAvg": first("FedAvg", lr=KEPT, server_lr=MOMENTUM),
    "FedProx": first("FedProx", lr=MOMENTUM, server_lr=ADAM),
    "Scaffold": first("Scaffold", server_lr=MOMENTUM),
    "QFedAvg": first("QFedAvg", server_lr=ADAM),
    "DRFA": first("DRFA", lr=ADAM),
    "AgnosticFL": first("AgnosticFL", lr=ADAM),
    "PerFedAvg": first("PerFedAvg", lr=KEPT, server_lr=ADAM),
    "ComFedL": first("ComFedL", lr=KEPT, server_lr=FALLING),
    "FedAvgM": (
        LOSSES,
        FedAvgM(lr=0.1, local_steps=(1, 2, 3), server_lr=0.9, **PARTIAL),
    ),
    "FedAdagrad": (LOSSES, FedAdagrad(lr=0.1, server_lr=0.1, **PARTIAL)),
    "FedAdam": (LOSSES, FedAdam(lr=0.1, server_lr=0.1, **PARTIAL)),
    "FedYogi": (
        LOSSES,
        FedYogi(lr=ADAM, server_lr=0.1, bias_correction=True, **PARTIAL),
    ),
    "FedNova": (
        LOSSES,
        FedNova(lr=0.1, local_steps=(1, 2, 3), momentum=0.5, mu=0.1, **PARTIAL),
    ),
}
REFUSES = (
    "ADBO",
    "SDBO",
    "Prometheus",
    "ALSET",
    "TTSA",
    "NASA",
    "Scaffnew",
    "ProxSkipVIP",
    "Mime",
    "MimeLite",
    "FeDXL",
)
"""Algorithms that take no optimiser anywhere, and say why."""
