"""The file beside an experiment that holds its grid, all trials and the choice."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from rookery.runner.atomic_file import replace_file
from rookery.runner.documents import Json, read_document
from rookery.runner.history import to_json
from rookery.runner.search import Setting, has_range
from rookery.runner.tune import Tuning


class _Entry(TypedDict):
    setting: dict
    mean: float | None


class _Tried(TypedDict):
    choice: dict
    tried: list[_Entry]


class _Declared(TypedDict):
    metric: str
    goal: str


_Tuning = TypedDict("_Tuning", {"declared": _Declared, "for": str, "curves": dict[str, _Tried]})

OWN = ("rounds", "seconds", "seeds")
"""What the table [tune] may say in place of the table [run]."""
UNUSED = ("keep", "checkpoint_every")
"""Keys of the table [run] that no trial's last value depends on."""

Choices = dict[str, Setting]
"""For each curve the chosen settings, as ``{"algorithm.outer_lr": 0.1}``."""


def tuning_path(path: Path | None) -> Path:
    """Where the choice of an experiment file is kept.

    >>> tuning_path(Path("config.toml")).name
    'config.tuning.json'
    """
    if path is None:
        raise ValueError("only an experiment in a file can be tuned.")
    return path.with_suffix(".tuning.json")


def tuning_content(
    declared: Mapping[str, object], made_for: str, tunings: Mapping[str, Tuning]
) -> dict[str, Json]:
    """The grid, all trials and the choice of every curve, fit for JSON."""
    content = {
        "declared": declared,
        "for": made_for,
        "curves": {
            label: {
                "choice": tuning.setting,
                "tried": [
                    {
                        "setting": t.setting,
                        "values": t.values,
                        "mean": t.mean,
                        **({"share": t.share, "early": t.early} if is_range else {}),
                        **({"unseen": t.unseen} if t.unseen else {}),
                    }
                    for t in tuning.trials
                ],
                **({"widened": tuning.widened} if tuning.widened else {}),
                **({} if tuning.regret is None else {"regret": tuning.regret}),
            }
            for label, tuning in tunings.items()
            for is_range in [has_range(tuning.grid)]
        },
    }
    return to_json(content)


def write_tuning(path: Path | None, content: Mapping[str, Json]) -> Path:
    """Keep what :func:`tuning_content` returns beside the experiment file."""
    target = tuning_path(path)
    replace_file(target, (json.dumps(content, indent=1) + "\n").encode())
    return target


def tuning_for_report(content: Mapping[str, Json]) -> dict[str, Json]:
    """The content of a file as :mod:`rookery.report.sensitivity` shows it."""
    declared = content["declared"]
    return {"metric": declared["metric"], "goal": declared["goal"], "curves": content["curves"]}


def read_tuning(source: Path, again: str) -> dict[str, Json]:
    """The content of a file of choices, or an error that says what is wrong with it.

    Args:
        source: the file.
        again: how to make it again, as a sentence.
    """
    return read_document(source, _Tuning, again)


def read_choices(
    path: Path | None, declared: Mapping[str, object], made_for: str, labels: list[str]
) -> Choices:
    """The choice of every curve, or an error if it was made for another experiment.

    Args:
        path: the experiment file.
        declared: its table [tune].
        made_for: the digest of its curves and of the runs of its trials.
        labels: its curves.
    """
    source, again = tuning_path(path), f"Run: rookery tune {path}"
    if not source.exists():
        raise FileNotFoundError(
            f"{path} declares a grid, and {source.name} does not exist. Choose the settings first. "
            f"{again}"
        )
    content = read_tuning(source, again)
    if content["declared"] != json.loads(json.dumps(declared)):
        raise ValueError(f"{source} was made for another grid. {again}")
    if content["for"] != made_for:
        raise ValueError(f"{source} was made for other settings of the experiment. {again}")
    if missing := [label for label in labels if label not in content["curves"]]:
        raise ValueError(f"{source} has no curve {missing[0]!r}. {again}")
    return {label: content["curves"][label]["choice"] for label in labels}


def trial_run(run: Mapping[str, Json], tune: Mapping[str, Json]) -> dict[str, Json]:
    """The table [run] of the trials: only what a choice depends on.

    >>> trial_run({"rounds": 9, "seeds": [0, 1], "keep": "best:loss:min"}, {"seeds": [5]})
    {'rounds': 9, 'seeds': [5]}
    """
    used = {key: value for key, value in run.items() if key not in UNUSED}
    return used | {key: tune[key] for key in OWN if key in tune}


def digest(curves: Mapping[str, object], run: Mapping[str, object]) -> str:
    """A digest of everything that a choice depends on, apart from the grid itself."""
    content = json.dumps([curves, run], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
