"""Settings for checking a bundle."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Checking(NamedTuple):
    """Settings for checking a bundle.

    Attributes:
        accept: rule codes that are treated as warnings.
        cache: the folder of cached facts about files; None: no cache.
        today: the date for computing the age of the site's facts; None: their age is not checked.
    """

    accept: Sequence[str] = ()
    cache: Path | None = None
    today: dt.date | None = None


USUAL = Checking()
