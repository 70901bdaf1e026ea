"""Other users of the machine, for tests of what they must not see or take."""

import os
from contextlib import contextmanager

import pytest

NOBODY = 65534


@contextmanager
def somebody_else(uid=NOBODY):
    """Be another user for the time of the block; root alone can."""
    if os.geteuid():
        pytest.skip("needs root: only root can act as another user")
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
