"""FedEx: the settings of the local steps are tuned while the model is trained.

M. Khodak, R. Tu, T. Li, L. Li, M.-F. Balcan, V. Smith, A. Talwalkar. Federated hyperparameter
tuning: challenges, baselines, and connections to weight-sharing. NeurIPS 2021, arXiv:2106.04502.

    paper   code            meaning
    w       w               the model
    c       settings        k settings of the local steps
    θ       log_theta       with which probability a client gets each setting; starts equal
    L_i     error           loss of a client's new model on its validation rows
    λ       baseline        mean of the errors of earlier rounds, discounted
    γ       discount        of that mean, per round
    η       -               step size of θ, see below
    p_i     -               weights of the cohort in the mean

    client      gets the setting j_i, drawn from θ;  w_i = w after its local steps;  L_i at w_i
    server      w = mean of w_i
                ∇_j = Σ_i p_i (L_i - λ) 1[j_i = j] / θ_j
                θ_j is multiplied by exp(-η ∇_j), and θ divided by its sum

    schedule    η
    adaptive    √(2 log k) / √(Σ over rounds of |∇|∞²)
    aggressive  √(2 log k) / |∇|∞

∇ is an unbiased estimate of how the mean error depends on θ, whatever λ is; λ lowers its variance.
Once the entropy of θ is below ``cutoff``, θ stays as it is. With one setting it is FedAvg.

Cost of a round: 1 exchange, w and the number of a setting down, w_i, an error and that number up.
Departures from the paper: errors count by the clients' weights, as the models do, and not by their
validation rows; in round 0, before there is any error to compare with, θ does not move. The batch
size is the same for all settings.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rookery import check, tree
from rookery.algorithms.shared.model import check_server_rule, move_to_mean
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.statistics import check_statistics, follows_batches
from rookery.algorithms.shared.step_rule import StepRule, check_number, first_opt, step_rule
from rookery.problem.constraints import projected
from rookery.problem.single_level import SingleLevel
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.types import Key, Tree


class LocalSetting(eqx.Module):
    """One setting of the local steps, among which :class:`FedEx` chooses.

    Args:
        lr: size of a step.
        local_steps: how many there are in a round.
        momentum: how much of the last step stays, at least 0 and below 1; reset in every round.
        mu: strength of a proximal term  mu/2 |w_i - w|²,  as in FedProx.

    >>> LocalSetting(lr=0.1, local_steps=5).momentum
    0.0
    """

    _: KW_ONLY
    lr: float = eqx.field(converter=number)
    local_steps: int = 1
    momentum: float = eqx.field(converter=number, default=0.0)
    mu: float = eqx.field(converter=number, default=0.0)

    def __check_init__(self):
        check_number("LocalSetting", "lr", self.lr, "FedEx compares sizes that stay.")
        check.count("local_steps", self.local_steps)
        check.decay("momentum", self.momentum)
        check.not_negative("mu", self.mu)


class FedExState(NamedTuple):
    """The model and its rule's state, log θ, and what the step size and the baseline sum up.

    ``squares`` is the sum of |∇|∞², ``errors`` the discounted sum of the rounds' mean errors, and
    ``rounds`` that of their number.
    """

    w: Tree
    opt: Tree
    log_theta: Float[Array, " k"]
    squares: Float[Array, ""]
    errors: Float[Array, ""]
    rounds: Float[Array, ""]


class FedEx(SampledAlgorithm):
    """FedAvg whose clients try settings, of which the better ones become more likely.

    Args:
        settings: k of them, of :class:`LocalSetting`.
        schedule: the step size of θ: ``"adaptive"`` falls with the gradients so far,
            ``"aggressive"`` is as long in every round.
        discount: γ, at least 0 and below 1; 0 compares with the last round.
        cutoff: entropy, in nats, below which θ stays; 0 never stops.
        validation_split: the split of a client's data that errors are measured on.
        server_lr: step rule of the server, as in :class:`FedAvg`.

    >>> tried = tuple(LocalSetting(lr=lr, local_steps=5) for lr in (0.01, 0.1, 1.0))
    >>> algorithm = FedEx(settings=tried, clients=10)
    >>> state = algorithm.init(None, jnp.zeros(2))
    >>> [round(float(theta), 3) for theta in algorithm.probabilities(state)]
    [0.333, 0.333, 0.333]
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    settings: tuple[LocalSetting, ...] = eqx.field(converter=tuple)
    schedule: Literal["adaptive", "aggressive"] = eqx.field(static=True, default="adaptive")
    discount: float = eqx.field(converter=number, default=0.9)
    cutoff: float = eqx.field(converter=number, default=0.0)
    validation_split: str = eqx.field(static=True, default="validation")
    server_lr: StepRule | None = eqx.field(converter=step_rule, default=None)

    def __check_init__(self):
        if not self.settings or not all(isinstance(s, LocalSetting) for s in self.settings):
            raise TypeError(
                "settings of FedEx must be one LocalSetting or more, such as "
                f"(LocalSetting(lr=0.1), LocalSetting(lr=0.01)), got {self.settings!r}."
            )
        check.one_of("schedule", self.schedule, ["adaptive", "aggressive"])
        check.decay("discount", self.discount)
        check.not_negative("cutoff", self.cutoff)
        check_server_rule(self.server_lr)

    def check(self, problem: SingleLevel, n_clients: int) -> None:
        """Raise unless the problem is single-level and there are enough clients."""
        check_kind(self, problem, SingleLevel)
        self.clients.check(n_clients)

    def check_start(
        self, problem: SingleLevel, start: tuple[Tree, ...], example: Callable[[str], Tree]
    ) -> None:
        """Raise unless clients have the validation split and the server's rule fits the model."""
        example(self.validation_split)
        follow = follows_batches(problem, start[0], example)
        check_statistics("server_lr", self.server_lr, start[0], follow=follow)

    def init(self, problem: SingleLevel, w: Tree) -> FedExState:
        """The given model; all settings are equally likely."""
        zero, k = jnp.zeros(()), len(self.settings)
        equal = jnp.full(k, -jnp.log(float(k)))
        return FedExState(w, first_opt(self.server_lr, w), equal, zero, zero, zero)

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: FedExState, key: Key
    ) -> FedExState:
        """One exchange, a step of w and one of θ."""
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        drawn = jax.random.categorical(
            jax.random.fold_in(key, 2), state.log_theta, shape=(len(cohort),)
        )
        w = fed.broadcast(cohort, state.w)  # -------------------------------- down  w
        j = fed.scatter(cohort, drawn.astype(jnp.int32))  # ------------------ down  j_i
        settings = {"problem": problem, "algorithm": self}
        sent = fed.map(steps_by_setting, w, j, key=local_key, **settings)
        mean, errors, shares = fed.mean(  # ----------------------------------- up    w_i, L_i, j_i
            sent, decode=self.decode, around=(w, None, None)
        )
        new, opt = move_to_mean(self.server_lr, mean, state.opt, state.w, fed.round)
        return self.update_theta(
            state._replace(w=projected(problem, "w", new), opt=opt), errors, shares
        )

    def decode(self, message: tuple[Tree, Array, Array]) -> tuple[Tree, Array, Array]:
        """w_i, and L_i and 1 at the place of the setting."""
        w, error, j = message
        place = jax.nn.one_hot(j, len(self.settings), dtype=error.dtype)
        return w, error * place, place

    def update_theta(
        self, state: FedExState, errors: Float[Array, " k"], shares: Float[Array, " k"]
    ) -> FedExState:
        """An exponentiated gradient step of θ.

        Args:
            state: with θ and the baseline of the rounds before.
            errors: Σ_i p_i L_i 1[j_i = j] for every setting j.
            shares: Σ_i p_i 1[j_i = j].
        """
        dtype, k = state.log_theta.dtype, len(self.settings)
        errors, shares = errors.astype(dtype), shares.astype(dtype)
        theta, is_known = jnp.exp(state.log_theta), state.rounds > 0
        baseline = state.errors / jnp.where(is_known, state.rounds, 1.0)
        was_drawn = is_known & (shares > 0)
        gradient = jnp.where(was_drawn, (errors - baseline * shares) / theta, 0.0)

        norm = jnp.max(jnp.abs(gradient))
        squares = state.squares + norm**2
        length = jnp.sqrt(squares) if self.schedule == "adaptive" else norm
        eta = jnp.sqrt(2 * jnp.log(float(k))) / jnp.where(length > 0, length, 1.0)
        entropy = -jnp.sum(theta * state.log_theta)
        eta = jnp.where(entropy < self.cutoff, 0.0, eta).astype(dtype)
        discount = jnp.asarray(self.discount).astype(dtype)
        return state._replace(
            log_theta=jax.nn.log_softmax(state.log_theta - eta * gradient),
            squares=squares,
            errors=discount * state.errors + jnp.sum(errors),
            rounds=discount * state.rounds + 1,
        )

    def solution(self, state: FedExState) -> tuple[Tree]:
        """(w,)."""
        return (state.w,)

    def probabilities(self, state: FedExState) -> Float[Array, " k"]:
        """θ."""
        return jnp.exp(state.log_theta)

    def best(self, state: FedExState) -> LocalSetting:
        """The most likely setting."""
        return self.settings[int(jnp.argmax(state.log_theta))]


def steps_by_setting(
    client: Client, centre: Tree, j: Int[Array, ""], *, problem: SingleLevel, algorithm: FedEx
) -> tuple[Tree, Array, Array]:
    """The client's model after local steps by setting j, its validation loss, and j."""
    kind = jnp.result_type(*jax.tree.leaves(centre))

    def chosen(name: str) -> Array:
        return jnp.stack([jnp.asarray(getattr(s, name)) for s in algorithm.settings])[j]

    lr, momentum, mu = (chosen(name).astype(kind) for name in ("lr", "momentum", "mu"))

    def step(nu, carry):
        w, u = carry
        w = projected(problem, "w", w)
        key = jax.random.fold_in(client.key, nu)
        sample = client.draw(problem.split, algorithm.batch_size, key)
        g = tree.axpy(mu, tree.sub(w, centre), problem.gradient(w, sample))
        u = tree.axpy(momentum, u, g)
        return tree.axpy(-lr, u, w), u

    first, most = (centre, tree.zeros_like(centre)), max(s.local_steps for s in algorithm.settings)
    w, _ = client.repeat(chosen("local_steps"), step, first, most=most)
    validation = client.draw(algorithm.validation_split, None, client.key)
    return w, problem.value(projected(problem, "w", w), validation), j
