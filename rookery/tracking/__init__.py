"""Trackers that write to other people's tools, each an extra of its own.

A package is imported when its tracker is made, so this module needs none of them.
"""

from rookery.runner.tracker import Tracker
from rookery.tracking.mlflow import MLflow
from rookery.tracking.tensorboard import TensorBoard
from rookery.tracking.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB"]
