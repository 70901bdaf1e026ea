import pytest

from deployer.contract.errors import UsageError
from deployer.contract.job import seconds


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("00:30:00", 1800),
        ("100:00:01", 360001),
        ("2-00:00:00", 172800),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("30", 1800),
        ("30:15", 1815),
    ],
)
def test_time_limits_as_slurm_writes_them(limit, expected):
    assert seconds(limit) == expected


@pytest.mark.parametrize("limit", ["", "infinite", "1:2:3:4", "-1:00", "x-1", "1-"])
def test_what_is_no_time_limit(limit):
    with pytest.raises(UsageError, match="no time limit"):
        seconds(limit)
