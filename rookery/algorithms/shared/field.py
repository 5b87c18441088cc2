"""Vector fields over all variables of a problem at once, and their means over clients.

A field takes (problem, blocks, sample), the blocks being a tuple of the problem's variables, and
gives what is subtracted from them. Descent along a gradient is one field; descent-ascent another.
"""

from collections.abc import Callable

import jax

from rookery import tree
from rookery.algorithms.shared.context import Context
from rookery.problem.minimax import Minimax
from rookery.program.federation import Client
from rookery.types import BatchSize, Key, Sample, Tree

Blocks = tuple[Tree, ...]
Field = Callable[[Minimax, Blocks, Sample], Tree]


def saddle_field(problem: Minimax, blocks: Blocks, sample: Sample) -> Blocks:
    """(f_x, -f_y): descent in x and ascent in y."""
    return descent_field(problem, blocks, sample), ascent_field(problem, blocks, sample)


def descent_field(problem: Minimax, blocks: Blocks, sample: Sample) -> Tree:
    """f_x alone."""
    x, y = blocks
    return problem.grad_x(x, y, sample)


def ascent_field(problem: Minimax, blocks: Blocks, sample: Sample) -> Tree:
    """-f_y alone."""
    x, y = blocks
    return tree.scale(-1, problem.grad_y(x, y, sample))


def mean_field(context: Context, field: Field, blocks: Blocks, key: Key) -> Tree:
    """The mean of a field over a fresh cohort: one exchange."""
    who, sample_key = jax.random.split(key)
    cohort = context.sample(who)
    at = context.fed.broadcast(cohort, blocks)  # ---------------------------- down  all blocks
    values = context.map(own_field, at, key=sample_key, field=field)
    return context.fed.mean(values)  # --------------------------------------- up    the field


def own_field(
    client: Client, blocks: Blocks, *, field: Field, problem: Minimax, batch_size: BatchSize
) -> Tree:
    """The field on a sample of the client's rows."""
    return field(problem, blocks, client.draw(problem.split, batch_size, client.key))
