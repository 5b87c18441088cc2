import pytest

import rookery as rk


def test_oracles(digits, parts, check_bilevel):
    check_bilevel(rk.tasks.hyper_representation(digits, parts, hidden=6))


def test_fednest_lowers_the_outer_loss(digits, parts, lower_the_outer_loss):
    task = rk.tasks.hyper_representation(digits, parts, hidden=16)
    result = lower_the_outer_loss(task, outer_lr=0.1, inner_lr=0.5, inner_steps=20)
    assert result.history["accuracy"][-1] > result.history["accuracy"][0] + 0.2


def test_bad_arguments(digits, parts):
    with pytest.raises(ValueError, match="hidden must be at least 1, got 0"):
        rk.tasks.hyper_representation(digits, parts, hidden=0)
    with pytest.raises(ValueError, match="needs the splits train, validation, got train"):
        rk.tasks.hyper_representation(digits, {"train": parts["train"]})
