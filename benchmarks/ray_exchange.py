"""The remote engine over Ray against raw calls; see ``remote_exchange.py``, which measures.

Ray has an environment of its own, ``.venv-ray``, in which the measuring script runs as a process.

Run it with ``make bench BENCH="--only ray_exchange"``, which makes the environment.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from timing import Row, at_most, print_rows

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ENVIRONMENT = ROOT / ".venv-ray"
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "JAX_PLATFORMS": "cpu"}


def rows() -> list[Row]:
    """What was measured, or why it could not be."""
    if not (ENVIRONMENT / ".ready").exists():
        return _not_measured(f"{ENVIRONMENT.name} is missing: make {ENVIRONMENT.name}/.ready")
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "rows.json")
        done = subprocess.run(
            [ENVIRONMENT / "bin" / "python", HERE / "remote_exchange.py", output],
            env={**os.environ, **SETTINGS, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return _not_measured(f"failed: {lines[-1][:200]}")
        return [Row.from_json(row) for row in json.loads(output.read_text())]


def _not_measured(why: str) -> list[Row]:
    return [
        Row(
            f"An exchange over Ray, {size}: engine / raw call",
            float("nan"),
            "of the raw call's",
            at_most(1.3),
            why,
        )
        for size in ("1 KB", "1 MB")
    ]


if __name__ == "__main__":
    print_rows(rows())
