"""Clients' memories: they stay with the clients, and come to the server for checkpoints only."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.program.memory import Memory
from rookery.remote.server.message_builder import Holdings, MessageBuilder
from rookery.remote.server.remote_values import Recalled, RemoteValue, handles_of
from rookery.remote.server.requests import Request
from rookery.remote.server.session import Session
from rookery.types import Tree


def replace_memories(state: Tree, new: Callable[[Memory, int], Any]) -> Tree:
    """A state whose memories, in order, are replaced by ``new(memory, number)``."""
    number = iter(range(1000))
    return jax.tree.map(
        lambda leaf: new(leaf, next(number)) if isinstance(leaf, Memory) else leaf,
        state,
        is_leaf=lambda leaf: isinstance(leaf, Memory),
    )


def memories_of(state: Tree) -> list[Memory]:
    """The memories of a state, in order."""
    found: list[Memory] = []
    replace_memories(state, lambda memory, _: found.append(memory))
    return found


def hand_over(holdings: Holdings, state: Tree) -> None:
    """Take the rows of a state that the clients do not have, as after a checkpoint was read."""
    holdings.rows = [
        [np.array(leaf) for leaf in jax.tree.leaves(memory.rows)] for memory in memories_of(state)
    ]
    holdings.remembering.clear()
    holdings.uncommitted.clear()
    holdings.unseen.clear()


def with_handles(state: Tree) -> Tree:
    """The state as an algorithm sees it during a round: clients have the rows."""

    def remote(memory: Memory, number: int) -> Memory:
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), memory.rows)
        return Memory(handles_of(Recalled(number, {}), like), memory.n_clients)

    return replace_memories(state, remote)


def with_rows(state: Tree, holdings: Holdings) -> Tree:
    """The state with the rows as the server last saw them."""

    def rows(memory: Memory, number: int) -> Memory:
        structure = jax.tree.structure(memory.rows)
        leaves = [jnp.asarray(leaf) for leaf in holdings.rows[number]]
        return Memory(jax.tree.unflatten(structure, leaves), memory.n_clients)

    return replace_memories(state, rows)


def settle(
    session: Session,
    holdings: Holdings,
    round: int,
    state: Tree,
    bill: Callable[[int, int], None],
) -> Tree:
    """The state for the next round, once it is noted what clients keep of this one.

    Only work is billed. Clients are told with the next message that they get. What a client has not
    run yet, because nobody asked for it, is run now, and what it was not sent yet is sent.
    """
    keeping: dict[int, list[tuple[int, list[RemoteValue], int]]] = {}
    for number, memory in enumerate(memories_of(state)):
        handles = jax.tree.leaves(memory.rows)
        if not all(isinstance(h, RemoteValue) and isinstance(h.source, Recalled) for h in handles):
            raise TypeError("a Memory holds what clients keep: change it with fed.keep alone.")
        source = handles[0].source
        moved = source.changed if source.memory == number else range(memory.n_clients or 0)
        for client in moved:
            new, slot = source.changed.get(client, (handles, 0))
            keeping.setdefault(client, []).append((number, new, slot))
    drafts: dict[int, MessageBuilder] = {}

    def draft(client: int) -> MessageBuilder:
        drafts[client] = MessageBuilder(holdings, round, client, client)
        for _, handles, slot in keeping[client]:
            for handle in handles:
                drafts[client].ref(handle, slot)
        return drafts[client]

    asks: dict[str, dict[int, Request]] = {}  # by step, as a message must name what it asks for
    for client in keeping:
        if (step := draft(client).step) is not None:
            asks.setdefault(step, {})[client] = Request(
                client, lambda c=client: draft(c).give([]), []
            )
    silent = {client for some in asks.values() for client in some}
    for step, some in asks.items():
        for client, reply in session.ask(step, some, needs_all=False, spares=False).items():
            bill(*reply.work)
            drafts[client].confirm()
            silent.discard(client)
    for client in keeping.keys() - silent:  # who has not answered keeps nothing
        now = MessageBuilder(holdings, round, client, client)
        holdings.unseen.add(client)
        for number, handles, slot in keeping[client]:
            refs = [now.ref(handle, slot) for handle in handles]
            stamp = next(holdings.stamps)
            holdings.uncommitted.setdefault(client, []).append((number, stamp, refs))
    return with_handles_again(state)


def with_handles_again(state: Tree) -> Tree:
    """The state of the next round: what was kept is now what clients remember."""
    return replace_memories(
        state,
        lambda memory, number: Memory(
            handles_of(Recalled(number, {}), memory.rows), memory.n_clients
        ),
    )


def collect(session: Session, holdings: Holdings, round: int, state: Tree) -> Tree:
    """The state with the rows of all clients, for a checkpoint; it is not billed.

    Of a client that does not answer, if the policy allows that, the row that the server last saw is
    taken, and it is noted.
    """
    memories = memories_of(state)
    if not memories:
        return state
    handles = [handle for memory in memories for handle in jax.tree.leaves(memory.rows)]
    wanted = [f"{handle.dtype}{list(handle.shape)}" for handle in handles]
    drafts: dict[int, MessageBuilder] = {}

    def ask(client: int) -> Request:
        def build():
            drafts[client] = MessageBuilder(holdings, round, client, client)
            return drafts[client].give(handles)

        return Request(client, build, wanted, is_billed=False)

    asks = {client: ask(client) for client in sorted(holdings.unseen)}
    replies = session.ask("memory", asks, needs_all=False, spares=False)
    for client in asks.keys() - replies.keys():
        session.say("memory", client, "its memory of the last rounds is lost")
        holdings.remembering.discard(client)
        holdings.uncommitted.pop(client, None)
    for client, reply in replies.items():
        drafts[client].confirm()
        leaves = iter(reply.leaves)
        for rows in holdings.rows:
            for row in rows:
                row[client] = next(leaves)
    holdings.unseen.clear()
    return with_rows(state, holdings)
