"""A diary of asynchronous work: who worked on which version when, and how stale results were."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

ROWS = 400
"""How many jobs are written down, the first of a run: enough for a picture of its beginning."""

BINS = 33
"""Stalenesses that are told apart when they are counted; the last counts all from there on."""


class AsyncTrace(eqx.Module):
    """The first jobs that the server received, in that order, and the staleness of all.

    Times are seconds from the beginning of the run.

    Attributes:
        client: whose job it was.
        began: when the client received the values.
        ended: when its result was there.
        taken: when the server went on and used it.
        version: of the server, when the job began.
        used_in: the version of the server that used it; the difference is the staleness.
        received: how many results there were in all, which may be more than there are rows.
        staleness: how many results had which; the last counts all that are as large or larger.
    """

    client: jax.Array
    began: jax.Array
    ended: jax.Array
    taken: jax.Array
    version: jax.Array
    used_in: jax.Array
    received: jax.Array
    staleness: jax.Array

    @classmethod
    def empty(cls) -> "AsyncTrace":
        """Nothing has been received."""
        numbers, times = jnp.zeros(ROWS, jnp.int32), jnp.zeros(ROWS)
        none, counts = jnp.zeros((), jnp.int32), jnp.zeros(BINS, jnp.int32)
        return cls(numbers, times, times, times, numbers, numbers, none, counts)

    def add(self, active: Any, **job: Any) -> "AsyncTrace":
        """The same with some jobs more: a row for each slot, of which not all are active."""
        active = jnp.asarray(active)
        # slots that are switched off, and jobs for which there is no room, aim past the end
        at = self.received + jnp.cumsum(active, dtype=jnp.int32) - 1
        at = jnp.where(active, at, ROWS)

        def write(name):
            table = getattr(self, name)
            return table.at[at].set(jnp.asarray(job[name], table.dtype), mode="drop")

        names = ("client", "began", "ended", "taken", "version", "used_in")
        age = jnp.asarray(job["used_in"] - job["version"], jnp.int32)
        bin = jnp.where(active, jnp.minimum(age, BINS - 1), BINS)
        return AsyncTrace(
            **{name: write(name) for name in names},
            received=self.received + jnp.sum(active, dtype=jnp.int32),
            staleness=self.staleness.at[bin].add(1, mode="drop"),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, without the rows that are still empty."""
        columns = {name: value.tolist() for name, value in vars(self).items()}
        rows = min(columns["received"], ROWS)
        return {
            name: value[:rows] if name not in ("received", "staleness") else value
            for name, value in columns.items()
        }
