"""Who holds what, in numbers, text and a picture."""

import numpy as np
import pytest
from rich.console import Console

import rookery as rk


def two():
    labels = np.array([2, 0, 2, 5, 0, 0])
    parts = {
        "train": [np.array([0, 1]), np.array([2, 3, 4])],
        "test": [np.array([5]), np.array([0])],
    }
    data = {"label": labels, "measured": labels + 0.25}
    return rk.Population.from_parts(data, parts, names=["Oslo", "Berg|en"])


def test_rows_and_labels_are_counted():
    description = two().describe("label")
    assert description.rows.tolist() == [[2, 3], [1, 1]]
    assert description.classes == ("0", "2", "5")
    assert description.labels.tolist() == [[2, 1, 0], [1, 2, 1]]


def test_a_function_names_bins_and_no_label():
    by_function = two().describe(lambda rows: rows["label"] > 1)
    assert by_function.classes == ("False", "True")
    assert by_function.labels.tolist() == [[2, 1], [1, 3]]
    ranges = two().describe("measured", bins=5)
    assert ranges.classes[0] == "0.25 to 1.25"
    assert ranges.labels.tolist() == [[2, 0, 1, 0, 0], [1, 0, 2, 0, 1]]
    named = two().describe("label", classes=list("abcdef"))
    assert named.labels.tolist() == [[2, 0, 1, 0, 0, 0], [1, 0, 2, 0, 0, 1]]
    assert two().describe().columns == ("client", "train", "test")


def test_text_markdown_html_and_rich_say_the_same():
    description = two().describe("label")
    lines = [line.split() for line in str(description).replace(" |", "").splitlines()]
    assert lines[2] == ["Oslo", "2", "1", "2", "1", "0"]
    assert lines[-1] == ["all", "5", "2", "3", "3", "1"]
    assert description.to_markdown().splitlines()[3] == r"| Berg\|en | 3 | 1 | 1 | 2 | 1 |"
    assert "<tr><td>Oslo</td><td>2</td><td>1</td>" in description._repr_html_()
    console = Console(width=80)
    with console.capture() as printed:
        console.print(description)
    assert ["Berg|en", *"31121"] in [line.split() for line in printed.get().splitlines()]


def test_a_long_table_is_cut_and_its_sum_is_not():
    population = rk.Population.stacked(np.zeros((50, 2)))
    lines = str(population.describe()).splitlines()
    assert lines[-2].split() == ["20", "more", "|", "40"]
    assert lines[-1].split() == ["all", "|", "100"]
    assert len(population.describe().to_markdown().splitlines()) == 53


def test_the_picture_shows_the_numbers(tmp_path):
    description = two().describe("label")
    bars, shares = description.figure().axes[:2]
    boxes = [patch.get_path().get_extents(patch.get_patch_transform()) for patch in bars.patches]
    assert [(box.x0, box.x1) for box in boxes] == [(0, 2), (0, 3), (2, 3), (3, 4)]
    np.testing.assert_allclose(
        np.asarray(shares.images[0].get_array()), description.labels / np.array([[3], [4]])
    )
    assert [text.get_text() for text in shares.texts] == list("210121")
    description.save(tmp_path / "who.png", dpi=40)
    assert (tmp_path / "who.png").read_bytes().startswith(b"\x89PNG")


def test_bad_arguments():
    with pytest.raises(ValueError, match="Did you mean 'label'"):
        two().describe("lable")
    with pytest.raises(ValueError, match="labels 0 to 1, but a row has 2"):
        two().describe("label", classes=["a", "b"])
    many = rk.Population.stacked({"y": np.arange(60.0)[None]})
    with pytest.raises(ValueError, match="60 different values; pass bins"):
        many.describe("y")
    with pytest.raises(ValueError, match="one number per row"):
        rk.Population.stacked({"y": np.zeros((1, 3, 2))}).describe("y")
    with pytest.raises(TypeError, match="no fields with names"):
        rk.Population.stacked(np.zeros((1, 3))).describe("y")
    with pytest.raises(ValueError, match="describe needs the clients' rows"):
        rk.Population.elsewhere(np.zeros(2), 3).describe()
