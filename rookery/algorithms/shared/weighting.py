"""How the replies of a sampled cohort are weighed."""

from typing import Literal

import jax.numpy as jnp

from rookery import check, tree
from rookery.program.federation import AbstractFederation
from rookery.program.participation import AbstractParticipation, Cohort, Everyone, Uniform
from rookery.types import Tree

Weighting = Literal["unbiased", "normalised"]
"""With clients' weights p_i and a cohort C of |C| out of m clients:

unbiased: by (m / |C|) p_i, whose sum is one on average; normalised: by p_i divided by their sum.
"""


def check_weighting(weighting: Weighting, clients: AbstractParticipation) -> None:
    """Raise unless a cohort's replies can be weighed like this."""
    check.one_of("weighting", weighting, ["unbiased", "normalised"])
    if weighting == "unbiased" and not isinstance(clients, Everyone | Uniform):
        raise ValueError(
            'weighting="unbiased" divides by the probability with which a uniform cohort holds a '
            f"client, but clients is {type(clients).__name__}. Use clients=n, or "
            'weighting="normalised": the means of Proportional and Weighted are unbiased as they '
            "are."
        )


def weighed(
    fed: AbstractFederation,
    weighting: Weighting,
    cohort: Cohort,
    mean: Tree,
    *,
    around: Tree | None = None,
) -> Tree:
    """The sum of the weighed replies of a cohort, from their mean.

    Args:
        fed: the federation.
        weighting: how they are weighed.
        cohort: who replied.
        mean: the normalised mean.
        around: what replies are changes of, if they are iterates.
    """
    if weighting == "normalised":
        return mean
    factor = fed.weight_of(cohort) * (fed.n_clients / jnp.sum(cohort.active))
    if around is None:
        return tree.scale(factor, mean)
    return tree.axpy(factor, tree.sub(mean, around), around)
