"""Values that are not finite are located before round 0."""

import numpy as np
import pytest

import rookery as rk

ZOO = rk.zoo.quadratic_bilevel(n_clients=3)
ALGORITHM = rk.FedNest(outer_lr=0.05, inner_lr=0.1)


def go(start=ZOO.start, data=ZOO.data, **kwargs):
    population = rk.Population.stacked(data, **kwargs)
    return rk.run(ALGORITHM, ZOO.problem, population, start, rounds=1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_start_that_is_not_finite_is_located(bad):
    x, y = (np.array(a) for a in ZOO.start)
    y[1] = bad
    with pytest.raises(ValueError, match=rf"start .*y\[1\] is {bad}"):
        go((x, y))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (ZOO.start[0], "start must be a tuple"),
        (("abc", ZOO.start[1]), "start .*'abc' at x"),
        ((np.zeros(4, int), ZOO.start[1]), "start .*x is int64"),
        (({"a": {"b": "c"}}, ZOO.start[1]), r"start .*x\['a'\]\['b'\]"),
    ],
)
@pytest.mark.usefixtures("wrong_types")
def test_a_start_of_a_wrong_type_is_named(start, message):
    with pytest.raises(TypeError, match=message):
        go(start)


def test_a_row_that_is_not_finite_is_located_by_client():
    field = sorted(ZOO.data)[0]
    data = {name: np.array(a) for name, a in ZOO.data.items()}
    data[field].reshape(3, -1)[2, 0] = np.nan
    with pytest.raises(ValueError, match=rf"Oslo, split 'train'.*{field}"):
        go(data=data, names=["Lund", "Bergen", "Oslo"])
