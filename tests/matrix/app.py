"""An application of others: what it is made of, how it starts, and by which words its result is known. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

#: Where an image has what was compiled for it, what was prepared for its workload, and an MPI of its own.
BIN, SHARE, PRIVATE, VENV = "/usr/local/bin", "/usr/local/share/matrix", "/opt/private/mpi", "/opt/venv"


class App(NamedTuple):
    """An application in an image of a suite.

    ``right`` is a pattern that the output holds if the result is right; the group of ``world`` is the number of ranks,
    and without a group it is what one rank of a world prints. ``inputs`` are put into the job's folder, where it
    starts: texts of ``inputs``, or files of the image. What it ``leaves`` there is read as its output. ``scripts`` go
    into app/. ``prepare`` runs in the image, once. ``source``, names of files, is compiled by ``compiler``, Debian's,
    or by gcc for the MPI ``built``; ``venv`` is the MPI of a virtual
    environment with ``modules``, both by the names of their pins.
    """

    application: str
    suite: str
    family: str
    language: str
    packages: tuple[str, ...]
    command: tuple[str, ...]
    right: str
    world: str
    inputs: tuple[str, ...] = ()
    leaves: str = ""
    scripts: tuple[str, ...] = ()
    prepare: str = ""
    source: str = ""
    compiler: str = "gcc"
    flags: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    built: str = ""
    venv: str = ""
    modules: str = "mpi4py-4.1.2"

    @property
    def name(self) -> str:
        return f"{self.application}-{self.suite}"


def both(application: str, packages: tuple[str, ...], *, trixie: tuple[str, ...] = (), **fields: Any) -> list[App]:
    """Return an application of both suites; ``trixie`` are its packages there if they are called otherwise."""
    return [
        App(application, suite, packages=named, **fields)
        for suite, named in (("bookworm", packages), ("trixie", trixie or packages))
    ]
