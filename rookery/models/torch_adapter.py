"""PyTorch modules as functions of JAX, through torchax, and trained weights back into them."""

import copy
import threading
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.models import adapter
from rookery.models.patches import with_patches
from rookery.types import Key, Tree

if TYPE_CHECKING:
    from torch.nn import Module  # pyright: ignore[reportMissingImports]


# a forward pass puts its tensors into the module, and torchax has one environment for all threads
_ONE_AT_A_TIME = threading.RLock()


def from_torch(
    module: "Module",
    *,
    batch_norm: str | None = None,
    batch_axis: bool = True,
    patches: bool = False,
) -> tuple[adapter.Apply, dict[str, jax.Array]]:
    """A PyTorch module as ``apply(params, example)``, and its parameters by their PyTorch names.

    ``apply`` takes **one example** without a batch axis, as losses do; use ``jax.vmap`` for many.
    It works on a copy of the module, whose mode (training or evaluation) stays as it was. Buffers,
    and parameters with ``requires_grad=False``, are constants. A module whose forward pass changes
    a buffer is refused. Needs ``pip install -e '.[torch]'``.

    Args:
        module: its forward pass takes one argument, a tensor or a structure of tensors.
        batch_norm: what happens to running statistics of BatchNorm layers in training mode; only
            ``"frozen"``: they are constants.
        batch_axis: whether the module expects a batch axis; it gets a batch of one.
        patches: compute convolutions as products of patches (:func:`with_patches`), which is faster
            inside compiled rounds on a CPU.

    >>> import jax.numpy as jnp
    >>> import rookery as rk
    >>> import torch
    >>> apply, params = rk.models.from_torch(torch.nn.Linear(64, 10))
    >>> def loss(w, example):
    ...     return rk.models.cross_entropy(apply(w, example["input"]), example["label"])
    >>> params["weight"].shape, apply(params, jnp.zeros(64, params["weight"].dtype)).shape
    ((10, 64), (10,))
    """
    torch, torchax = _torch("from_torch")
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch takes a PyTorch module, got {type(module).__name__}.")
    own = copy.deepcopy(module)
    layers = _batch_norms(torch, own)
    adapter.check_policy(
        batch_norm, [n for n, layer in layers.items() if layer.training], "module.eval()"
    )
    for name, layer in layers.items():
        layer.eval()
        if layer.running_mean is None:
            raise ValueError(
                f"the layer {name!r} has no running statistics (track_running_stats=False), and "
                "one example has none of its own. Use GroupNorm or LayerNorm instead."
            )
    env = torchax.default_env()
    params, constants = {}, {}
    for name, tensor in [*own.named_parameters(), *own.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            raise ValueError(f"{name!r} is not initialised yet. Call the module on a batch first.")
        is_trained = isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad
        value = jnp.array(env.t2j_copy(tensor.detach().cpu()))
        (params if is_trained else constants)[name] = value
    if not params:
        raise ValueError(f"{type(module).__name__} has no parameters that require a gradient.")

    def batched(values: Tree, inputs: Tree, key: Key | None) -> Tree:
        _check_names(values, params)
        given = jax.random.key(0) if key is None else key
        with _ONE_AT_A_TIME, env, env.override_property(prng=given):
            tensors = env.j2t_iso({**values, **constants})
            buffers = {name: tensors[name] for name in constants}
            output = torch.func.functional_call(own, tensors, (env.j2t_iso(inputs),))
            if key is None and env.prng_key is not given:
                raise adapter.needs_key("dropout, for example", "module.eval()")
            for name, tensor in buffers.items():
                if tensors[name] is not tensor or tensor.jax() is not constants[name]:
                    raise ValueError(
                        f"the forward pass changes the buffer {name!r}, which would be lost. Call "
                        "module.eval() first if that stops it; otherwise keep such values in "
                        "parameters or in the data."
                    )
            return env.t2j_iso(output)

    text = adapter.architecture(own.modules(), repr(own), constants.values())
    apply = adapter.one_example(adapter.Forward(batched, text), batch_axis)
    return with_patches(apply) if patches else apply, params


def to_torch(params: Mapping[str, object], module: "Module") -> "Module":
    """The module with trained parameters, as :func:`from_torch` names them; it is changed in place.

    ``module.state_dict()`` then has them, for ``torch.save``.

    >>> import jax
    >>> import rookery as rk
    >>> import torch
    >>> network = torch.nn.Linear(64, 10)
    >>> _, params = rk.models.from_torch(network)
    >>> trained = jax.tree.map(lambda a: 0 * a + 1, params)  # in practice result.solution[0]
    >>> float(rk.models.to_torch(trained, network).state_dict()["bias"][0])
    1.0
    """
    torch, _ = _torch("to_torch")
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    _check_names(params, trained)
    for name, parameter in trained.items():
        value = np.array(params[name])
        if value.shape != tuple(parameter.shape):
            raise ValueError(
                f"{name!r} has shape {value.shape}, but the module's has {tuple(parameter.shape)}. "
                "Pass one solution, and a module of the same architecture."
            )
        if value.dtype.name == "bfloat16":  # unknown to PyTorch's from_numpy
            value = value.astype(np.float32)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(value))
    return module


def _check_names(given: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    if set(given) != set(wanted):
        missing, unknown = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
        raise ValueError(
            f"the parameters are not the module's: missing {missing}, unknown {unknown}."
        )


def _batch_norms(torch: ModuleType, module: "Module") -> dict[str, Any]:  # of PyTorch
    nn = torch.nn
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, kinds)}


def _torch(who: str) -> tuple[ModuleType, ModuleType]:
    try:
        import torch  # pyright: ignore[reportMissingImports]
        import torchax  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            f"{who} needs the packages torch and torchax: "
            "pip install -e '.[torch]' in rookery's checkout."
        ) from error
    return torch, torchax
