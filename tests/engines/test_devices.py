"""Several devices give the numbers of one; four devices of the processor stand for real ones."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import rookery as rk
from rookery.engines.client_blocks import divided
from rookery.engines.engine import Program
from rookery.engines.spread import CLIENTS, AnyDevice, ByClient, OneDevice
from rookery.program.algorithm import first_state

LOSSES = rk.zoo.quadratic_losses(n_clients=5, size=2, rows=3, noise=0.3)
# memory on clients, and cohorts that four devices do not divide
SCAFFOLD = rk.Scaffold(lr=0.1, local_steps=2, clients=3, batch_size=2)

EVERYWHERE = P()


def mesh(n=4):
    return Mesh(np.array(jax.devices()[:n]).reshape(1, n), ("runs", CLIENTS))


def everywhere(fn, *arguments, spec=EVERYWHERE):
    """``fn`` on every device of a mesh; the results of all devices, stacked."""

    def one(*arguments):
        return jax.tree.map(lambda a: a[None], fn(*arguments))

    mapped = jax.shard_map(one, mesh=mesh(), in_specs=spec, out_specs=P(CLIENTS), check_vma=False)
    return jax.jit(mapped)(*arguments)


# ---- the words, on several devices


@pytest.mark.parametrize("spread", [AnyDevice(4), ByClient(4, 2)], ids=["any", "by client"])
@pytest.mark.parametrize("at_once", [None, 1])
def test_all_devices_have_all_replies_in_the_order_of_the_slots(spread, at_once):
    ids = jnp.array([6, 0, 5, 1, 1], jnp.int32)  # five slots, four devices, nobody at the second
    own = jnp.arange(5.0)

    def one(slot):
        id, value = slot
        key = jax.random.fold_in(jax.random.key(0), id)
        return {"sum": value + id.astype(float), "odd": id % 2 == 1, "key": key, "id": id}

    def work(ids, own):
        replies = spread.compute(one, ids, (ids, own), at_once)
        return replies | {"key": jax.random.key_data(replies["key"])}

    got = everywhere(work, ids, own)
    want = OneDevice().compute(one, ids, (ids, own), None)
    want = want | {"key": jax.random.key_data(want["key"])}
    for device in range(4):
        jax.tree.map(lambda g, w, d=device: np.testing.assert_array_equal(g[d], w), got, want)
    np.testing.assert_array_equal(want["sum"], [6, 1, 7, 4, 5])


def test_a_divided_memory_is_read_and_written_by_client():
    table, ids = jnp.arange(16.0).reshape(8, 2), jnp.array([7, 2, 4])
    active, rows = jnp.array([True, True, False]), -jnp.ones((3, 2))
    spread = ByClient(4, 2)

    def work(table):
        new = spread.write(table, ids, active, rows, 7)  # 7 clients, one row of padding
        return spread.read(table, ids, 7), new

    read, new = everywhere(work, table, spec=P(CLIENTS))
    for device in range(4):
        np.testing.assert_array_equal(read[device], np.asarray(table)[[7, 2, 4]])
    want = np.array(table)
    want[[7, 2]] = -1
    np.testing.assert_array_equal(new.reshape(8, 2), want)


def test_a_device_holds_the_rows_of_its_own_clients():
    parts = [np.array(rows) for rows in ([0], [1, 2, 3, 4], [5, 6], [7], [8, 9])]
    other = [np.array([10 + i]) for i in range(5)]
    rows = np.arange(15.0)
    population = rk.Population.from_parts({"v": rows}, {"train": parts, "test": other})
    data = divided(population, mesh(2))
    pieces = [np.asarray(shard.data) for shard in data.data["v"].addressable_shards]
    assert len(pieces) == 2 and pieces[0].shape == pieces[1].shape == (10,)  # 3 + 7 rows, 2 + 3
    for client in range(5):
        for s, split in enumerate(("train", "test")):
            start, count = data.offsets[s, client], data.counts[s, client]
            own = pieces[client // 3][start : start + count]
            np.testing.assert_array_equal(own, population.rows(client, split)["v"])


# ---- whole runs


def run(rounds=4, **settings):
    population = rk.Population.stacked(LOSSES.data)
    return rk.run(SCAFFOLD, LOSSES.problem, population, LOSSES.start, rounds=rounds, **settings)


def same(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12), got.state, want.state)
    assert got.ledger == want.ledger


@pytest.mark.parametrize("data", [pytest.param("replicated", marks=pytest.mark.slow), "by client"])
def test_runs_agree_and_may_be_resumed_with_another_number_of_devices(tmp_path, data):
    want, four = run(), rk.Compiled(devices=4, data=data)
    same(run(engine=four), want)
    run(2, engine=four, directory=tmp_path / "fewer")
    same(run(4, directory=tmp_path / "fewer"), want)
    run(2, directory=tmp_path / "more")
    same(run(4, engine=four, directory=tmp_path / "more"), want)


@pytest.mark.parametrize("data", ["replicated", "by client"])
def test_states_that_were_given_or_returned_stay_as_they_are(data):
    population = rk.Population.stacked(LOSSES.data)
    ready = Program(LOSSES.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    runner = rk.Compiled(devices=4, data=data).prepare(ready, [SCAFFOLD])
    state = first_state(SCAFFOLD, LOSSES.problem, 5, LOSSES.start)
    keys = [jax.random.key(0)]
    (once,) = runner.advance([state], keys, 0, [1])
    first = jax.tree.map(np.array, once.state)
    runner.advance([once.state], keys, 1, [2])
    (again,) = runner.advance([state], keys, 0, [1])
    for one in (once.state, again.state):
        jax.tree.map(np.testing.assert_array_equal, one, first)


@pytest.mark.slow
def test_a_run_on_devices_of_choice_is_the_run_on_the_default():
    evaluate = [rk.metrics.OnClients(losses={"loss": LOSSES.problem.loss}, split="train")]
    want = run(evaluate=evaluate)
    for some in (jax.devices()[2:3], jax.devices()[2:]):
        got = run(engine=rk.Compiled(devices=some), evaluate=evaluate)
        same(got, want)
        assert got.history.rows == want.history.rows
        assert jax.tree.leaves(got.state)[0].devices() == {jax.devices()[2]}


@pytest.mark.slow
@pytest.mark.parametrize("data", ["replicated", "by client"])
def test_sweeps_agree(data):
    population = rk.Population.stacked(LOSSES.data)
    runs = [rk.Run(replace(SCAFFOLD, lr=lr), LOSSES.start, seed=4) for lr in (0.05, 0.1, 0.2)]

    def sweep(engine):
        return rk.sweep(runs, LOSSES.problem, population, rounds=4, engine=engine)

    for got, want in zip(sweep(rk.Compiled(devices=4, data=data)), sweep(None), strict=True):
        same(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["replicated", "by client"])
def test_a_run_that_diverges_ends_in_the_same_round(data):
    wild = replace(SCAFFOLD, lr=1e200)
    population = rk.Population.stacked(LOSSES.data)
    with pytest.warns(UserWarning, match="diverged"):
        got, want = (
            rk.run(
                wild, LOSSES.problem, population, LOSSES.start, rounds=9, engine=engine, guard=None
            )
            for engine in (rk.Compiled(devices=4, data=data), None)
        )
    assert got.status == want.status == "diverged" and got.ledger == want.ledger


# ---- what cannot work


def fake(platform):
    return Mock(spec=jax.Device, platform=platform, id=0, process_index=0)


UNFIT: list[tuple[Any, str]] = [
    (5, "JAX sees 4 .*device_count=5.*at most 4"),
    (0, "devices.*0"),
    (True, "devices.*True"),
    ("4", "devices.*4"),
    ((), "empty"),
    ([0, 1], "out of jax.devices.., got 0"),
    (lambda: jax.devices()[:1] * 2, "twice"),
    (lambda: [jax.devices()[0], fake("cuda")], "cpu and cuda"),
    (lambda: [fake("cuda")], "'cuda', but JAX runs on 'cpu'.*JAX_PLATFORMS=cuda"),
    (lambda: [fake("cpu")], "none of jax.devices"),
]


@pytest.mark.parametrize(("devices", "words"), UNFIT)
def test_devices_that_cannot_work_together_are_refused(devices, words):
    given: Any = devices() if callable(devices) else devices
    with pytest.raises((ValueError, TypeError), match=words):
        rk.Compiled(devices=given)


def test_devices_of_some_processes_only_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    with pytest.raises(ValueError, match="devices of all processes"):
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        rk.Compiled(devices=2)


def test_data_is_divided_among_several_devices_only():
    with pytest.raises(ValueError, match="several devices, got devices=1"):
        rk.Compiled(devices=1, data="by client")
    with pytest.raises(ValueError, match=r"data.*by_client"):
        rk.Compiled(devices=2, data="by_client")
