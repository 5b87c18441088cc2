"""Which numbers clients upload: the shapes of averages do not depend on how many rows they have."""

from dataclasses import replace

import pytest
from instances import INSTANCES

import rookery as rk
from rookery.program.algorithm import first_state, numbers_to_arrays
from rookery.remote.protocol.plan import specs
from rookery.remote.protocol.tracing import trace_round


def uploaded(zoo, algorithm) -> list[str]:
    """Types and shapes of what leaves a client, memories included."""
    population = rk.Population.stacked(zoo.data)
    state = first_state(algorithm, zoo.problem, population.n_clients, zoo.start)
    plan = trace_round(numbers_to_arrays(algorithm), zoo.problem, population, state)
    leaving = sorted(plan.flow.uploaded | plan.flow.kept)
    return [specs(plan.calls[call].reply)[leaf] for call, leaf in leaving]


@pytest.mark.slow
def test_numbers_of_single_rows_leave_only_where_the_algorithm_says_so():
    batched = {
        name: (zoo, algorithm)
        for name, cases in INSTANCES.items()
        for zoo, algorithm in list(cases.values())[:1]
        if getattr(algorithm, "batch_size", None) == 2
    }
    shows_rows = {
        name
        for name, (zoo, algorithm) in batched.items()
        if uploaded(zoo, algorithm) != uploaded(zoo, replace(algorithm, batch_size=1))
    }
    assert len(batched) > 50
    assert shows_rows == {name for name, (_, one) in batched.items() if one.shows_rows} == {"FeDXL"}
