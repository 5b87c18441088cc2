"""Local steps on a client: how many, how large, and in which direction."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.auto import ServerOpts
from rookery.algorithms.shared.step_rule import (
    Place,
    StepRule,
    check_step_rule,
    first_opt,
    move,
)
from rookery.problem.constraints import Projection
from rookery.program.federation import AbstractFederation, Client, Placed, Step
from rookery.program.memory import Memory
from rookery.program.participation import Cohort
from rookery.rng import below
from rookery.samples import Deal
from rookery.types import AnyProblem, BatchSize, Count, Key, Sample, Tree


class RandomSteps(eqx.Module):
    """A number of local steps drawn for every job of a client, uniform on low..high.

    >>> import rookery as rk
    >>> rk.AFACS(lr=0.1, server_lr=0.5, local_steps=rk.parts.RandomSteps(1, 4)).local_steps
    RandomSteps(low=1, high=4)
    """

    low: int
    high: int

    def __check_init__(self):
        check.count("RandomSteps.low", self.low)
        check.count("RandomSteps.high", self.high, least=self.low)


LocalSteps = int | tuple[int, ...] | RandomSteps
"""One number for all clients, one per client, or (where jobs are asynchronous) a random one."""


class LocalPlan(eqx.Module):
    """How the clients of an exchange take their local steps.

    Attributes:
        problem: the problem.
        batch_size: rows per evaluation; None means all of a client's rows.
        lr: the rule of every step.
        steps: how many, one number or one per client.
    """

    problem: AnyProblem
    batch_size: BatchSize
    lr: StepRule
    steps: LocalSteps


def local_steps(value) -> LocalSteps:
    """Field converter: a list of counts becomes a tuple."""
    return tuple(value) if isinstance(value, list) else value


def check_local_steps(
    name: str, value: LocalSteps, n_clients: int | None = None, may_be_drawn: bool = False
) -> None:
    """Raise unless counts are at least one and, if given per client, there is one for each."""
    if isinstance(value, RandomSteps):
        if not may_be_drawn:
            raise TypeError(
                f"{name} must be one number or one per client, got RandomSteps. Only the anarchic "
                "methods (AFBO, AFACD, AFACS), whose clients choose, draw it for each job."
            )
        return
    for count in value if isinstance(value, tuple) else (value,):
        check.count(name, count)
    if n_clients is not None and isinstance(value, tuple) and len(value) != n_clients:
        raise ValueError(f"{name} has {len(value)} entries for {n_clients} clients.")


def check_fields(
    algorithm: eqx.Module,
    n_clients: int | None = None,
    *,
    place: Place = "local",
    may_be_drawn: bool = False,
    may_be_auto: bool = False,
    except_for: tuple[str, ...] = (),
) -> None:
    """Check an algorithm's step rules, numbers of local steps and batch sizes, told by their names.

    In every algorithm step rules are ``lr`` or end in ``_lr``, numbers of local steps end in
    ``_steps`` and batch sizes in ``batch_size``.

    Args:
        algorithm: whose fields are checked.
        n_clients: how many clients there are, if known.
        place: who takes the steps; those of ``server_lr`` are always the server's.
        may_be_drawn: whether a number of local steps may be :class:`RandomSteps`.
        may_be_auto: whether the algorithm finds sizes during the run.
        except_for: fields with a rule of their own, which the caller checks.
    """
    fields = {name: value for name, value in vars(algorithm).items() if name not in except_for}
    how = {"may_be_drawn": may_be_drawn, "may_be_auto": may_be_auto}
    check_settings(fields, n_clients, place=place, **how)


def check_settings(
    settings: Mapping[str, object],
    n_clients: int | None = None,
    *,
    place: Place = "local",
    may_be_drawn: bool = False,
    may_be_auto: bool = False,
) -> None:
    """:func:`check_fields` for settings by name."""
    for name, value in settings.items():
        if name == "lr" or name.endswith("_lr"):
            at = "server" if name == "server_lr" else place
            check_step_rule(name, value, at, may_be_auto=may_be_auto)
        elif name.endswith("_steps"):
            check_local_steps(name, local_steps(value), n_clients, may_be_drawn)
        elif name == "batch_size":
            continue  # which every algorithm checks
        elif name.endswith("batch_size") and value is not None:
            check.count(name, value)


def steps_of(client: Client, steps: LocalSteps, key: Key | None = None):
    """How many local steps this client takes; the key is for those that are drawn."""
    if isinstance(steps, RandomSteps):
        assert key is not None, "algorithms that draw no number of steps refuse RandomSteps"
        return steps.low + below(key, (), steps.high - steps.low + 1)
    return jnp.asarray(steps, jnp.int32)[client.id] if isinstance(steps, tuple) else steps


def most_steps(steps: LocalSteps) -> int:
    """The largest number of local steps that any client takes.

    >>> most_steps((2, 5, 3))
    5
    """
    match steps:
        case RandomSteps(high=high):
            return high
        case tuple():
            return max(steps)
        case int():
            return steps


def map_steps(
    fed: AbstractFederation,
    cohort: Cohort,
    kept: Tree,
    step: Step,
    *values: Placed,
    key: Key,
    **settings: object,
) -> tuple[Placed, Tree]:
    """``fed.map`` of local steps, with the optimisers' states that the clients keep.

    The step gets the state as its last value, if there is one, and the round as a setting; it
    returns its reply and the new state.

    Args:
        fed: the federation.
        cohort: whose clients take the steps.
        kept: the clients' memory of the states, the server's of rules whose sizes are sent, or the
            empty tuple (:func:`kept_opt`).
        step: the client step.
        values: what the cohort holds.
        key: of the samples.
        settings: of the step.

    Returns:
        the replies, and what the clients keep.
    """
    if isinstance(kept, ServerOpts):
        sizes = fed.broadcast(cohort, kept.message())  # -------------------- down  sizes
        replies, _ = fed.map(step, *values, sizes, key=key, round=fed.round, **settings)
        return replies, kept
    if not isinstance(kept, Memory):
        replies, _ = fed.map(step, *values, key=key, round=fed.round, **settings)
        return replies, kept
    own = fed.recall(cohort, kept)
    replies, opt = fed.map(step, *values, own, key=key, round=fed.round, **settings)
    return replies, fed.keep(kept, opt)


def plain_steps(
    client: Client,
    direction: Callable[[Tree, Key], Tree],
    start: Tree,
    rule: StepRule,
    steps: LocalSteps,
    key: Key,
    *,
    project: Projection,
    round: Count,
    opt: Tree | None = None,
) -> tuple[Tree, Tree]:
    """Local steps against ``direction(w, key)``, with a fresh key each.

    Every step starts in the variable's set. The last one may leave it: the mean over the clients is
    projected, not their replies, since the mean of projections is another point.

    Args:
        client: who takes them.
        direction: what a step of size one subtracts.
        start: where they start.
        rule: how the client moves.
        steps: how many, one number or one per client.
        key: of all steps.
        project: onto the variable's set.
        round: of the run, for schedules.
        opt: the rule's state that the client kept; None resets it.

    Returns:
        the variable after the steps, and the rule's state.
    """
    own_steps = steps_of(client, steps)
    opt = first_opt(rule, start) if opt is None else opt

    def step(nu, carry):
        w, opt = carry
        w = project(w)
        return move(rule, direction(w, jax.random.fold_in(key, nu)), opt, w, round, own_steps)

    return client.repeat(own_steps, step, (start, opt), most=most_steps(steps))


def mean_gradient(
    client: Client,
    gradient: Callable[[Tree, Key], Tree],
    start: Tree,
    rule: StepRule,
    steps: LocalSteps,
    *,
    project: Projection,
) -> Tree:
    """The mean of the gradients along a number of local steps, with a key each.

    Jobs of asynchronous methods run it; they have no round, so the rule is no schedule.
    """
    count_key, key = jax.random.split(client.key)
    own_steps = steps_of(client, steps, count_key)

    def step(k, carry):
        w, opt, total = carry
        w = project(w)
        g = gradient(w, jax.random.fold_in(key, k))
        return *move(rule, g, opt, w, 0, own_steps), tree.add(total, g)

    first = start, first_opt(rule, start), tree.zeros_like(start)
    *_, total = client.repeat(own_steps, step, first, most=most_steps(steps))
    return tree.scale(1 / jnp.asarray(own_steps).astype(float), total)


def corrected_steps(
    client: Client,
    drift: Callable[[Tree, Count], Tree],
    anchor: Tree,
    correction: Tree,
    rule: StepRule,
    steps: LocalSteps,
    *,
    project: Projection,
    round: Count,
    opt: Tree | None = None,
) -> tuple[Tree, Tree]:
    """Local steps along  drift(w, ν) + correction,  where  drift = G_i(w; ξ_ν) - G_i(anchor; ξ_ν).

    At the anchor the difference is zero, so the first step needs no evaluation. Arguments and
    results are those of :func:`plain_steps`.
    """
    own_steps = steps_of(client, steps)
    opt = first_opt(rule, anchor) if opt is None else opt

    def step(nu, carry):
        w, opt = carry
        w = project(w)
        along = tree.add(drift(w, nu), correction)
        return move(rule, along, opt, w, round, own_steps)

    first = move(rule, correction, opt, anchor, round, own_steps)
    return client.repeat(own_steps - 1, step, first, most=most_steps(steps) - 1)


def drift_on_draws(
    client: Client,
    draw: Callable[[Key], Sample],
    gradient: Callable[[Tree, Sample], Tree],
    anchor: Tree,
) -> Callable[[Tree, Count], Tree]:
    """G_i(w; ξ) - G_i(anchor; ξ)  on a fresh sample ξ per step, the same in both."""

    def drift(w, nu):
        sample = draw(jax.random.fold_in(client.key, nu))
        return tree.sub(gradient(w, sample), gradient(anchor, sample))

    return drift


def drift_on_deal(
    deal: Deal, gradient: Callable[[Tree, Sample], Tree], at_anchor: Tree
) -> Callable[[Tree, Count], Tree]:
    """G_i(w; b) - G_i(anchor; b)  on dealt batches b in turn.

    ``at_anchor`` has G_i(anchor; b) of all batches along its first axis.
    """

    def drift(w, nu):
        b = nu % deal.batches
        known = jax.tree.map(lambda rows: rows[b], at_anchor)
        return tree.sub(gradient(w, deal.sample(b)), known)

    return drift
