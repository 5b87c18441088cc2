"""Trackers for TensorBoard, Weights & Biases and MLflow; each is an extra to install.

A tool's package is imported when its tracker is created, so that this module needs none of them.
Any object with the methods of :class:`Tracker` will do as well.
"""

from rookery.runner.tracker import Tracker
from rookery.tracking.mlflow import MLflow
from rookery.tracking.tensorboard import TensorBoard
from rookery.tracking.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB"]
