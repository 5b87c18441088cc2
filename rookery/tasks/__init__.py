"""Ready-made tasks: functions that return a problem, its clients, initial values and metrics."""

from rookery.tasks.adversarial import adversarial as adversarial
from rookery.tasks.auc import auc as auc
from rookery.tasks.classification import classification as classification
from rookery.tasks.fair_classification import fair_classification as fair_classification
from rookery.tasks.hyper_cleaning import hyper_cleaning as hyper_cleaning
from rookery.tasks.hyper_representation import hyper_representation as hyper_representation
from rookery.tasks.known_solution import conditional_quadratic as conditional_quadratic
from rookery.tasks.known_solution import dirac_gan as dirac_gan
from rookery.tasks.known_solution import fednest_saddle as fednest_saddle
from rookery.tasks.known_solution import mean_semideviation as mean_semideviation
from rookery.tasks.known_solution import personal_quadratic as personal_quadratic
from rookery.tasks.known_solution import quadratic as quadratic
from rookery.tasks.known_solution import saddle as saddle
from rookery.tasks.loss_tuning import loss_tuning as loss_tuning
from rookery.tasks.maml import maml as maml
from rookery.tasks.partial_auc import partial_auc as partial_auc
from rookery.tasks.regularisation import regularisation as regularisation

__all__ = [
    "adversarial",
    "auc",
    "classification",
    "conditional_quadratic",
    "dirac_gan",
    "fair_classification",
    "fednest_saddle",
    "hyper_cleaning",
    "hyper_representation",
    "loss_tuning",
    "maml",
    "mean_semideviation",
    "partial_auc",
    "personal_quadratic",
    "quadratic",
    "regularisation",
    "saddle",
]
