"""Examples in docstrings that need a package of an extra are skipped where it is missing."""

import importlib.util

import pytest

NEEDS = {  # name of an example -> the package that it needs, and the target that has it
    "rookery.models.nnx_adapter.from_nnx": ("flax", "make test-models"),
    "rookery.models.nnx_adapter.to_nnx": ("flax", "make test-models"),
    "rookery.models.torch_adapter.from_torch": ("torchax", "make test-models"),
    "rookery.models.torch_adapter.to_torch": ("torchax", "make test-models"),
    "rookery.remote.transports.ray.transport.Ray": ("ray", "make test-ray"),
    "rookery.tracking.mlflow.MLflow": ("mlflow", "make test-tracking"),
    "rookery.tracking.tensorboard.TensorBoard": ("tensorboardX", "make test-tracking"),
    "rookery.tracking.wandb.WandB": ("wandb", "make test-tracking"),
}


def pytest_collection_modifyitems(items):
    """Skip examples whose package is missing."""
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.name in NEEDS:
            package, target = NEEDS[item.name]
            if importlib.util.find_spec(package) is None:
                item.add_marker(pytest.mark.skip(reason=f"needs {package}: {target} runs it"))
