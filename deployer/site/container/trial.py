"""The words with which `capture` tries a runtime: the same as in a job, for an image made for the test."""

from typing import List, Sequence

from deployer.contract.base import shell
from deployer.contract.bundle.command import DEFAULT_PATH
from deployer.contract.site.plan import Bind
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container


def words(name: str, image: str, private: str, folders: Sequence[str], command: Sequence[str]) -> List[str]:
    """Return the argv that starts ``command`` in the folder ``image``; see ``capture.started.TrialWords``."""
    binds = [Bind(path, path, "") for path in folders]
    container = Container(image, binds, {"PATH": DEFAULT_PATH}, [], "/", private=private)
    return shell.argv(RUNTIMES[name].argv(container, command), {})
