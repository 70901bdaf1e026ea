"""Which plan a job that starts inside-out uses, and what is refused."""

import os

import pytest

from deployer.contract.base.errors import Refused
from deployer.contract.bundle.image_launcher import ImageLauncher
from deployer.contract.site import plan as plans
from deployer.contract.site.plan import Bind, InsideWay
from deployer.site.run import inside_out, run
from deployer.site.run.prepare.request import RunRequest
from tests import running as made

OWN = Bind("/scratch", "/data", "the site's folder")
WAY = InsideWay("mpiexec.hydra", "mpich-abi", ["stack"], [OWN], {"FI_PROVIDER": "tcp"}, [], ())
BOTH = made.PLAN._replace(inside=WAY)
INSIDE = BOTH.started_inside()


def request(**options):
    return RunRequest("hello", **options)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a store with an image that has a launcher, and a runtime in PATH."""
    monkeypatch.setenv("PATH", "{}:{}".format(tmp_path, os.environ["PATH"]))
    made.program(tmp_path, "ch-run", "exit 0")
    found = made.store(tmp_path / "root", BOTH._replace(modules=[], namespaces=True))
    for name in ("mpiexec.hydra", "hydra_pmi_proxy", "sh"):
        path = tmp_path / "root/images/aaaa/rootfs/usr/bin" / name
        path.write_bytes(b"\x7fELF")
        path.chmod(0o755)
    return found


def test_a_plan_carries_both_ways_and_the_users_word_decides():
    again = plans.read(made_bytes(BOTH), "plan")
    assert again == BOTH
    assert inside_out.chosen(again, None, None) == BOTH
    assert inside_out.chosen(again, "outside", None) == BOTH
    found = inside_out.chosen(again, "inside", None)
    assert (found.launch, found.mpi, found.abi) == ("inside", None, "mpich-abi")
    assert (found.modules, found.binds, found.pass_environment) == (["stack"], [OWN], [])
    assert found.environment == {"FI_PROVIDER": "tcp"}
    assert {(each.launcher, each.pmi, each.join) for each in found.start_options} == {("mpiexec.hydra", "", False)}


def made_bytes(plan):
    from deployer.contract.base import json_records

    return json_records.dumps(plan.record())


def test_a_plan_that_is_made_for_it_is_read():
    assert plans.read(made_bytes(INSIDE), "plan") == INSIDE


@pytest.mark.parametrize(
    ("plan", "launch", "runtime", "reason"),
    [
        (INSIDE, "outside", None, "knows no other way"),
        (made.PLAN, "inside", None, "has no way to start ranks by the image's own launcher"),
        (BOTH, "inside", "native", "has no container"),
        (INSIDE, None, "native", "has no container"),
    ],
)
def test_what_a_plan_cannot_do_is_refused(plan, launch, runtime, reason):
    with pytest.raises(Refused, match=reason):
        inside_out.chosen(plan, launch, runtime)


@pytest.mark.parametrize("word", ["--net", "--network=none", "--network=slirp4netns", "--containall", "-C", "--pid"])
def test_a_container_with_a_network_of_its_own_is_refused(word):
    with pytest.raises(Refused, match="cannot reach each other"):
        inside_out.check_runtime("apptainer", ["--quiet", word])


def test_a_network_in_a_word_of_its_own_is_refused():
    with pytest.raises(Refused, match="cannot reach each other"):
        inside_out.check_runtime("podman", ["--network", "none"])


def test_other_arguments_are_the_sites():
    words = ["--network=host", "--net=host", "--pid=host", "--no-passwd", "--cleanenv"]
    inside_out.check_runtime("podman", words)


def test_the_job_has_one_container_per_node_and_nothing_of_the_sites_mpi(site):
    folder = run.prepare(site, request(launch="inside"))
    text = run.show_script(folder)
    assert "/usr/bin/mpiexec.hydra -bootstrap ssh -bootstrap-exec /deployer/job/inside/start" in text
    assert "--kill-on-bad-exit=1" in text
    for word in ("/opt/intel", "SLURM_*", "--join", "--mpi=pmi2"):
        assert word not in text
    outside = run.show_script(run.prepare(site, request()))
    assert "--mpi=pmi2" in outside
    assert "inside" not in outside


@pytest.mark.parametrize(
    ("gone", "reason"),
    [
        ("mpiexec.hydra", "no mpiexec.hydra with hydra_bstrap_proxy or hydra_pmi_proxy in its PATH"),
        ("hydra_pmi_proxy", "no mpiexec.hydra with"),
        ("sh", "no /bin/sh"),
    ],
)
def test_an_image_without_a_launcher_is_refused_and_nothing_is_made(site, gone, reason):
    os.unlink(os.path.join(site.images, "aaaa/rootfs/usr/bin", gone))
    with pytest.raises(Refused, match=reason) as error:
        run.prepare(site, request(launch="inside"))
    assert error.value.message.startswith("launcher.missing: hello:1 cannot start ranks")
    assert "--launch outside" in error.value.hint
    assert not os.path.exists(site.jobs)


def test_an_image_without_python_is_refused(tmp_path, site):
    manifest = site.find("hello").manifest()
    bare = manifest._replace(image=manifest.image._replace(python=None))
    made.write(os.path.join(site.images, "aaaa/bundle.json"), bare.record())
    with pytest.raises(Refused, match="no Python"):
        run.prepare(site, request(launch="inside"))


def test_intels_launcher_is_known_by_its_daemon(tmp_path, site):
    installed = site.find("hello")
    path = os.path.join(installed.rootfs, "usr/bin/hydra_bstrap_proxy")
    with open(path, "wb") as stream:
        stream.write(b"\x7fELF")
    os.chmod(path, 0o755)
    found = inside_out.find(INSIDE, INSIDE.start_options[0], installed, installed.manifest().image)
    assert found == ImageLauncher("/usr/bin/mpiexec.hydra", "intel", "")
    text = run.show_script(run.prepare(site, request(launch="inside")))
    assert "--set-env=I_MPI_HYDRA_RMK=user" in text
    assert "--set-env=I_MPI_PIN_DOMAIN=" in text
    assert "-bind-to" not in text
