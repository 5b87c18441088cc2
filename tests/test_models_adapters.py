"""Equinox, Flax and PyTorch modules as functions: values, derivatives, policies, and back again.

`make test-models` runs all of it; `make test` has neither Flax nor PyTorch.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery import models
from rookery.runner.describe import describe

pytestmark = [
    pytest.mark.usefixtures("users_settings"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def torch():
    pytest.importorskip("torchax", reason="make test-models has PyTorch and torchax")
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def nnx():
    return pytest.importorskip("flax.nnx", reason="make test-models has Flax")


def images(n, *shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=(n, *shape)), jnp.float32)


def close(got, wanted, tolerance=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance), got, wanted
    )


# ---- PyTorch: values, gradients and Hessian-vector products are those of torch.func


def torch_mlp(torch):
    nn = torch.nn
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 5)), (1, 8, 8)


def torch_cnn(torch):
    nn = torch.nn
    layers = [
        nn.Conv2d(2, 4, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, stride=2),
        nn.Tanh(), nn.AvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
    ]  # fmt: skip
    return nn.Sequential(*layers), (2, 8, 8)


@pytest.mark.parametrize("patches", [False, True])
@pytest.mark.parametrize("build", [torch_mlp, torch_cnn])
def test_torch_values_and_derivatives(torch, build, patches):
    torch.manual_seed(0)
    module, shape = build(torch)
    inputs, labels = images(6, *shape), jnp.arange(6) % 5
    apply, params = models.from_torch(module, patches=patches)

    def loss(w):
        logits = jax.vmap(apply, (None, 0))(w, inputs)
        return jnp.mean(jax.vmap(models.cross_entropy)(logits, labels))

    names = list(params)
    rows, targets = torch.from_numpy(np.array(inputs)), torch.from_numpy(np.array(labels)).long()

    def torch_loss(*values):
        logits = torch.func.functional_call(module, dict(zip(names, values, strict=True)), (rows,))
        return torch.nn.functional.cross_entropy(logits, targets)

    point = tuple(p.detach() for p in dict(module.named_parameters()).values())
    along = tuple(torch.randn_like(p) for p in point)
    every = tuple(range(len(point)))
    gradient, product = torch.func.jvp(torch.func.grad(torch_loss, every), point, along)
    direction = {n: jnp.asarray(d.numpy()) for n, d in zip(names, along, strict=True)}
    got = jax.jit(lambda w, d: (loss(w), *jax.jvp(jax.grad(loss), (w,), (d,))))(params, direction)
    close(jax.vmap(apply, (None, 0))(params, inputs), module(rows).detach().numpy())
    close(got[0], torch_loss(*point).item())
    for name, g, h in zip(names, gradient, product, strict=True):
        close(got[1][name], g.numpy())
        close(got[2][name], h.numpy())


def test_a_torch_network_trained_here_predicts_the_same_in_torch(torch):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    apply, params = models.from_torch(module)
    inputs = images(40, 3)
    labels = (inputs[:, 0] > inputs[:, 1]).astype(jnp.int32)
    data = {"input": np.array(inputs).reshape(4, 10, 3), "label": np.array(labels).reshape(4, 10)}

    def loss(w, example):
        return models.cross_entropy(apply(w, example["input"]), example["label"])

    result = rk.run(
        rk.FedAvg(lr=0.5, local_steps=5),
        rk.SingleLevel(loss),
        rk.Population.stacked(data),
        start=(params,),
        rounds=20,
    )
    (trained,) = result.solution
    again = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    assert models.to_torch(trained, again) is again
    logits = again(torch.from_numpy(np.array(inputs))).detach().numpy()
    close(jax.vmap(apply, (None, 0))(trained, inputs), logits)
    assert (logits.argmax(1) == np.array(labels)).mean() > 0.9
    before = module(torch.from_numpy(np.array(inputs))).detach().numpy()
    assert (before.argmax(1) == np.array(labels)).mean() < 0.9
    state = again.state_dict()
    np.testing.assert_array_equal(state["0.weight"].numpy(), trained["0.weight"])


def test_torch_tied_frozen_and_buffered_parameters(torch):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(3, 3)
            self.b = torch.nn.Linear(3, 3)
            self.b.weight = self.a.weight
            self.b.bias.requires_grad_(False)
            self.register_buffer("offset", torch.arange(3.0))

        def forward(self, x):
            return self.b(torch.tanh(self.a(x))) + self.offset

    module = Tied()
    apply, params = models.from_torch(module)
    assert set(params) == {"a.weight", "a.bias"}
    inputs = images(2, 3)
    rows = torch.from_numpy(np.array(inputs))
    close(jax.vmap(apply, (None, 0))(params, inputs), module(rows).detach().numpy())
    models.to_torch(jax.tree.map(lambda a: 2 * a, params), module)
    doubled = jax.tree.map(lambda a: 2 * a, params)
    close(jax.vmap(apply, (None, 0))(doubled, inputs), module(rows).detach().numpy())


def torch_batch_norm(torch):
    nn = torch.nn
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 2))
    with torch.no_grad():
        for _ in range(3):
            module(torch.randn(4, 1, 8, 8) + 1)
    return module


def test_batch_norm_of_torch_is_frozen_or_refused(torch):
    module = torch_batch_norm(torch)
    with pytest.raises(ValueError, match=r"\['1'\] are in training mode.*batch_norm='frozen'"):
        models.from_torch(module)
    with pytest.raises(ValueError, match=r"batch_norm='averaged'.*rookery.problem.batch_norm"):
        models.from_torch(module, batch_norm="averaged")
    with pytest.raises(ValueError, match="Did you mean 'frozen'"):
        models.from_torch(module, batch_norm="frozn")
    apply, params = models.from_torch(module, batch_norm="frozen")
    assert module.training and module[1].training
    inputs = images(3, 1, 8, 8)
    module.eval()
    wanted = module(torch.from_numpy(np.array(inputs))).detach().numpy()
    close(jax.vmap(apply, (None, 0))(params, inputs), wanted)
    assert "1.weight" in params and "1.running_mean" not in params
    close(jax.vmap(models.from_torch(module)[0], (None, 0))(params, inputs), wanted)
    with pytest.raises(ValueError, match="'0' has no running statistics"):
        models.from_torch(torch.nn.Sequential(
            torch.nn.BatchNorm1d(3, track_running_stats=False)).eval())  # fmt: skip


def test_a_torch_module_that_changes_a_buffer_is_refused(torch):
    class Counting(torch.nn.Module):
        def __init__(self, in_place):
            super().__init__()
            self.layer, self.in_place = torch.nn.Linear(3, 1), in_place
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            if self.in_place:
                self.calls.add_(1)
            else:
                self.calls = self.calls + 1
            return self.layer(x)

    for in_place in (True, False):
        apply, params = models.from_torch(Counting(in_place))
        with pytest.raises(ValueError, match="changes the buffer 'calls'"):
            apply(params, jnp.ones(3))


def test_dropout_of_torch_needs_a_key(torch):
    nn = torch.nn
    module = nn.Sequential(nn.Linear(4, 400), nn.Dropout(0.25), nn.Linear(400, 400))
    with torch.no_grad():
        module[0].weight.fill_(0)
        module[0].bias.fill_(1)
        module[2].weight.copy_(torch.eye(400))
        module[2].bias.fill_(0)
    apply, params = models.from_torch(module)
    with pytest.raises(ValueError, match=r"random.*no key.*module\.eval\(\)"):
        apply(params, jnp.ones(4))
    one, same, other = (apply(params, jnp.ones(4), jax.random.key(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert set(np.unique(one).round(4)) == {0, np.float32(4 / 3).round(4)}
    assert 0.15 < (one == 0).mean() < 0.35
    assert 0.2 < (one != other).mean() < 0.55
    keys = jax.random.split(KEY, 2)
    both = jax.jit(jax.vmap(apply, (None, 0, 0)))(params, jnp.ones((2, 4)), keys)
    assert (both[0] != both[1]).any()
    still, params = models.from_torch(module.eval())
    np.testing.assert_allclose(still(params, jnp.ones(4)), 1)


def test_mistakes_with_torch(torch):
    module = torch.nn.Linear(3, 2)
    apply, params = models.from_torch(module)
    with pytest.raises(ValueError, match=r"missing \['bias'\], unknown \['b'\]"):
        apply({"weight": params["weight"], "b": params["bias"]}, jnp.ones(3))
    with pytest.raises(ValueError, match=r"missing \['bias'\]"):
        models.to_torch({"weight": params["weight"]}, module)
    with pytest.raises(ValueError, match=r"'weight' has shape \(2, 2, 3\)"):
        models.to_torch(jax.tree.map(lambda a: jnp.stack([a, a]), params), module)
    with pytest.raises(ValueError, match="no parameters that require a gradient"):
        models.from_torch(torch.nn.ReLU())
    with pytest.raises(ValueError, match="'weight' is not initialised"):
        models.from_torch(torch.nn.LazyLinear(2))
    with pytest.raises(TypeError, match="takes a PyTorch module, got str"):
        models.from_torch("network")


def test_engines_agree_on_a_torch_network(torch):
    torch.manual_seed(0)
    apply, params = models.from_torch(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()))
    data = {"input": np.array(images(12, 3)).reshape(3, 4, 3)}

    def solution(engine):
        problem = rk.SingleLevel(lambda w, example: jnp.sum(apply(w, example["input"]) ** 2))
        run = {"start": (params,), "rounds": 2, "engine": engine}
        return rk.run(rk.FedAvg(lr=0.1), problem, rk.Population.stacked(data), **run).solution

    compiled, eager, remote = map(solution, (rk.Compiled(), rk.Eager(), rk.remote.Remote()))
    close(compiled, eager, tolerance=1e-6)
    close(compiled, remote, tolerance=1e-6)
    assert (compiled[0]["0.weight"] != params["0.weight"]).all()


# ---- Flax NNX


def nnx_cnn(nnx, *, norm=False, dropout=False):
    class Network(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 3, (3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(3, rngs=rngs) if norm else None
            self.dropout = nnx.Dropout(0.5, rngs=rngs) if dropout else None
            self.head = nnx.Linear(48, 2, rngs=rngs)

        def __call__(self, x):
            x = nnx.tanh(self.conv(x))
            x = x if self.norm is None else self.norm(x)
            x = nnx.max_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1)
            return self.head(x if self.dropout is None else self.dropout(x))

    return Network(nnx.Rngs(0))


@pytest.mark.parametrize("patches", [False, True])
def test_nnx_values_gradients_and_the_way_back(nnx, patches):
    module = nnx_cnn(nnx)
    inputs = images(4, 8, 8, 1)
    apply, params = models.from_nnx(module, patches=patches)
    assert params["head"]["kernel"].shape == (48, 2)
    every = jax.jit(jax.vmap(apply, (None, 0)))
    close(every(params, inputs), module(inputs))
    got = jax.grad(lambda w: jnp.sum(every(w, inputs) ** 2))(params)
    wanted = nnx.grad(lambda m: jnp.sum(m(inputs) ** 2))(module)
    close(got, nnx.to_pure_dict(wanted))
    moved = jax.tree.map(lambda a, g: a - 0.1 * g, params, got)
    other = nnx_cnn(nnx)
    assert models.to_nnx(moved, other) is other
    close(every(moved, inputs), other(inputs))
    with pytest.raises(ValueError, match="the parameters have shapes"):
        models.to_nnx(jax.tree.map(lambda a: a[None], moved), other)


def test_batch_norm_of_nnx_is_frozen_or_refused(nnx):
    module = nnx_cnn(nnx, norm=True)
    module(images(4, 8, 8, 1) + 1)  # moves the statistics
    with pytest.raises(ValueError, match=r"\['norm'\] are in training mode.*'frozen'"):
        models.from_nnx(module)
    apply, params = models.from_nnx(module, batch_norm="frozen")
    assert module.norm is not None and not module.norm.use_running_average
    module.eval()
    inputs = images(3, 8, 8, 1)
    close(jax.vmap(apply, (None, 0))(params, inputs), module(inputs))
    close(jax.vmap(models.from_nnx(module)[0], (None, 0))(params, inputs), module(inputs))


def test_dropout_of_nnx_needs_a_key(nnx):
    module = nnx_cnn(nnx, dropout=True)
    apply, params = models.from_nnx(module)
    image = images(1, 8, 8, 1)[0]
    with pytest.raises(ValueError, match=r"\['dropout'\].*no key"):
        apply(params, image)
    one, same, other = (apply(params, image, jax.random.key(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    keys = jax.random.split(KEY, 2)
    both = jax.jit(jax.vmap(apply, (None, None, 0)))(params, image, keys)
    assert (both[0] != both[1]).any()
    module.eval()
    still, params = models.from_nnx(module)
    close(still(params, image), module(image[None])[0])


def test_an_nnx_module_that_changes_a_variable_is_refused(nnx):
    class Counting(nnx.Module):
        def __init__(self, rngs):
            self.layer = nnx.Linear(3, 1, rngs=rngs)
            self.calls = nnx.BatchStat(jnp.zeros(()))

        def __call__(self, x):
            self.calls.set_value(self.calls.get_value() + 1)
            return self.layer(x)

    apply, params = models.from_nnx(Counting(nnx.Rngs(0)))
    with pytest.raises(ValueError, match="changes variables"):
        apply(params, jnp.ones(3))
    with pytest.raises(TypeError, match="takes a Flax NNX module, got str"):
        models.from_nnx("network")


# ---- Equinox


class Network(eqx.Module):
    conv: eqx.nn.Conv2d
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear
    name: str = "network"

    def __call__(self, x, key=None):
        x = jnp.tanh(self.conv(x))
        return self.head(self.dropout(eqx.nn.MaxPool2d(2, 2)(x).ravel(), key=key))


def equinox_network(p):
    a, b = jax.random.split(KEY)
    return Network(
        eqx.nn.Conv2d(1, 3, 3, padding=1, key=a), eqx.nn.Dropout(p), eqx.nn.Linear(48, 2, key=b)
    )


@pytest.mark.parametrize("patches", [False, True])
def test_equinox_values_gradients_and_the_way_back(patches):
    module = eqx.nn.inference_mode(equinox_network(0.5))
    image = images(1, 1, 8, 8)[0]
    apply, params = models.from_equinox(module, patches=patches)
    close(apply(params, image), module(image))
    got = jax.jit(jax.grad(lambda w: jnp.sum(apply(w, image) ** 2)))(params)
    wanted = eqx.filter_grad(lambda m: jnp.sum(m(image) ** 2))(module)
    close(jax.tree.leaves(got), jax.tree.leaves(wanted))
    moved = jax.tree.map(lambda a, g: a - 0.1 * g, params, got)
    close(models.to_equinox(moved, module)(image), apply(moved, image))
    with pytest.raises(ValueError, match="do not fit"):
        models.to_equinox(jax.tree.map(lambda a: a[None], moved), module)
    with pytest.raises(TypeError, match="got str"):
        models.from_equinox("network")  # pyright: ignore[reportArgumentType]


def test_dropout_of_equinox_needs_a_key():
    module = equinox_network(0.5)
    apply, params = models.from_equinox(module)
    image = images(1, 1, 8, 8)[0]
    with pytest.raises(ValueError, match=r"Dropout.*no key"):
        apply(params, image)
    close(apply(params, image, KEY), module(image, key=KEY))


def test_batch_norm_of_equinox_is_frozen_or_refused():
    class Normed(eqx.Module):
        linear: eqx.nn.Linear
        norm: eqx.nn.BatchNorm

        def __init__(self, key):
            self.linear = eqx.nn.Linear(3, 2, key=key)
            self.norm = eqx.nn.BatchNorm(2, axis_name="rows", mode="ema")

        def __call__(self, x, state):
            return self.norm(self.linear(x), state)

    module, state = eqx.nn.make_with_state(Normed)(KEY)
    inputs = images(5, 3)
    _, state = jax.vmap(module, axis_name="rows", in_axes=(0, None), out_axes=(0, None))(
        inputs, state
    )
    with pytest.raises(ValueError, match=r"\['BatchNorm'\] are in training mode"):
        models.from_equinox(module, state=state)
    with pytest.raises(ValueError, match="state="):
        models.from_equinox(module, batch_norm="frozen")
    apply, params = models.from_equinox(module, state=state, batch_norm="frozen")
    wanted, _ = eqx.nn.inference_mode(module)(inputs[0], state)
    close(apply(params, inputs[0]), wanted)


# ---- patches


@pytest.mark.parametrize(
    "options",
    [
        {"padding": "SAME"},
        {"padding": "VALID", "window_strides": (2, 3)},
        {"padding": ((2, 1), (0, 3)), "rhs_dilation": (2, 1)},
        {"padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")},
        {"padding": "SAME", "dimension_numbers": ("NCHW", "OIHW", "NHWC")},
    ],
)
def test_a_convolution_by_patches_is_that_of_xla(options):
    last = options.get("dimension_numbers", ("NCHW",))[0] == "NHWC"
    image = images(2, *((9, 8, 3) if last else (3, 9, 8)))
    kernel = images(1, *((3, 2, 3, 5) if last else (5, 3, 3, 2)))[0]
    options = {"window_strides": (1, 1)} | options

    def squared(image, kernel):
        return jnp.sum(jax.lax.conv_general_dilated(image, kernel, **options) ** 2)

    both = [jax.jit(jax.value_and_grad(f, (0, 1))) for f in (squared, models.with_patches(squared))]
    close(*(f(image, kernel) for f in both), tolerance=1e-4)
    assert "conv_general" not in str(jax.make_jaxpr(models.with_patches(squared))(image, kernel))


def test_what_is_no_plain_convolution_or_pool_is_left_to_xla():
    image, kernel = images(2, 4, 8, 8), images(4, 2, 3, 3)

    def grouped(image):
        image = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", feature_group_count=2)
        window = (1, 1, 3, 3)
        return jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, window, (1, 1, 1, 1), "SAME")

    close(models.with_patches(grouped)(image), grouped(image))
    text = str(jax.make_jaxpr(models.with_patches(grouped))(image))
    assert "conv_general" in text and "reduce_window" in text


def test_a_pool_that_leaves_a_rest_and_a_function_in_a_function():
    image = images(1, 1, 7, 9)

    @jax.jit
    def pooled(tree):
        window = (1, 1, 2, 3)
        out = jax.lax.reduce_window(tree["x"], -jnp.inf, jax.lax.max, window, window, "VALID")
        return {"out": jax.nn.relu(out), "same": tree["x"], "number": 3.0}

    got = models.with_patches(pooled)({"x": image})
    close(got, pooled({"x": image}))
    assert "reduce_window" not in str(jax.make_jaxpr(models.with_patches(pooled))({"x": image}))


def test_patches_take_arguments_by_name():
    layers = [eqx.nn.Conv2d(1, 2, 2, key=KEY), eqx.nn.Dropout(0.5)]
    apply, params = models.from_equinox(eqx.nn.Sequential(layers), patches=True)
    x = images(1, 1, 3, 3)[0]
    close(apply(params, inputs=x, key=KEY), apply(params, x, KEY))


# ---- a run in a directory knows its model


def twice(build, change):
    """Descriptions of the same model built twice, and of another."""
    applies = [build(0)[0], build(0)[0], build(change)[0]]
    return [describe(lambda w, x, apply=apply: apply(w, x)) for apply in applies]


def test_a_run_describes_its_model_the_same_in_every_process(torch, nnx):
    def of_torch(change):
        nn = torch.nn
        return models.from_torch(nn.Sequential(nn.Linear(3, 2), nn.LeakyReLU(0.1 + change)))

    def of_nnx(change):
        return models.from_nnx(nnx.Linear(3, 2 + change, rngs=nnx.Rngs(0)))

    def of_equinox(change):
        return models.from_equinox(eqx.nn.Linear(3, 2 + change, key=KEY))

    for build in (of_torch, of_nnx, of_equinox):
        one, same, other = twice(build, 1)
        assert one == same != other


def shift(x):
    return x + 1.0


def of_code(forward, activation=jnp.tanh, scale=1.0):
    """A module of Equinox whose printed text does not show what it computes."""

    class Layer(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return self.inner(x)

        def inner(self, x):
            return forward(self.weight * x)

    layers = [Layer(jnp.ones(3) * scale), eqx.nn.Lambda(activation)]
    return describe(models.from_equinox(eqx.nn.Sequential(layers))[0])


def test_a_run_tells_modules_apart_whose_code_differs(monkeypatch):
    def times(factor):
        return lambda x: factor * x

    one = of_code(lambda x: jnp.tanh(x))
    assert one == of_code(lambda x: jnp.tanh(x)), "the same code, built again"
    assert one == of_code(lambda x: jnp.tanh(x), scale=2.0), "parameters are no part of it"
    assert one != of_code(lambda x: jnp.sin(x)), "another name"
    assert of_code(lambda x: x * 2.0) != of_code(lambda x: x * 3.0), "another constant"
    assert of_code(lambda x, by=2.0: x * by) != of_code(lambda x, by=3.0: x * by), "a default"
    assert of_code(times(2.0)) != of_code(times(3.0)), "a closure"
    assert of_code(lambda x: [x * 2.0 for _ in "a"]) != of_code(lambda x: [x * 3.0 for _ in "a"])
    assert of_code(times(2.0), lambda x: x + 1) != of_code(times(2.0), lambda x: x + 2)
    before = of_code(lambda x: shift(x))
    monkeypatch.setattr("test_models_adapters.shift", lambda x: x + 2.0)
    assert before != of_code(lambda x: shift(x)), "a function of the file"


# ---- what is not installed


@pytest.mark.parametrize("name, package", [("torch", "torchax"), ("nnx", "flax")])
def test_a_missing_package_is_named(name, package, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    extra = {"nnx": "flax"}.get(name, name)
    for function in (
        getattr(models, f"from_{name}"),
        lambda m: getattr(models, f"to_{name}")({}, m),
    ):
        with pytest.raises(ImportError, match=rf"pip install -e '\.\[{extra}\]'"):
            function(None)
