"""How a variable moves along a direction: by a size, a schedule, an optimiser, or by itself.

Wherever an algorithm has a step size, a *step rule* may stand:

    0.1                                             the size of every step
    PerCall(0.1)                                    shared out over the local steps of a call
    Decay(0.1, 0.99), PowerDecay(0.1, 0.5), ByRound(f)      a size for each round
    optax.adam(0.1)                                 an optimiser whose numbers are fixed
    Optimiser(optax.adam, learning_rate=0.1)        the same; its numbers can be swept over
    "auto": Curvature() inside, DoG() outside       sizes that are found during the run

An algorithm carries the optimiser's state beside the variable that it moves:

    opt = first_opt(rule, w)
    w, opt = move(rule, direction, opt, w, round)

A number has no state; then ``opt`` is the empty tuple, and the step is ``w - size * direction``.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.auto import (
    AbstractAuto,
    Curvature,
    ServerOpts,
    inner_auto,
    outer_auto,
)
from rookery.algorithms.shared.schedule import AbstractSchedule, number
from rookery.program.memory import Memory, check_rule
from rookery.program.participation import AbstractParticipation
from rookery.program.step_sizes import smaller
from rookery.types import Converted, Count, Number, Tree

if TYPE_CHECKING:
    import optax  # it takes long to import, and few programs need it


class PerCall(eqx.Module):
    """A step size for a whole call, shared out over its local steps: lr_i = lr / local_steps_i.

    With it, clients that take unequally many steps move equally far; a plain number instead is the
    size of every single local step.

    >>> import rookery as rk
    >>> rk.FedAvg(lr=PerCall(0.1), local_steps=5).local_steps  # five steps of size 0.02
    5
    """

    lr: float = eqx.field(converter=number)

    def __check_init__(self):
        check.positive("PerCall.lr", self.lr)


class Optimiser(eqx.Module):
    """An Optax optimiser where a step size may stand.

    Numbers among the settings are arrays of the compiled program, so that a sweep over them is one
    program. A schedule of rookery among them, such as :class:`Decay`, is evaluated at the round; a
    schedule of Optax counts the optimiser's own steps.

    At the server the optimiser's state lasts from round to round. On a client it is reset in
    every call, unless ``keep`` is set: then it stays in the client's memory between the rounds
    that the client takes part in.

    >>> import optax
    >>> Optimiser(optax.adam, learning_rate=0.01, b1=0.8).settings["b1"]
    0.8

    Args:
        factory: a function that returns an Optax transformation, such as ``optax.adam``.
        keep: whether a client keeps the state between rounds.
        settings: keyword arguments of ``factory``.
    """

    factory: "Callable[..., optax.GradientTransformation]" = eqx.field(static=True)
    settings: dict[str, Any]  # of any type that the factory takes
    keep: bool = eqx.field(static=True)

    def __init__(
        self,
        factory: "Callable[..., optax.GradientTransformation] | optax.GradientTransformation",
        /,
        *,
        keep: bool = False,
        **settings: object,
    ):
        if is_transformation(factory):
            if settings:
                raise TypeError(
                    f"Optimiser got {', '.join(settings)} for a transformation whose numbers are "
                    "fixed already. Give the function that makes it, as in "
                    "Optimiser(optax.adam, learning_rate=0.1)."
                )
            factory, settings = given, {"transformation": factory}
        if not callable(factory):
            raise TypeError(
                "Optimiser takes a function that returns an Optax transformation, such as "
                f"optax.adam, got {factory!r}."
            )
        if not isinstance(keep, bool):
            raise TypeError(f"Optimiser.keep must be True or False, got {keep!r}.")
        if "learning_rate" in settings:
            settings["learning_rate"] = number(settings["learning_rate"])
        self.factory, self.settings, self.keep = factory, settings, keep

    def __check_init__(self):
        if "learning_rate" in self.settings and not callable(self.settings["learning_rate"]):
            check.positive(f"learning_rate of {self.name}", self.settings["learning_rate"])
        made = []
        numbers, others = eqx.partition(self, lambda leaf: isinstance(leaf, float | jax.Array))
        try:
            jax.eval_shape(
                lambda numbers: made.append(
                    eqx.combine(numbers, others).transformation(0, jnp.zeros(()))
                ),
                numbers,
            )
        except jax.errors.ConcretizationTypeError as error:
            raise TypeError(
                f"{self.name} decides something by the value of a number, which is not known when "
                "the program is compiled. Give the transformation itself, its numbers fixed, as "
                "optax.adam(0.1) instead of Optimiser(optax.adam, learning_rate=0.1)."
            ) from error
        except TypeError as error:
            raise TypeError(f"{self.name}: {str(error).removesuffix('.')}.") from error
        if not is_transformation(made[0]):
            raise TypeError(f"{self.name} returned {made[0]!r}, not an Optax transformation.")
        self._check_needs(numbers, others)

    def _check_needs(self, numbers: Tree, others: Tree) -> None:
        """Raise if a step needs more than the direction, the state and the variable."""

        def step(numbers, w):
            rule = eqx.combine(numbers, others)
            return rule.move(w, rule.first_opt(w), w, 0)

        try:
            jax.eval_shape(step, numbers, jnp.zeros(1))
        except TypeError as error:
            if "required keyword-only argument" in str(error):
                raise TypeError(
                    f"{self.name} needs more than a direction: {error}. A step of an algorithm has "
                    "no value of the loss and no line search. Use an optimiser without them, such "
                    "as optax.adam."
                ) from error
        except Exception:  # made for a tree that is not known here, as optax.masked
            return

    @property
    def name(self) -> str:
        """What messages call the optimiser."""
        return f"Optimiser({getattr(self.factory, '__name__', self.factory)})"

    def first_opt(self, w: Tree) -> Tree:
        """The optimiser's state before the first step from ``w``."""
        w = tree.as_arrays(w)
        with jax.numpy_dtype_promotion("standard"):
            return self.transformation(0, w).init(w)

    def move(self, direction: Tree, opt: Tree, w: Tree, round: Count) -> tuple[Tree, Tree]:
        """The variable and the optimiser's state after one step."""
        with jax.numpy_dtype_promotion("standard"):
            updates, opt = self.transformation(round, w).update(direction, opt, w)
            return import_module("optax").apply_updates(w, updates), opt

    def first_update(self, direction: Tree, w: Tree) -> Tree:
        """What the first step of round 0 adds to the variable."""
        with jax.numpy_dtype_promotion("standard"):
            return self.transformation(0, w).update(direction, self.first_opt(w), w)[0]

    def with_smaller_steps(self, factor: float) -> "Optimiser":
        """The optimiser with its learning rate, or else all its updates, times a factor.

        The state keeps its structure. A learning rate that is a number stays one; other optimisers
        become another program.
        """
        rate = self.settings.get("learning_rate")
        if isinstance(rate, float | jax.Array):
            return self._changed(self.factory, learning_rate=rate * factor)
        if isinstance(rate, AbstractSchedule):
            return self._changed(self.factory, learning_rate=smaller(rate, factor))
        if self.factory is smaller_updates:
            return self._changed(smaller_updates, scale=self.settings["scale"] * factor)
        return self._changed(smaller_updates, factory=self.factory, scale=float(factor))

    def _changed(self, made_by: Callable, **settings: object) -> "Optimiser":
        new = {"keep": self.keep, **self.settings, **settings}
        return Optimiser(made_by, **new)

    def transformation(self, round: Count, w: Tree) -> "optax.GradientTransformation":
        """The transformation with its numbers at a round, in the precision of ``w``."""
        precision = jnp.result_type(*jax.tree.leaves(w))

        def value(setting):
            if isinstance(setting, AbstractSchedule):
                setting = setting(round)
            if isinstance(setting, jax.Array) and jnp.issubdtype(setting.dtype, jnp.inexact):
                return setting.astype(precision)
            return setting

        with jax.numpy_dtype_promotion("standard"):
            return self.factory(**{name: value(each) for name, each in self.settings.items()})


def is_transformation(value: object) -> "TypeGuard[optax.GradientTransformation]":
    """Whether a value is an Optax transformation. It is none if Optax was never imported."""
    loaded = sys.modules.get("optax")
    return loaded is not None and isinstance(value, loaded.GradientTransformation)


def given(transformation: "optax.GradientTransformation") -> "optax.GradientTransformation":
    """The factory of an optimiser that was given ready-made, with its numbers fixed."""
    return transformation


def smaller_updates(
    *,
    factory: "Callable[..., optax.GradientTransformation]",
    scale: Number,
    **settings: object,
) -> "optax.GradientTransformation":
    """An optimiser whose updates are multiplied by a number; its state is that of the other."""
    inner = factory(**settings)

    def update(updates: Tree, state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        updates, state = inner.update(updates, state, params)
        return jax.tree.map(lambda u: u * jnp.asarray(scale).astype(u.dtype), updates), state

    return import_module("optax").GradientTransformation(inner.init, update)


Size = float | PerCall | AbstractSchedule
StepRule = Size | Optimiser | AbstractAuto
StepRules = StepRule | tuple[StepRule, ...]
"""One for all blocks, or one for each."""

Place = Literal["server", "local", "job"]
"""Who takes the steps: the server, clients in a round, or clients in an asynchronous job."""


def step_rule(value: object) -> Converted:
    """Field converter: whole numbers become floats, and transformations of Optax optimisers.

    "auto" becomes :class:`DoG`, which needs no curvature.
    """
    if is_transformation(value):
        return Optimiser(value)
    return outer_auto(number(value))


def inner_rule(value: object) -> Converted:
    """The same for an inner variable, where "auto" is :class:`Curvature`."""
    return step_rule(inner_auto(value))


def step_rules(value: object) -> Converted:
    """:func:`step_rule` for one rule or several; lists become tuples."""
    return _each(step_rule, value)


def inner_rules(value: object) -> Converted:
    """:func:`inner_rule` for one rule or several; lists become tuples."""
    return _each(inner_rule, value)


def server_rules(value: object) -> Converted:
    """:func:`step_rules` where "auto" is None: the clients' rules, which the server takes too."""
    return None if isinstance(value, str) and value == "auto" else step_rules(value)


def _each(convert: Callable[[object], Converted], value: object) -> Converted:
    if isinstance(value, list | tuple) and not is_transformation(value):
        return tuple(map(convert, value))
    return convert(value)


def check_step_rule(
    name: str, value: object, place: Place = "server", *, may_be_auto: bool = False
) -> None:
    """Raise unless a value is a positive number, or a rule that fits who takes the steps.

    Args:
        name: of the step size.
        value: what was given.
        place: who takes the steps.
        may_be_auto: whether the algorithm finds sizes during the run.
    """
    if isinstance(value, AbstractAuto):
        if may_be_auto:
            return
        raise TypeError(
            f"{name} got {type(value).__name__}, a size that is found during the run, and this "
            "algorithm does not look for one. Give a number or another step rule, such as 0.1."
        )
    if isinstance(value, PerCall) and place == "server":
        raise TypeError(
            f"{name} must be a number, got PerCall. The server takes one step at a time; only "
            "local steps share out a size."
        )
    if isinstance(value, Optimiser) and value.keep and place == "server":
        raise ValueError(
            f"{name} got keep=True, which is for local steps. The state of the server's optimiser "
            "lasts from round to round anyway; leave keep out."
        )
    if isinstance(value, Optimiser) and value.keep and place == "job":
        raise ValueError(
            f"{name} got keep=True, but the jobs of an asynchronous algorithm leave nothing on the "
            "client. Leave keep out: the state then is reset in every job."
        )
    if place == "job" and _has_schedule(value):
        raise TypeError(
            f"{name} got a schedule by round, but the jobs of an asynchronous algorithm span "
            "several rounds. Use a number or an optimiser; a schedule of Optax counts local steps."
        )
    if isinstance(value, PerCall | AbstractSchedule | Optimiser):
        return
    if callable(value):
        raise TypeError(
            f"{name} must be a number or a step rule, got the function "
            f"{getattr(value, '__qualname__', value)}. For an optimiser write "
            "rk.parts.Optimiser(optax.adam, learning_rate=0.1), for a schedule "
            "rk.parts.ByRound(schedule)."
        )
    check.positive(name, value)


def check_step_rules(
    name: str,
    value: StepRules,
    n_blocks: int | None = None,
    place: Place = "server",
    *,
    may_be_auto: bool = False,
) -> None:
    """:func:`check_step_rule` for one rule, or for a tuple with one for each block."""
    for rule in value if isinstance(value, tuple) else (value,):
        check_step_rule(name, rule, place, may_be_auto=may_be_auto)
    if n_blocks is not None and isinstance(value, tuple) and len(value) != n_blocks:
        raise ValueError(f"{name} has {len(value)} entries for {n_blocks} blocks.")


def check_size(algorithm: str, name: str, value: object, why: str, place: Place = "server") -> None:
    """Raise unless a rule is a size, of every step or by round, which this algorithm needs.

    Args:
        algorithm: the name of the algorithm.
        name: of the step size.
        value: what was given.
        why: a sentence on what an optimiser would break.
        place: who takes the steps.
    """
    if isinstance(value, Optimiser):
        raise TypeError(f"{name} of {algorithm} cannot be an optimiser, got {value.name}. {why}")
    check_step_rule(name, value, place)


def check_divisor(algorithm: str, name: str, value: StepRule) -> None:
    """Raise if a size by which the algorithm divides starts at zero."""
    if isinstance(value, AbstractSchedule):
        check.positive(f"{name} of {algorithm}, which divides by it, in round 0", value(0))


def check_number(algorithm: str, name: str, value: object, why: str) -> None:
    """Raise unless a step size is a plain positive number, which this algorithm needs it to be.

    The arguments are those of :func:`check_size`.
    """
    value = step_rule(value)
    if isinstance(value, PerCall | AbstractSchedule | Optimiser | AbstractAuto):
        raise TypeError(
            f"{name} must be a number, got {type(value).__name__}. {algorithm} takes no other "
            f"step rule: {why}"
        )
    check.positive(name, value)


def check_keeping(algorithm: str, clients: AbstractParticipation, *rules: StepRules) -> None:
    """Raise if clients keep an optimiser's state and a cohort may hold a client twice."""
    each = [rule for some in rules for rule in (some if isinstance(some, tuple) else (some,))]
    if any(map(is_keeping, each)):
        check_rule(f"{algorithm} with keep=True", clients)


def is_keeping(rule: StepRule) -> bool:
    """Whether clients keep the rule's state between the rounds that they take part in."""
    return isinstance(rule, Optimiser) and rule.keep


def is_auto(rule: StepRules | None) -> bool:
    """Whether the size of a rule, or of one of several, is found during the run."""
    each = rule if isinstance(rule, tuple) else (rule,)
    return any(isinstance(one, AbstractAuto) for one in each)


def check_not_mixed(algorithm: str, *rules: StepRules) -> None:
    """Raise if sizes that are sent are mixed with states that clients keep, in one call."""
    each = [rule for some in rules for rule in (some if isinstance(some, tuple) else (some,))]
    if any(map(is_keeping, each)) and any(map(is_auto, each)):
        raise ValueError(
            f"{algorithm} got a rule with keep=True beside one whose size is found during the run. "
            "Its clients take the steps of all variables in one call, which has either. Leave "
            "keep out, or give every step."
        )


def check_no_curvature(algorithm: str, name: str, rule: StepRules) -> None:
    """Raise if a rule is :class:`Curvature` where there is no inner problem to measure."""
    if any(isinstance(one, Curvature) for one in (rule if isinstance(rule, tuple) else (rule,))):
        raise TypeError(
            f'{name} of {algorithm} got Curvature, which measures an inner problem. Use "auto", '
            "rk.parts.DoG() or a number."
        )


def check_curvature(name: str, rule: StepRule) -> None:
    """Raise if a rule of an inner variable finds its size otherwise than by :class:`Curvature`."""
    if isinstance(rule, AbstractAuto) and not isinstance(rule, Curvature):
        raise TypeError(
            f"{name} got {type(rule).__name__}, which is for outer steps: the directions of inner "
            'steps shrink within a round. Use "auto", rk.parts.Curvature() or a number.'
        )


def each_rule(outer: StepRule, others: StepRules, n_blocks: int) -> tuple[StepRule, ...]:
    """The rules of x and of the other blocks, one for each."""
    return outer, *(others if isinstance(others, tuple) else (others,) * (n_blocks - 1))


def first_opt(rule: StepRule | None, w: Tree) -> Tree:
    """The state of a rule before its first step from ``w``; empty for a number."""
    return rule.first_opt(w) if isinstance(rule, Optimiser | AbstractAuto) else ()


def kept_opt(rule: StepRule, w: Tree) -> Tree:
    """A memory for the states of a local rule, if the clients keep them; otherwise empty.

    The state of a rule that finds its size is :class:`ServerOpts`.
    """
    if is_auto(rule):
        return ServerOpts(first_opt(rule, w))
    return Memory.of(first_opt(rule, w)) if is_keeping(rule) else ()


def kept_opts(rules: tuple[StepRule, ...], blocks: tuple[Tree, ...]) -> Tree:
    """:func:`kept_opt` of several rules together, one for each variable."""
    if is_auto(rules):
        each = zip(rules, blocks, strict=True)
        return ServerOpts(tuple(first_opt(rule, w) if is_auto(rule) else () for rule, w in each))
    if not any(map(is_keeping, rules)):
        return ()
    return Memory.of(opts_to_keep(rules, tuple(map(first_opt, rules, blocks))))


def opts_to_keep(rules: tuple[StepRule, ...], opts: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """The states of those rules whose states are kept, and nothing of the others."""
    return tuple(opt if is_keeping(rule) else () for rule, opt in zip(rules, opts, strict=True))


def starting_opts(
    rules: tuple[StepRule, ...], blocks: tuple[Tree, ...], kept: tuple[Tree, ...] | None
) -> tuple[Tree, ...]:
    """The states that a client's call starts with: those it kept, and new ones of other rules."""
    fresh = tuple(map(first_opt, rules, blocks))
    if kept is None:
        return fresh
    both = zip(rules, kept, fresh, strict=True)
    return tuple(own if is_keeping(rule) or is_auto(rule) else new for rule, own, new in both)


def move(
    rule: StepRule, direction: Tree, opt: Tree, w: Tree, round: Count, steps: Count = 1
) -> tuple[Tree, Tree]:
    """The variable after one step against a direction, and the rule's new state.

    Args:
        rule: the step rule.
        direction: of the shape of ``w``; a gradient, or what stands for it.
        opt: the rule's state.
        w: the variable.
        round: of the run, for schedules.
        steps: how many steps this call takes in all, for :class:`PerCall`.
    """
    if isinstance(rule, Optimiser):
        return rule.move(direction, opt, w, round)
    if isinstance(rule, AbstractAuto):
        return rule.move(direction, opt, w, steps)
    return tree.axpy(-size_of(rule, round, steps), direction, w), opt


def move_by_sum(
    rule: StepRule, total: Tree, count: Number, opt: Tree, w: Tree, round: Count
) -> tuple[Tree, Tree]:
    """:func:`move` against the mean  total / count;  a step size is divided, not the total."""
    if isinstance(rule, Optimiser | AbstractAuto):
        return move(rule, tree.scale(1 / count, total), opt, w, round)
    return tree.axpy(-size_of(rule, round) / count, total, w), opt


def observed(
    rule: StepRule, direction: Tree, opt: Tree, w: Tree, fresh: Tree | None = None
) -> Tree:
    """The state of a rule with the size for a step along a direction; others stay as they are.

    ``fresh`` is the part of the direction that is of this round alone, all of it if None.
    """
    if not isinstance(rule, AbstractAuto):
        return opt
    if isinstance(opt, ServerOpts):
        return ServerOpts(rule.observed(direction, opt.opts, w, fresh))
    return rule.observed(direction, opt, w, fresh)


def all_observed(
    rules: tuple[StepRule, ...],
    directions: Tree,
    opts: Tree,
    blocks: tuple[Tree, ...],
    fresh: tuple[Tree, ...] | None = None,
) -> Tree:
    """:func:`observed` of several rules together, whose states are sent with one call."""
    if not isinstance(opts, ServerOpts):
        return opts
    fresh = (None,) * len(rules) if fresh is None else fresh
    each = zip(rules, directions, opts.opts, blocks, fresh, strict=True)
    return ServerOpts(tuple(observed(*one) for one in each))


def direction_of(rule: StepRule, opt: Tree, old: Tree, new: Tree) -> Tree:
    """The mean direction of steps that led from ``old`` to ``new`` by a size that was sent."""
    if not isinstance(rule, AbstractAuto):
        return tree.zeros_like(old)
    size = rule.size(opt)
    return tree.scale(1 / jnp.where(size > 0, size, jnp.ones_like(size)), tree.sub(old, new))


def size_of(rule: Size | AbstractAuto, round: Count, steps: Count = 1) -> Number:
    """The size of one step, of a rule that is neither an optimiser nor found during the run."""
    assert not isinstance(rule, AbstractAuto), "algorithms that read sizes refuse it"
    if isinstance(rule, PerCall):
        return rule.lr / jnp.asarray(steps).astype(float)
    return rule(round) if isinstance(rule, AbstractSchedule) else rule


def _has_schedule(rule: object) -> bool:
    """Whether a size, of the rule itself or among an optimiser's settings, depends on the round."""
    values = rule.settings.values() if isinstance(rule, Optimiser) else (rule,)
    return any(isinstance(value, AbstractSchedule) for value in values)
