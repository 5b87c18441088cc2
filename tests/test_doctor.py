"""The doctor: measurements equal closed forms, and every verdict holds where it is known to."""

import json
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms.shared.auto import AutoOpt
from rookery.algorithms.shared.step_rule import first_opt, observed
from rookery.algorithms.shared.two_level import Opts
from rookery.doctor import diagnose
from rookery.doctor.settings_of import settings_of
from rookery.doctor.verdicts import verdicts_of, verdicts_of_record
from rookery.doctor.vitals import Vitals, measure
from rookery.doctor.wording import sentences
from rookery.program.step_sizes import scale_steps
from rookery.report.read import read_runs

ZOO = rk.zoo.quadratic_bilevel(n_clients=4)
MEAN = np.asarray(ZOO.H).mean((0, 1))
EIGENVALUES = np.linalg.eigvalsh(MEAN)
STEEPEST = max(np.linalg.eigvalsh(client.mean(0)).max() for client in np.asarray(ZOO.H))


def fednest(zoo=ZOO, terms=400, lipschitz=None, **settings):
    L = 1.1 * STEEPEST if lipschitz is None else lipschitz
    series = rk.parts.FedIHGPSum(terms=terms, lipschitz=float(L))
    return rk.FedNest(**{"outer_lr": 0.05, "inner_lr": 0.1, "ihgp": series, **settings})


def examine(algorithm, zoo: Any = ZOO, point=None):
    population = rk.Population.stacked(zoo.data)
    own = settings_of(algorithm, population.n_clients, 0)
    point = tuple(map(jnp.asarray, zoo.solution() if point is None else point))
    vitals: Any = measure(zoo.problem, population, point, own)  # figures that may be None
    return vitals, [one.name for one in verdicts_of(vitals, own)]


@pytest.mark.slow
def test_measurements_equal_the_closed_forms_and_a_sound_run_is_told_so():
    x = np.full(ZOO.start[0].shape, 0.3)
    y = ZOO.inner_solution(x)
    vitals, names = examine(fednest(), point=(x, y))
    np.testing.assert_allclose(vitals.largest, EIGENVALUES[-1], rtol=0.02)
    np.testing.assert_allclose(vitals.smallest, EIGENVALUES[0], atol=0.05 * EIGENVALUES[-1])
    np.testing.assert_allclose(vitals.L, STEEPEST, rtol=0.05)
    np.testing.assert_allclose(vitals.v, np.linalg.norm(ZOO.adjoint(x, y)), rtol=1e-5)
    np.testing.assert_allclose(vitals.signal, np.linalg.norm(ZOO.hypergradient(x)), rtol=1e-5)
    assert vitals.distance is not None and vitals.distance < 1e-6
    assert vitals.noise == 0.0  # all clients with all rows
    assert names == []


@pytest.mark.slow
def test_every_verdict_holds_where_it_is_known_to():
    x = np.full(ZOO.start[0].shape, 0.3)
    at = (x, ZOO.inner_solution(x))
    assert examine(fednest(inner_lr=3 / STEEPEST), point=at)[1] == ["steps too long"]
    assert examine(fednest(lipschitz=0.4 * EIGENVALUES[-1]), point=at)[1] == ["series grows"]
    # of 1/L f_y alone, L far above the Hessian, nearly everything is missing
    assert examine(fednest(terms=1, lipschitz=50 * STEEPEST), point=at)[1] == ["series too short"]
    far = (x, ZOO.inner_solution(x) + 100)
    assert "inner problem unsolved" in examine(fednest(), point=far)[1]
    # a Hessian with one negative eigenvalue
    shift = (EIGENVALUES[0] + 0.2 * EIGENVALUES[-1]) * np.eye(len(MEAN))
    bent = replace(ZOO, H=ZOO.H - shift)
    assert "negative curvature" in examine(fednest(), zoo=bent, point=at)[1]
    # a Hessian that is nearly flat along one direction
    flat = replace(ZOO, H=ZOO.H - (EIGENVALUES[0] - 1e-5) * np.eye(len(MEAN)))
    assert "ill-conditioned" in examine(fednest(), zoo=flat, point=at)[1]


@pytest.mark.slow
def test_noise_and_drift_are_those_of_the_clients():
    zoo = rk.zoo.quadratic_losses(n_clients=6, size=3, rows=5, noise=5.0)
    star = zoo.solution()
    noisy = rk.FedAvg(lr=0.01, local_steps=1, batch_size=1, clients=2)
    near = (np.asarray(star[0]) + 1e-3,)
    first, names = examine(noisy, zoo, near)
    assert names == ["noise"] and first.v is None
    gradient = np.linalg.norm(zoo.gradient(near[0]))
    np.testing.assert_allclose(first.signal, gradient, rtol=1e-4)
    # two clients of six with all rows: the deviation of a mean without replacement
    own = settings_of(replace(noisy, batch_size=None), 6, 0)
    vitals: Any = measure(zoo.problem, rk.Population.stacked(zoo.data), near, own)
    spread = np.mean(np.sum((zoo.gradients(near[0]) - zoo.gradient(near[0])) ** 2, 1))
    np.testing.assert_allclose(vitals.noise, np.sqrt(spread / 2 * 4 / 5) / gradient, rtol=1e-4)
    drifting = rk.FedAvg(lr=0.3, local_steps=50)
    vitals, names = examine(drifting, zoo, star)
    (w,), H = star, np.asarray(zoo.H).mean(1)
    own = w - np.linalg.solve(H, zoo.gradients(w)[..., None])[..., 0]  # the clients' own solutions
    left = [np.linalg.matrix_power(np.eye(3) - 0.3 * each, 50) for each in H]
    ends = own + np.einsum("ijk,ik->ij", np.stack(left), w - own)
    want = np.linalg.norm(ends.mean(0) - w) / np.linalg.norm(w)
    np.testing.assert_allclose(vitals.drift, want, rtol=1e-4)
    assert names == ["client drift"]


def test_sizes_that_a_run_has_found_are_read_from_its_state():
    untuned = rk.FedMBO()
    at = rk.parts.DoG(first=10.0, most=0.01), jnp.ones(2)
    opt = first_opt(*at)
    for _ in range(4):
        opt = observed(at[0], jnp.ones(2), opt, at[1])
    state = Opts(AutoOpt(jnp.array(0.25)), opt)
    own = settings_of(scale_steps(untuned, 0.5), 4, 0, state)
    assert (own.step, own.clipped, own.is_warm) == (0.125, 1.0, True)
    assert settings_of(untuned, 4, 0, untuned.first_opts(jnp.ones(2), jnp.ones(2))).step is None
    vitals = Vitals(0, 4.0, 1.0, 4.0, hops=0.9, v=2.0, amplification=3.0, signal=1.0, noise=0.5)
    assert [one.name for one in verdicts_of(vitals, own)] == ["steps clipped"]
    text = " ".join(sentences([vitals], own))
    for part in ("0.125 is 0.5 / L", "contracts", "0.9 times", "norm 2,", "0.5 times", "100%"):
        assert part in text
    assert sentences([], own) == []


def test_the_record_of_a_run_is_read():
    rollbacks = [{"round": 9, "to": 0, "reason": "w grew", "factor": 0.5, "lost": 9}]
    summary = {"status": "finished", "rounds": 90, "rollbacks": rollbacks}
    (one,) = verdicts_of_record(summary, 0.1, 0.9, 0.89, "accuracy")
    assert one.name == "rolled back" and "10% of its rounds" in one.finding
    assert "times 0.5" in one.advice
    (one,) = verdicts_of_record({"status": "finished"}, 0.1, 0.9, 0.5, "accuracy")
    assert one.name == "below its best" and "50%" in one.finding
    (one,) = verdicts_of_record({"status": "diverged", "message": "x"}, 0.1, 0.1, 0.1, "")
    assert one.name == "diverged"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.RollBackWarning")
def test_a_directory_is_examined_with_the_steps_that_the_guard_left(tmp_path):
    zoo = rk.zoo.quadratic_losses(n_clients=2, size=2, rows=3)
    wild = rk.FedAvg(lr=5.0, local_steps=1)
    what = (wild, zoo.problem, rk.Population.stacked(zoo.data))
    result = rk.run(*what, zoo.start, rounds=100, directory=tmp_path)
    diagnosis = diagnose(tmp_path, *what, zoo.start)
    assert [one.name for one in diagnosis.verdicts] == ["rolled back"]
    assert diagnosis.settings.step == 5.0 * result.step_factor
    assert [v.round for v in diagnosis.vitals] == [0, 90, 100]
    assert "rolled back" in str(diagnosis) and "lr times L" in str(diagnosis)
    assert diagnosis.save() == tmp_path / "diagnosis.json"
    (curve,) = read_runs([tmp_path]).curves
    assert curve.examined[0] == json.loads(json.dumps(diagnosis.record()))
    assert [row["round"] for row in curve.examined[0]["curvature"]] == [0, 90, 100]
    with pytest.raises(ValueError, match="another algorithm than FedAvg"):
        diagnose(tmp_path, replace(wild, lr=0.1), *what[1:], zoo.start)
