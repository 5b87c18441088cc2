"""The curvature in x at fixed y and v, on all rows, beside the outer sizes that runs choose.

    python experiments/untuned/curvature_of_x.py

FedMBO with no step given, label-sorted clients, one seed. Printed is one over the largest curvature
after some rounds, and the size of the last outer step; ``tuned.jsonl`` has the best of a grid.
"""

import jax
import jax.numpy as jnp
from cells import ALGORITHMS, CLOCK, task

import rookery as rk
from rookery import tree
from rookery.tasks.task import Task
from rookery.types import Tree

ROUNDS = (1, 5, 20, 60)
PAIRS = (
    ("hyper_representation", "mnist"),
    ("hyper_representation", "cifar10"),
    ("loss_tuning", "covtype"),
    ("hyper_cleaning", "digits"),
)


def curvature(some: Task, x: Tree, y: Tree, v: Tree, iterations: int = 30) -> float:
    """The largest eigenvalue of the mean of  f_xx - (g_y v)_xx  over all clients and rows."""
    n, problem = some.population.n_clients, some.problem
    outer, inner = (
        [some.population.rows(i, split) for i in range(n)]
        for split in (problem.outer_split, problem.inner_split)
    )

    def lagrangian(x):
        def inner_gradient(rows):
            return jax.grad(lambda y: jnp.mean(jax.vmap(lambda e: problem.inner(x, y, e))(rows)))(y)

        direct = sum(jnp.mean(jax.vmap(lambda e: problem.outer(x, y, e))(r)) for r in outer)
        return (direct - sum(tree.dot(inner_gradient(rows), v) for rows in inner)) / n

    product = jax.jit(lambda p: jax.jvp(jax.grad(lagrangian), (x,), (p,))[1])
    p = tree.random_normal(jax.random.key(0), x)
    for _ in range(iterations):
        p = product(tree.scale(1 / jnp.maximum(tree.norm(p), 1e-30), p))
    return float(tree.norm(p))


def main() -> None:
    """Print a row for each task and number of rounds."""
    print(f"{'task':22}{'data':10}{'rounds':>8}{'1 / curvature':>16}{'outer size':>14}")
    for kind, data in PAIRS:
        some = task(kind, data, "sorted")
        for rounds in ROUNDS:
            result = rk.run(
                ALGORITHMS["FedMBO"](),
                some.problem,
                some.population,
                some.start(0),
                rounds=rounds,
                clock=CLOCK,
                guard=None,
            )
            opts = result.state.opts
            found = 1 / max(curvature(some, *result.solution, opts.adjoint.v), 1e-12)
            print(f"{kind:22}{data:10}{rounds:8}{found:16.3g}{float(opts.outer.size):14.3g}")


if __name__ == "__main__":
    main()
