"""What a run tells its tracker, and what the adapters write with the real packages."""

import json
import signal
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

import rookery as rk

ZOO = rk.zoo.scalar_bilevel()
POPULATION = rk.Population.stacked(ZOO.data)
ALGORITHM = rk.FedNest(outer_lr=0.05, inner_lr=0.1)
WILD = rk.FedNest(outer_lr=1e200, inner_lr=0.1)


class Recorder:
    """Remembers every call; when it is told of round ``at``, something happens."""

    def __init__(self, at: int | None = None, happens=lambda: None):
        self.starts, self.rows, self.ends = [], [], []
        self.at, self.happens = at, happens

    def start(self, title, configuration):
        self.starts.append((title, configuration))

    def log(self, row):
        self.rows.append(dict(row))
        if row["round"] == self.at:
            self.happens()

    def finish(self, status):
        self.ends.append(status)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def interrupt_twice():
    interrupt()
    interrupt()


def fail():
    raise OSError("disk full")


def size(x, y):
    return {"size/x": (x @ x) ** 0.5}


SETTINGS = {"guard": None, "evaluate": [rk.metrics.OfSolution(size)], "evaluate_every": 5}


def go(tracker, rounds=12, algorithm=ALGORITHM, **kwargs):
    return rk.run(algorithm, ZOO.problem, POPULATION, ZOO.start, rounds=rounds, tracker=tracker,
                  **{**SETTINGS, **kwargs})  # fmt: skip


def sweep(runs, **kwargs):
    return rk.sweep(runs, ZOO.problem, POPULATION, rounds=12, **SETTINGS, **kwargs)


def three_runs(trackers):
    """The second diverges, the third has no tracker."""
    return [
        rk.Run(algorithm, ZOO.start, i, title=f"run {i}", tracker=tracker)
        for i, (algorithm, tracker) in enumerate(
            zip([ALGORITHM, WILD, ALGORITHM], [*trackers, None], strict=True)
        )
    ]


def test_a_tracker_is_told_the_start_every_row_and_the_end(tmp_path):
    tracker = Recorder()
    result = go(tracker, seed=3, title="a title", directory=tmp_path)
    ((title, configuration),) = tracker.starts
    assert title == "a title"
    assert configuration == json.loads((tmp_path / "config.json").read_text())["run"]
    assert tracker.rows == result.history.rows
    assert [row["round"] for row in tracker.rows] == [0, 5, 10, 12]
    assert {"exchanges", "bytes_up", "seconds", "size/x"} <= set(tracker.rows[0])
    assert tracker.ends == ["finished"]


def test_without_a_directory_the_tracker_is_told_the_same(tmp_path):
    kept, free = Recorder(), Recorder()
    go(kept, directory=tmp_path)
    go(free)
    assert (kept.starts, kept.rows, kept.ends) == (free.starts, free.rows, free.ends)
    assert free.starts[0][0] == "FedNest"


def test_a_resumed_run_logs_only_the_new_rows(tmp_path):
    first, second, third = Recorder(), Recorder(), Recorder()
    go(first, rounds=10, directory=tmp_path)
    result = go(second, rounds=20, directory=tmp_path)
    assert [row["round"] for row in second.rows] == [15, 20]
    assert first.rows + second.rows == result.history.rows
    go(third, rounds=20, directory=tmp_path)
    assert (len(third.starts), third.rows, third.ends) == (1, [], ["finished"])


@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.DivergenceWarning")
def test_divergence_is_told_also_when_the_run_is_started_again(tmp_path):
    first, second = Recorder(), Recorder()
    result = go(first, algorithm=WILD, directory=tmp_path)
    assert result.status == "diverged"
    assert first.ends == ["diverged"]
    assert first.rows[-1]["round"] == result.rounds
    assert not np.isfinite(first.rows[-1]["size/x"])
    go(second, algorithm=WILD, directory=tmp_path)
    assert (second.rows, second.ends) == ([], ["diverged"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.DivergenceWarning")
@pytest.mark.parametrize("batch", [1, 32])
def test_every_run_of_a_sweep_has_its_own_tracker(batch):
    trackers = [Recorder(), Recorder()]
    results = sweep(three_runs(trackers), batch=batch)
    assert [r.status for r in results] == ["finished", "diverged", "finished"]
    for i, (result, tracker) in enumerate(zip(results, trackers, strict=False)):
        assert [(t, c["seed"]) for t, c in tracker.starts] == [(f"run {i}", i)]
        np.testing.assert_equal(tracker.rows, result.history.rows)
        assert tracker.ends == [result.status]


def test_two_runs_cannot_share_a_tracker():
    shared = Recorder()
    runs = [rk.Run(ALGORITHM, ZOO.start, seed, tracker=shared) for seed in (0, 1)]
    with pytest.raises(ValueError, match="two runs cannot share a tracker"):
        sweep(runs)
    assert not shared.starts


@pytest.mark.parametrize(
    ("happens", "new"),
    [
        (interrupt, [12]),
        (interrupt_twice, [10, 12]),  # no time for a checkpoint, so round 10 comes again
    ],
)
def test_an_interrupted_run_is_finished_as_such_and_goes_on(tmp_path, happens, new):
    first, second = Recorder(10, happens), Recorder()
    with pytest.raises(KeyboardInterrupt):
        go(first, directory=tmp_path)
    assert [row["round"] for row in first.rows] == [0, 5, 10]
    assert first.ends == ["interrupted"]
    result = go(second, directory=tmp_path)
    assert [row["round"] for row in second.rows] == new
    told = {row["round"]: row for row in first.rows + second.rows}
    assert list(told.values()) == result.history.rows
    assert second.ends == ["finished"]


def test_what_a_tracker_raises_ends_the_sweep_and_every_tracker_is_finished():
    trackers = [Recorder(), Recorder(5, fail), Recorder()]
    runs = [rk.Run(ALGORITHM, ZOO.start, i, tracker=t) for i, t in enumerate(trackers)]
    with pytest.raises(OSError, match="disk full"):
        sweep(runs)
    assert [t.ends for t in trackers] == [["failed"]] * 3


def test_a_tracker_that_cannot_finish_leaves_the_others_and_the_directory_whole(tmp_path):
    class Unfinished(Recorder):
        def finish(self, status):
            fail()

    trackers = [Recorder(), Unfinished(), Recorder()]
    runs = [
        rk.Run(ALGORITHM, ZOO.start, i, tmp_path / str(i), tracker=t)
        for i, t in enumerate(trackers)
    ]
    with pytest.raises(OSError, match="disk full"):
        sweep(runs)
    assert [t.ends for t in trackers] == [["finished"], [], ["finished"]]
    for i in range(3):
        summary = json.loads((tmp_path / str(i) / "summary.json").read_text())
        assert summary["status"] == "finished"


@pytest.mark.parametrize(
    ("package", "make", "extra"),
    [
        ("tensorboardX", lambda: rk.tracking.TensorBoard("x"), "tensorboard"),
        ("wandb", lambda: rk.tracking.WandB("p", "x"), "wandb"),
        ("mlflow", lambda: rk.tracking.MLflow("x", "e"), "mlflow"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, package, make, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install -e '\.\[{extra}\]'"):
        make()


# ---- the real packages


def needs(package: str):
    return pytest.importorskip(package, reason=f"{package} is not installed; make test-tracking")


def events(directory: Path) -> list:
    """The events of all files in a TensorBoard directory, oldest file first."""
    crc32c = needs("tensorboardX.crc32c").crc32c
    Event = needs("tensorboardX.proto.event_pb2").Event

    def check(content: bytes, masked: int):
        crc = crc32c(content)
        assert ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32 == masked

    found = []
    for file in sorted(directory.iterdir(), key=lambda f: f.stat().st_mtime_ns):
        content = file.read_bytes()
        while content:
            (size,) = struct.unpack("<Q", content[:8])
            data, content, head = content[12 : 12 + size], content[16 + size :], content
            check(head[:8], struct.unpack("<I", head[8:12])[0])
            check(data, struct.unpack("<I", head[12 + size : 16 + size])[0])
            found.append(Event.FromString(data))
    return found


def test_tensorboard(tmp_path):
    needs("tensorboardX")

    def read():
        rows, texts = {}, {}
        for event in events(tmp_path / "board"):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    rows.setdefault(event.step, {})[value.tag] = value.simple_value
                else:
                    texts[value.tag.split("/")[0]] = value.tensor.string_val[0].decode()
        return rows, texts

    def single(rows):
        """The columns in TensorBoard's precision, by round."""
        return {
            row["round"]: {k: float(np.float32(v)) for k, v in row.items() if k != "round"}
            for row in rows
        }

    def tracker():
        return rk.tracking.TensorBoard(tmp_path / "board")

    result = go(tracker(), rounds=10, title="a title", directory=tmp_path / "run")
    rows, texts = read()
    assert rows == single(result.history.rows)
    assert texts["configuration"].startswith("# a title") and "outer_lr" in texts["configuration"]
    assert texts["status"] == "finished"
    longer = go(tracker(), rounds=20, title="a title", directory=tmp_path / "run")
    assert read()[0] == single(longer.history.rows)


def wandb_records(file: Path) -> list:
    """The records of a .wandb file: a LevelDB log, in blocks of 32 KiB, whose head has 7 bytes."""
    Record = needs("wandb.proto.wandb_internal_pb2").Record
    content, at, found, data = file.read_bytes(), 7, [], b""
    assert content[:4] == b":W&B"
    while at < len(content):
        left = -at % 32768
        if 0 < left < 7:  # too short for a head, so it is padding
            at += left
            continue
        size, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        data += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last of several pieces
            found.append(Record.FromString(data))
            data = b""
    return found


def wandb_read(directory: Path) -> tuple:
    """Title, configuration, rows and summary of an offline run."""
    (file,) = directory.glob("*.wandb")
    title, configuration, rows, summary = "", {}, [], {}
    for record in wandb_records(file):
        match record.WhichOneof("record_type"):
            case "run":
                title = record.run.display_name
                configuration = {i.key: json.loads(i.value_json) for i in record.run.config.update}
            case "history":
                items = record.history.item
                row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
                rows.append({k: v for k, v in row.items() if not k.startswith("_")})
            case "summary":
                for item in record.summary.update:
                    key = item.key or "/".join(item.nested_key)
                    summary[key] = json.loads(item.value_json)
    return title, configuration, rows, summary


def test_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    wandb = needs("wandb")
    trackers = [rk.tracking.WandB("a project", tmp_path, run=f"run{i}") for i in range(2)]
    results = sweep(three_runs(trackers))
    wandb.teardown()  # as the end of a program does: waits until the files are written
    for i, result in enumerate(results[:2]):
        (directory,) = (tmp_path / "wandb").glob(f"offline-run-*-run{i}")
        title, configuration, rows, summary = wandb_read(directory)
        assert (title, configuration["seed"]) == (f"run {i}", i)
        assert configuration["algorithm"]["outer_lr"] == (0.05, 1e200)[i]
        np.testing.assert_equal(rows, result.history.rows)
        assert summary["status"] == ("finished", "diverged")[i]


def test_wandb_knows_two_modes():
    needs("wandb")
    with pytest.raises(ValueError, match="mode must be 'offline' or 'online', got 'of'"):
        rk.tracking.WandB("a project", "x", "of")  # pyright: ignore[reportArgumentType]


# MLflow's tables use a loader that newer SQLAlchemy deprecates
@pytest.mark.filterwarnings("ignore::rookery.runner.run_state.DivergenceWarning")
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")
def test_mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = needs("mlflow")
    needs("sqlalchemy")

    def tracker():
        return rk.tracking.MLflow(tmp_path / "store", "an experiment", run="one")

    def read():
        client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/store/mlflow.db")
        experiment = client.get_experiment_by_name("an experiment")
        (run,) = client.search_runs([experiment.experiment_id])
        rows = {}
        for name in run.data.metrics:
            for m in client.get_metric_history(run.info.run_id, name):
                rows.setdefault(m.step, {"round": m.step})[name] = m.value
        return run, [rows[round] for round in sorted(rows)]

    first = go(tracker(), rounds=10, title="a title", directory=tmp_path / "run")
    run, rows = read()
    assert rows == first.history.rows
    assert (run.info.run_name, run.info.status) == ("a title", "FINISHED")
    assert run.data.tags["rookery.status"] == "finished"
    assert run.data.params["algorithm.outer_lr"] == "0.05"
    longer = go(tracker(), rounds=20, title="a title", directory=tmp_path / "run")
    assert read()[1] == longer.history.rows  # the same MLflow run

    wild = rk.tracking.MLflow(f"sqlite:///{tmp_path}/store/mlflow.db", "another")
    result = go(wild, algorithm=WILD)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/store/mlflow.db")
    experiment = client.get_experiment_by_name("another")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.data.tags["rookery.status"]) == ("FAILED", "diverged")
    assert not np.isfinite(result.history.last("size/x")) and np.isnan(run.data.metrics["size/x"])
