"""A trace of asynchronous work: who worked on which version when, and how stale results were."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

ROWS = 400
"""How many jobs are recorded, the first of a run: enough to draw its beginning."""

BINS = 33
"""Bins of the staleness histogram; the last counts everything from there on."""

TraceRecord = dict[str, Any]  # JSON: a number, or a list of them
"""A trace as plain numbers, by the names of its columns."""


class AsyncTrace(eqx.Module):
    """The first jobs that the server received, in that order, and the staleness of all.

    Times are seconds from the beginning of the run.

    Attributes:
        client: whose job it was.
        began: when the client received the values.
        ended: when its result was there.
        taken: when the server stopped waiting and used it.
        version: of the server, when the job began.
        used_in: the version of the server that used it; the difference is the staleness.
        received: how many results there were in all, which may be more than there are rows.
        staleness: histogram of the staleness of all results; the last bin is open.
    """

    client: Int[Array, " rows"]
    began: Float[Array, " rows"]
    ended: Float[Array, " rows"]
    taken: Float[Array, " rows"]
    version: Int[Array, " rows"]
    used_in: Int[Array, " rows"]
    received: Int[Array, ""]
    staleness: Int[Array, " bins"]

    @classmethod
    def empty(cls) -> "AsyncTrace":
        """Nothing has been received."""
        numbers, times = jnp.zeros(ROWS, jnp.int32), jnp.zeros(ROWS)
        none, counts = jnp.zeros((), jnp.int32), jnp.zeros(BINS, jnp.int32)
        return cls(numbers, times, times, times, numbers, numbers, none, counts)

    def add(self, active: ArrayLike | list[bool], **job: ArrayLike) -> "AsyncTrace":
        """The trace with more jobs: one per active slot, each column by its name."""
        active = jnp.asarray(active)
        # inactive slots, and jobs for which there is no room, point past the end
        at = self.received + jnp.cumsum(active, dtype=jnp.int32) - 1
        at = jnp.where(active, at, ROWS)

        def write(name):
            table = getattr(self, name)
            return table.at[at].set(jnp.asarray(job[name], table.dtype), mode="drop")

        names = ("client", "began", "ended", "taken", "version", "used_in")
        used_in, version = (jnp.asarray(job[name], jnp.int32) for name in ("used_in", "version"))
        age = used_in - version
        bin = jnp.where(active, jnp.minimum(age, BINS - 1), BINS)
        return AsyncTrace(
            **{name: write(name) for name in names},
            received=self.received + jnp.sum(active, dtype=jnp.int32),
            staleness=self.staleness.at[bin].add(1, mode="drop"),
        )

    def as_dict(self) -> TraceRecord:
        """Plain numbers, without the empty rows.

        >>> AsyncTrace.empty().as_dict()["received"]
        0
        """
        columns = {name: value.tolist() for name, value in vars(self).items()}
        rows = min(columns["received"], ROWS)
        return {
            name: value[:rows] if name not in ("received", "staleness") else value
            for name, value in columns.items()
        }
