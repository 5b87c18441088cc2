"""Data sets with natural clients: LEAF's JSON, UCI's hospitals, and tables inside packages."""

import hashlib
import importlib.util
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from rookery.clients import datasets, leaf, partition


def owners_of(data):
    assert data.owners is not None
    return data.owners


# LEAF


def write_leaf(root, users, part="train", number=0, **more):
    """A file as LEAF's scripts write it; ``users`` has x and y by name."""
    folder = root / part
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
        **more,
    }
    file = folder / f"all_data_{number}_niid_1_keep_3_{part}_9.json"
    file.write_text(json.dumps(content))
    return file


def images(n, seed):
    return np.random.default_rng(seed).integers(0, 256, (n, 784)) / 255


def write_femnist(root):
    made = {name: (images(n, n), [n % 62, *range(n - 1)]) for name, n in
            {"f0102_11": 3, "f0031_02": 5, "f1907_30": 2}.items()}  # fmt: skip
    lists = {name: (x.tolist(), y) for name, (x, y) in made.items()}
    first = {name: lists[name] for name in ("f0102_11", "f0031_02")}
    write_leaf(root, first)
    write_leaf(root, {"f1907_30": lists["f1907_30"]}, number=1)
    write_leaf(root, {name: (x[:1], y[:1]) for name, (x, y) in lists.items()}, "test")
    return made


def test_femnist_by_writer(tmp_path):
    made = write_femnist(tmp_path / "femnist")
    data = datasets.load("femnist", tmp_path)
    assert data.owner_names == ("f0031_02", "f0102_11", "f1907_30")
    assert data.train["inputs"].shape == (10, 28, 28, 1)
    assert data.train["inputs"].dtype == np.float32
    assert data.n_classes == 62
    assert data.classes[10] == "A"
    assert data.classes[61] == "z"
    for number, name in enumerate(data.owner_names):
        x, y = made[name]
        mine = owners_of(data) == number
        assert np.allclose(data.train["inputs"][mine].reshape(-1, 784), 1 - x, atol=1e-6)
        assert data.train["labels"][mine].tolist() == y
    assert sorted(data.test["labels"].tolist()) == sorted(y[0] for _, y in made.values())
    raw = datasets.load("femnist", tmp_path, normalise=False)
    assert np.allclose(raw.train["inputs"], 1 - data.train["inputs"], atol=1e-6)
    assert "no checksum is published" in data.checked_by
    assert len(data.files) == 3


def test_the_tree_that_leaf_makes_is_found_and_its_checksums_hold(tmp_path):
    write_femnist(tmp_path / "femnist" / "data")
    files = sorted((tmp_path / "femnist").rglob("*.json"))
    lines = [
        f"{hashlib.md5(f.read_bytes(), usedforsecurity=False).hexdigest()}  "
        f"data/{f.parent.name}/{f.name}\n"
        for f in files
    ]
    (tmp_path / "femnist" / "meta").mkdir()
    listed = tmp_path / "femnist" / "meta" / "dir-checksum.md5"
    listed.write_text("".join(lines))
    assert datasets.load("femnist", tmp_path).checked_by == "the checksums that LEAF wrote"
    files[0].write_text(files[0].read_text() + " ")
    with pytest.raises(ValueError, match=rf"{files[0].name} is not the file that LEAF wrote.*md5"):
        datasets.load("femnist", tmp_path)
    listed.write_text("".join(lines[1:]))
    with pytest.raises(ValueError, match="not listed"):
        datasets.load("femnist", tmp_path)


def line(text):
    """Windows of 80 characters and the next, as LEAF cuts a line."""
    padded = " " * 80 + text
    return [padded[i : i + 80] for i in range(len(text))], list(text)


def test_shakespeare_by_role(tmp_path):
    lines = {
        "HAMLET": "To be, or not",
        "MACBETH_LADY MACBETH": "Out, damned spot! [Exit]\n",
    }
    root = tmp_path / "shakespeare"
    users = {role: line(text) for role, text in lines.items()}
    write_leaf(root, users, hierarchies=["HAMLET", "MACBETH"])
    write_leaf(root, {"HAMLET": line("a}")}, "test")
    data = datasets.load("shakespeare", tmp_path)
    assert len(leaf.VOCABULARY) == len(set(leaf.VOCABULARY)) == data.n_classes == 80
    assert data.train["inputs"].dtype == np.int32
    assert data.train["inputs"].shape == (sum(map(len, lines.values())), 80)
    for number, role in enumerate(data.owner_names):
        mine = owners_of(data) == number
        text = "".join(data.vocabulary[t] for t in data.train["labels"][mine])
        assert text == lines[role]
        window = "".join(data.vocabulary[t] for t in data.train["inputs"][mine][3])
        assert window == " " * 77 + lines[role][:3]
    assert data.test["labels"].tolist() == [data.vocabulary.index("a"), 79]


BROKEN = {
    "not JSON": ("{", "is not JSON"),
    "no users": ('{"num_samples": [], "user_data": {}}', "users is missing"),
    "a list": ("[]", "not in LEAF's form"),
    "a missing user": (
        '{"users": ["a"], "num_samples": [1], "user_data": {}}',
        "user 'a': user_data needs 1 entries .* got no list",
    ),
    "fewer rows": (
        '{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[0]], "y": [1]}}}',
        "needs 2 entries .* got 1 and 1",
    ),
}


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_not_in_leafs_form_is_named(tmp_path, content, message):
    write_femnist(tmp_path / "femnist")
    file = tmp_path / "femnist" / "train" / "b.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        datasets.load("femnist", tmp_path)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("name", "user", "message"),
    [
        ("femnist", ([[0.5] * 783], [1]), "784 numbers"),
        ("femnist", ([[255.0] * 784], [1]), "from 0 to 1"),
        ("femnist", ([[0.5] * 784], [62]), "from 0 to 61"),
        ("shakespeare", (["a" * 80], ["é"]), "'é' is not one of LEAF's 80"),
        ("shakespeare", (["a" * 80, "a" * 79], ["b", "c"]), r"one length, got \[79, 80\]"),
        ("shakespeare", (["a" * 80], ["bc"]), r"1 character, got \[2\]"),
    ],
)
def test_rows_of_another_kind_are_refused(tmp_path, name, user, message):
    write_leaf(tmp_path, {"someone": user})
    write_leaf(tmp_path, {"someone": user}, "test")
    with pytest.raises(ValueError, match=message) as error:
        datasets.load(name, tmp_path)
    assert "user 'someone'" in str(error.value)


def test_windows_of_users_must_have_one_length(tmp_path):
    users = {"a": (["x" * 80], ["y"]), "b": (["x" * 20], ["y"])}
    write_leaf(tmp_path, users)
    write_leaf(tmp_path, users, "test")
    with pytest.raises(ValueError, match=r"one shape, got \[\(20,\), \(80,\)\]"):
        datasets.load("shakespeare", tmp_path)


def test_missing_files_of_leaf_say_how_to_make_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train/\*\.json.*(.|\n)*preprocess\.sh"):
        datasets.load("femnist", tmp_path)


# UCI's hospitals

GRADES = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
WHOLE = {"cleveland": 303, "hungarian": 261, "switzerland": 46, "va": 130}
HEALTHY = {"cleveland": 164, "hungarian": 188, "switzerland": 8, "va": 51}


def write_heart(folder):
    """Files with the published numbers of rows, missing values and healthy patients."""
    rng = np.random.default_rng(0)
    tables = {}
    for hospital, n in GRADES.items():
        table = np.column_stack([
            rng.integers(28, 78, n), rng.integers(0, 2, n), rng.integers(1, 5, n),
            rng.integers(80, 200, n), rng.integers(0, 600, n), rng.integers(0, 2, n),
            rng.integers(0, 3, n), rng.integers(60, 200, n), rng.integers(0, 2, n),
            rng.integers(-26, 62, n) / 10, *np.full((3, n), np.nan),
            np.arange(n) >= HEALTHY[hospital],
        ]).astype(float)  # fmt: skip
        lacking = rng.permutation(n)[: n - WHOLE[hospital]]
        table[lacking, rng.integers(3, 10, lacking.size)] = np.nan
        tables[hospital] = table
        lines = [",".join("?" if np.isnan(c) else f"{c:g}" for c in row) for row in table]
        (folder / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")
    return tables


def test_heart_disease_by_hospital(tmp_path):
    tables = write_heart(tmp_path)
    data = datasets.load("heart_disease", tmp_path, normalise=False)
    assert data.owner_names == ("Cleveland", "Budapest", "Zurich and Basel", "Long Beach")
    assert data.train["inputs"].shape == (590, 13)
    assert data.test["inputs"].shape == (150, 13)
    assert data.classes == ("healthy", "ill")
    assert "no checksum" in data.checked_by
    for number, hospital in enumerate(GRADES):
        mine = owners_of(data) == number
        assert mine.sum() == WHOLE[hospital] - -(-WHOLE[hospital] // 5)
        whole = tables[hospital][~np.isnan(tables[hospital][:, :10]).any(axis=1)]
        # every training row is a row of the table, with dummies for pain and electrocardiogram
        for x, y in zip(data.train["inputs"][mine], data.train["labels"][mine], strict=True):
            pain = 1 + int(x[8:11] @ [1, 2, 3])
            electro = int(x[11:13] @ [1, 2])
            row = [x[0], x[5], pain, x[1], x[2], x[6], electro, x[3], x[7], x[4]]
            same = np.isclose(whole[:, :10], row, atol=1e-4).all(axis=1)
            assert (whole[same, 13] > 0).tolist() == [bool(y)]
    scaled = datasets.load("heart_disease", tmp_path)
    assert np.allclose(scaled.train["inputs"][:, :5].mean(0), 0, atol=1e-5)
    assert np.allclose(scaled.train["inputs"][:, :5].std(0), 1, atol=1e-5)
    assert np.array_equal(scaled.train["inputs"][:, 5:], data.train["inputs"][:, 5:])


def test_a_changed_file_of_a_hospital_is_refused(tmp_path):
    write_heart(tmp_path)
    file = tmp_path / "processed.va.data"
    lines = file.read_text().splitlines()
    for content, message in [
        (lines[1:], "199 rows 50 have the label 0 .* wanted 51 and 149"),
        ([*lines[:-1], lines[-1] + ",0"], "row 199 has 15 cells"),
        ([*lines[:-1], "x" + lines[-1]], "neither a number nor"),
    ]:
        file.write_text("\n".join(content))
        with pytest.raises(ValueError, match=rf"processed\.va\.data.*{message}"):
            datasets.load("heart_disease", tmp_path)


# tables inside packages


def packaged(name, module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"the package {module} that carries {name} is not installed (extra natural)")
    return datasets.load(name)


def test_penguins_by_island():
    data = packaged("penguins", "palmerpenguins")
    assert data.owner_names == ("Biscoe", "Dream", "Torgersen")
    assert data.train["inputs"].shape == (272, 4)
    assert data.test["inputs"].shape == (70, 4)
    both = np.bincount(data.train["labels"]) + np.bincount(data.test["labels"])
    assert both.tolist() == [151, 68, 123]
    classes = [np.unique(data.train["labels"][owners_of(data) == o]).tolist() for o in range(3)]
    assert classes == [[0, 2], [0, 1], [0]]  # only Adelie penguins live on Torgersen


def test_insurance_by_village():
    data = packaged("villages", "causaldata")
    assert len(data.owner_names) == 44
    assert data.train["inputs"].shape == (1084, 10)
    assert data.test["inputs"].shape == (294, 10)
    assert np.allclose(data.train["inputs"][:, :6].std(0), 1, atol=1e-5)
    assert set(np.unique(data.train["inputs"][:, 6:])) == {0, 1}
    shares = [data.train["labels"][owners_of(data) == o].mean() for o in range(44)]
    print(f"villages: {min(shares):.2f} to {max(shares):.2f} of the farmers bought")
    assert max(shares) - min(shares) > 0.5


@pytest.mark.parametrize(
    ("name", "module"), [("penguins", "palmerpenguins"), ("villages", "causaldata")]
)
def test_a_missing_package_names_the_extra(tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)  # how Python marks what cannot be imported
    with pytest.raises(FileNotFoundError, match=rf"{module}: pip install -e '\.\[natural\]'"):
        datasets.load(name, tmp_path)


def test_a_package_with_other_columns_is_refused(tmp_path):
    (tmp_path / "penguins.csv").write_text("species,isle\nAdelie,Dream\n")
    with pytest.raises(ValueError, match=r"lacks the columns bill_length_mm.*island"):
        datasets.load("penguins", tmp_path)


# owners


def test_owners_stay_with_their_rows():
    data = datasets.stand_in("penguins", n_owners=4, rows=20)
    mark = {"inputs": np.eye(4, dtype=np.float32)[owners_of(data)], "labels": data.train["labels"]}
    data = replace(data, train=mark)
    for smaller in (data.keep(np.array([40, 3, 17])), data.hold_out(20)):
        assert np.array_equal(smaller.train["inputs"].argmax(1), owners_of(smaller))
    assert owners_of(data.keep(np.array([40, 3]))).tolist() == [2, 0]


def test_natural_partition():
    owners = np.array([2, 0, 2, 5, 0, 2])
    assert [rows.tolist() for rows in partition.natural(owners)] == [[1, 4], [0, 2, 5], [3]]
    assert [rows.tolist() for rows in partition.natural(owners, least=2)] == [[1, 4], [0, 2, 5]]
    drawn = {tuple(map(tuple, partition.natural(owners, 1, seed=s))) for s in range(20)}
    assert drawn == {((1, 4),), ((0, 2, 5),), ((3,),)}
    assert partition.natural(owners, 2, seed=3)[0][0] == partition.natural(owners, 2, seed=3)[0][0]
    with pytest.raises(ValueError, match=r"2 owners have at least 2 rows, got n_clients=3"):
        partition.natural(owners, 3, least=2)
    with pytest.raises(ValueError, match=r"no natural owners.*femnist"):
        partition.natural(None)
    assert set(partition.OWNED) == {n for n, s in datasets._SOURCES.items() if s.n_owners}


def test_blank_rows_have_owners_too():
    for name in partition.OWNED:
        blank = datasets.blank_like(name)
        source = datasets._SOURCES[name]
        assert np.unique(owners_of(blank)).size == len(blank.owner_names) == source.n_owners
        assert blank.n_classes == source.n_classes
        assert blank.train["inputs"].dtype == (np.int32 if source.vocabulary else np.float32)


@pytest.mark.parametrize("name", datasets.available())
def test_a_stand_in_has_the_form_of_its_data_set(name):
    made, blank = datasets.stand_in(name, n_owners=3, rows=10), datasets.blank_like(name)
    assert made.train["inputs"].shape[1:] == blank.train["inputs"].shape[1:]
    assert made.train["inputs"].dtype == blank.train["inputs"].dtype
    assert made.n_classes == blank.n_classes
    assert np.bincount(owners_of(made)).tolist() == [8, 8, 8]
    assert len(made.test["labels"]) == 6
    again = datasets.stand_in(name, n_owners=3, rows=10)
    assert np.array_equal(made.train["inputs"], again.train["inputs"])
