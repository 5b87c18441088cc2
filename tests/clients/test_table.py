"""Populations from tables, Hugging Face data sets and folders."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

import rookery as rk
from rookery.algorithms import FedAdam
from rookery.clients.columns import as_column, read_columns

HOSPITALS = {
    "hospital": ["Oslo", "Bergen", "Oslo", "Tromsø", "Bergen", "Tromsø", "Oslo"],
    "age": np.array([31.5, 55.0, 40.0, 18.0, 70.0, 33.0, 61.0]),
    "visits": np.array([1, 2, 3, 4, 5, 6, 7]),
    "sex": np.array(["f", "m", "m", "f", "f", "m", "f"]),
    "use": ["train", "train", "test", "test", "test", "train", "train"],
}
FIELDS = {"input": ["age", "visits"], "label": "sex"}


def built(table, **options):
    options = {"client": "hospital", "splits": "use", "fields": FIELDS, "encode": ["sex"]} | options
    return rk.Population.from_table(table, **options)


def check_hospitals(population):
    """The rows of every client and split, by hand."""
    assert population.names == ("Bergen", "Oslo", "Tromsø")
    assert population.splits == ("train", "test")
    wanted = {
        "train": [([[55, 2]], [1]), ([[31.5, 1], [61, 7]], [0, 0]), ([[33, 6]], [1])],
        "test": [([[70, 5]], [0]), ([[40, 3]], [1]), ([[18, 4]], [0])],
    }
    for split, clients in wanted.items():
        for client, (inputs, labels) in enumerate(clients):
            rows = population.rows(client, split)
            assert set(rows) == {"input", "label"}
            np.testing.assert_array_equal(rows["input"], inputs)
            assert rows["input"].dtype == np.float64
            np.testing.assert_array_equal(rows["label"], labels)
            assert rows["label"].dtype == np.int32


# ---- any kind of table


@pytest.mark.parametrize(
    "table",
    [
        HOSPITALS,
        pd.DataFrame(HOSPITALS),
        pd.DataFrame(HOSPITALS).convert_dtypes(),
        pd.DataFrame(HOSPITALS).astype({"hospital": "category", "sex": "category"}),
    ],
    ids=["mapping", "pandas", "pandas nullable", "pandas categories"],
)
def test_a_table(table):
    check_hospitals(built(table))


def test_polars():
    polars = pytest.importorskip("polars", reason="make test-models has polars")
    check_hospitals(built(polars.DataFrame(HOSPITALS)))
    with pytest.raises(TypeError, match=r"LazyFrame.*collected"):
        built(polars.DataFrame(HOSPITALS).lazy())
    missing = polars.DataFrame({**HOSPITALS, "visits": [1, None, 3, 4, 5, 6, 7]})
    with pytest.raises(ValueError, match=r"'visits', row 1 .*'Bergen'"):
        built(missing)
    lists = polars.DataFrame({"c": [0, 0, 1], "x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]})
    population = rk.Population.from_table(lists, client="c")
    np.testing.assert_array_equal(population.rows(0, "train")["x"], [[1, 2], [3, 4]])


def test_arrow():
    arrow = pytest.importorskip("pyarrow", reason="make test-models has pyarrow")
    table = arrow.table(HOSPITALS)
    check_hospitals(built(table))
    check_hospitals(built(table.to_batches()[0]))
    check_hospitals(built(table.to_reader()))  # only a stream
    with pytest.raises(ValueError, match=r"'visits', row 1 .*'Bergen'"):
        built(arrow.table({**HOSPITALS, "visits": [1, None, 3, 4, 5, 6, 7]}))


def test_without_fields_every_other_column_is_one():
    table = {name: HOSPITALS[name] for name in ("hospital", "age", "visits")}
    population = rk.Population.from_table(table, client="hospital")
    assert population.splits == ("train",)
    assert population.rows(1, "train")["age"].tolist() == [31.5, 40, 61]
    assert population.rows(1, "train")["visits"].dtype == np.int64


def test_clients_with_numbers_are_in_the_order_of_the_numbers():
    population = rk.Population.from_table({"c": [10, 9, 10], "x": [1.0, 2.0, 3.0]}, client="c")
    assert population.names == ("9", "10")
    assert population.rows(1, "train")["x"].tolist() == [1, 3]


def test_columns_with_several_numbers_per_row():
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    for x in (np.array(rows), rows, pd.Series(rows)):
        population = rk.Population.from_table({"c": [1, 0, 1], "x": x}, client="c")
        np.testing.assert_array_equal(population.rows(1, "train")["x"], [[1, 2], [5, 6]])
    with pytest.raises(ValueError, match=r"'x' .*unequal shapes.*Pad"):
        rk.Population.from_table({"c": [1, 0], "x": [[1.0], [1.0, 2.0]]}, client="c")


# ---- splits, classes and weights


def test_columns_with_numbers_for_names():
    columns = [HOSPITALS[name] for name in ("hospital", "age", "visits", "sex", "use")]
    table = pd.DataFrame(dict(enumerate(columns)))
    settings = {"fields": {"input": [1, 2], "label": 3}, "missing": {1: 0.0}}
    check_hospitals(built(table, client=0, splits=4, encode=[3], **settings))
    check_hospitals(built(table, client="0", splits="4", encode={3: ["f", "m"]}, **settings))
    with pytest.raises(ValueError, match=r"unknown column \(client\) '7'.*Valid: 0, 1, 2, 3, 4"):
        built(table, client=7)


def test_a_misspelt_argument_is_one_of_the_function_that_was_called():
    said = "Population.from_table has no argument 'split'. Did you mean 'splits'"
    with pytest.raises(TypeError, match=said):
        built(HOSPITALS, split="use")
    from_table: Callable[..., rk.Population] = rk.Population.from_table
    with pytest.raises(TypeError, match=r"Population.from_table: missing .* 'client'"):
        from_table(HOSPITALS)
    unknown: dict[str, Any] = {"own": "b"}
    with pytest.raises(TypeError, match="FedAdam has no argument 'own'"):
        FedAdam(lr=0.1, server_lr=0.1, **unknown)


def test_fractions_cut_every_client_and_follow_the_seed():
    table = {"c": np.repeat([0, 1], [10, 5]), "x": np.arange(15.0)}
    cut = {"train": 0.8, "test": 0.2}

    def rows(seed):
        population = rk.Population.from_table(table, client="c", splits=cut, seed=seed)
        assert population.counts.tolist() == [[8, 4], [2, 1]]
        return [population.rows(c, s)["x"].tolist() for c in (0, 1) for s in cut]

    assert sorted(rows(0)[0] + rows(0)[1]) == list(range(10))
    assert rows(0) == rows(0) != rows(1)
    with pytest.raises(ValueError, match="client '1' has 1 rows for the splits"):
        rk.Population.from_table({"c": [0, 0, 1], "x": np.zeros(3)}, client="c", splits=cut)


def test_a_client_without_rows_in_a_split_is_named():
    with pytest.raises(ValueError, match="Bergen has no rows in split 'test'"):
        built({**HOSPITALS, "use": ["train"] * 6 + ["test"]})


def test_classes_in_a_given_order():
    rows = built(HOSPITALS, encode={"sex": ["m", "f"]}).rows(1, "train")
    assert rows["label"].tolist() == [1, 1]
    numbers = built(HOSPITALS, fields={"label": "visits"}, encode=["visits"])
    assert numbers.rows(1, "train")["label"].tolist() == [0, 6]
    with pytest.raises(ValueError, match=r"'sex', row 0 \(client 'Oslo'\): 'f' is not among"):
        built(HOSPITALS, encode={"sex": ["m", "w"]})


@pytest.mark.parametrize(
    "weights, wanted",
    [(None, [1, 1, 1]), ("rows", [1, 2, 1]), ({"Oslo": 2.0, "Bergen": 1, "Tromsø": 5}, [1, 2, 5])],
)
def test_weights(weights, wanted):
    got = built(HOSPITALS, weights=weights).weights
    np.testing.assert_allclose(got, np.array(wanted) / sum(wanted))


def test_weights_by_rows_count_all_splits_where_none_is_called_train():
    use = ["fit" if use == "train" else use for use in HOSPITALS["use"]]
    np.testing.assert_allclose(
        built({**HOSPITALS, "use": use}, weights="rows").weights, np.array([2, 3, 2]) / 7
    )


def test_a_population_knows_its_classes():
    population = built(HOSPITALS)
    assert population.classes == {"label": ("f", "m")}
    assert population.describe("label").classes == ("f", "m")
    assert population.only(1).classes == population.without_rows().classes == population.classes
    assert built(HOSPITALS, encode={"sex": ["m", "f"]}).classes == {"label": ("m", "f")}
    wide = built(HOSPITALS, fields={"input": ["age", "sex"]}, encode=["sex"])
    assert wide.classes == {"input.sex": ("f", "m")}
    other = built(HOSPITALS, encode={"sex": ["m", "f"]})
    assert rk.Population.joined([population] * 2, names=[*"abcdef"]).classes == population.classes
    with pytest.raises(ValueError, match="the populations have different classes"):
        rk.Population.joined([population, other], names=[*"abcdef"])


# ---- what is no number, and what is missing


@pytest.mark.parametrize("hole", [None, float("nan"), pd.NA])
def test_missing_values(hole):
    table = {**HOSPITALS, "visits": pd.Series([1, 2, 3, 4, 5, 6, hole], dtype=object)}
    with pytest.raises(
        ValueError, match=r"'visits', row 6 \(client 'Oslo'\).*missing .*rows: 1.*drop"
    ):
        built(table)
    dropped = built(table, missing="drop")
    assert dropped.counts.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert built(table, missing={"visits": 7}).rows(1, "train")["input"].tolist() == [
        [31.5, 1],
        [61, 7],
    ]


def test_missing_text_and_missing_clients():
    table = {**HOSPITALS, "sex": [*HOSPITALS["sex"][:6], None]}
    with pytest.raises(ValueError, match=r"'sex', row 6 \(client 'Oslo'\)"):
        built(table)
    assert built(table, missing={"sex": "f"}).rows(1, "train")["label"].tolist() == [0, 0]
    clients = {**HOSPITALS, "hospital": [None, *HOSPITALS["hospital"][1:]]}
    with pytest.raises(ValueError, match="'hospital', row 0: the value is missing"):
        built(clients)
    assert built(clients, missing="drop").counts.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_a_column_that_is_not_used_may_have_holes():
    check_hospitals(built({**HOSPITALS, "remarks": [None, *"abcdef"]}))


def test_dropping_must_not_lose_a_client():
    ages = np.where(np.array(HOSPITALS["hospital"]) == "Bergen", np.nan, HOSPITALS["age"])
    with pytest.raises(ValueError, match="no row of client 'Bergen'"):
        built({**HOSPITALS, "age": ages}, missing="drop")


@pytest.mark.parametrize(
    "column, said",
    [
        (["a", "b", "c", "d", "b", "b", "b"], r"'visits', row 0 \(client 'Oslo'\): 'a' is not a "
         r"number.*encode=\['visits'\].*4 sorted values \['a', 'b', 'c'\] and more"),
        ([1, 2, "?", 4, 5, 6, 7], r"row 2 \(client 'Oslo'\): '\?' is not a number"),
        (np.arange("2020-01-01", "2020-01-08", dtype="M8[D]"), "2020-01-01 is a date"),
        (np.full(7, 1j), "complex128 is no type of a real number"),
    ],
)  # fmt: skip
def test_what_is_no_number(column, said):
    with pytest.raises(TypeError, match=said):
        built({**HOSPITALS, "visits": column})


@pytest.mark.parametrize(
    "change, error, said",
    [
        ({"client": "hospitals"}, ValueError, "column.*'hospitals'. Did you mean 'hospital'"),
        ({"splits": "uses"}, ValueError, "'uses'. Did you mean 'use'"),
        ({"fields": {"input": ["age", "agee"]}}, ValueError, "'agee'. Did you mean 'age'"),
        ({"fields": {}}, ValueError, "Name at least one"),
        ({"encode": "sex"}, TypeError, r"Write \['sex'\]"),
        ({"encode": ["sexes"]}, ValueError, "Did you mean 'sex'"),
        ({"encode": ["sex", "hospital"]}, ValueError, "'hospital', which is in no field"),
        ({"fields": {"age": "age"}}, ValueError, "'sex', which is in no field"),
        ({"encode": {"sex": ["f", "m", "f"]}}, ValueError, "column 'sex' a class twice"),
        ({"missing": "dropp"}, ValueError, "Did you mean 'drop'"),
        ({"missing": {"agee": 0}}, ValueError, "Did you mean 'age'"),
        ({"weights": "row"}, ValueError, "Did you mean 'rows'"),
        ({"weights": {"Oslo": 1.0}}, ValueError, "one number per client"),
        ({"splits": {"train": 0.5, "test": 0.6}}, ValueError, "sum to 1"),
    ],
)
def test_bad_arguments(change, error, said, wrong_types):
    with pytest.raises(error, match=said):
        built(HOSPITALS, **change)


def test_a_number_and_its_text_are_not_one_class():
    mixed = np.array([1, "1", "2", 3, 3, 3, 3], object)
    with pytest.raises(ValueError, match="column 'sex' has the values 1 and '1'"):
        built({**HOSPITALS, "sex": mixed})
    with pytest.raises(ValueError, match="column 'hospital' has the values 1 and '1'"):
        built({**HOSPITALS, "hospital": mixed})
    told_apart = built({**HOSPITALS, "sex": mixed}, encode={"sex": [1, "1", "2", 3]})
    assert told_apart.rows(0, "train")["label"].tolist() == [1]


def test_bad_tables():
    with pytest.raises(ValueError, match=r"same number of rows, got {'a': 1, 'b': 2}"):
        read_columns({"a": [1], "b": [1, 2]})
    with pytest.raises(ValueError, match="no columns"):
        read_columns({})
    with pytest.raises(ValueError, match="no rows"):
        read_columns({"a": []})
    with pytest.raises(TypeError, match="got ndarray"):
        read_columns(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="'a' must have one value per row"):
        as_column("a", 3)


# ---- Hugging Face


class LikeDataset:
    """What `datasets.Dataset` has of names, formats and slices."""

    def __init__(self, columns: Mapping[str, list], *, read: list[str] | None = None):
        self.columns, self.read = columns, [] if read is None else read
        self.kind, self.shown = "", list(columns)

    @property
    def column_names(self):
        return list(self.columns)

    @property
    def features(self):
        return {name: type(values[0]) for name, values in self.columns.items()}

    def __len__(self):
        return len(self.columns["age"])

    def with_format(self, type, columns):
        other = LikeDataset(self.columns, read=self.read)
        other.kind, other.shown = type, columns
        return other

    def __getitem__(self, rows):
        assert self.kind == "numpy" and rows == slice(None)
        self.read += self.shown
        return {name: np.array(self.columns[name]) for name in self.shown}


def of_split(split):
    rows = [i for i, use in enumerate(HOSPITALS["use"]) if use == split]
    return LikeDataset(
        {name: [values[i] for i in rows] for name, values in HOSPITALS.items() if name != "use"}
    )


def test_a_data_set_with_splits():
    both = {"train": of_split("train"), "test": of_split("test")}
    options = {"client": "hospital", "fields": FIELDS, "encode": ["sex"]}
    check_hospitals(rk.Population.from_huggingface(both, **options))
    with pytest.raises(ValueError, match=r"splits \['train', 'test'\] already"):
        rk.Population.from_huggingface(both, splits={"train": 1.0}, **options)
    both["test"].columns["age"][1] = float("nan")
    with pytest.raises(ValueError, match=r"'age', row 1 \(client 'Tromsø'\)"):
        rk.Population.from_huggingface(both, **options)


def test_splits_of_different_shapes_are_refused():
    def split(image):
        return LikeDataset({"writer": ["a"], "age": [1.0], "image": [image]})

    def joined(train, test):
        splits = {"train": split(train), "test": split(test)}
        return rk.Population.from_huggingface(splits, client="writer")

    assert joined([1.0, 2.0], [3.0, 4.0]).rows(0, "test")["image"].tolist() == [[3, 4]]
    said = r"column 'image' differs: rows are float64\[2\] in split 'train', float64\[3\] in 'test'"
    with pytest.raises(ValueError, match=said):
        joined([1.0, 2.0], [3.0, 4.0, 5.0])
    with pytest.raises(ValueError, match=r"float64\[\] in split 'train', .* in 'test'"):
        joined(1.0, "dark")


def test_a_data_set_without_splits_reads_only_what_is_used():
    dataset = LikeDataset({**HOSPITALS, "image": ["large"] * 7})
    options = {"fields": FIELDS, "encode": ["sex"], "splits": "use"}
    check_hospitals(rk.Population.from_huggingface(dataset, client="hospital", **options))
    assert sorted(dataset.read) == ["age", "hospital", "sex", "use", "visits"]
    with pytest.raises(ValueError, match=r"'hospitals'. Did you mean 'hospital'"):
        rk.Population.from_huggingface(dataset, client="hospitals", **options)


def test_what_is_no_data_set():
    with pytest.raises(TypeError, match=r"got DataFrame.*from_table"):
        rk.Population.from_huggingface(pd.DataFrame(HOSPITALS), client="hospital")
    streamed = type("IterableDataset", (), {"column_names": [], "with_format": None})()
    with pytest.raises(TypeError, match=r"got IterableDataset.*Load a streamed data set whole"):
        rk.Population.from_huggingface(streamed, client="hospital")
    with pytest.raises(TypeError, match="from_huggingface"):
        rk.Population.from_table({"train": of_split("train")}, client="hospital")


# ---- a folder with one file per client


def write_hospitals(folder, write):
    for hospital in sorted(set(HOSPITALS["hospital"])):
        mine = [i for i, name in enumerate(HOSPITALS["hospital"]) if name == hospital]
        columns = {n: [values[i] for i in mine] for n, values in HOSPITALS.items()}
        write(folder / hospital, {n: v for n, v in columns.items() if n != "hospital"})


def write_csv(path, columns):
    pd.DataFrame(columns).to_csv(path.with_suffix(".csv"), index=False)


def write_npz(path, columns):
    np.savez(path.with_suffix(".npz"), **{n: np.array(v) for n, v in columns.items()})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("write", [write_csv, write_npz])
def test_a_folder(tmp_path, write):
    write_hospitals(tmp_path, write)
    (tmp_path / ".hidden").touch()
    options = {"splits": "use", "fields": FIELDS, "encode": ["sex"]}
    check_hospitals(rk.Population.from_folder(tmp_path, **options))
    (tmp_path / "README.txt").touch()
    with pytest.raises(ValueError, match=r"README.txt is none of .npz, .csv"):
        rk.Population.from_folder(tmp_path, **options)
    check_hospitals(
        rk.Population.from_folder(tmp_path, pattern=f"*.{write.__name__[-3:]}", **options)
    )


def test_a_folder_with_a_reader_of_ones_own(tmp_path):
    write_hospitals(tmp_path, write_csv)
    options = {"splits": "use", "fields": FIELDS, "encode": ["sex"]}
    check_hospitals(rk.Population.from_folder(tmp_path, read=pd.read_csv, **options))


def test_mistakes_in_a_folder(tmp_path):
    with pytest.raises(NotADirectoryError, match="nowhere is not a folder"):
        rk.Population.from_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no files that match '\*'"):
        rk.Population.from_folder(tmp_path)
    (tmp_path / "a.csv").write_text("age,dose\n31,1\n40,2\n")
    (tmp_path / "b.csv").write_text("age,dose\n18,\n33,high\n")
    with pytest.raises(ValueError, match=r"'dose' differs: int64\[\] in a.csv, object.* in b.csv"):
        rk.Population.from_folder(tmp_path)
    (tmp_path / "b.csv").write_text("age,dose\n18,5\n33,\n")
    with pytest.raises(ValueError, match=r"'dose', row 1 \(client 'b'\): the value is missing"):
        rk.Population.from_folder(tmp_path)
    (tmp_path / "b.csv").write_text("age,dose\n18,\n33,\n")
    filled = rk.Population.from_folder(tmp_path, missing={"dose": 0})
    assert filled.rows(1, "train")["dose"].tolist() == [0, 0]
    (tmp_path / "b.csv").write_text("age,dose\n18\n")
    with pytest.raises(ValueError, match=r"b.csv: .*row 0 has 1 cells"):
        rk.Population.from_folder(tmp_path)
    (tmp_path / "b.csv").write_text("age\n18\n")
    with pytest.raises(ValueError, match=r"b.csv has the columns \['age'\]"):
        rk.Population.from_folder(tmp_path)
    (tmp_path / "b.csv").write_text("age,client\n18,1\n")
    (tmp_path / "a.csv").unlink()
    with pytest.raises(ValueError, match="has a column 'client'"):
        rk.Population.from_folder(tmp_path)


def test_a_column_name_occurs_once(tmp_path):
    (tmp_path / "Oslo.csv").write_text("x, y,x\n1,2,3\n")
    with pytest.raises(ValueError, match=r"Oslo.csv: column names must differ, got 'x' 2 times"):
        rk.Population.from_folder(tmp_path)
    (tmp_path / "Oslo.csv").write_text("x, y ,z\n1,2,3\n")
    assert list(rk.Population.from_folder(tmp_path, fields={"y": "y"}).data) == ["y"]
    doubled = pd.DataFrame([["Oslo", 1.0, 2.0]], columns=["hospital", "x", "x"])
    for table in (doubled, {"hospital": ["Oslo"], 1: [1.0], "1": [2.0]}):
        with pytest.raises(ValueError, match="column names must differ"):
            rk.Population.from_table(table, client="hospital")


# ---- whole numbers that JAX would wrap


@pytest.mark.usefixtures("users_settings")
def test_whole_numbers_need_32_bits():
    def of(*values, **options):
        table = {"hospital": ["Oslo", "Oslo", "Bergen"], "id": np.array(values), "age": np.ones(3)}
        return rk.Population.from_table(table, client="hospital", **options).data

    assert of(1, 2**31 - 1, -(2**31))["id"].max() == 2**31 - 1
    said = r"column 'id', row 2 \(client 'Bergen'\): 2147483648 does not fit int32 \(1 such"
    with pytest.raises(ValueError, match=said):
        of(1, 2, 2**31)
    with pytest.raises(
        ValueError, match=r"row 0 \(client 'Oslo'\): -2147483649 does not fit int32"
    ):
        of(-(2**31) - 1, 2, 3)
    assert of(1, 2, 2**40, encode=["id"])["id"].tolist() == [2, 0, 1]
    assert "id" not in of(1, 2, 2**40, fields={"age": "age"})
    assert of(1, 2, 2**40, fields={"x": ["id", "age"]})["x"].max() == 2.0**40
    jax.config.update("jax_enable_x64", True)
    assert of(1, 2, 2**40)["id"].max() == 2**40
