"""Values per client that outlive a round, kept by the client itself or by the server."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery.program.participation import AbstractParticipation, Cohort, Weighted, WithReplacement
from rookery.program.values import Placed
from rookery.types import Tree


class Memory(eqx.Module):
    """One value per client that outlives the round; a field of an algorithm's state.

    ``fed.recall`` reads it and ``fed.keep``, nothing else, writes it. Neither sends anything: the
    rows are in the state only because a simulation has to keep them somewhere, and so that
    checkpoints hold them. On the remote engine each client keeps its own row.

    >>> import jax.numpy as jnp
    >>> Memory.of(jnp.zeros(3)).for_clients(10).rows.shape
    (10, 3)

    Attributes:
        rows: one row per client along the first axis; before the rows are made, the value that
            every client begins with.
        n_clients: how many rows there are, or None before they are made.
    """

    rows: Tree
    n_clients: int | None = eqx.field(static=True, default=None)

    @classmethod
    def of(cls, value: Tree) -> "Memory":
        """A memory that begins with the same value on every client, to be made in ``init``."""
        return cls(value)

    def for_clients(self, n_clients: int) -> "Memory":
        """The same with a row for each client."""
        if self.n_clients is not None:
            raise ValueError(f"this memory already has rows, for {self.n_clients} clients.")
        return Memory(repeated(self.rows, n_clients), n_clients)


class PerClient(eqx.Module):
    """One value per client that the *server* keeps, and may send: to each client its own row.

    Among the values of ``fed.poll`` and ``fed.ask`` it stands for one row, and one row is billed.
    Wrap rows where they are needed, ``PerClient(rows)``, or keep them as a field of a state.

    >>> import jax.numpy as jnp
    >>> PerClient.of(jnp.zeros(3)).for_clients(10).rows.shape
    (10, 3)

    Attributes:
        rows: one row per client along the first axis; before the rows are made, the value that
            every client's begins with.
        has_rows: whether the rows have been made.
    """

    rows: Tree
    has_rows: bool = eqx.field(static=True, default=True)

    @classmethod
    def of(cls, value: Tree) -> "PerClient":
        """Rows that begin equal, to be made in ``init``."""
        return cls(value, has_rows=False)

    def for_clients(self, n_clients: int) -> "PerClient":
        """The same with a row for each client."""
        if self.has_rows:
            raise ValueError("this value already has a row for each client.")
        return PerClient(repeated(self.rows, n_clients))


class Probabilities(eqx.Module):
    """Probabilities of all clients, summing to one, that the *server* keeps; a field of a state.

    For example those that it draws clients with. They begin equal; ``init`` need not know how many
    clients there are.

    >>> Probabilities().for_clients(4).values.tolist()
    [0.25, 0.25, 0.25, 0.25]

    Attributes:
        values: one per client, or None before the clients are known.
    """

    values: Any = None  # None only until ``first_state`` has made the rows

    def for_clients(self, n_clients: int) -> "Probabilities":
        """Equal probabilities of ``n_clients`` clients."""
        if self.values is not None:
            raise ValueError(
                f"these probabilities are already there, for {len(self.values)} clients."
            )
        return Probabilities(jnp.full(n_clients, 1 / n_clients))


def check_recall(cohort: Cohort, memory: Memory, n_clients: int) -> None:
    """Raise unless every slot of the cohort has a row of its own in the memory."""
    if not isinstance(memory, Memory):
        raise TypeError(f"fed.recall and fed.keep need a Memory, got {type(memory).__name__}.")
    if memory.n_clients != n_clients:
        raise ValueError(
            f"the memory has rows for {memory.n_clients} clients, and there are {n_clients}. "
            "Make the state with rookery.program.algorithm.first_state, which knows how many."
        )
    if cohort.occurrence is not None:
        raise ValueError(
            "this cohort was drawn with replacement: a client in two slots has one memory and two "
            "values to write. Draw different clients: clients=n, Proportional, Fixed or Everyone."
        )


def check_keep(memory: Memory, rows: Tree) -> None:
    """Raise unless new rows have the shapes and types of the memory's."""
    wanted, got = (
        jax.tree.map(lambda a: f"{jnp.result_type(a)}{[*jnp.shape(a)[1:]]}", tree)
        for tree in (memory.rows, rows)
    )
    if wanted != got:
        raise ValueError(f"fed.keep: new rows have type {got}, but the memory holds {wanted}.")


def check_rule(name: str, rule: AbstractParticipation) -> None:
    """Raise if a rule may draw a client twice, which an algorithm with a memory cannot use."""
    if isinstance(rule, WithReplacement | Weighted):
        raise ValueError(
            f"{name} keeps a value on every client, so a cohort must not hold a client twice; "
            f"got {type(rule).__name__}. Use a number of clients, Proportional, Fixed or Everyone."
        )


def repeated(value: Tree, n_clients: int) -> Tree:
    """A row with the same value for each client; jnp.repeat would need twice the memory."""
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (n_clients, *jnp.shape(a))), value)


def gathered(cohort: Cohort, memory: Memory, n_clients: int) -> Placed:
    """The cohort's rows of a memory."""
    check_recall(cohort, memory, n_clients)
    rows = jax.tree.map(lambda a: a[cohort.ids], memory.rows)
    return Placed(cohort, rows, is_stacked=True)


def rows_to_keep(memory: Memory, placed: Placed, n_clients: int) -> tuple[Tree, Cohort]:
    """New rows of a memory and the cohort that writes them, or an error."""
    rows, cohort = placed.rows(), placed.cohort
    check_recall(cohort, memory, n_clients)
    check_keep(memory, rows)
    return rows, cohort
