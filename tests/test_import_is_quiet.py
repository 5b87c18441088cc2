import subprocess
import sys

CODE = """
import rookery
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "importing rookery started a JAX backend"
import sys
assert not {"matplotlib", "pandas", "sklearn", "mlxtend", "ray", "nvflare"} & set(sys.modules)
assert not {"torch", "torchax", "flax", "polars", "pyarrow"} & set(sys.modules)
assert not {"tensorboardX", "wandb", "mlflow", "sqlalchemy"} & set(sys.modules)
"""


def test_importing_starts_no_backend_and_loads_no_optional_package():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
