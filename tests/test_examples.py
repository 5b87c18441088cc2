"""Every example runs in a process of its own and prints the result that its docstring promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = r"\d\.\d+e-1\d\b"  # below 1e-9
EXPECTED = {  # regular expressions, which the output must contain
    "01_quadratic.py": rf"round 300: +13500 exchanges, {SMALL} away",
    "02_your_own_loss.py": r"penalties of the inputs that matter: +\[0\.0\d+ 0\.0\d+ 0\.0\d+\]",
    "03_your_own_algorithm.py": rf"FedNest: \|x - x\*\| = {SMALL}",
    "04_deploy/clinics.py": r"finished \{'round': 20,",
    "05_sweep.py": r"Step sizes of FedNest",
    "06_equinox_model.py": r"round  50: accuracy 0\.[89]",
    "07_read_a_run.py": r"round 30: 303 exchanges, x = -0\.29",
    "08_two_time_scales.py": rf"10 local steps: 400 exchanges, actor {SMALL} and critic {SMALL}",
    "09_your_own_data.py": r"client 7: +\d+ training rows",
}


def run_program(*arguments, **settings):
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        **settings,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested():
    assert {p.name for p in EXAMPLES.glob("*.py")} | {"04_deploy/clinics.py"} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name, tmp_path):
    out = run_program(str(EXAMPLES / name), cwd=tmp_path)
    assert re.search(EXPECTED[name], out), out


def test_the_readmes_program_runs():
    readme = (EXAMPLES.parent / "README.md").read_text()
    program = readme.split("```python\n")[1].split("```")[0]
    assert "exchanges=" in run_program("-c", program)
