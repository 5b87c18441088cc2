"""A network that fits a data set, and its loss and accuracy on one example."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rookery import check, models
from rookery.clients.datasets import Dataset
from rookery.runner.metrics import Metric
from rookery.types import Tree


class Classifier(eqx.Module):
    """Softmax regression, dense layers for flat inputs, or convolutions for images.

    It holds sizes, not parameters.

    Attributes:
        input_shape: shape of one input.
        hidden: widths of the hidden layers; none makes softmax regression. Images need three: the
            channels of two convolutions and the units of a dense layer.
        n_classes: number of logits.

    >>> network = Classifier((4,), (3,), 2)
    >>> network(network.init(np.random.default_rng(0)), jnp.ones(4, "float32")).shape
    (2,)
    """

    input_shape: tuple[int, ...] = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    n_classes: int = eqx.field(static=True)

    def __check_init__(self):
        for i, width in enumerate(self.hidden):
            check.count(f"hidden[{i}]", width)
        if self.hidden and len(self.input_shape) not in (1, 3):
            raise ValueError(
                "hidden layers need inputs that are flat or [height, width, channels], got inputs "
                f"of shape {self.input_shape}."
            )
        if self._has_convolutions and len(self.hidden) != 3:
            raise ValueError(
                "images need three hidden layers (two convolutions and a dense one), got "
                f"hidden={self.hidden}. Use for instance hidden=(32, 64, 128), or flatten "
                "the images."
            )

    @property
    def _has_convolutions(self) -> bool:
        return bool(self.hidden) and len(self.input_shape) == 3

    def init(self, rng: np.random.Generator) -> Tree:
        """Random parameters."""
        if self._has_convolutions:
            height, width, channels = self.input_shape
            return models.cnn_init(rng, (height, width, channels), self.hidden, self.n_classes)
        n_in = int(np.prod(self.input_shape))
        return models.mlp_init(rng, (n_in, *self.hidden, self.n_classes))

    def __call__(self, params: Tree, inputs: Float[Array, "..."]) -> Float[Array, " n_classes"]:
        """Logits of one input."""
        if self._has_convolutions:
            return models.cnn(params, inputs)
        return models.mlp(params, inputs.ravel())


class OneHot(eqx.Module):
    """A classifier of sequences of tokens, each of which becomes a one-hot vector.

    Attributes:
        network: of the vectors, one after the other.
        tokens: how many different tokens there are.

    >>> network = OneHot(Classifier((4 * 26,), (3,), 2), tokens=26)
    >>> network(network.init(np.random.default_rng(0)), jnp.array([1, 0, 25, 3])).shape
    (2,)
    """

    network: Classifier
    tokens: int = eqx.field(static=True)

    @property
    def n_classes(self) -> int:
        """Number of logits."""
        return self.network.n_classes

    def init(self, rng: np.random.Generator) -> Tree:
        """Random parameters."""
        return self.network.init(rng)

    def __call__(self, params: Tree, inputs: Int[Array, "..."]) -> Float[Array, " n_classes"]:
        """Logits of one input."""
        kind = jnp.result_type(*jax.tree.leaves(params))
        return self.network(params, jax.nn.one_hot(inputs.ravel(), self.tokens, dtype=kind).ravel())


Network = Classifier | OneHot


def classifier(dataset: Dataset, hidden: Sequence[int], n_outputs: int | None = None) -> Network:
    """The network with the given hidden layers that fits a data set; one output per class."""
    shape, n = tuple(dataset.train["inputs"].shape[1:]), n_outputs or dataset.n_classes
    if not dataset.vocabulary:
        return Classifier(shape, tuple(hidden), n)
    tokens = len(dataset.vocabulary)
    return OneHot(Classifier((int(np.prod(shape)) * tokens,), tuple(hidden), n), tokens)


class Loss(eqx.Module):
    """Cross-entropy of the network; its parameters are the last of the problem's variables.

    >>> network = Classifier((2,), (), 10)
    >>> zero = jax.tree.map(jnp.zeros_like, network.init(np.random.default_rng(0)))
    >>> example = {"inputs": jnp.ones(2, "float32"), "labels": jnp.array(3)}
    >>> round(float(Loss(network)(zero, example)), 3)
    2.303
    """

    network: Network

    def __call__(self, *point: Tree) -> jax.Array:
        """The loss at ``point = (*variables, example)``."""
        *_, params, example = point
        return models.cross_entropy(self.network(params, example["inputs"]), example["labels"])


class Accuracy(eqx.Module):
    """Accuracy of the network; its parameters are the last of the problem's variables."""

    network: Network

    def __call__(self, *point: Tree) -> jax.Array:
        """One if the example is classified correctly, otherwise zero."""
        *_, params, example = point
        return models.is_correct(self.network(params, example["inputs"]), example["labels"])


class OfX(eqx.Module):
    """A metric or a loss of the model in x, of a solution (x, y).

    >>> float(OfX(lambda w, example: w * example)(jnp.array(2.0), None, jnp.array(3.0)))
    6.0
    """

    metric: Metric

    def __call__(self, x: Tree, y: Tree, example: Tree) -> jax.Array:
        """Of one example."""
        return self.metric(x, example)


class ClassWeighted(eqx.Module):
    """A metric or a loss times the weight of the example's class.

    Args:
        metric: the metric or loss.
        weights: one per class.
    """

    metric: Metric
    weights: Float[np.ndarray | Array, " n_classes"]

    def __call__(self, *point: Tree) -> jax.Array:
        """The weighted value of one example."""
        value = self.metric(*point)
        weights = jnp.asarray(self.weights).astype(value.dtype)
        return models.at_label(weights, point[-1]["labels"]) * value
