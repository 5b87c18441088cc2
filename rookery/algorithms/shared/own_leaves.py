"""Leaves of a model that stay on each client: normalisation layers (FedBN), a head of its own.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou. FedBN: federated learning on non-IID features via local
batch normalization. ICLR 2021, arXiv:2102.07623.

A client puts the leaves that it was sent and its own together, takes its local steps, sends the
shared leaves back and keeps the others in its memory. Own leaves are neither sent nor billed.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from rookery.algorithms.shared import local
from rookery.algorithms.shared.model import AbstractLocalSGD, ModelState
from rookery.problem.constraints import check_apart, projected
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Memory, Probabilities, check_rule
from rookery.program.step import Step
from rookery.types import Count, Key, Problem, Tree

APART = (
    "Leaves named by own are projected by each client, the others by the server, so that neither "
    "sees both. Use a set for each, such as a box, or leave own out."
)
"""Why own leaves need a set of their own."""


def split(w: Tree, own: tuple[str, ...]) -> tuple[Tree, Tree]:
    """The shared and the own leaves of a model, each with None in place of the others.

    >>> split({"norm": {"scale": 1.0}, "out": 2.0}, ("norm",))
    ({'norm': {'scale': None}, 'out': 2.0}, {'norm': {'scale': 1.0}, 'out': None})
    """
    is_own = jax.tree_util.tree_map_with_path(lambda path, _: bool({*_names(path)} & {*own}), w)
    mine, shared = eqx.partition(w, is_own)
    return shared, mine


def names(value: object) -> tuple[str, ...]:
    """Field converter: one name, or several, as a tuple."""
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, tuple | list) or not all(isinstance(name, str) for name in given):
        raise TypeError(
            f"own must be names of parts of the model, such as ('norm',), got {value!r}."
        )
    return tuple(given)


class AbstractOwnLeaves(AbstractLocalSGD):
    """Local steps and a mean of the models, some leaves of which may stay on the clients.

    Args:
        own: names of parts of the model that are each client's own, as the keys of a dictionary or
            the fields of a module: every leaf below one of them is kept by the client and never
            sent. The solution has the clients' mean of these leaves, by their weights; evaluations
            on clients use the client's own, and :meth:`client_solution` is the model of one client.
            A set of the model (``project``) must bound these leaves and the others each by
            themselves.
    """

    _: KW_ONLY
    own: tuple[str, ...] = eqx.field(static=True, converter=names, default=())

    def __check_init__(self):
        if self.own:
            check_rule(self.name, self.clients)

    def check_start(
        self, problem: Problem, start: tuple[Tree, ...], example: Callable[[str], Tree]
    ) -> None:
        """Raise unless every name of ``own`` is in the model, and some leaf is shared."""
        super().check_start(problem, start, example)
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(start[0])]
        listed = ", ".join(jax.tree_util.keystr(path) for path in paths)
        for name in self.own:
            if not any(name in _names(path) for path in paths):
                raise ValueError(f"own names {name!r}, which is not in the model: {listed}.")
        if self.own and not jax.tree.leaves(split(start[0], self.own)[0]):
            raise ValueError(f"own={self.own} leaves nothing to share of the model: {listed}.")
        if self.own:
            check_apart(problem, "w", start[0], lambda w: split(w, self.own), APART)

    def shared_part(self, w: Tree) -> Tree:
        """The leaves of a model that are not the clients' own."""
        return split(w, self.own)[0]

    def init(self, problem: Problem, w: Tree) -> ModelState:
        """The given model; every client begins with the same leaves of its own."""
        state = super().init(problem, w)
        if not self.own:
            return state
        own = Memory.of(split(w, self.own)[1])
        # equal leaves have the same mean by any weights; a round knows the clients' own
        return state._replace(own=own, own_weights=Probabilities())

    def solution(self, state: ModelState) -> tuple[Tree]:
        """(w,), with the mean of the clients' own leaves by their weights."""
        if not self.own:
            return (state.w,)
        weights = state.own_weights.values

        def mean(rows: Array) -> Array:
            return jnp.average(rows, axis=0, weights=weights).astype(rows.dtype)

        return (eqx.combine(jax.tree.map(mean, state.own.rows), state.w),)

    def own_leaves(self, state: ModelState) -> tuple[Tree] | None:
        """The clients' own leaves, a row each."""
        return (state.own.rows,) if self.own else None

    def client_solution(self, state: ModelState, client: int) -> tuple[Tree]:
        """(w,), with the own leaves of one client."""
        if not self.own:
            return (state.w,)
        return (eqx.combine(jax.tree.map(lambda rows: rows[client], state.own.rows), state.w),)

    def mean_of(
        self,
        step: Step,
        fed: AbstractFederation,
        problem: Problem,
        state: ModelState,
        key: Key,
        *,
        of_models: bool = False,
    ) -> tuple[Tree, ModelState]:
        """One exchange: a cohort gets the shared leaves and runs ``step`` with its own."""
        if not self.own:
            return super().mean_of(step, fed, problem, state, key, of_models=of_models)
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        shared, at_server = split(state.w, self.own)
        values = fed.broadcast(cohort, shared), fed.recall(cohort, state.own)  # down  shared leaves
        settings = {"problem": problem, "algorithm": self, "whole_step": step}
        replies, opt = local.map_steps(
            fed, cohort, state.own_opt, steps_with_own, *values, key=local_key, **settings
        )
        models, own = replies
        mean = fed.mean(models, around=values[0])  # ------------------------- up    shared leaves
        weights = Probabilities(fed.weights.astype(state.own_weights.values.dtype))
        return eqx.combine(mean, at_server), state._replace(
            own_opt=opt, own=fed.keep(state.own, own), own_weights=weights
        )


def steps_with_own(
    client: Client,
    shared: Tree,
    own: Tree,
    opt: Tree | None = None,
    *,
    problem: Problem,
    algorithm: AbstractOwnLeaves,
    whole_step: Step,
    round: Count,
) -> tuple[tuple[Tree, Tree], Tree]:
    """The shared and the own leaves after the client's local steps, and the state of its rule."""
    w = eqx.combine(shared, own)
    w, opt = whole_step(client, w, opt, problem=problem, algorithm=algorithm, round=round)
    sent, _ = split(w, algorithm.own)  # the server projects their mean
    _, kept = split(projected(problem, "w", w), algorithm.own)
    return (sent, kept), opt


def _names(path: tuple) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)
