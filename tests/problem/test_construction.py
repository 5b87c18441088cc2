"""What a problem refuses, and that the message says what was got and what to do."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.problem import validation, zoo
from rookery.problem.bilevel import Bilevel
from rookery.problem.composition import Composition, LocalComposition
from rookery.problem.meta import Meta
from rookery.problem.minimax import Minimax
from rookery.problem.multisequence import MultiSequence
from rookery.problem.single_level import SingleLevel
from rookery.types import Problem

pytestmark = pytest.mark.usefixtures("wrong_types")

X, Y = np.zeros(3), np.zeros(2)
THREE: Any = 3  # stands where a function should


def example(split):
    """One row of either split; the splits differ in the length of ``a``."""
    return {"a": np.zeros({"train": 2, "validation": 3}[split])}


def inner(x, y, row):
    return jnp.sum(x) + y @ row["a"]


def outer(x, y, row):
    return jnp.sum(y) + x @ row["a"]


def vector_loss(x, y, row):
    return y


def integer_loss(x, y, row):
    return jnp.argmax(y)


def identity(z, row):
    return z


def total(z, row):
    return jnp.sum(z)


def test_sound_problems_pass():
    Bilevel(outer, inner).check((X, Y), example)
    Minimax(inner).check((X, Y), example)
    Composition((identity, total)).check((X,), example)
    LocalComposition(identity, total).check((X,), example)
    SingleLevel(total).check((X,), example)
    Meta(total, adapt_lr=0.1).check((X,), example)
    MultiSequence(lambda u, row: u[0], (lambda u, row: u[1],)).check((X, Y), example)


def test_each_loss_sees_an_example_of_its_own_split():
    Bilevel(inner, outer, outer_split="train", inner_split="validation").check((X, Y), example)
    with pytest.raises(ValueError, match="outer cannot be evaluated on one example"):
        Bilevel(inner, outer).check((X, Y), example)


@pytest.mark.parametrize(
    "build, name",
    [
        (lambda: Bilevel(THREE, inner), "outer"),
        (lambda: Bilevel(outer, THREE), "inner"),
        (lambda: Minimax(THREE), "loss"),
        (lambda: Composition((identity, THREE)), r"layers\[1\]"),
        (lambda: SingleLevel(THREE), "loss"),
        (lambda: Meta(THREE, adapt_lr=0.1), "loss"),
        (lambda: LocalComposition(THREE, total), "inner"),
        (lambda: LocalComposition(identity, THREE), "outer"),
        (lambda: MultiSequence(THREE, (identity,)), "main"),
        (lambda: MultiSequence(identity, (identity, THREE)), r"sequences\[1\]"),
        (lambda: validation.check_scalar_loss("cost", THREE, (X,), None), "cost"),
    ],
)
def test_what_cannot_be_called_is_refused(build, name):
    with pytest.raises(TypeError, match=f"{name} must be a function, got "):
        build()


@pytest.mark.parametrize("layers", [(), (total,)])
def test_one_layer_is_no_composition(layers):
    message = f"at least two layers, got {len(layers)}. One layer is an ordinary loss"
    with pytest.raises(ValueError, match=message):
        Composition(layers)


@pytest.mark.parametrize(
    "loss, got", [(vector_loss, r"float64\[2\]"), (integer_loss, r"int64\[\]")]
)
@pytest.mark.parametrize(
    "build, name",
    [
        (lambda loss: Bilevel(loss, inner), "outer"),
        (lambda loss: Bilevel(outer, loss), "inner"),
        (lambda loss: Minimax(loss), "loss"),
    ],
)
def test_a_loss_is_one_floating_point_number(build, name, loss, got):
    message = f"{name} must return one floating-point number .*got '?{got}"
    with pytest.raises(ValueError, match=message):
        build(loss).check((X, Y), example)


@pytest.mark.parametrize("out", ["vector", "tuple"])
def test_the_last_level_is_one_number(out):
    last = {"vector": identity, "tuple": lambda z, row: (jnp.sum(z), jnp.sum(z))}[out]
    with pytest.raises(ValueError, match=r"layers\[2\] must return one floating-point number"):
        Composition((identity, identity, last)).check((X,), example)
    with pytest.raises(ValueError, match="outer must return one floating-point number"):
        LocalComposition(identity, last).check((X,), example)


def test_shapes_that_do_not_fit_are_shown():
    with pytest.raises(ValueError, match="loss cannot be evaluated on one example") as caught:
        Minimax(inner).check((X, np.zeros(5)), example)
    for part in ("float64[3]", "float64[5]", "{'a': 'float64[2]'}", "A loss takes the problem's"):
        assert part in str(caught.value)


def test_layers_that_do_not_fit_are_named():
    def narrow(z, row):
        return z @ row["a"]

    with pytest.raises(ValueError, match=r"layers\[1\] cannot take float64\[3\] and one example"):
        Composition((identity, narrow, total)).check((X,), example)
    with pytest.raises(ValueError, match=r"layers\[1\] cannot be evaluated on one example"):
        Composition((identity, narrow)).check((X,), example)
    with pytest.raises(ValueError, match=r"inner cannot take .*float64\[3\].* and one example"):
        LocalComposition(narrow, total).check((X,), example)


@pytest.mark.parametrize("build", [SingleLevel, lambda loss: Meta(loss, adapt_lr=0.1)])
def test_losses_of_one_variable(build):
    with pytest.raises(ValueError, match=r"one value per variable .*: w; got 2"):
        build(total).check((X, Y), example)
    with pytest.raises(ValueError, match="loss must return one floating-point number per example"):
        build(identity).check((X,), example)
    with pytest.raises(ValueError, match="adapt_lr must be a finite number, 0 or above, got -1"):
        Meta(total, adapt_lr=-1)


def test_every_map_needs_its_block():
    problem = MultiSequence(lambda u, row: u[0], (lambda u, row: u[1],))
    with pytest.raises(ValueError, match=r"one value per variable .*: x, z_1; got 3"):
        problem.check((X, Y, Y), example)


@pytest.mark.parametrize("out", [lambda u, row: u[0], lambda u, row: {"y": u[1]}])
def test_a_map_is_shaped_like_its_block(out):
    problem = MultiSequence(lambda u, row: u[0], (out,))
    message = r"sequences\[0\] must be shaped like its block float64\[2\], got "
    with pytest.raises(ValueError, match=message):
        problem.check((X, Y), example)


def test_zoo_refuses_what_has_no_unique_solution():
    with pytest.raises(ValueError, match=r"no layer may be smaller than x.*got \(3, 2, 4\)"):
        zoo.linear_chain(sizes=(3, 2, 4))
    with pytest.raises(ValueError, match="the number of sizes must be at least 2, got 1"):
        zoo.linear_chain(sizes=(3,))
    with pytest.raises(ValueError, match=r"coupling must be at least 0 and below 1, got 1\.5"):
        zoo.linear_sequences(coupling=1.5)
    with pytest.raises(ValueError, match="heterogeneity must be between 0 and 1, got 2"):
        zoo.mean_semideviation(heterogeneity=2)


PROBLEMS = {
    "Bilevel": (Bilevel(outer, inner), ("x", "y"), ("validation", "train")),
    "Minimax": (Minimax(inner), ("x", "y"), ("train",)),
    "Composition": (Composition((identity, total)), ("x",), ("train",)),
    "LocalComposition": (LocalComposition(identity, total), ("w",), ("train",)),
    "Meta": (Meta(total, adapt_lr=0.1, outer_split="validation"), ("w",), ("train", "validation")),
    "SingleLevel": (SingleLevel(total, split="validation"), ("w",), ("validation",)),
    "MultiSequence": (
        MultiSequence(lambda u, row: u[0], (lambda u, row: u[1],)), ("x", "z_1"), ("train",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("problem, variables, splits", PROBLEMS.values(), ids=PROBLEMS)
def test_every_problem_tells_its_variables_and_splits(problem, variables, splits):
    assert isinstance(problem, Problem)
    assert problem.variables == variables
    assert sorted(problem.splits) == sorted(splits)
    problem.check((X, Y)[: len(variables)], example)


BAD_STARTS = {
    "an array": (lambda x: x, TypeError, r"start must be a tuple .* got float64\[3\]"),
    "a dict": (lambda x: {"x": x}, TypeError, "start must be a tuple"),
    "a named tuple": (lambda x: Named(x), TypeError, "start must be a tuple"),
    "nothing": (lambda x: (), ValueError, "one value per variable .*: w; got 0"),
    "two": (lambda x: (x, x), ValueError, "one value per variable .*: w; got 2"),
    "whole numbers": (lambda x: (x.astype(int),), TypeError, r"w is int64\[3\].*astype\(float\)"),
    "a whole number": (lambda x: ({"a": 3},), TypeError, r"w\['a'\] is int.*\[\]"),
    "complex": (lambda x: (x.astype(complex),), TypeError, r"w is complex128\[3\]"),
    "text": (lambda x: ({"a": x, "b": "zero"},), TypeError, r"got 'zero' at w\['b'\]"),
    "text in an array": (lambda x: (np.array(["zero"]),), TypeError, "w is <U4"),
    "a function": (lambda x: ([x, total],), TypeError, r"function at w\[1\], total.*partition"),
    "no arrays": (lambda x: (None,), ValueError, "no arrays for w"),
    "NaN": (lambda x: ({"a": x + np.array([0, np.nan, 0])},), ValueError, r"w\['a'\]\[1\] is nan"),
    "infinity": (lambda x: (-np.inf,), ValueError, "not finite: w is -inf"),
}


class Named(NamedTuple):
    a: np.ndarray


@pytest.mark.parametrize("start, error, message", BAD_STARTS.values(), ids=BAD_STARTS)
def test_initial_values_that_cannot_be_used_are_located(start, error, message):
    with pytest.raises(error, match=message):
        SingleLevel(total).check(start(X), example)


@pytest.mark.parametrize("problem, variables, splits", PROBLEMS.values(), ids=PROBLEMS)
def test_every_problem_checks_its_initial_values(problem, variables, splits):
    good = (X, Y)[: len(variables)]
    with pytest.raises(ValueError, match=rf"{variables[-1]}\[0\] is nan"):
        problem.check((*good[:-1], good[-1] * np.nan), example)
    with pytest.raises(TypeError, match=f"{variables[0]} is int64"):
        problem.check((X.astype(int), *good[1:]), example)


def test_initial_values_may_be_shapes_numbers_or_lists():
    SingleLevel(total).check((jax.ShapeDtypeStruct((3,), jnp.bfloat16),), example)
    SingleLevel(total).check((0.5,), example)
    Minimax(inner).check([X, Y], example)  # pyright: ignore[reportArgumentType]
