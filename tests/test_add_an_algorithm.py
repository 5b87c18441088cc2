"""Follow docs/add-an-algorithm.md in a copy of the package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rookery

DOCS = Path(__file__).parent.parent / "docs" / "add-an-algorithm.md"
TRY = """
import jax, jax.numpy as jnp, numpy as np, rookery as rk
jax.config.update("jax_enable_x64", True)
zoo = rk.zoo.scalar_bilevel()
algorithm = rk.algorithms.FedGrad(outer_lr=0.1)
for engine in (rk.Eager(), rk.Compiled()):
    population, start = rk.Population.stacked(zoo.data), (np.ones(1), np.zeros(1))
    result = rk.run(algorithm, zoo.problem, population, start, rounds=3, engine=engine)
    assert abs(float(result.solution[0][0]) - 0.9**3) < 1e-12, result
    assert result.ledger.exchanges == 3
"""


@pytest.mark.slow
def test_one_file_and_two_lines_are_enough(tmp_path):
    file, lines = (block.split("```")[0] for block in DOCS.read_text().split("```python\n")[1:3])
    package = tmp_path / "rookery"
    shutil.copytree(Path(rookery.__file__).parent, package)
    (package / "algorithms" / "fedgrad.py").write_text(file)
    init = package / "algorithms" / "__init__.py"
    opening = "__all__ = [\n"
    before, after = init.read_text().split(opening)
    extra_import, extra_name = lines.split(opening)
    init.write_text(before + extra_import + opening + extra_name + after)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def python(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    names = json.loads(python("-m", "rookery.cli.main", "list", "--json"))
    assert names["algorithm"]["FedGrad"] == "Steps along the mean of f_x."
    python("-c", TRY)
