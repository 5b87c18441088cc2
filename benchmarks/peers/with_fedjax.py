"""FedAvg with FedJAX's algorithm, client sampler and client data sets."""

import fedjax  # pyright: ignore[reportMissingImports]
import jax
import task
from fedjax.algorithms import fed_avg  # pyright: ignore[reportMissingImports]
from nets import loss

c = task.config()
images, labels = task.data(c)
clients = fedjax.InMemoryFederatedData(
    {b"%d" % i: {"x": images[i], "y": labels[i]} for i in range(c.clients)}
)
algorithm = fed_avg.federated_averaging(
    grad_fn=lambda params, batch, rng: jax.grad(loss)(params, batch["x"], batch["y"]),
    client_optimizer=fedjax.optimizers.sgd(learning_rate=c.lr),
    server_optimizer=fedjax.optimizers.sgd(learning_rate=1.0),
    client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
        batch_size=c.batch, num_epochs=None, num_steps=c.steps
    ),
)
sampler = fedjax.client_samplers.UniformGetClientSampler(clients, c.cohort, seed=0)
state = algorithm.init(jax.tree.map(jax.numpy.asarray, task.start(c)))

for rounds, done in task.turns():
    for _ in range(rounds):
        state, _ = algorithm.apply(state, sampler.sample())
    jax.block_until_ready(state.params)
    done(loss, state.params, images[0], labels[0])
