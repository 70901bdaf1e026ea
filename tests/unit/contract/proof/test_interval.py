"""The 95 % interval of a mean, against tables of Student's t distribution."""

import pytest

from deployer.contract.proof import measured_runs


@pytest.mark.parametrize(
    ("free", "t"),
    [
        (1, 12.7062),
        (2, 4.30265),
        (3, 3.18245),
        (4, 2.77645),
        (9, 2.26216),
        (10, 2.22814),
        (30, 2.04227),
        (999, 1.96234),
    ],
)
def test_quantiles_are_those_of_printed_tables(free, t):
    assert measured_runs.quantile(free) == pytest.approx(t, abs=2e-5)


def test_the_interval_of_a_mean():
    values = [10.0, 12.0, 14.0]
    assert measured_runs.mean(values) == 12
    assert measured_runs.half_width(values) == pytest.approx(4.30265 * 2 / 3**0.5, abs=1e-5)


def test_one_value_has_no_interval():
    assert measured_runs.half_width([3.0]) is None
