"""What clients have, or have no longer: values that only memories need, and two slots of one."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from world import PEOPLE, QUICK, ZOO, reasons

import rookery as rk
from rookery.program.participation import Cohort
from rookery.remote import Faults, InProcess, Remote


class State(NamedTuple):
    """The iterate, and what clients keep of it."""

    w: Any
    own: rk.program.Memory


class Keeping(rk.AbstractAlgorithm):
    """Clients keep the model that they are sent, and no step of theirs needs it in that round.

    Args:
        step_too: whether some of them also run a step for it, that nobody asks for.
    """

    step_too: bool = False

    def check(self, problem, n_clients):
        """Anything goes."""

    def init(self, problem, w):
        """Zeros."""
        return State(w, rk.program.Memory.of(jnp.zeros_like(w)))

    def round(self, fed, problem, state, key):
        """The mean of what was kept, and the next thing to keep."""
        everyone = fed.sample(rk.participation.Everyone(), key)
        kept = fed.mean(fed.map(slope, fed.recall(everyone, state.own), key=key, problem=problem))
        w = state.w - 0.1 * kept
        some = fed.sample(rk.participation.Fixed((0, 3)), key)
        own = fed.keep(state.own, fed.broadcast(some, w))
        if self.step_too:
            others = fed.sample(rk.participation.Fixed((1, 2)), key)
            new = fed.map(slope, fed.broadcast(others, w), key=key, problem=problem)
            own = fed.keep(own, new)
        return State(w, own)

    def solution(self, state):
        """The iterate."""
        return (state.w,)


class Twice(Keeping):
    """One client stands in two slots."""

    def round(self, fed, problem, state, key):
        """A mean over three slots."""
        ids, occurrence = jnp.array([1, 1, 2]), jnp.array([0, 1, 0])
        cohort = Cohort(ids, jnp.ones(3, bool), occurrence)
        w = fed.broadcast(cohort, state.w)
        slopes = fed.mean(fed.map(slope, w, key=key, problem=problem))
        return State(state.w - 0.1 * slopes, state.own)


def slope(client, w, *, problem):
    return problem.gradient(w, client.draw("train", 2, client.key))


def both(algorithm, faults=None, rounds=3):
    def run(engine):
        return rk.run(algorithm, ZOO.problem, PEOPLE, ZOO.start, rounds=rounds, engine=engine)

    result = run(Remote(InProcess(faults or Faults()), QUICK))
    want = run(rk.Eager())
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), result.state, want.state
    )
    return result, want


@pytest.mark.parametrize("step_too", [False, True])
def test_a_value_that_is_only_kept_is_sent(step_too):
    result, want = both(Keeping(step_too))
    assert result.events == ()
    assert result.ledger.values()[:-1] == want.ledger.values()[:-1]


def test_a_client_that_is_started_anew_between_two_slots_of_its_own_is_sent_all_again():
    # its agreement, its first slot, and then it has forgotten
    result, _ = both(Twice(), Faults(restarts={1: 3}))
    assert "client 1: the client has no agreement" in reasons(result)
