"""Speed of a MAML step of a convolutional network, as ratios within one run.

CIFAR-10 shapes, 4 clients, 5 local steps of two batches of 32 images (1 where convolutions are
compared), exact Hessian-vector products, two 3 x 3 convolutions and two dense layers. Times are CPU
seconds of this process (all threads), the least of several repetitions; compile time is apart.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from timing import Row, at_least, cpu_seconds, print_rows

import rookery as rk
from rookery import models
from rookery.engines.engine import Program
from rookery.engines.rounds import many_rounds

CLIENTS, ROWS, BATCH, STEPS = 4, 64, 32, 5
SIDE, CHANNELS, WIDTHS, CLASSES = 32, 3, (32, 64, 128), 10


def make_population() -> rk.Population:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(CLIENTS, ROWS, SIDE, SIDE, CHANNELS)).astype(np.float32)
    labels = rng.integers(0, CLASSES, (CLIENTS, ROWS)).astype(np.int32)
    return jax.device_put(rk.Population.stacked({"inputs": inputs, "labels": labels}))


def patches_loss(w, example):
    """The shipped network: convolutions as matrix products of patches."""
    return models.cross_entropy(models.cnn(w, example["inputs"]), example["labels"])


def convolution_loss(w, example):
    """The same network with XLA's own convolutions and pooling."""
    image = example["inputs"]
    for layer in w["convolutions"]:
        kernel = layer["w"].reshape(3, 3, image.shape[-1], -1)
        image = lax.conv_general_dilated(
            image[None], kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )[0]
        image = models.max_pool(image + layer["b"])
        image = jax.nn.relu(image)
    return models.cross_entropy(models.mlp(w["head"], image.ravel()), example["labels"])


def step_seconds(loss, local_steps: int, repeats: int) -> tuple[float, float]:
    """CPU seconds of one local step of one client, and the seconds of compiling."""
    algorithm = rk.ComFedL(
        lr=0.01, local_steps=local_steps, batch_size=BATCH, outer_batch_size=BATCH
    )
    rng = np.random.default_rng(0)
    start = models.cnn_init(rng, (SIDE, SIDE, CHANNELS), WIDTHS, CLASSES)
    problem, population = rk.Meta(loss, adapt_lr=0.05), make_population()

    def round(population, state, key):
        program = Program(problem, population, rk.delays.Clock(), rk.aggregate.Mean())
        return many_rounds(program, algorithm, 1, 1, state, key, 0, 1)

    state = algorithm.init(problem, jax.tree.map(jnp.asarray, start))
    key = jax.random.key(0)
    began = time.monotonic()
    compiled = jax.jit(round).lower(population, state, key).compile()
    compile_seconds = time.monotonic() - began
    seconds = cpu_seconds(lambda: compiled(population, state, key), repeats)
    return seconds / (CLIENTS * local_steps), compile_seconds


def products() -> list[tuple[int, int, int]]:
    """The matrix products (m, k, n) that one step cannot do without.

    A gradient needs three for every layer: forward, to the weights, and to the layer's input, which
    the first layer can do without. A step takes two gradients; its Hessian-vector product repeats
    each product of one of them twice, with a tangent for either factor, but for those whose tangent
    is zero, of the images.
    """
    c1, c2, hidden = WIDTHS
    pixels, flat = SIDE * SIDE, (SIDE // 4) ** 2 * c2
    layers = [
        (BATCH * pixels, 9 * CHANNELS, c1),
        (BATCH * pixels // 4, 9 * c1, c2),
        (BATCH, flat, hidden),
        (BATCH, hidden, CLASSES),
    ]
    needed = []
    for i, (m, k, n) in enumerate(layers):
        forward, to_weights, to_input = (m, k, n), (k, m, n), (m, n, k)
        gradient = [forward, to_weights] + [to_input] * (i > 0)
        tangents = [forward, to_weights] if i == 0 else 2 * gradient
        needed += 2 * gradient + tangents
    return needed


def products_seconds() -> float:
    """CPU seconds of these products alone, one after another."""
    pairs = [(jnp.ones((m, k)), jnp.ones((k, n))) for m, k, n in products()]
    product = jax.jit(lambda a, b: a @ b)
    return cpu_seconds(lambda: [product(a, b) for a, b in pairs], repeats=5)


def rows() -> list[Row]:
    """All measurements."""
    patches, patches_compile = step_seconds(patches_loss, STEPS, repeats=5)
    gemms = products_seconds()
    flops = sum(2.0 * m * k * n for m, k, n in products())
    # a local step of lax.conv is slow: one each, so that both share out a round's costs alike
    one_step, _ = step_seconds(patches_loss, local_steps=1, repeats=2)
    convolutions, compile_seconds = step_seconds(convolution_loss, local_steps=1, repeats=2)
    step = f"MAML step, batches of {BATCH} + {BATCH} images"
    return [
        Row(
            step,
            gemms / patches,
            "of the rate of its matrix products",
            at_least(0.4),
            f"{2 * BATCH / patches:.0f} images per CPU second; compiled in {patches_compile:.1f} "
            f"s; the products alone, {flops / 1e9:.2f} GFLOP: {gemms * 1e3:.0f} ms of CPU",
        ),
        Row(
            f"{step}: lax.conv inside the loop / patches",
            convolutions / one_step,
            note=f"with lax.conv compiled in {compile_seconds:.1f} s",
        ),
    ]


if __name__ == "__main__":
    print_rows(rows())
