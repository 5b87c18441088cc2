"""Measurements in words: what each figure says about a run, healthy or not."""

from collections.abc import Iterator, Sequence

from rookery.doctor.settings_of import Settings
from rookery.doctor.vitals import Vitals


def sentences(vitals: Sequence[Vitals], settings: Settings) -> list[str]:
    """A sentence for each measurement; those at the last point come after the curvature.

    >>> from rookery.doctor.settings_of import Settings
    >>> own = Settings(0.1, "lr", 1, 5, None, None)
    >>> sentences([Vitals(0, 4.0, 1.0, 5.0), Vitals(9, 8.0, 1.0, 10.0)], own)[0]
    'The steepest batch of a client had the curvature L = 5 at the start and 10 in round 9.'
    """
    if not vitals:
        return []
    return [*_curvature(vitals, settings), *_at_the_end(vitals[-1], settings)]


def _curvature(vitals: Sequence[Vitals], s: Settings) -> Iterator[str]:
    first, last = vitals[0], vitals[-1]
    places = [f"{first.L:.3g} {_place(first)}"]
    if last is not first:
        places.append(f"{last.L:.3g} {_place(last)}")
    yield f"The steepest batch of a client had the curvature L = {' and '.join(places)}."
    if s.step is not None:
        why = "the run found it" if s.is_found else "steps of 2 / L and more diverge"
        yield f"A step of size {s.step:.3g} is {s.step * last.L:.3g} / L; {why}."


def _at_the_end(v: Vitals, s: Settings) -> Iterator[str]:
    if v.hops is not None:
        how = "contracts" if v.hops < 1 else "does not contract"
        yield (
            f"The series of the adjoint {how}: a term is up to {v.hops:.3g} times as long as the "
            "one before."
        )
    if v.series_error is not None:
        yield f"Its sum misses the adjoint by {v.series_error:.1%}."
    if v.v is not None and v.amplification is not None:
        yield (
            f"The adjoint has the norm {v.v:.3g}, {v.amplification:.3g} times that of f_y / L; on "
            "a well-conditioned inner problem that factor is small."
        )
    if v.v is not None and v.distance is not None:
        yield f"The inner variable is {v.distance:.1%} of its norm away from its solution."
    if v.noise is not None and v.signal is not None:
        what = "gradient" if v.v is None else "hypergradient"
        yield (
            f"The {what} has the norm {v.signal:.3g}, and the noise of sampled clients and rows is "
            f"{v.noise:.3g} times as large."
        )
    if v.drift is not None:
        yield (
            f"Local steps drift by {v.drift:.1%} of the variable's norm from as many steps on the "
            "mean loss."
        )
    if s.clipped is not None:
        yield f"{s.clipped:.0%} of the outer steps were cut to the bound of their rule."


def _place(v: Vitals) -> str:
    return "at the start" if v.round == 0 else f"in round {v.round}"
