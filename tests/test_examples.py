"""Every example runs, in a process of its own, and says what its docstring promises."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
EXPECTED = {
    "01_quadratic.py": "e-12 away",
    "02_your_own_loss.py": "penalties of those that mean nothing",
    "03_your_own_algorithm.py": "FedNest: |x - x*| = 2",
    "04_deploy/clinics.py": "finished {'round': 20,",
    "05_sweep.py": "Step sizes of FedNest",
    "06_equinox_model.py": "accuracy",
    "07_read_a_run.py": "finished:",
    "08_two_time_scales.py": "10 local steps: 400 exchanges, actor",
    "09_your_own_data.py": "client 7:",
}
DEPLOYED = "04_deploy/clinics.py"


@pytest.mark.parametrize("name", [*(p.name for p in sorted(EXAMPLES.glob("*.py"))), DEPLOYED])
def test_example(name, tmp_path):
    path = EXAMPLES / name
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout
    assert len(path.read_text().splitlines()) <= 60


def test_the_readmes_program_runs():
    readme = (EXAMPLES.parent / "README.md").read_text()
    program = readme.split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "exchanges=" in done.stdout
