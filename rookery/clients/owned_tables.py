"""Readers of tables whose rows have natural owners: hospitals, islands, villages.

Of the rows of every owner, a fifth of every class are test rows, as in :mod:`rookery.datasets`.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from rookery.clients.dataset_readers import Rows, every_fifth, standardised
from rookery.clients.files import read_csv

HOSPITALS = {
    "cleveland": ("Cleveland", (164, 139)),
    "hungarian": ("Budapest", (188, 106)),
    "switzerland": ("Zurich and Basel", (8, 115)),
    "va": ("Long Beach", (51, 149)),
}
"""By the name in the file's name: where, and the rows without and with disease that UCI states."""


def read_heart_disease(files: list[Path]) -> Rows:
    """UCI's four processed files, of 14 columns, in which ``?`` is a missing value.

    The columns slope, ca and thal are left out, since three hospitals hardly measured them, and
    then the rows that still lack a value: 740 remain, as in FLamby (arXiv:2210.04620). Inputs are
    age, blood pressure, cholesterol, heart rate and ST depression; then 0 or 1 for sex, blood
    sugar, angina, chest pain of type 2, 3 and 4, and electrocardiogram 1 and 2. The label is
    whether any disease was found. All cholesterol of the Swiss rows is 0, not measured.
    """
    inputs, labels, owners = [], [], []
    for number, file in enumerate(files):
        table = _numbers(file)
        wanted = HOSPITALS[file.name.split(".")[1]][1]
        got = int(np.sum(table[:, 13] == 0)), int(np.sum(np.isin(table[:, 13], (1, 2, 3, 4))))
        if got != wanted or sum(got) != len(table):
            raise ValueError(
                f"{file} is damaged or not the published file: of its {len(table)} rows {got[0]} "
                f"have the label 0 and {got[1]} a label from 1 to 4, wanted {wanted[0]} and "
                f"{wanted[1]}. Download it again."
            )
        whole = table[~np.isnan(table[:, :10]).any(axis=1)]
        age, sex, pain, pressure, cholesterol, sugar, electro, rate, angina, st = whole.T[:10]
        numeric = age, pressure, cholesterol, rate, st
        flags = sex, sugar, angina, *(pain == k for k in (2, 3, 4)), *(electro == k for k in (1, 2))
        inputs.append(np.stack([*numeric, *flags], axis=1))
        labels.append((whole[:, 13] > 0).astype(np.int32))
        owners.append(np.full(len(whole), number))
    names = tuple(HOSPITALS[file.name.split(".")[1]][0] for file in files)
    rows = _split(np.concatenate(inputs), np.concatenate(labels), np.concatenate(owners), names)
    return rows._replace(checked_by="the numbers of rows that UCI states; it publishes no checksum")


def _numbers(file: Path) -> Float[np.ndarray, "rows 14"]:
    """The cells of a file without a header; a question mark is NaN."""
    lines = [line.split(",") for line in file.read_text().splitlines() if line.strip()]
    for row, cells in enumerate(lines):
        if len(cells) != 14:
            raise ValueError(f"{file}, row {row} has {len(cells)} cells, wanted 14.")
    try:
        return np.array([[float(c.strip().replace("?", "nan")) for c in cells] for cells in lines])
    except ValueError as error:
        raise ValueError(f"{file} has a cell that is neither a number nor '?': {error}") from error


def scale_heart_disease(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    """The five measurements standardised; the other columns are 0 or 1."""
    return standardised(x, train, 5)


PENGUINS = ("Adelie", "Chinstrap", "Gentoo")
"""The classes of ``penguins``."""


def read_penguins(files: list[Path]) -> Rows:
    """Species from four measurements, by island; rows without measurements are left out."""
    measured = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
    return _read_packaged(files[0], measured, "species", PENGUINS, "island")


def scale_penguins(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Every column standardised by the training rows."""
    return standardised(x, train, 4)


def read_villages(files: list[Path]) -> Rows:
    """Whether rice farmers in China bought an insurance, by administrative village.

    J. Cai, A. de Janvry, E. Sadoulet. Social networks and the decision to insure. AEJ: Applied
    Economics 7(2), 2015. Inputs are age, size of the household, area of rice, the perceived
    probability of a disaster, risk aversion and the rate of insurance before; then 0 or 1 for a
    man, insurance by default, intensive information and literacy. Rows that lack a value are left
    out.
    """
    numeric = ["age", "agpop", "ricearea_2010", "disaster_prob", "risk_averse", "pre_takeup_rate"]
    flags = ["male", "default", "intensive", "literacy"]
    return _read_packaged(files[0], [*numeric, *flags], "takeup_survey", ("0", "1"), "village")


def scale_villages(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    """The six measurements standardised; the other columns are 0 or 1."""
    return standardised(x, train, 6)


def _read_packaged(
    file: Path, inputs: Sequence[str], label: str, classes: Sequence[str], owner: str
) -> Rows:
    """The rows of a CSV file that have all inputs; an empty cell and ``NA`` are missing."""
    table = read_csv(file)
    if missing := [name for name in (*inputs, label, owner) if name not in table]:
        raise ValueError(
            f"{file} lacks the columns {', '.join(missing)}; it has {', '.join(table)}. Install "
            "another version of the package that has it."
        )
    columns = [
        [np.nan if cell is None or cell == "NA" else float(cell) for cell in table[name]]
        for name in inputs
    ]
    x = np.array(columns).T
    labels = np.array([classes.index(str(value)) for value in table[label]], np.int32)
    is_whole = ~np.isnan(x).any(axis=1)
    names, owners = np.unique(table[owner].astype(str)[is_whole], return_inverse=True)
    return _split(x[is_whole], labels[is_whole], owners, names.tolist())


def _split(
    inputs: Float[np.ndarray, "rows _"],
    labels: Int[np.ndarray, " rows"],
    owners: Int[np.ndarray, " rows"],
    names: Sequence[str],
) -> Rows:
    """Training and test rows, so that a fifth of every class of every owner is tested on."""
    is_test = np.zeros(len(labels), bool)
    for owner in range(len(names)):
        own = np.flatnonzero(owners == owner)
        is_test[own] = every_fifth(labels[own])
    kept = ~is_test
    return Rows(
        (inputs[kept], labels[kept]),
        (inputs[is_test], labels[is_test]),
        owners[kept],
        tuple(names),
    )
