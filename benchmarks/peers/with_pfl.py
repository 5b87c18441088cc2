"""FedAvg with apple's pfl and PyTorch.

A pass over a client's rows must not end before the local steps do, so the first rows come twice.
pfl cuts a client's rows into batches once and keeps them; the other programs draw new ones.
"""

import math

import task
import torch  # pyright: ignore[reportMissingImports]
import torch_net
from pfl.aggregate.simulate import SimulatedBackend  # pyright: ignore[reportMissingImports]
from pfl.algorithm.base import NNAlgorithmParams  # pyright: ignore[reportMissingImports]
from pfl.algorithm.federated_averaging import (  # pyright: ignore[reportMissingImports]
    FederatedAveraging,
)
from pfl.data.federated_dataset import FederatedDataset  # pyright: ignore[reportMissingImports]
from pfl.data.pytorch import PyTorchTensorDataset  # pyright: ignore[reportMissingImports]
from pfl.data.sampling import get_user_sampler  # pyright: ignore[reportMissingImports]
from pfl.hyperparam import NNTrainHyperParams  # pyright: ignore[reportMissingImports]
from pfl.model.pytorch import PyTorchModel  # pyright: ignore[reportMissingImports]
from torch.nn.functional import cross_entropy  # pyright: ignore[reportMissingImports]

c = task.config()
images, labels = torch_net.tensors(c)


class Classifier(torch.nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self):
        super().__init__()
        self.network = torch_net.network(c)

    def loss(self, images, labels):
        """Mean cross-entropy of a batch."""
        return cross_entropy(self.network(images), labels)

    def metrics(self, images, labels):
        """Nothing is measured while the clock runs."""
        return {}


module = Classifier()
index = torch.arange(max(c.rows, c.steps * c.batch)) % c.rows
made = {i: PyTorchTensorDataset((images[i][index], labels[i][index])) for i in range(c.clients)}
sampler = get_user_sampler("minimize_reuse", list(made))
dataset = FederatedDataset(made.__getitem__, sampler)
backend = SimulatedBackend(training_data=dataset, val_data=dataset)
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0), None)
local = NNTrainHyperParams(
    local_num_epochs=None,
    local_num_steps=c.steps,
    local_learning_rate=c.lr,
    local_batch_size=c.batch,
)

for rounds, done in task.turns():
    params = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=math.inf,
        train_cohort_size=c.cohort,
        val_cohort_size=0,
    )
    FederatedAveraging().run(params, backend, model, local)
    with torch.no_grad():
        done(module.loss, images[0], labels[0])
