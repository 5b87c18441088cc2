from dataclasses import replace

import pytest

import rookery as rk
from rookery.algorithms import FedRep
from rookery.problem import PersonalBilevel


def test_oracles(digits, parts, check_bilevel):
    check_bilevel(rk.tasks.hyper_representation(digits, parts, hidden=6))


@pytest.mark.slow
def test_fednest_lowers_the_outer_loss(digits, parts, lower_the_outer_loss):
    task = rk.tasks.hyper_representation(digits, parts, hidden=16)
    result = lower_the_outer_loss(task, outer_lr=0.1, inner_lr=0.5, inner_steps=20)
    assert result.history["accuracy"][-1] > result.history["accuracy"][0] + 0.2


@pytest.mark.slow
def test_own_heads_learn_what_a_client_has(digits, parts):
    """Clients that number the digits in reverse need heads of their own."""
    labels = digits.train["labels"].copy()
    for rows in [*parts["train"][::2], *parts["validation"][::2]]:
        labels[rows] = 9 - labels[rows]
    turned = replace(digits, train={**digits.train, "labels": labels})
    task = rk.tasks.hyper_representation(turned, parts, hidden=16, prepare=True, personal=True)
    assert isinstance(task.problem, PersonalBilevel)
    result = rk.run(
        FedRep(outer_lr=0.2, inner_lr=0.5, inner_steps=10),
        task.problem,
        task.population,
        task.start(0),
        rounds=60,
        evaluate=task.evaluate,
    )
    assert result.history["accuracy/mean"][-1] > 0.7 > 0.3 > result.history["accuracy/mean"][0]


def test_bad_arguments(digits, parts):
    with pytest.raises(ValueError, match="hidden must be at least 1, got 0"):
        rk.tasks.hyper_representation(digits, parts, hidden=0)
    with pytest.raises(ValueError, match="needs the splits train, validation, got train"):
        rk.tasks.hyper_representation(digits, {"train": parts["train"]})
    with pytest.raises(TypeError, match="personal must be True or False, got 1"):
        rk.tasks.hyper_representation(digits, parts, personal=1)  # pyright: ignore[reportArgumentType]
