"""How a bundle is checked."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Checking(NamedTuple):
    """How a bundle is checked.

    Attributes:
        accept: rule codes that are treated as warnings.
        cache: the folder of cached facts about files; None: no cache.
        today: the day for the age of the site's facts; None: it is not looked at.
    """

    accept: Sequence[str] = ()
    cache: Path | None = None
    today: dt.date | None = None


USUAL = Checking()
