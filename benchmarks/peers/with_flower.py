"""FedAvg with Flower's simulation on Ray: as many clients at a time as there are cores."""

import functools
import logging
import os

import ray  # pyright: ignore[reportMissingImports]
import task
import torch  # pyright: ignore[reportMissingImports]
import torch_net
from flwr.app import (  # pyright: ignore[reportMissingImports]
    ArrayRecord,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # pyright: ignore[reportMissingImports]
from flwr.serverapp import ServerApp  # pyright: ignore[reportMissingImports]
from flwr.serverapp.strategy import FedAvg  # pyright: ignore[reportMissingImports]
from flwr.simulation import run_simulation  # pyright: ignore[reportMissingImports]
from torch.nn.functional import cross_entropy  # pyright: ignore[reportMissingImports]

logging.getLogger("flwr").setLevel(logging.ERROR)
c = task.config()
client_app, server_app = ClientApp(), ServerApp()


@functools.cache
def prepared():
    """Network and rows, once per process."""
    torch.set_num_threads(1)
    return torch_net.network(c), *torch_net.tensors(c)


@client_app.train()
def train(message, context):
    """The local steps of a client."""
    network, images, labels = prepared()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(network.parameters(), lr=c.lr)
    client = int(context.node_config["partition-id"])
    for _ in range(c.steps):
        drawn = torch.randint(c.rows, (c.batch,))
        optimiser.zero_grad()
        cross_entropy(network(images[client][drawn]), labels[client][drawn]).backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": c.rows})
    content = {"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}
    return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def main(grid, context):
    """Rounds as they are asked for."""
    network = torch_net.network(c)
    arrays, (images, labels) = ArrayRecord(network.state_dict()), torch_net.tensors(c)
    strategy = FedAvg(
        fraction_train=c.cohort / c.clients, fraction_evaluate=0.0, min_available_nodes=c.clients
    )
    for rounds, done in task.turns():
        arrays = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds).arrays
        network.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            done(lambda network: cross_entropy(network(images[0]), labels[0]), network)


if __name__ == "__main__":
    import with_flower  # Ray's processes find the client's functions by the module's name

    run_simulation(
        with_flower.server_app,
        with_flower.client_app,
        num_supernodes=c.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": os.cpu_count(), "log_to_driver": False},
        },
    )
    ray.shutdown()
