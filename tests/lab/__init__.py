"""A small pretended supercomputer in namespaces, to try the product on. See docs/lab.md."""

from tests.lab.cluster import Lab, Status, UpReport
from tests.lab.command import Result
from tests.lab.errors import LabError

__all__ = ["Lab", "LabError", "Result", "Status", "UpReport"]
