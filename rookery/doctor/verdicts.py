"""What measurements mean: verdicts with their thresholds, and what to change."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rookery.doctor.settings_of import Settings
from rookery.doctor.vitals import SAFETY, Vitals
from rookery.runner.documents import Json

UNSTABLE = 2.0
"""η L: gradient steps on a quadratic of curvature L diverge from here on."""
NEGATIVE = 0.01
"""Negative curvature counts from this share of the largest: power iteration is that exact."""
GROWING = 1.0
"""Factor between terms of a series: from here on the series has no limit."""
INEXACT = 0.5
"""Relative error of the adjoint: an error of one half keeps the hypergradient's direction."""
FAR = 0.5
"""Relative distance of y from y*(x): the hypergradient is then that of another point."""
NOISY = 3.0
"""Noise over signal: a step goes uphill almost as often as down."""
ILL = 1e3
"""Amplification of the adjoint: a series of N terms needs N of this order."""
DRIFT = 0.1
"""Relative drift: the mean of local solutions misses the solution of the mean by about as much."""
CLIPPED = 0.5
"""Share of outer steps that their rule has cut: the bound, not the distance, sets the pace."""
BELOW_BEST = 0.2
"""Share of a metric's progress that a run has lost at its end."""


@dataclass(frozen=True)
class Verdict:
    """One thing that is wrong.

    Attributes:
        name: a word or two, for tables and tests.
        finding: what was measured, in a sentence.
        advice: what to change, in a sentence.

    >>> Verdict("noise", "The noise is 4 times the signal.", "Draw more rows.").name
    'noise'
    """

    name: str
    finding: str
    advice: str


def verdicts_of(vitals: Vitals, settings: Settings) -> list[Verdict]:
    """What is wrong at a point of a run, the cause before its effects."""
    return [
        verdict
        for judge in (_steps, _curvature, _series, _inner_problem, _noise, _drift, _clipped)
        for verdict in judge(vitals, settings)
    ]


def verdicts_of_record(
    summary: Mapping[str, Json], first: float, best: float, last: float, metric: str
) -> list[Verdict]:
    """What the summary and the metric of a run say; the metric turned such that more is better."""
    found = []
    if summary.get("status") == "diverged":
        found.append(
            Verdict("diverged", summary.get("message", "The run diverged."), "Run with a guard.")
        )
    if rollbacks := summary.get("rollbacks"):
        share = rollbacks[-1]["lost"] / max(summary.get("rounds", 1), 1)
        factor = rollbacks[-1]["factor"]
        found.append(
            Verdict(
                "rolled back",
                f"The guard took the run back {len(rollbacks)} times, last because "
                f"{rollbacks[-1]['reason']}; {share:.0%} of its rounds were lost.",
                f"Begin with step sizes times {factor:.3g}: then no round is lost.",
            )
        )
    progress = best - first
    if progress > 0 and best - last > BELOW_BEST * progress:
        found.append(
            Verdict(
                "below its best",
                f"{metric} has lost {(best - last) / progress:.0%} of its progress at the end.",
                f"Use smaller or decaying steps, keep='best:{metric}', or a guard with drop=.",
            )
        )
    return found


def _steps(v: Vitals, s: Settings) -> Iterator[Verdict]:
    if s.step is not None and not s.is_found and s.step * v.L >= UNSTABLE:
        yield Verdict(
            "steps too long",
            f"{s.step_name} {s.step:.3g} times the curvature of a client's batch, {v.L:.3g}, is "
            f"{s.step * v.L:.3g}; from {UNSTABLE:g} on local steps diverge.",
            f"Choose {s.step_name} of {1 / v.L:.3g} or less.",
        )


def _curvature(v: Vitals, s: Settings) -> Iterator[Verdict]:
    if v.smallest < -NEGATIVE * abs(v.largest):
        is_nested = v.v is not None
        yield Verdict(
            "negative curvature",
            f"The Hessian has the eigenvalue {v.smallest:.3g} beside {v.largest:.3g}"
            + ("; the adjoint's series grows along it." if is_nested else "."),
            "Add an l2 term to the inner loss that is larger than that, damp the system of v, or "
            "use Gauss-Newton products (rookery.problem.GaussNewton)."
            if is_nested
            else "This is usual for networks before they have converged.",
        )


def _series(v: Vitals, s: Settings) -> Iterator[Verdict]:
    if s.series is None or v.hops is None:
        return
    if v.hops > GROWING and not s.is_warm:  # a warm series is damped where it would grow
        yield Verdict(
            "series grows",
            f"A term of the series is up to {v.hops:.3g} times as long as the one before.",
            f"Choose lipschitz of {SAFETY * v.L:.3g} or more (largest measured: {v.L:.3g}).",
        )
    elif v.series_error is not None and v.series_error > INEXACT:
        more = s.series.terms * max(2, round(v.largest / max(v.smallest, 1e-30) / s.series.terms))
        yield Verdict(
            "series too short",
            f"The sum of {s.series.terms} terms misses the adjoint by {v.series_error:.0%}.",
            f"Use more terms (about {min(more, 1000)}), or conjugate gradients "
            "(rk.parts.FederatedCG).",
        )


def _inner_problem(v: Vitals, s: Settings) -> Iterator[Verdict]:
    if v.amplification is not None and v.amplification >= ILL:
        yield Verdict(
            "ill-conditioned",
            f"The adjoint is {v.amplification:.3g} times as long as |f_y| / L: the inner problem "
            "is nearly flat along it.",
            "Add a larger l2 term to the inner loss.",
        )
    if v.v is not None and v.distance is not None and v.distance >= FAR:
        yield Verdict(
            "inner problem unsolved",
            f"y is {v.distance:.0%} of its norm away from its solution at this x.",
            "Take more inner steps in a round, or smaller outer ones.",
        )


def _noise(v: Vitals, s: Settings) -> Iterator[Verdict]:
    if v.noise is not None and v.noise >= NOISY:
        what = "gradient" if v.v is None else "hypergradient"
        yield Verdict(
            "noise",
            f"The noise of the {what} is {v.noise:.3g} times its norm {v.signal:.3g}.",
            f"Take larger batches (now {s.batch_size}) or cohorts (now {s.cohort}), or let the "
            "outer steps decay: with constant ones the run has arrived where noise lets it.",
        )


def _drift(v: Vitals, s: Settings) -> Iterator[Verdict]:
    if v.drift is not None and v.drift >= DRIFT:
        yield Verdict(
            "client drift",
            f"The mean of the clients' {s.local_steps} local steps is {v.drift:.0%} of the "
            "variable's norm away from as many steps on the mean loss.",
            "Take fewer or shorter local steps, unless the algorithm corrects them, as FedNest's "
            "FedInn and SCAFFOLD do.",
        )


def _clipped(v: Vitals, s: Settings) -> Iterator[Verdict]:
    if s.clipped is not None and s.clipped >= CLIPPED:
        yield Verdict(
            "steps clipped",
            f"{s.clipped:.0%} of the outer steps were cut to the bound of their rule: few entries "
            "of the direction are far larger than the others.",
            "Run more rounds, raise the bound with rk.parts.DoG(most=...), or give outer_lr.",
        )
