"""Clients' memories: they stay on the clients, and come to the server only for checkpoints."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rookery.program.memory import Memory
from rookery.remote.protocol.plan import spec
from rookery.remote.server.client_record import ClientRecords
from rookery.remote.server.message_builder import MessageBuilder
from rookery.remote.server.remote_values import Recalled, RemoteValue, remote_values
from rookery.remote.server.requests import Request
from rookery.remote.server.session import MEMORY_LOST, Session
from rookery.types import Tree

Change = tuple[int, list[RemoteValue], int]
"""A memory's number, the leaves that replace a client's row, and the client's slot."""


def replace_memories(state: Tree, new: Callable[[Memory, int], object]) -> Tree:
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


def restore(clients: ClientRecords, state: Tree) -> None:
    """Take over the memories of a state that clients do not have, such as a checkpoint's."""
    clients.restore([jax.tree.leaves(memory.rows) for memory in memories_of(state)])


def to_remote(state: Tree) -> Tree:
    """The state as an algorithm sees it during a round: clients have the rows."""

    def remote(memory: Memory, number: int) -> Memory:
        row = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), memory.rows)
        return Memory(remote_values(Recalled(number, {}), row), memory.n_clients)

    return replace_memories(state, remote)


def from_remote(state: Tree, clients: ClientRecords) -> Tree:
    """The state with the rows as the server last collected them."""

    def local(memory: Memory, number: int) -> Memory:
        leaves = [jnp.asarray(leaf) for leaf in clients.memories[number]]
        rows = jax.tree.unflatten(jax.tree.structure(memory.rows), leaves)
        return Memory(rows, memory.n_clients)

    return replace_memories(state, local)


def end_round(session: Session, state: Tree, count_work: Callable[[int, int], None]) -> Tree:
    """The state for the next round; records what clients keep of this one.

    A client is told with its next message. Steps whose results are only kept run now, and values
    that are only kept are sent now. Of both, only the work counts.
    """
    changes = _changes(state)
    builders: dict[int, MessageBuilder] = {}

    def build(client: int) -> MessageBuilder:
        builders[client] = builder = MessageBuilder(session.clients, session.round, client, client)
        for _, values, slot in changes[client]:
            for value in values:
                builder.ref(value, slot)
        return builder

    requests: dict[str, dict[int, Request]] = {}  # by step, which a message must name
    for client in changes:
        if (step := build(client).step) is not None:
            requests.setdefault(step, {})[client] = Request(
                client,
                lambda c=client: build(c).request([]),
                [],
                calls=lambda c=client: builders[c].calls,
            )
    missing = {client for some in requests.values() for client in some}
    for step, some in requests.items():
        for client, reply in session.exchange(step, some, needs_all=False, may_skip=False).items():
            count_work(*reply.work)
            builders[client].confirm()
            missing.discard(client)
    for client in changes.keys() - missing:  # a client that did not reply keeps nothing
        builder = MessageBuilder(session.clients, session.round, client, client)
        for number, values, slot in changes[client]:
            leaves = [builder.ref(value, slot) for value in values]
            session.clients[client].changes_memory(number, session.clients.new_stamp(), leaves)
    return replace_memories(
        state,
        lambda memory, number: Memory(
            remote_values(Recalled(number, {}), memory.rows), memory.n_clients
        ),
    )


def collect(session: Session, state: Tree) -> Tree:
    """The state with the rows of all clients, for a checkpoint; not counted as traffic.

    For a client that does not reply, if the policy allows that, the server uses the row that it
    last collected and reports the loss.
    """
    memories = memories_of(state)
    if not memories:
        return state
    values = [value for memory in memories for value in jax.tree.leaves(memory.rows)]
    wanted = [spec(value) for value in values]
    builders: dict[int, MessageBuilder] = {}

    def request(client: int) -> Request:
        def build():
            builder = MessageBuilder(session.clients, session.round, client, client)
            builders[client] = builder
            return builder.request(values)

        return Request(client, build, wanted, is_counted=False)

    requests = {client: request(client) for client in session.clients.with_new_memory}
    replies = session.exchange("memory", requests, needs_all=False, may_skip=False)
    for client in requests.keys() - replies.keys():
        session.report("memory", client, MEMORY_LOST)
        session.clients[client].lost_memory()
    for client, reply in replies.items():
        builders[client].confirm()
        session.clients.collected(client, reply.leaves)
    return from_remote(state, session.clients)


def _changes(state: Tree) -> dict[int, list[Change]]:
    """By client, what it keeps of a round."""
    changes: dict[int, list[Change]] = {}
    for number, memory in enumerate(memories_of(state)):
        values = jax.tree.leaves(memory.rows)
        if not all(isinstance(v, RemoteValue) and isinstance(v.source, Recalled) for v in values):
            raise TypeError(
                f"memory {number} of the state does not lie on the clients. Change a Memory only "
                "with fed.keep."
            )
        source = values[0].source
        moved = source.changed if source.memory == number else range(memory.n_clients or 0)
        for client in moved:
            new, slot = source.changed.get(client, (values, 0))
            changes.setdefault(client, []).append((number, new, slot))
    return changes
