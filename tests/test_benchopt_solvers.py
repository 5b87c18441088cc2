"""The solvers for benchopt's benchmark of bilevel optimisation, as one client of rookery.

The references are the papers' update rules in NumPy, with the steps of that benchmark. The last
test runs the solvers under benchopt itself: `make test-benchopt`.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks" / "benchopt_bilevel"


def imported(name):
    """A module of the harness, which is no package on Python's path."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / "benchmark_utils" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rounds, Quadratic = imported("rookery_rounds"), imported("quadratic").Quadratic


class Logistic:
    """Logistic regression, and a penalty exp(x) for each coefficient, chosen by other rows."""

    n_inner, n_outer, p, d = 12, 8, 3, 3

    def __init__(self):
        rng = np.random.default_rng(1)
        truth = rng.normal(size=self.p)

        def rows(n):
            a = rng.normal(size=(n, self.p))
            return a, np.sign(a @ truth + rng.normal(size=n))

        self.inner, self.outer = rows(self.n_inner), rows(self.n_outer)

    def function(self, which):
        arrays = self.inner if which == "inner" else self.outer

        def f(z, x, start=0, batch_size=1):
            a, y = (jax.lax.dynamic_slice_in_dim(jnp.asarray(v), start, batch_size) for v in arrays)
            loss = jnp.mean(jax.nn.softplus(-y * (a @ z)))
            return loss + (0.5 * jnp.exp(x) @ z**2 if which == "inner" else 0)

        return f

    @staticmethod
    def slope(rows, z):
        a, y = rows
        return -(y / (1 + np.exp(y * (a @ z)))) @ a / len(y)

    def g_z(self, z, x):
        return self.slope(self.inner, z) + np.exp(x) * z

    def g_x(self, z, x):
        return 0.5 * np.exp(x) * z**2

    def hessian(self, z, x):
        a, y = self.inner
        s = 1 / (1 + np.exp(-y * (a @ z)))
        return (a * (s * (1 - s))[:, None]).T @ a / len(y) + np.diag(np.exp(x))

    def cross(self, z, x, v):
        return np.exp(x) * z * v

    def f_z(self, z, x):
        return self.slope(self.outer, z)

    def f_x(self, z, x):
        return np.zeros_like(x)


def soba(problem, z, x, n, *, step_size, outer_ratio):
    v, found = np.zeros_like(z), []
    for t in range(1, n + 1):
        rho, gamma = step_size / t**0.5, step_size / outer_ratio / t**0.5
        d_z = problem.g_z(z, x)
        d_v = problem.hessian(z, x) @ v + problem.f_z(z, x)
        d_x = problem.f_x(z, x) + problem.cross(z, x, v)
        z, v, x = z - rho * d_z, v - rho * d_v, x - gamma * d_x
        found.append((z, x))
    return found


def stocbio(problem, z, x, n, *, step_size, outer_ratio, n_inner_steps, n_shia_steps):
    found = []
    for _ in range(n):
        for _ in range(n_inner_steps):
            z = z - step_size * problem.g_z(z, x)
        term = problem.f_z(z, x)
        total, hessian = term, problem.hessian(z, x)
        for _ in range(n_shia_steps):
            term = term - step_size * hessian @ term
            total = total + term
        d_x = problem.f_x(z, x) - problem.cross(z, x, step_size * total)
        x = x - step_size / outer_ratio * d_x
        found.append((z, x))
    return found


def f2sa(problem, z, x, n, *, step_size, outer_ratio, n_inner_steps, lmbda0, delta_lmbda):
    star, lmbda, found = z, lmbda0, []
    for t in range(1, n + 1):
        for _ in range(n_inner_steps):
            d_z = lmbda * problem.g_z(z, x) + problem.f_z(z, x)
            z, star = (
                z - step_size / t ** (5 / 7) * d_z,
                star - step_size / t ** (4 / 7) * problem.g_z(star, x),
            )
        d_x = problem.f_x(z, x) + lmbda * (problem.g_x(z, x) - problem.g_x(star, x))
        x = x - step_size / outer_ratio / t ** (4 / 7) * d_x
        lmbda += delta_lmbda / t ** (1 / 7)
        found.append((star, x))
    return found


STEPS = {"step_size": 0.1, "outer_ratio": 2.0}
SETTINGS = {
    "soba": (soba, STEPS),
    "stocbio": (stocbio, {**STEPS, "n_inner_steps": 3, "n_shia_steps": 4}),
    "f2sa": (f2sa, {**STEPS, "n_inner_steps": 3, "lmbda0": 1.0, "delta_lmbda": 0.1}),
}


@pytest.mark.parametrize(
    "kind",
    [Quadratic, pytest.param(Logistic, marks=pytest.mark.slow)],
    ids=["quadratic", "logistic"],
)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_solver_takes_the_steps_of_its_paper(name, kind):
    problem, (reference, settings) = kind(), SETTINGS[name]
    z, x = np.full(problem.p, 0.3), np.full(problem.d, -0.2)
    wanted = reference(problem, z, x, 12, **settings)
    with jax.enable_x64(True):
        solver = rounds.OneClient(
            getattr(rounds, name)(**settings),
            problem.function("inner"),
            problem.function("outer"),
            problem.n_inner,
            problem.n_outer,
            batch_size="full",
            random_state=1,
        )
        solver.start(z, x)
        worst = 0.0
        for done in (1, 12):  # in two calls
            solver.advance(done if done == 1 else 11)
            for got, want in zip(solver.variables, wanted[done - 1], strict=True):
                worst = max(worst, float(np.abs(np.asarray(got) - want).max()))
    moved = np.abs(wanted[-1][1] - x).max()
    print(f"{name}, {kind.__name__}: x moved by {moved:.3g}, largest difference {worst:.1e}")
    assert worst < 1e-10 < 1e-3 < moved


def test_a_batch_is_a_slice_of_the_harness():
    """Every batch is contiguous, and the last one has as many samples as the others."""
    seen = []

    def f(z, x, start=0, batch_size=1):
        seen.append(batch_size)
        return jnp.sum((z - jnp.asarray(start, float)) ** 2) + jnp.sum(x**2)

    solver = rounds.OneClient(rounds.soba(0.1, 1.0), f, f, 10, 7, batch_size=4, random_state=0)
    solver.start(np.zeros(1), np.zeros(1))
    solver.advance(3)
    assert set(seen) == {4}
    inner, _ = solver.variables
    assert 0 <= float(inner[0]) <= 8


def test_f2sa_ends_where_its_penalty_is_known(monkeypatch):
    monkeypatch.setattr(rounds, "MOST_ROUNDS", 20)
    problem = Quadratic()
    functions = problem.function("inner"), problem.function("outer")
    settings = {**SETTINGS["f2sa"][1], "n_inner_steps": 1}
    solver = rounds.OneClient(
        rounds.f2sa(**settings), *functions, 6, 4, batch_size=2, random_state=0
    )
    solver.start(np.zeros(3), np.zeros(2))
    with pytest.raises(ValueError, match="21 rounds of F2SA"):
        solver.advance(21)


def test_the_solvers_run_under_benchopt(tmp_path):
    """Its curves are those of the references, evaluation by evaluation."""
    pytest.importorskip("benchopt", reason="make test-benchopt has it")
    pandas = pytest.importorskip("pandas")
    folder = tmp_path / "bilevel"
    shutil.copytree(FOLDER, folder)
    names = {"soba": "rookery-SOBA", "stocbio": "rookery-StocBiO", "f2sa": "rookery-F2SA"}
    chosen = []
    for key, (_, settings) in SETTINGS.items():
        given = {**settings, "batch_size": "full", "eval_freq": 1}
        chosen += ["-s", f"{names[key]}[{','.join(f'{k}={v}' for k, v in given.items())}]"]
    command = [sys.executable, "-m", "benchopt", "run", str(folder), *chosen, "--max-runs", "10",
               "--n-repetitions", "1", "--no-plot", "--no-html", "--output", "curves"]  # fmt: skip
    environment = {**os.environ, "JAX_ENABLE_X64": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (folder / "outputs").glob("*.parquet")
    table = pandas.read_parquet(file)
    problem = Quadratic()
    z, x = np.full(problem.p, 0.3), np.full(problem.d, 2.0)
    for key, (reference, settings) in SETTINGS.items():
        curve = table[table["solver_name"].str.startswith(names[key])].sort_values("stop_val")
        got = curve["objective_value"].to_numpy()
        found = [(z, x), *reference(problem, z, x, len(got) - 1, **settings)]
        wanted = [problem.metrics(*point)["value"] for point in found]
        off = float(np.max(np.abs(got / wanted - 1)))
        print(
            f"{names[key]}: {len(got)} values from {got[0]:.4g} to {got[-1]:.4g}, off by {off:.1e}"
        )
        assert len(got) > 10 and got[-1] < got[0]
        assert off < 1e-10
