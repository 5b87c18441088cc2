from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from some_slow import some_slow

import rookery as rk
from rookery import uint64
from rookery.clients import local_client as client_module
from rookery.clients import population_checks
from rookery.clients.local_client import LocalClient
from rookery.program.step import traced_loop


def ragged():
    data = {"a": np.arange(20.0), "b": np.arange(40.0).reshape(20, 2)}
    parts = {
        "train": [np.array([5, 3]), np.arange(6, 16), np.array([0])],
        "validation": [np.array([1]), np.array([2, 4]), np.array([17, 18, 19])],
    }
    return data, parts, rk.Population.from_parts(data, parts)


def test_rows_lie_where_the_offsets_say():
    data, parts, population = ragged()
    assert population.n_clients == 3
    assert population.largest == (10, 3)
    for split, lists in parts.items():
        for client, rows in enumerate(lists):
            got = population.rows(client, split)
            np.testing.assert_array_equal(got["a"], data["a"][rows])
            np.testing.assert_array_equal(got["b"], data["b"][rows])


@pytest.mark.parametrize("block", some_slow([3, 2, 1024]))
@pytest.mark.parametrize("size", [None, 50])
def test_a_whole_client_is_averaged_exactly_however_small_the_blocks(monkeypatch, block, size):
    monkeypatch.setattr(client_module, "BLOCK", block)
    data, parts, population = ragged()

    def mean(id):
        client = LocalClient(population, id, jax.random.key(0), traced_loop)
        sample = client.draw("train", size, client.key)
        sample.charge(gradients=2, hessian_vectors=1)
        return sample.average(lambda rows, w: jnp.tensordot(w, rows["b"], 1)), client.work

    means, work = jax.vmap(mean)(jnp.arange(3))
    for id, rows in enumerate(parts["train"]):
        np.testing.assert_allclose(means[id], data["b"][rows].mean(0), rtol=1e-14)
    assert uint64.read(work) == [[4, 2], [20, 10], [2, 1]]


def test_work_beyond_32_bits_is_counted_exactly():
    _, _, population = ragged()

    @jax.jit
    def evaluations():
        client = LocalClient(population, 1, jax.random.key(0), traced_loop)

        def once(_, value):
            client.draw("train", None, client.key).charge(gradients=2**28, hessian_vectors=1)
            return value

        client.repeat(1000, once, 0.0)
        return client.work

    assert uint64.read(evaluations()) == [10 * 2**28 * 1000, 10 * 1000]


def test_a_batch_is_drawn_from_the_clients_own_rows_and_a_small_client_gives_all_it_has():
    _, _, population = ragged()

    def rows(id, key):
        client = LocalClient(population, id, key, traced_loop)
        sample = client.draw("train", 4, key)
        return sample.average(lambda rows, w: (rows["a"], w)), client

    keys = jax.random.split(jax.random.key(0), 2000)
    drawn, weights = jax.vmap(lambda k: rows(1, k)[0])(keys)
    assert set(np.unique(drawn)) == set(range(6, 16))
    np.testing.assert_allclose(weights, 0.25)
    share = np.bincount(np.asarray(drawn).astype(int).ravel(), minlength=16)[6:] / 8000
    np.testing.assert_allclose(share, 0.1, atol=0.015)
    (small, weights), _ = rows(0, keys[0])
    assert small[:2].tolist() == [5, 3]
    assert weights.tolist() == [0.5, 0.5, 0, 0]


def test_two_evaluations_on_one_handle_see_the_same_rows():
    _, _, population = ragged()
    client = LocalClient(population, 1, jax.random.key(0), traced_loop)
    sample = client.draw("train", 3, client.key)
    first, second = (sample.average(lambda rows, w: rows["a"]) for _ in range(2))
    other = client.draw("train", 3, jax.random.key(9)).average(lambda rows, w: rows["a"])
    assert first.tolist() == second.tolist() != other.tolist()


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "parts is empty"),
        ({"train": [np.array([0]), np.array([], int)]}, "client 1 has no rows in split 'train'"),
        ({"train": [np.array([20])]}, "row numbers run from 20 to 20, but the data has rows 0 to"),
        ({"train": [np.array([0])], "test": []}, "one index array per client"),
    ],
)
def test_bad_parts(parts, message):
    with pytest.raises(ValueError, match=message):
        rk.Population.from_parts(np.arange(20.0), parts)


@pytest.mark.usefixtures("wrong_types")
def test_other_bad_input():
    with pytest.raises(TypeError, match="flat array of integers"):
        rk.Population.from_parts(np.arange(3.0), {"train": [np.array([0.5])]})
    with pytest.raises(ValueError, match="same number of rows"):
        rk.Population.from_parts({"a": np.zeros(3), "b": np.zeros(4)}, {"train": [np.array([0])]})
    with pytest.raises(ValueError, match=r"weights must have shape \(3,\)"):
        rk.Population.stacked(np.zeros((3, 1)), weights=[1.0])
    with pytest.raises(ValueError, match="weights must be finite and above zero"):
        rk.Population.stacked(np.zeros((2, 1)), weights=[0.0, 0.0])
    with pytest.raises(ValueError, match=r"unknown split 'trian'. Did you mean 'train'"):
        ragged()[2].example("trian")
    with pytest.raises(ValueError, match=r"axes \[clients, rows\]"):
        rk.Population.stacked(np.zeros(3))


@pytest.mark.usefixtures("wrong_types")
def test_parts_without_a_split_and_data_that_are_not_numbers():
    lists: Any = [np.array([0])]
    with pytest.raises(TypeError, match=r"parts must map .* got list.*'train': parts"):
        rk.Population.from_parts(np.arange(3.0), lists)
    with pytest.raises(TypeError, match=r"one row per sample, got the number 1 in field \[0\]"):
        rk.Population.from_parts([1, 2, 3], {"train": [np.array([0])]})
    with pytest.raises(TypeError, match=r"arrays of numbers, got <U1 in field \['b'\]"):
        rk.Population.from_parts(
            {"a": np.arange(2.0), "b": np.array(["x", "y"])}, {"train": [np.array([0])]}
        )
    with pytest.raises(ValueError, match="Bergen has no rows in split 'train'"):
        rk.Population.from_parts(
            np.arange(3.0), {"train": [np.array([0]), np.array([], int)]}, names=["Oslo", "Bergen"]
        )


def test_a_population_elsewhere_has_the_form_of_rows_and_none_of_them():
    _, _, here = ragged()
    there = rk.Population.elsewhere(here.example("train"), 3, splits=("train", "validation"))
    assert there.example("validation") == here.example("validation")
    assert here.has_rows and not there.has_rows
    there.check_form(here)
    assert there.counts.sum() == 0


@pytest.mark.parametrize("engine", [rk.Compiled(), rk.Eager(), rk.remote.Remote()])
def test_engines_that_need_rows_say_so(engine):
    zoo = rk.zoo.quadratic_losses(n_clients=2, size=2, rows=3)
    population = rk.Population.elsewhere(rk.Population.stacked(zoo.data).example("train"), 2)
    with pytest.raises(ValueError, match=r"needs the clients' rows.*Population\.elsewhere"):
        rk.run(
            rk.FedAvg(lr=0.1, local_steps=2),
            zoo.problem,
            population,
            zoo.start,
            rounds=1,
            engine=engine,
        )


def test_joined_populations_number_on_and_keep_every_row():
    _, parts, first = ragged()
    _, _, second = ragged()
    both = rk.Population.joined([first, second], weights=[1, 1, 1, 1, 1, 5])
    assert both.n_clients == 6 and both.largest == first.largest
    assert both.weights.tolist() == pytest.approx([0.1] * 5 + [0.5])
    for client in range(6):
        for split in parts:
            mine, same = both.rows(client, split), first.rows(client % 3, split)
            jax.tree.map(np.testing.assert_array_equal, mine, same)


def test_some_clients_among_many_keep_their_rows():
    _, parts, mine = ragged()
    whole = rk.Population.elsewhere(mine.example("train"), 5, splits=mine.splits)
    placed = mine.among(whole, 2)
    assert placed.n_clients == 5 and placed.counts[:, :2].sum() == 0
    for client in range(3):
        for split in parts:
            jax.tree.map(
                np.testing.assert_array_equal,
                placed.only(client + 2).rows(client + 2, split),
                mine.rows(client, split),
            )
    with pytest.raises(ValueError, match="clients 3 to 5 are not among 5"):
        mine.among(whole, 3)


def test_a_process_has_the_rows_of_its_clients_alone():
    _, parts, mine = ragged()
    two = mine.only(2, 0)
    assert two.n_clients == 3 and two.counts[:, 1].sum() == 0
    assert two.largest == mine.largest and two.weights.tolist() == mine.weights.tolist()
    for client in (0, 2):
        for split in parts:
            own, whole = two.rows(client, split), mine.rows(client, split)
            jax.tree.map(np.testing.assert_array_equal, own, whole)


def test_rows_that_a_client_brings_must_fit():
    _, parts, mine = ragged()
    rows = {split: mine.rows(1, split) for split in parts}
    nobody = mine.without_rows()
    jax.tree.map(
        np.testing.assert_array_equal, nobody.with_rows({1: rows}).rows(1, "train"), rows["train"]
    )
    with pytest.raises(ValueError, match="client 1 needs rows of"):
        nobody.with_rows({1: {"train": rows["train"]}})
    wide = jax.tree.map(lambda a: np.concatenate([a] * 50), rows["train"])
    with pytest.raises(ValueError, match="server must know the sizes"):
        nobody.with_rows({1: rows | {"train": wide}})
    odd = jax.tree.map(lambda a: a.astype(np.complex64), rows["train"])
    with pytest.raises(ValueError, match=r"complex64.*wanted float64"):
        nobody.with_rows({1: rows | {"train": odd}})


def test_a_client_of_a_server_that_knows_no_rows_brings_any_number():
    _, parts, mine = ragged()
    server = rk.Population.elsewhere(mine.example("train"), 3, splits=mine.splits)
    rows = {split: mine.rows(1, split) for split in parts}
    own = server.with_rows({1: rows})
    assert own.has_rows and own.largest == tuple(mine.counts[:, 1])
    jax.tree.map(np.testing.assert_array_equal, own.rows(1, "train"), rows["train"])


def test_populations_of_another_form_do_not_go_together():
    _, _, mine = ragged()
    with pytest.raises(ValueError, match="wanted"):
        mine.check_form(rk.Population.elsewhere(np.zeros(3), 3, splits=mine.splits))
    with pytest.raises(ValueError, match="wanted"):
        mine.check_form(rk.Population.elsewhere(mine.example("train"), 3))


def test_clients_have_names():
    data, parts, _ = ragged()
    names = ["Oslo", "Bergen", "Tromsø"]
    named = rk.Population.from_parts(data, parts, names=names)
    plain = rk.Population.from_parts(data, parts)
    assert [named.client_name(i) for i in range(3)] == names
    assert plain.client_name(2) == "client 2"
    assert named.only(1).names == named.without_rows().names == tuple(names)
    assert rk.Population.stacked(np.zeros((1, 1)), names=["Oslo"]).names == ("Oslo",)
    whole = rk.Population.elsewhere(
        named.example("train"), 4, splits=named.splits, names=["Narvik", *names]
    )
    assert named.among(whole, 1).client_name(3) == "Tromsø"
    both = rk.Population.joined([plain, named])
    assert [both.client_name(i) for i in range(2, 5)] == ["client 2", "Oslo", "Bergen"]
    assert rk.Population.joined([plain, plain]).names is None
    assert rk.Population.joined([named, plain], names=list("abcdef")).client_name(4) == "e"


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    "names, error, message",
    [
        (["a"], ValueError, "names needs one name per client: 2, got 1"),
        (["a", "a"], ValueError, r"names must differ.*'a'"),
        (["a", 3], TypeError, "names must be strings, got 3"),
        ("ab", TypeError, "names must be a list"),
    ],
)
def test_bad_names(names, error, message):
    with pytest.raises(error, match=message):
        rk.Population.stacked(np.zeros((2, 1)), names=names)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_value_that_is_not_finite_is_located(bad):
    data, parts, population = ragged()
    population.check_finite()
    data["b"][18, 1] = bad
    named = rk.Population.from_parts(data, parts, names=["Oslo", "Bergen", "Tromsø"])
    with pytest.raises(ValueError, match=r"Tromsø, split 'validation', field \['b'\], row 1\b"):
        named.check_finite()
    named.only(0, 1).check_finite()
    rk.Population.stacked(np.zeros((2, 1), int)).check_finite()
    with pytest.raises(ValueError, match="client 1, split 'train', row 0"):
        rk.Population.stacked(np.array([[0.0], [bad]])).check_finite()


def test_more_rows_than_an_index_can_name_are_refused():
    assert population_checks.row_positions(np.array([2**31 - 1])).dtype == np.int32
    with pytest.raises(ValueError, match="at most 2147483647 rows"):
        population_checks.row_positions(np.array([2**31]))
