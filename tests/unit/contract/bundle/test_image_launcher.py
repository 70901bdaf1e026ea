"""The launcher of an image is known by its programs, and what is missing is named."""

import pytest

from deployer.contract.bundle.command import FILE, FOLDER, LINK, CommandSearch, PathInfo
from deployer.contract.bundle.image_launcher import HYDRA, MPIRUN, ImageLauncher, find, lacks

BASE = {"/bin/sh": PathInfo(FILE), "/bin": PathInfo(FOLDER), "/usr": PathInfo(FOLDER), "/usr/bin": PathInfo(FOLDER)}


def place(*names, path="/root/bin:/usr/bin"):
    files = dict({"/usr/bin/" + name: PathInfo(FILE) for name in names}, **BASE)
    return CommandSearch(files.get, path)


@pytest.mark.parametrize(
    ("launcher", "names", "found"),
    [
        (HYDRA, ["mpiexec.hydra", "hydra_pmi_proxy"], ImageLauncher("/usr/bin/mpiexec.hydra", "mpich", "")),
        (HYDRA, ["mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_proxy"],
         ImageLauncher("/usr/bin/mpiexec.hydra", "intel", "")),
        (MPIRUN, ["mpirun", "mpirun.openmpi", "orted"], ImageLauncher("/usr/bin/mpirun.openmpi", "openmpi", "4")),
        (MPIRUN, ["mpirun", "prted"], ImageLauncher("/usr/bin/mpirun", "openmpi", "5")),
        (MPIRUN, ["mpirun"], None),
        (HYDRA, ["mpirun", "orted"], None),
    ],
)  # fmt: skip
def test_a_launcher_and_its_mpi_are_known_by_their_programs(launcher, names, found):
    assert find(launcher, place(*names)) == found


def test_what_is_missing_is_named():
    whole = place("mpiexec.hydra", "hydra_pmi_proxy")
    assert lacks(HYDRA, whole, "/usr/bin/python3") is None
    assert lacks(HYDRA, whole, None) == "no Python"
    assert lacks(MPIRUN, whole, "/usr/bin/python3") == "no mpirun with orted or prted in its PATH"
    bare = whole._replace(look=lambda path: None if path == "/bin/sh" else whole.look(path))
    assert lacks(HYDRA, bare, "/usr/bin/python3") == "no /bin/sh"


def test_a_link_that_leads_nowhere_is_no_launcher():
    files = dict(BASE, **{"/usr/bin/mpirun": PathInfo(LINK, "/etc/alternatives/mpirun")})
    files["/usr/bin/orted"] = PathInfo(FILE)
    assert find(MPIRUN, CommandSearch(files.get, "/usr/bin")) is None
