"""Means of encoded replies, with or without error feedback.

With error feedback, in the form of EF21 (P. Richtárik, I. Sokolov, I. Fatkhullin, NeurIPS 2021,
arXiv:2106.05203), a client sends  C(reply_i - g_i)  and both sides add it to g_i, which is what the
server knows of the reply; it steps along the mean of all g_i, those of absent clients included.
"""

from typing import NamedTuple

import jax

from rookery import tree
from rookery.program.codec import AbstractCodec
from rookery.program.federation import AbstractFederation, Client, Placed
from rookery.program.memory import Memory
from rookery.types import Key, Tree


class Feedback(NamedTuple):
    """What the server knows of the clients' replies, in the mean, and of each, kept by the client.

    Replies that are iterates are known as changes.
    """

    mean: Tree
    own: Memory

    @classmethod
    def of(cls, reply: Tree) -> "Feedback":
        """Nothing is known of replies of this shape."""
        zero = tree.zeros_like(reply)
        return cls(zero, Memory.of(zero))


def mean_of_encoded(
    fed: AbstractFederation,
    replies: Placed,
    *,
    codec: AbstractCodec,
    like: Tree,
    known: Feedback | tuple[()],
    key: Key,
    salt: int = 1 << 20,
) -> tuple[Tree, Feedback | tuple[()]]:
    """The mean of replies that are sent encoded, and what is known of them after it.

    Args:
        fed: the federation.
        replies: of a cohort.
        codec: the compressor.
        like: a tree of the shapes of a reply.
        known: what is known of the replies; empty if there is no error feedback.
        key: of the exchange.
        salt: makes another key of it than those of the clients' samples.
    """
    if isinstance(known, Feedback):
        fed.refuse_robust(
            "error_feedback=True",
            "the server adds up changes, and so all that a Byzantine client moves the rule by",
        )
    cohort = replies.cohort
    g_i = (fed.recall(cohort, known.own),) if isinstance(known, Feedback) else ()
    sent, g_i = fed.map(encoded, replies, *g_i, key=key, codec=codec, salt=salt)
    mean = fed.mean(sent, decode=lambda row: codec.decode(row, like))  # ----- up    C(..)
    if not isinstance(known, Feedback):
        return mean, ()
    mean = tree.axpy(fed.weight_of(cohort), mean, known.mean)
    return mean, Feedback(mean, fed.keep(known.own, g_i))


def encoded(
    client: Client, reply: Tree, known: Tree | None = None, *, codec: AbstractCodec, salt: int
) -> tuple[tuple[Tree, ...], Tree]:
    """A client's message, and what the server knows of the reply after it."""
    key = jax.random.fold_in(client.key, salt)
    if known is None:
        return codec.encode(reply, key), ()
    sent = codec.encode(tree.sub(reply, known), key)
    return sent, tree.add(known, codec.decode(sent, reply))
