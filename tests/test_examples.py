"""Every example runs and prints what its docstring promises."""

import ast
import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

import rookery as rk

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = r"\d\.\d+e-(1[0-9])"
EXPECTED = {  # regular expressions that a line of the output must match as a whole
    "01_quadratic.py": rf"round 300: +13500 exchanges, {SMALL} away",
    "02_your_own_loss.py": r"penalties of the inputs that matter: +\[0\.0\d+ 0\.0\d+ 0\.0\d+\]",
    "03_your_own_algorithm.py": rf"FedNest: \|x - x\*\| = {SMALL} Ledger\(.*\)",
    "05_sweep.py": r"│ outer_lr=0\.1 .*│",
    "06_equinox_model.py": r"round  50: accuracy 0\.[89]\d\d",
    "07_read_a_run.py": r"round 30: 303 exchanges, x = -0\.29\d\d",
    "08_two_time_scales.py": (
        rf"local steps: 10; 400 exchanges; norms of the maps: actor {SMALL}, critic {SMALL}"
    ),
    "09_your_own_data.py": r"client 7: +\d+ training rows, classes \[.*\]",
    "10_pandas_table.py": r"Oslo   accuracy 0\.[89]\d",
    "11_hugging_face.py": r"accuracy of the worst writer: 0\.9\d\d",
    "12_loss_over_pairs.py": r"AUC: 0\.9\d in the mean, 0\.[89]\d of the worst client",
    "13_two_processes.py": r"largest difference from one process: (0e\+00|[1-9]e-0[78])",
    "20_torch_model.py": r"accuracy of the PyTorch network: 0\.[89]\d\d",
    "21_nnx_model.py": r"accuracy measured in the run (0\.9\d\d), by Flax \1",
}
NEEDS = {"20_torch_model.py": "torchax", "21_nnx_model.py": "flax"}  # make test-models has them

QUICK = {"09", "10", "20", "21"}  # `make test-slow` runs all

RECIPES = {  # by recipe and table
    ("tune_regularisation", "hospitals"): r"the three smallest penalties have inputs 0 1 2",
    ("tune_regularisation", "digits"): r"test error 0\.[45]\d\d",
    ("clean_labels", "hospitals"): r"Arendal: labels trusted to 0\.0\d",
    ("clean_labels", "digits"): r"Drammen: labels trusted to 0\.[01]\d",
    ("worst_client", "hospitals"): r"DRFA: mean 0\.\d+, worst hospital 0\.[67]\d\d",
    ("worst_client", "digits"): r"DRFA: mean 0\.\d+, worst hospital 0\.3[345]\d",
    ("personalise", "hospitals"): r"error 0\.6\d\d, after a step 0\.[45]\d\d; saved in .*",
    ("personalise", "digits"): r"error 0\.4\d\d, after a step 0\.3\d\d; saved in .*",
    ("shared_representation", "hospitals"): r"test error .*: 0\.693 -> 0\.[34]\d\d",
    ("shared_representation", "digits"): r"test error .*: 2\.303 -> 1\.[012]\d\d",
}


def has_line(pattern: str, text: str) -> bool:
    return any(re.fullmatch(pattern, line.strip()) for line in text.splitlines())


def test_every_example_is_tested():
    assert {p.name for p in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n[:2] in QUICK else [pytest.mark.slow]) for n in EXPECTED],
)
def test_example(name, tmp_path, users_settings, monkeypatch):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="make test-models runs it")
    monkeypatch.setenv("COLUMNS", "100")
    out = io.StringIO()
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(out):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert list(tmp_path.glob("*.png"))
    plt.close("all")
    assert has_line(EXPECTED[name], out.getvalue()), out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "table"), RECIPES)
def test_recipe(recipe, table, tmp_path, users_settings, monkeypatch):
    folder = EXAMPLES / "recipes"
    assert len((folder / f"{recipe}.py").read_text().splitlines()) < 55
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "tables", raising=False)
    monkeypatch.setattr(sys, "argv", [recipe, table])
    out = io.StringIO()
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(out):
        runpy.run_path(str(folder / f"{recipe}.py"), run_name="__main__")
    plt.close("all")
    assert has_line(RECIPES[recipe, table], out.getvalue()), out.getvalue()
    saved = [path.parent.name for path in tmp_path.glob("*/solution.safetensors")]
    assert saved and all(name.endswith(f"-{table}") for name in saved), "a directory per table"


PROGRAMS = [*EXAMPLES.glob("*.py"), *(EXAMPLES / "recipes" / f"{name}.py" for name, _ in RECIPES)]


@pytest.mark.parametrize("path", sorted({*PROGRAMS}), ids=lambda path: path.stem)
def test_an_example_asks_shows_and_concludes(path):
    text = path.read_text()
    question = (ast.get_docstring(ast.parse(text)) or "").split("?")[0]
    assert "?" in text[:300] and "." not in question
    assert "plt.savefig(" in text
    assert "\n# %%\n# What was learnt: " in text[-300:]


def test_every_recipe_is_tested():
    there = {p.stem for p in (EXAMPLES / "recipes").glob("*.py")} - {"tables"}
    assert there == {recipe for recipe, _ in RECIPES}


def test_a_number_that_is_far_off_does_not_pass():
    pattern = EXPECTED["03_your_own_algorithm.py"]
    assert has_line(pattern, "FedNest: |x - x*| = 2.3e-16 Ledger(exchanges=1)")
    assert not has_line(pattern, "FedNest: |x - x*| = 2.0e+05 Ledger(exchanges=1)")


@pytest.mark.slow
def test_the_deployed_study_runs_as_a_program(tmp_path):
    done = python(str(EXAMPLES / "04_deploy" / "clinics.py"), cwd=tmp_path)
    assert "finished {'round': 20," in done


def test_the_readmes_program_runs():
    readme = (EXAMPLES.parent / "README.md").read_text()
    program = readme.split("```python\n")[1].split("```")[0]
    assert "exchanges=" in python("-c", program)


def test_the_pages_torch_network_predicts_in_torch(users_settings):
    pytest.importorskip("torchax", reason="make test-models runs it")
    page = (EXAMPLES.parent / "docs" / "tutorials" / "pytorch-module.md").read_text()
    (program,) = [p for p in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "torch" in p]
    names: dict[str, Any] = {}
    exec(program, names)
    test = rk.datasets.load("digits").test
    logits = names["network"](names["torch"].from_numpy(test["inputs"])).detach().numpy()
    assert (logits.argmax(1) == test["labels"]).mean() > 0.85


def python(*arguments, cwd=None) -> str:
    """What a fresh interpreter prints; a warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=300, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
