"""Which colour an algorithm has: the same one in every figure, on every page, in every script."""

from collections.abc import Mapping, Sequence
from itertools import cycle

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
"""Okabe and Ito's palette, for colour-blind readers; more curves repeat it with another stroke."""
STROKES = ("-", (0, (4, 1.6)), (0, (1, 1.4)), (0, (6, 1.6, 1, 1.6)))

Style = tuple[int, int]
"""The number of a colour and of a stroke."""

ALGORITHMS: Mapping[str, int] = {
    # FedNest and its rivals
    "FedNest": 0, "LFedNest": 1, "LFedNestNonAlt": 2, "FedNestSGD": 3, "LFedNestSVRG": 4,
    "FedMSA": 1, "FedMBO": 2,
    # asynchronous
    "AFBO": 1, "ADBO": 2, "SDBO": 3, "Prometheus": 4, "AFLBilevel": 5, "FedBuff": 6,
    "AFACD": 4, "AFACS": 3,
    # bilevel, in one loop
    "FedBiOAcc": 0, "FedBiO": 2, "SimFBO": 3, "SOBA": 4, "CSOBA": 5, "MemFBO": 6,
    "ShroFBO": 0, "EFSOBA": 3, "CMSOBA": 1, "F2SA": 5, "AggITD": 4, "STSA": 6,
    "FedBiOAccLocal": 0, "FedBiOLocal": 2, "IMAML": 3,
    "BRFedBi": 2, "BRFedBiM": 4, "BRFedBiP": 5,
    # bilevel, without a federation
    "AID": 6, "StocBiO": 1, "ALSET": 4, "TTSA": 5, "BOME": 2,
    # compositions and fairness
    "ComFedL": 1, "DRFA": 2, "QFedAvg": 3, "AgnosticFL": 4, "FeDXL": 5,
    "ComposedSGD": 6, "SCGD": 2, "NASA": 4, "FCSG": 0, "FCSGM": 2, "AccFCSGM": 3,
    # saddle points
    "GDA": 0, "FedGDAGT": 1, "ScaffoldS": 2, "CODASCA": 3, "FedSGDAM": 4, "FESSGDA": 5,
    "FedAvgS": 6, "OptimisticGDA": 0, "AlternatingGDA": 4, "Extragradient": 5,
    "FedNormSGDA": 3, "FedNormSGDAPlus": 1, "ProxSkipVIP": 2,
    # one level
    "FedAvg": 6, "FedAvgM": 0, "FedAdam": 1, "FedExP": 2, "FedProx": 3, "FedYogi": 4,
    "FedNova": 5, "FedDyn": 0, "Mime": 1, "Scaffold": 2, "MimeLite": 3, "Scaffnew": 4, "FedEx": 5,
    "FedAdagrad": 5, "FedPAQ": 5,
    # models of their own for clients
    "Scafflix": 0, "FedRep": 1, "PFedMe": 2, "Ditto": 3, "PerFedAvg": 4,
}  # fmt: skip
"""By name in the registry, chosen so that algorithms of one figure in ``experiments/`` differ."""

GENERAL = ("Nested", "Private", "RowPrivate")
"""Names that stand for many algorithms: the curve's own name says which."""


def known(name: str) -> str | None:
    """The registry's name of an algorithm that a figure or a paper spells in its own way.

    >>> known("FedNest_SGD"), known("q-FedAvg"), known("ComFedL-MAML"), known("mine")
    ('FedNestSGD', 'QFedAvg', 'ComFedL', None)
    """
    return _PLAIN.get(_plain(name)) or _PLAIN.get(_plain(name.rpartition("-")[0]))


def colour_of(name: str) -> str:
    """The colour of an algorithm, however it is spelled.

    >>> colour_of("FedNest")
    '#0072B2'
    """
    found = known(name)
    if found is None:
        raise ValueError(f"the table of colours has no algorithm {name!r}.")
    return COLOURS[ALGORITHMS[found]]


def algorithm_of(curve: str, settings: Mapping[str, object]) -> str:
    """What tells a curve's colour: its algorithm, or what its name has before the settings.

    >>> algorithm_of("tau = 1", {"algorithm": {"name": "FedNest"}})
    'FedNest'
    >>> algorithm_of("LFedNest_SVRG, iid", {"algorithm": {"name": "Nested"}})
    'LFedNestSVRG'

    Args:
        curve: the name of the curve.
        settings: how its runs were made.
    """
    table = settings.get("algorithm")
    while isinstance(table, Mapping) and isinstance(table.get("algorithm"), Mapping):
        table = table["algorithm"]  # a private algorithm is around another
    name = table.get("name") if isinstance(table, Mapping) else None
    head = curve.partition(",")[0].partition(" (")[0]
    own = name if isinstance(name, str) and name not in GENERAL else head
    return known(own) or known(head) or own


def styles(algorithms: Sequence[str]) -> list[Style]:
    """The styles of curves that are shown together, given the algorithm of each.

    A curve has the colour of its algorithm, and the stroke tells it from earlier curves of that
    colour. Algorithms that are not in the table have the colours that are left. If there is but one
    algorithm, colours tell its settings apart.

    >>> styles(["FedNest", "mine", "FedNest"]), styles(["FedNest", "FedNest"])
    ([(0, 0), (1, 0), (0, 1)], [(0, 0), (1, 0)])
    """
    if len(set(algorithms)) == 1:
        return [(i % len(COLOURS), i // len(COLOURS)) for i in range(len(algorithms))]
    numbers = {name: ALGORITHMS[name] for name in algorithms if name in ALGORITHMS}
    every = range(len(COLOURS))
    free = cycle([i for i in every if i not in numbers.values()] or every)
    for name in dict.fromkeys(algorithms):
        if name not in numbers:
            numbers[name] = next(free)
    colours = [numbers[name] for name in algorithms]
    return [(colour, colours[:i].count(colour)) for i, colour in enumerate(colours)]


def _plain(name: str) -> str:
    return name.lower().translate(str.maketrans("", "", " -_"))


_PLAIN = {_plain(name): name for name in ALGORITHMS} | {"afl": "AFLBilevel"}  # the paper's name
