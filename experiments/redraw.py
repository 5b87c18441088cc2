"""Draw the committed pictures again from the committed results; nothing is run.

python experiments/redraw.py                    # all of them
python experiments/redraw.py afbo_fig1 staples  # those of some folders
"""

import os
import subprocess
import sys
from pathlib import Path

from rookery.cli.main import main as rookery

FOLDER = Path(__file__).parent
SCRIPTS = {
    "afbo_default/curves.png": "draw.py",
    "benchmark/bilevel.png": "-m experiments.benchmark draw results.jsonl bilevel.png",
    "byzantine/curves.png": "measure.py draw",
    "compression/curves.png": "measure.py draw",
    "fedmsa_fig2/curves.png": "draw.py",
    "fedmsa_fig3/curves.png": "draw.py",
    "fedmsa_fig4/curves.png": "draw.py",
    "fedmsa_fig4/longer.png": "draw.py",
    "fedmsa_fig4/tuned.png": "draw.py",
    "fednest_fig6/curves.png": "draw.py",
    "first_order/curves.png": "measure.py draw",
    "minimax_methods/methods.png": "measure.py draw",
    "privacy_cost/curves.png": "draw.py",
    "staples/curves.png": "draw.py",
    "theory_delay/delay.png": "measure.py draw",
    "theory_drift/drift.png": "measure.py draw",
    "theory_heterogeneity/heterogeneity.png": "measure.py draw",
    "theory_linear_speedup/bias.png": "bias.py draw",
    "theory_linear_speedup/slopes.png": "fit.py draw",
    "theory_unequal_steps/unequal.png": "measure.py draw",
}
"""Pictures that show more than "rookery report" does: what draws them, in their folder."""


def command(picture: Path) -> list[str]:
    """The words after ``rookery`` that draw a picture of curves, or of clients' work."""
    if picture.name == "work.png":
        return ["report", str(picture.parent / "results.json"), "-o", str(picture), "--jobs"]
    name = "results.json" if picture.stem == "curves" else f"{picture.stem}.results.json"
    return ["report", str(picture.parent / name), "-o", str(picture)]


def main() -> None:
    """Draw what the command line asks for."""
    done = set[tuple[str, str]]()
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parent)}  # of experiments.benchmark
    for picture in sorted(FOLDER.glob("*/*.png")):
        if picture.parent.name not in (sys.argv[1:] or [picture.parent.name]):
            continue
        script = SCRIPTS.get(f"{picture.parent.name}/{picture.name}")
        if script is None:
            rookery(command(picture))
        elif (picture.parent.name, script) not in done:
            subprocess.run(
                [sys.executable, *script.split()], cwd=picture.parent, env=environment, check=True
            )
            done.add((picture.parent.name, script))


if __name__ == "__main__":
    main()
