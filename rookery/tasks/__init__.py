"""Ready-made tasks: functions that return a problem, its clients and initial values."""

from rookery.tasks.hyper_representation import hyper_representation as hyper_representation

__all__ = ["hyper_representation"]
