"""Models as plain functions of pytrees: small ones, and adapters for Equinox, Flax and PyTorch.

``apply, params = from_torch(module)`` and its twins :func:`from_nnx` and :func:`from_equinox` turn
a module into a function ``apply(params, example)`` for losses, and its parameters, a pytree for
``start``. ``to_torch(params, module)`` and its twins put trained parameters back.
"""

from rookery.models.bfloat16 import with_bfloat16 as with_bfloat16
from rookery.models.equinox_adapter import from_equinox as from_equinox
from rookery.models.equinox_adapter import to_equinox as to_equinox
from rookery.models.layers import at_label as at_label
from rookery.models.layers import cnn as cnn
from rookery.models.layers import cnn_init as cnn_init
from rookery.models.layers import convolution as convolution
from rookery.models.layers import cross_entropy as cross_entropy
from rookery.models.layers import dense as dense
from rookery.models.layers import dense_init as dense_init
from rookery.models.layers import is_correct as is_correct
from rookery.models.layers import max_pool as max_pool
from rookery.models.layers import mlp as mlp
from rookery.models.layers import mlp_init as mlp_init
from rookery.models.nnx_adapter import from_nnx as from_nnx
from rookery.models.nnx_adapter import to_nnx as to_nnx
from rookery.models.patches import with_patches as with_patches
from rookery.models.torch_adapter import from_torch as from_torch
from rookery.models.torch_adapter import to_torch as to_torch
