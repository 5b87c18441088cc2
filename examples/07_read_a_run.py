"""What does a run leave on disk, and how is it read?"""

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import rookery as rk
from rookery.runner.history import HistoryFile

zoo = rk.zoo.scalar_bilevel()
directory = Path(tempfile.mkdtemp())
rk.run(
    rk.FedNest(outer_lr=0.2, inner_lr=0.3),
    zoo.problem,
    rk.Population.stacked(zoo.data),
    zoo.start,
    rounds=30,
    evaluate=[rk.metrics.OfSolution(lambda x, y: {"x": x[0], "y": y[0]})],
    evaluate_every=10,
    directory=directory,
)

print("files:", sorted(p.name for p in directory.iterdir()))
history, warning = HistoryFile(directory / "history.jsonl").read()
for row in history:
    print(f"round {row['round']:>2}: {row['exchanges']:>3} exchanges, x = {row['x']:.4f}")
print("the column y:", history["y"].round(4))
x, y = rk.load_solution(directory, like=zoo.start)
print(f"the solution: x = {x[0]:.4f}, y = {y[0]:.4f}")
table = history.to_table()  # pandas.DataFrame(table) and polars.DataFrame(table) take it
print("columns:", ", ".join(f"{name} ({column.dtype})" for name, column in table.items()))
summary = json.loads((directory / "summary.json").read_text())
print(f"{summary['status']}: {summary['bytes_down']} bytes down, {summary['bytes_up']} up")

plt.plot(history["round"], history["x"], label="x")
plt.plot(history["round"], history["y"], label="y")
plt.xlabel("round")
plt.legend()
plt.savefig("run.png")

# %%
# What was learnt: a directory holds configuration, history, checkpoints, solution and summary,
# all in formats that other programs read: JSON, JSON lines and safetensors.
