"""What a round of every algorithm costs: formulas, and what the ledger counts.

A formula is an expression in the letters below. The page shows it; a test evaluates it for two
choices of the letters and compares it with the ledger of a run. All clients take part, each has one
row, and the numbers are those of one client in a round after the first.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import rookery as rk
from rookery import algorithms
from rookery.engines.engine import Program
from rookery.program.algorithm import first_state

LETTERS = {
    "p": "numbers in x, or in the model of a single-level problem",
    "q": "numbers in y, or in the value of the inner layer",
    "n": "clients",
    "T": "`inner_rounds`",
    "N": "terms of the series, iterations of conjugate gradients",
    "M": "hops that a random length has drawn, from 0 to N - 1",
    "K": "`local_steps`, `inner_steps`",
    "J": "`outer_steps`, `own_steps`, or the `inner_steps` of pFedMe",
    "m": "`m_in`, inner draws per example of a conditional problem",
    "c": "size of a compressed number over that of a number; 1/2 for bfloat16 and float32",
}
CHOICES = ({"T": 2, "N": 3, "K": 4, "J": 6}, {"T": 3, "N": 2, "K": 5, "J": 2})
SIZES = {"p": 3, "q": 5, "n": 4, "M": 0, "m": 2}
CACHE = Path(__file__).parents[2] / ".cache"
HEAD = """# What a round of every algorithm costs

The formulas are those of the files' heads, per client and round, with all clients taking part. The
tables are written when the site is built: rookery runs every algorithm and asks its ledger. A test
compares each formula with the ledger for two choices of the letters.

- An *exchange* is one message down to every client of a cohort and one up from it.
- *Numbers* down and up are those of one client; times 4 they are bytes in single precision. A value
  that a client still has is not sent again.
- *Gradients* and *products* (with second derivatives) are of one row each.
- A round that measures L, or the first round of some methods, has an exchange more. Rounds of ADBO
  and SDBO with a new cut cost more. `rookery show FILE` prints the costs of your own settings.
"""
BOTH: dict[str, Any] = {"outer_lr": 0.01, "inner_lr": 0.02}
HALF = rk.parts.BFloat16()


class Row(NamedTuple):
    """Formulas of one algorithm; one that begins with a tilde is random and only described."""

    kind: str
    make: Callable[[SimpleNamespace], rk.AbstractAlgorithm]
    exchanges: str
    down: str
    up: str
    gradients: str
    products: str = "0"


def ihgp(s: SimpleNamespace) -> rk.parts.FedIHGPSum:
    """The series of FedNest."""
    return rk.parts.FedIHGPSum(terms=s.N, lipschitz=5.0)


def local(s: SimpleNamespace) -> rk.parts.LocalNeumannSum:
    """The series on a client."""
    return rk.parts.LocalNeumannSum(terms=s.N, lipschitz=5.0)


def aphe(s: SimpleNamespace) -> rk.parts.APHESum:
    """The series of AFBO."""
    return rk.parts.APHESum(terms=s.N, lipschitz=5.0)


def nested(name: str) -> Callable[[SimpleNamespace], rk.AbstractAlgorithm]:
    """FedNest's relatives with their series."""
    series = {"ihgp": ihgp} if name in ("FedNest", "FedNestSGD") else {"adjoint": local}

    def make(s: SimpleNamespace) -> rk.AbstractAlgorithm:
        rounds = {} if name == "LFedNestNonAlt" else {"inner_rounds": s.T}
        own = {key: part(s) for key, part in series.items()}
        return getattr(rk, name)(**BOTH, **rounds, inner_steps=s.K, outer_steps=s.J, **own)

    return make


def simple(name: str, **settings: object) -> Callable[[SimpleNamespace], rk.AbstractAlgorithm]:
    """An algorithm with fixed settings; "T", "N", "K" and "J" stand for the letters' values."""

    def make(s: SimpleNamespace) -> rk.AbstractAlgorithm:
        known = {k: getattr(s, v) if v in ("T", "N", "K", "J") else v for k, v in settings.items()}
        return getattr(algorithms, name)(**known)

    return make


TWO = {"outer_lr": 0.01, "inner_lr": 0.02}
ONE = {"lr": 0.1, "local_steps": "K"}
SERVER = {**ONE, "server_lr": 0.1}
BLOCKS, PAIR = "p + 2*q", "p + q"
CENTRAL = ("T*(p + q) + N*q + 2*p + 3*q", "T*q + N*q + p + q", "T + 2", "N + 1")
RANDOM = ("T*(p + q) + M*q + 2*p + 3*q", "T*q + M*q + p + q", "T + 2", "M + 1")

ROWS: dict[str, Row] = {
    "FedNest": Row("bilevel", nested("FedNest"), "2*T + N + 3",
                   "T*(p + 2*q) + N*q + 3*p + 3*q", "2*T*q + N*q + 2*p + q",
                   "T*(2*K - 1) + 2*J", "N + 1"),
    "FedNestSGD": Row("bilevel", nested("FedNestSGD"), "T + N + 3",
                      "T*(p + q) + N*q + 3*p + 3*q", "T*q + N*q + 2*p + q", "T*K + 2*J", "N + 1"),
    "LFedNest": Row("bilevel", nested("LFedNest"), "T + 1", "(T + 1)*(p + q)", "T*q + p",
                    "T*K + 2*J", "J*(N + 1)"),
    "LFedNestSVRG": Row("bilevel", nested("LFedNestSVRG"), "2*T + 1", "T*(p + 2*q) + p + q",
                        "2*T*q + p", "T*(2*K - 1) + 2*J", "J*(N + 1)"),
    "LFedNestNonAlt": Row("bilevel", nested("LFedNestNonAlt"), "1", PAIR, PAIR, "K + 2*J",
                          "J*(N + 1)"),
    "FedMBO": Row(
        "bilevel",
        lambda s: rk.FedMBO(**BOTH, inner_rounds=s.T, hypergradient=rk.parts.PHESum(
            terms=s.N, lipschitz=5.0, chains=rk.participation.Fixed(range(4)))),
        "T + N + 2", "T*(p + q) + N*q + p + 2*q", "T*q + N*q + 2*p + q", "T + 2", "N + 1"),
    "FedMSA": Row("bilevel", lambda s: rk.FedMSA(**BOTH, local_steps=s.K, clients=4), "2",
                  "3*(p + 2*q)", "2*(p + 2*q)", "6*K", "4*K"),
    "AFBO": Row("bilevel", lambda s: rk.AFBO(**BOTH, inner_rounds=s.T, inner_steps=s.K,
                                             wait_for="all", aphe=aphe(s)),
                "T + N + 2", "T*(p + q) + N*q + p + 2*q", "T*q + N*q + p + q", "T*K + 2", "N + 1"),
    "AFLBilevel": Row("bilevel", lambda s: rk.AFLBilevel(**BOTH, inner_rounds=s.T, inner_steps=s.K,
                                                         wait_for="all", series=aphe(s)),
                      "T + 1", "(T + 1)*(p + q)", "T*q + p", "T*K + 2", "N + 1"),
    "ADBO": Row("bilevel", simple("ADBO", **TWO, wait_for="all"), "1", "2*(p + q)", PAIR, "2"),
    "SDBO": Row("bilevel", simple("SDBO", **TWO), "1", "2*(p + q)", PAIR, "2"),
    "Prometheus": Row("bilevel", lambda s: rk.Prometheus(**BOTH, adjoint=local(s)), "1", "2*p",
                      "2*p", "3", "N + 1"),
    "Nested": Row(
        "bilevel",
        lambda s: rk.Nested(inner=rk.parts.ServerSGD(lr=0.02), inner_rounds=s.T,
                            outer=rk.parts.ServerStep(lr=0.01, hypergradient=ihgp(s))),
        "T + N + 2", *CENTRAL),
    "AID": Row("bilevel", lambda s: rk.AID(**BOTH, inner_rounds=s.T,
                                           adjoint=rk.parts.FederatedCG(iterations=s.N)),
               "T + N + 2", *CENTRAL),
    "StocBiO": Row("bilevel", simple("StocBiO", **TWO, inner_rounds="T", terms="N",
                                     adjoint_lr=0.2), "T + N + 2", *CENTRAL),
    "ALSET": Row("bilevel", simple("ALSET", **TWO, horizon=9, inner_rounds="T", terms=1,
                                   lipschitz=5.0), "T + M + 2", *RANDOM),
    "TTSA": Row("bilevel", simple("TTSA", **TWO, terms=1, lipschitz=5.0), "M + 3",
                "M*q + 3*p + 4*q", "M*q + p + 2*q", "3", "M + 1"),
    "STSA": Row("bilevel", simple("STSA", **TWO), "1", BLOCKS, BLOCKS, "3", "2"),
    "SOBA": Row("bilevel", simple("SOBA", **TWO), "1", BLOCKS, BLOCKS, "3", "2"),
    "SimFBO": Row("bilevel", simple("SimFBO", **TWO, server_lr=0.1, local_steps="K"), "1", BLOCKS,
                  BLOCKS, "3*K", "2*K"),
    "ShroFBO": Row("bilevel", simple("ShroFBO", **TWO, server_lr=0.1, local_steps="K"), "1",
                   BLOCKS, "p + 2*q + 1", "3*K", "2*K"),
    "FedBiO": Row("bilevel", simple("FedBiO", **TWO, local_steps="K"), "1", BLOCKS, BLOCKS, "3*K",
                  "2*K"),
    "FedBiOAcc": Row("bilevel", simple("FedBiOAcc", **TWO, local_steps="K"), "1", "2*(p + 2*q)",
                     "2*(p + 2*q)", "6*K", "4*K"),
    "F2SA": Row("bilevel", simple("F2SA", **TWO, inner_rounds="T"), "T + 1", "p + 2*(T + 1)*q",
                "p + 2*T*q", "4*(T + 1)"),
    "MemFBO": Row("bilevel", simple("MemFBO", **TWO, server_lr=0.1, local_steps="K"), "1", BLOCKS,
                  BLOCKS, "8*K"),
    "BOME": Row("bilevel", simple("BOME", lr=0.01, inner_lr=0.02, inner_rounds="T"), "T + 1",
                "p + (T + 2)*q", "T*q + 2*(p + q)", "T + 5"),
    "CSOBA": Row("bilevel", simple("CSOBA", **TWO, codec=HALF), "1", BLOCKS, "c*(p + 2*q)", "3",
                 "2"),
    "CMSOBA": Row("bilevel", simple("CMSOBA", **TWO, codec=HALF), "1", BLOCKS, "c*(p + 2*q)", "3",
                  "2"),
    "EFSOBA": Row("bilevel", simple("EFSOBA", **TWO, codec=HALF), "1", BLOCKS, "c*(p + 2*q)", "3",
                  "2"),
    "BRFedBi": Row("bilevel", simple("BRFedBi", **TWO), "1", BLOCKS, BLOCKS, "3", "2"),
    "BRFedBiM": Row("bilevel", simple("BRFedBiM", **TWO), "1", BLOCKS, BLOCKS, "3", "2"),
    "BRFedBiP": Row("bilevel", simple("BRFedBiP", **TWO), "1", BLOCKS, BLOCKS, "~3 or 6",
                    "~2 or 4"),
    "AggITD": Row("bilevel", simple("AggITD", **TWO, inner_rounds="T"), "T + 1", "p + 2*T*q",
                  "p + (2*T - 1)*q", "T + 2", "T - 1"),
    "FedAvgS": Row("minimax", simple("FedAvgS", **TWO, local_steps="K"), "1", PAIR, PAIR, "2*K"),
    "ScaffoldS": Row("minimax", simple("ScaffoldS", **TWO, local_steps="K"), "1", "2*(p + q)",
                     "2*(p + q)", "2*K"),
    "CODASCA": Row("minimax", simple("CODASCA", **TWO, mu=0.1, stage_rounds=5, local_steps="K"),
                   "1", "2*(p + q)", "2*(p + q)", "2*K"),
    "GDA": Row("minimax", simple("GDA", **TWO), "1", PAIR, PAIR, "2"),
    "AlternatingGDA": Row("minimax", simple("AlternatingGDA", **TWO), "2", "2*(p + q)", PAIR, "2"),
    "Extragradient": Row("minimax", simple("Extragradient", **TWO), "2", "2*(p + q)", "2*(p + q)",
                         "4"),
    "FedNormSGDA": Row("minimax", simple("FedNormSGDA", **TWO, server_lr=0.1, local_steps="K"),
                       "1", PAIR, "p + q + 1", "2*K"),
    "FedNormSGDAPlus": Row("minimax", simple("FedNormSGDAPlus", **TWO, server_lr=0.1,
                                             local_steps="K", snapshot_rounds=2), "1", "2*p + q",
                           "p + q + 1", "2*K"),
    "FedSGDAM": Row("minimax", simple("FedSGDAM", **TWO, local_steps="K"), "1", "2*(p + q)",
                    "2*(p + q)", "4*K"),
    "OptimisticGDA": Row("minimax", simple("OptimisticGDA", **TWO, local_steps="K"), "1",
                         "2*(p + q)", "2*(p + q)", "2*K"),
    "FedGDAGT": Row("minimax", simple("FedGDAGT", **TWO, local_steps="K"), "2", "3*(p + q)",
                    "2*(p + q)", "4*K"),
    "FESSGDA": Row("minimax", simple("FESSGDA", **TWO, local_steps="K", smoothing=1.0, beta=0.5),
                   "1", PAIR, PAIR, "2*K"),
    "ProxSkipVIP": Row("minimax", simple("ProxSkipVIP", lr=0.05, probability=0.5), "1", PAIR, PAIR,
                       "~2 / probability in the mean"),
    "SCGD": Row("composition", simple("SCGD", outer_lr=0.05, inner_lr=0.5), "3", BLOCKS, BLOCKS,
                "2"),
    "ComposedSGD": Row("composition", simple("ComposedSGD", outer_lr=0.05), "3", BLOCKS, BLOCKS,
                       "2"),
    "NASA": Row("composition", simple("NASA", lr=0.1), "2", BLOCKS, BLOCKS, "2"),
    "FCSG": Row("conditional", simple("FCSG", outer_lr=0.1, local_steps="K"), "1", "p", "p",
                "K*(m + 1)"),
    "FCSGM": Row("conditional", simple("FCSGM", outer_lr=0.1, local_steps="K"), "1", "2*p", "2*p",
                 "K*(m + 1)"),
    "AccFCSGM": Row("conditional", simple("AccFCSGM", outer_lr=0.1, local_steps="K"), "1", "2*p",
                    "2*p", "2*K*(m + 1)"),
    "FeDXL": Row("xrisk", simple("FeDXL", **ONE), "1", "2*p + n*(3*K + 3)", "2*p + 3*K + 2",
                 "2*K"),
    "FedAvg": Row("single", simple("FedAvg", **ONE), "1", "p", "p", "K"),
    "FedProx": Row("single", simple("FedProx", **ONE, mu=0.5), "1", "p", "p", "K"),
    "Scaffold": Row("single", simple("Scaffold", **ONE), "1", "2*p", "2*p", "K"),
    "QFedAvg": Row("single", simple("QFedAvg", **ONE, q=0.5), "1", "p", "p + 1", "K"),
    "DRFA": Row("single", simple("DRFA", **ONE, ascent_lr=0.1, clients=4), "2",
                "~up to 2 p; a client that has the model is not sent it again", "2*p + 1", "K"),
    "AgnosticFL": Row("single", simple("AgnosticFL", lr=0.1, ascent_lr=0.1), "1", "p", "p + 1",
                      "1"),
    "AFACD": Row("single", simple("AFACD", **SERVER, wait_for="all"), "1", "p", "p", "K"),
    "AFACS": Row("single", simple("AFACS", **SERVER, wait_for="all"), "1", "p", "p", "K"),
    "FedBuff": Row("single", simple("FedBuff", **ONE, buffer_size=4), "1", "p", "p", "K"),
    "FedPAQ": Row("single", simple("FedPAQ", **ONE, codec=HALF), "1", "p", "c*p", "K"),
    "FedDyn": Row("single", simple("FedDyn", **ONE, alpha=0.5), "1", "p", "p", "K"),
    "Scaffnew": Row("single", simple("Scaffnew", lr=0.1, probability=0.5), "1", "p", "p",
                    "~1 / probability in the mean"),
    "Scafflix": Row("single", simple("Scafflix", lr=0.1, probability=0.5, alpha=0.5, own_steps="J",
                                     own_lr=0.1), "1", "p", "p", "~1 / probability in the mean"),
    "FedEx": Row("single", lambda s: algorithms.FedEx(
        settings=[rk.parts.LocalSetting(lr=0.1, local_steps=s.K)], validation_split="train"),
        "1", "~p, and the index of a setting", "~p + 1, and the index of a setting",
        "K"),
    "FedExP": Row("single", simple("FedExP", **ONE, epsilon=0.1), "1", "p", "p + 1", "K"),
    "Mime": Row("single", simple("Mime", **ONE), "2", "3*p", "2*p", "2*K + 1"),
    "MimeLite": Row("single", simple("MimeLite", **ONE), "1", "2*p", "2*p", "K + 1"),
    "FedAdagrad": Row("single", simple("FedAdagrad", **SERVER), "1", "p", "p", "K"),
    "FedAdam": Row("single", simple("FedAdam", **SERVER), "1", "p", "p", "K"),
    "FedAvgM": Row("single", simple("FedAvgM", **SERVER), "1", "p", "p", "K"),
    "FedYogi": Row("single", simple("FedYogi", **SERVER), "1", "p", "p", "K"),
    "FedNova": Row("single", simple("FedNova", **ONE), "1", "p", "p + 1", "K"),
    "PFedMe": Row("single", simple("PFedMe", lr=0.05, mu=2.0, inner_lr=0.1, inner_steps="J",
                                   local_steps="K"), "1", "p", "p", "J*K"),
    "Ditto": Row("single", simple("Ditto", **ONE, own_lr=0.05, mu=0.5, own_steps="J"), "1", "p",
                 "p", "K + J"),
    "PerFedAvg": Row("meta", simple("PerFedAvg", **ONE), "1", "p", "p", "2*K", "K"),
    "ComFedL": Row("meta", simple("ComFedL", **ONE), "1", "p", "p", "2*K", "K"),
    "IMAML": Row("personal", lambda s: algorithms.IMAML(
        outer_lr=0.01, local_steps=s.J, inner=rk.parts.GradientSteps(0.1, steps=s.K),
        adjoint=rk.parts.LocalNeumannSum(terms=s.N, lipschitz=5.0)),
        "1", "p", "p", "J*(K + 2)", "J*(N + 1)"),
    "FedRep": Row("personal", simple("FedRep", **TWO, inner_steps="K", local_steps="J"), "1", "p",
                  "p", "K + J"),
    "FedBiOLocal": Row("personal", simple("FedBiOLocal", **TWO, local_steps="K"), "1", "p", "p",
                       "3*K", "2*K"),
    "FedBiOAccLocal": Row("personal", simple("FedBiOAccLocal", **TWO, local_steps="K"), "1",
                          "2*p", "2*p", "6*K", "4*K"),
}  # fmt: skip
TITLES = {
    "bilevel": "Bilevel problems",
    "personal": "Bilevel problems whose inner variables are the clients' own",
    "minimax": "Minimax problems",
    "composition": "Compositions of two layers",
    "conditional": "Conditional problems",
    "xrisk": "X-risks, one row of each kind on a client",
    "single": "Single-level problems",
    "meta": "Meta-learning",
}
COLUMNS = ("exchanges", "down", "up", "gradients", "products")


@functools.cache
def zoo(kind: str) -> Any:  # of a class of its own for each kind
    """A problem of this kind with the sizes of the letters."""
    p, q, n = SIZES["p"], SIZES["q"], SIZES["n"]
    made = {
        "bilevel": lambda: rk.zoo.quadratic_bilevel(n_clients=n, x_size=p, y_size=q),
        "personal": lambda: rk.zoo.personal_quadratic(n_clients=n, x_size=p, y_size=q),
        "minimax": lambda: rk.zoo.saddle(curvature=1.0, n_clients=n, x_size=p, y_size=q),
        "composition": lambda: rk.zoo.linear_chain(n_clients=n, sizes=(p, q)),
        "conditional": lambda: rk.zoo.conditional_quadratic(n_clients=n, size=p, m_in=SIZES["m"]),
        "xrisk": lambda: rk.zoo.pair_risk(n_clients=n, size=p),
        "single": lambda: rk.zoo.quadratic_losses(n_clients=n, size=p),
        "meta": lambda: rk.zoo.cubic_maml(n_clients=n, size=p),
    }
    return made[kind]()


def counted(row: Row, choice: dict[str, int]) -> dict[str, float]:
    """What the ledger counts for a client in round 1, with numbers for bytes."""
    problem, n = zoo(row.kind), SIZES["n"]
    algorithm = row.make(SimpleNamespace(**choice))
    population = rk.Population.stacked(problem.data)
    program = Program(problem.problem, population, rk.delays.Clock(), rk.aggregate.Mean())
    start = tuple(jnp.asarray(value) for value in problem.start)
    state = first_state(algorithm, problem.problem, n, start)
    runner = rk.Eager().prepare(program, [algorithm])
    ledger = runner.advance([state], [jax.random.key(0)], 0, [2])[0].ledgers[1]
    size = n * start[0].dtype.itemsize
    return {
        "exchanges": ledger.exchanges,
        "down": ledger.bytes_down / size,
        "up": ledger.bytes_up / size,
        "gradients": ledger.gradients / n,
        "products": ledger.hessian_vectors / n,
    }


def value(formula: str, choice: dict[str, int]) -> float | None:
    """A formula's value; None for one that is random."""
    if formula.startswith("~"):
        return None
    c = 2 / jnp.zeros(()).dtype.itemsize
    return eval(formula, {"__builtins__": {}}, {**SIZES, **choice, "c": c})


def shown(formula: str) -> str:
    """A formula as the page has it.

    >>> shown("2*T + N*(p + q)"), shown("~random")
    ('2 T + N (p + q)', 'random')
    """
    return re.sub(r"\s*\*\s*", " ", formula).removeprefix("~")


def all_counted() -> dict[str, dict[str, float]]:
    """The counts of every row, kept in .cache as long as no source file changes."""
    sources = sorted(Path(rk.__file__).parent.rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in [*sources, Path(__file__)]))
    kept = CACHE / f"costs-{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        counts = {name: counted(row, CHOICES[0]) for name, row in ROWS.items()}
        kept.write_text(json.dumps(counts))
    return json.loads(kept.read_text())


def page() -> str:
    """The page, in Markdown."""
    letters = "\n".join(f"| {letter} | {text} |" for letter, text in LETTERS.items())
    chosen = ", ".join(f"{k} = {v}" for k, v in {**SIZES, **CHOICES[0]}.items())
    return f"""{HEAD}
| letter | meaning |
|---|---|
{letters}

The bold numbers are counted by the ledger of a run with {chosen}.

{tables()}"""


def tables() -> str:
    """The tables of the page: formula, and the count of the first choice."""
    lines, all_counts = [], all_counted()
    for kind, title in TITLES.items():
        lines += [f"## {title}", "", "| algorithm | exchanges | numbers down | numbers up | "
                  "gradients | products |", "|---|---|---|---|---|---|"]  # fmt: skip
        for name, row in ROWS.items():
            if row.kind != kind:
                continue
            counts = all_counts[name]
            cells = [
                f"{shown(getattr(row, column))} → **{counts[column]:g}**"
                if len(getattr(row, column)) > 1
                else f"**{counts[column]:g}**"
                if getattr(row, column).isdigit()
                else f"{getattr(row, column)} → **{counts[column]:g}**"
                for column in COLUMNS
            ]
            lines.append(f"| [{name}](/reference/algorithms/{name}.rst) | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)
