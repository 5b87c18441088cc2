"""FedPAQ: FedAvg whose clients send their changes compressed, with or without error feedback.

A. Reisizadeh, A. Mokhtari, H. Hassani, A. Jadbabaie, R. Pedarsani. FedPAQ: a
communication-efficient federated learning method with periodic averaging and quantization.
AISTATS 2020, arXiv:1909.13014.

    paper   code            meaning
    x_k     w               the model
    τ       local_steps
    Q       codec           compressor (:mod:`rookery.program.codec`)

    client  w_i = w after τ local steps;  up  Q(w_i - w)
    server  w = w + mean Q(w_i - w)

With error feedback (S. P. Karimireddy, Q. Rebjock, S. Stich, M. Jaggi, ICML 2019, arXiv:1901.09847)
a client keeps what its messages left out, e_i, and adds it to the next change:
up  Q(w_i - w + e_i).
Cost of a round: 1 exchange, w down, one message of the codec's size up.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import jax

from rookery import tree
from rookery.algorithms.shared.model import (
    AbstractLocalSGD,
    ModelState,
    gradient_steps,
    move_to_mean,
)
from rookery.algorithms.shared.step_rule import is_keeping
from rookery.problem.constraints import projected
from rookery.problem.single_level import SingleLevel
from rookery.program.codec import AbstractCodec
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Memory, check_rule
from rookery.types import Count, Key, Problem, Tree


class FedPAQ(AbstractLocalSGD):
    """Local steps whose sum is sent compressed.

    Args:
        codec: the compressor.
        error_feedback: whether clients add what earlier messages left out; needed by biased codecs
            such as :class:`TopK`.

    >>> import rookery as rk
    >>> FedPAQ(lr=0.1, local_steps=5, codec=rk.parts.TopK(0.01), error_feedback=True).name
    'FedPAQ'
    """

    kind: ClassVar[type] = SingleLevel

    _: KW_ONLY
    codec: AbstractCodec
    error_feedback: bool = False

    def __check_init__(self):
        if self.error_feedback:
            check_rule("error_feedback=True", self.clients)
        if is_keeping(self.lr):
            raise ValueError("lr of FedPAQ got keep=True, but its clients keep no optimiser state.")

    def init(self, problem: Problem, w: Tree) -> ModelState:
        """The given model; nothing has been left out."""
        left_out = Memory.of(tree.zeros_like(w)) if self.error_feedback else ()
        return super().init(problem, w)._replace(own=left_out)

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: ModelState, key: Key
    ) -> ModelState:
        """One exchange."""
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        w, kept = fed.broadcast(cohort, state.w), state.own  # --------------- down  w
        left_out = fed.recall(cohort, kept) if isinstance(kept, Memory) else w  # w: not read
        settings = {"problem": problem, "algorithm": self, "round": fed.round}
        sent, e_i = fed.map(encoded_change, w, left_out, key=local_key, **settings)
        change = fed.mean(sent, decode=lambda row: self.codec.decode(row, state.w))  # up  Q(..)
        kept = fed.keep(kept, e_i) if isinstance(kept, Memory) else ()
        mean = tree.add(state.w, change)
        new, opt = move_to_mean(self.server_lr, mean, state.opt, state.w, fed.round)
        return state._replace(w=projected(problem, "w", new), opt=opt, own=kept)


def encoded_change(
    client: Client,
    w: Tree,
    left_out: Tree,
    *,
    problem: SingleLevel,
    algorithm: FedPAQ,
    round: Count,
) -> tuple[tuple[Tree, ...], Tree]:
    """The message of the client's change, and what it leaves out."""
    own, _ = gradient_steps(client, w, problem=problem, algorithm=algorithm, round=round)
    change, key = tree.sub(own, w), jax.random.fold_in(client.key, 1 << 20)  # no step's key
    if not algorithm.error_feedback:
        return algorithm.codec.encode(change, key), ()
    change = tree.add(change, left_out)
    sent = algorithm.codec.encode(change, key)
    return sent, tree.sub(change, algorithm.codec.decode(sent, change))
