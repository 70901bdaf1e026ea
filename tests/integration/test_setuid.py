"""The real Apptainer and SingularityCE, setuid, on nodes that forbid user namespaces: captured, packed, run on two."""

import copy
import json
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deployer.connected.bundle.pyz import make_pyz
from tests.integration.conftest import (
    OPEN_DRIVER,
    WORKSPACE,
    Cli,
    Site,
    check_driver,
    image_folder,
    nothing_left,
    plan_record,
    with_driver,
)
from tests.integration.test_apptainer import MAPPED
from tests.lab import Lab, apptainer, singularity
from tests.lab.site import USER_ID

pytestmark = [pytest.mark.needs("root", "slurm", "munge", "ssh", "lmod", "squashfs", "loop"), pytest.mark.slow]

TOOL = f"python3 {WORKSPACE}/deployer.pyz"
CAPTURE = (
    "cd capture && tool='python3 deployer.pyz' && $tool capture -o login.json && "
    "srun -N1 -n1 $tool capture --node -o node.json </dev/null && "
    "$tool capture --merge login.json node.json -o site.json"
)


class Setuid:
    """The lab with hello-mpi, and what its administrator can change."""

    bundle = "hello-mpi"

    def __init__(self, site: Site, config: Path, profile: str, program: str) -> None:
        self.site, self.config, self.profile, self.program = site, config, profile, program

    @contextmanager
    def limited(self, *lines: str) -> Iterator[None]:
        """Let the administrator's configuration have these lines instead of its own."""
        before = self.config.read_text()
        self.config.write_text(changed(before, lines))
        try:
            yield
        finally:
            self.config.write_text(before)


def changed(text: str, lines: tuple[str, ...]) -> str:
    """Return a configuration with other lines for some directives: of two, the first one counts."""
    ours = tuple(line.partition(" =")[0] + " =" for line in lines)
    kept = [line for line in text.splitlines() if not line.startswith(ours)]
    return "\n".join([*kept, *lines, ""])


def captured(site: Site) -> dict[str, Any]:
    """Return a capture's partition."""
    site.alice(CAPTURE)
    record = json.loads((site.lab.home / "alice" / "capture" / "site.json").read_text())
    partition: dict[str, Any] = record["partitions"]["batch"]
    return partition


PROGRAMS = {"apptainer": apptainer, "singularity": singularity}
SINGULARITY = pytest.param("singularity", marks=pytest.mark.needs("singularity"))


@pytest.fixture(scope="module", params=["apptainer", SINGULARITY])
def setuid(built: Cli, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Setuid]:
    """Yield such a lab, and hello-mpi on it, packed for a profile of its capture."""
    work = tmp_path_factory.mktemp("setuid")
    lab = Lab("setuid", namespaces=False, say=lambda line: None)
    lab.up(nodes=2)
    try:
        config = PROGRAMS[request.param].install_setuid(lab)
        config.write_text(changed(config.read_text(), ("allow setuid-mount squashfs = yes",)))  # Apptainer's
        folder = lab.home / "alice" / "capture"
        folder.mkdir(exist_ok=True)
        shutil.chown(folder, USER_ID, USER_ID)
        (folder / "deployer.pyz").write_bytes(make_pyz())
        site = Site(built, lab)
        captured(site)
        decided: dict[str, Any] = {
            "format": 1,
            "name": "lab-setuid",
            "extends": str(folder / "site.json"),
            "workspace": "~/deployer",
            "login": {"host": "login1"},
            "policy": {"runtimes": [request.param]},
            "partitions": {"batch": {"mpi": "intel-2021.15", "pmi": "pmi2"}},
        }
        profile = work / "lab-setuid.json"
        profile.write_text(json.dumps(decided))
        built("pack", "bundles/hello-mpi", "--site", profile, "-o", work / "hello.tar")
        built("push", work / "hello.tar", profile, "--ssh-config", lab.ssh_config)
        yield Setuid(site, config, str(profile), request.param)
    finally:
        lab.down(purge=True)


def test_capture_sees_a_setuid_program_and_no_namespaces(setuid: Setuid) -> None:
    batch = captured(setuid.site)
    assert batch["user_namespaces"] is False
    version = setuid.site.alice(f"{setuid.program} --version").split()[-1]
    own = {"version": version, "setuid": True, "starts": True, "squashfs": "kernel"}
    assert batch["runtimes"][setuid.program] == own
    assert setuid.site.alice("unshare --user true", 1).strip().endswith("No space left on device")


def ran(setuid: Setuid, variant: str, *words: str) -> None:
    """Run hello-mpi on two nodes from the laptop, and check its proof."""
    with nothing_left(setuid.site.lab):
        result = setuid.site.run("--nodes", "2", *words, bundle=setuid.bundle, site=setuid.profile)
    assert (result["variant"], result["world_size"], result["exit_code"], result["findings"]) == (variant, 2, 0, [])
    assert result["check"]["verdict"] == "RUN"
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    assert all(rank["mpi_identity"] == rank["host_mpi_identity"] for rank in result["ranks"])
    assert result["payload"]["sum"] == 1


def test_a_job_on_two_nodes_from_the_folder(setuid: Setuid) -> None:
    ran(setuid, f"{setuid.program}-folder")


def test_a_job_from_a_file_that_the_kernel_mounts(setuid: Setuid) -> None:
    setuid.site.tool("squash", "hello-mpi")
    ran(setuid, f"{setuid.program}-squashfs", "--staging", "squashfs")


def test_ranks_of_a_node_are_not_in_user_namespaces_of_their_own(setuid: Setuid) -> None:
    script = "id -u; readlink /proc/self/ns/user; cat /deployer/canary"
    said = setuid.site.alice(f"{TOOL} exec hello-mpi -- sh -c '{script}'")
    assert said.splitlines()[:2] == ["2001", setuid.site.alice("readlink /proc/self/ns/user").strip()]
    assert "This is the root of an image" in said


def test_exec_and_shell_and_doctor(setuid: Setuid) -> None:
    site = setuid.site
    site.alice(f"{TOOL} exec hello-mpi -- sh -c 'exit 7'", 7)
    said = site.alice(f"echo 'cat /deployer/canary; exit 5' | {TOOL} shell hello-mpi", 5)
    assert "This is the root of an image" in said
    said = " ".join(site.alice(f"{TOOL} doctor hello-mpi").split())
    assert "no user namespaces" in said
    assert "its container sees its own root" in said
    version, path = site.alice(f"{setuid.program} --version; command -v {setuid.program}").splitlines()
    assert f"{setuid.program} {version.split()[-1]}, {path}" in said


def test_a_signal_and_a_kill_leave_nothing(setuid: Setuid) -> None:
    words = f"{TOOL} exec hello-mpi --"
    said = setuid.site.alice(
        f"{words} sh -c 'trap \"echo got it; exit 9\" TERM; echo begun; while :; do sleep 0.1; done' >out & "
        "for try in $(seq 100); do grep -q begun out && break; sleep 0.1; done; "
        "kill -TERM $!; wait $!; echo ended $?; cat out; "
        f"{words} sleep 977 & for try in $(seq 100); do pgrep -f '^sleep 977' && break; sleep 0.1; done; "
        "kill -KILL $!; sleep 0.5; pgrep -f '^sleep 977' || echo none left"
    )
    assert "ended 9" in said
    assert "got it" in said
    assert "none left" in said


def test_a_cancelled_job_leaves_nothing(setuid: Setuid) -> None:
    site = setuid.site
    with nothing_left(site.lab):
        job = json.loads(site.alice(f"{TOOL} run hello-mpi --nodes 2 --json 2>/dev/null"))["job"]
        hang = (
            "for try in $(seq 1200); do pkill -STOP -u alice -f '^python3 -m mpi4py' && exit; sleep 0.05; done; exit 1"
        )
        site.lab.sh("cn2", "root", hang, timeout=90).check("stop a rank")
        site.alice(f"{TOOL} cancel {job}")
    ended = f"{TOOL} status {job} 2>&1 | grep CANCELLED"
    site.alice(f"for try in $(seq 50); do {ended} && exit; sleep 0.2; done; exit 1")  # it may be COMPLETING


#: What an administrator can set, and the reason that `run` prints before it submits anything.
LIMITS = {
    "allow container dir = no": "`allow container dir = no`",
    "limit container paths = /opt, /home/b": "`limit container paths = /opt, /home/b`, not /home/alice",
    "limit container owners = root": "`limit container owners = root`, not alice",
    "limit container groups = root": "`limit container groups = root`, not alice",
}


@pytest.mark.parametrize("line", LIMITS)
def test_the_administrator_s_limits_refuse_before_the_job(setuid: Setuid, line: str) -> None:
    site = setuid.site
    with setuid.limited(line):
        for words in ("run --staging folder", "exec"):
            said = site.alice(f"{TOOL} {words} hello-mpi -- true", 3)
            assert LIMITS[line] in said
            assert "ask the site to allow it" in said
    assert site.alice("squeue --noheader").strip() == ""


def test_where_folders_are_forbidden_a_file_in_memory_is_used(setuid: Setuid) -> None:
    with setuid.limited("limit container paths = /dev/shm", "allow container dir = no"):
        ran(setuid, f"{setuid.program}-squashfs")


#: Settings, and what capture then records of folders.
CAPTURED = {
    "allow container dir = no": "FATAL: configuration disallows users from running sandbox containers",
    "user bind control = no": "FATAL: stat /bin/sh: no such file or directory",
    "limit container owners = root": "FATAL: apptainer image is not owned by required user(s)",
    "limit container paths = /opt": "FATAL: apptainer image is not in an allowed configured path",
    "allow setuid = no": "ERROR : Failed to create user namespace: maximum number of user namespaces exceeded, "
    "check /proc/sys/user/max_user_namespaces",
    "limit container paths = /home/alice": None,
    "bind path = /usr/share/doc:/mnt": None,
}
RUNTIMES = (
    "import json; from deployer.site.capture import machine, tools; print(json.dumps(machine.runtimes(tools.Tools())))"
)


@pytest.mark.parametrize("line", CAPTURED)
def test_capture_records_the_administrator_s_limits(setuid: Setuid, line: str) -> None:
    with setuid.limited(line):
        found = json.loads(setuid.site.alice(f"cd capture; PYTHONPATH=deployer.pyz python3 -c '{RUNTIMES}'"))
    own = found[setuid.program]
    assert own["setuid"] is (line != "allow setuid = no")
    assert own["starts"] is (CAPTURED[line] is None)
    folder = own.get("failure", "").partition("; ")[0]  # then the last words about a SIF file, if they differ
    assert folder == (CAPTURED[line] or "").replace("apptainer", setuid.program)


def test_a_driver_by_the_exact_map(setuid: Setuid) -> None:
    """A stand-in for a GPU's driver, bound by the setuid program."""
    site = setuid.site
    made = image_folder(site) / "plans" / "changed.json"
    record = plan_record(site, "lab-setuid")
    made.write_text(json.dumps({**record, "site": "changed", **with_driver(site, "lab-setuid")}))
    made.chmod(0o644)
    check_driver(site, site.alice(f"{TOOL} exec hello-mpi --plan changed -- python3 -c {shlex.quote(OPEN_DRIVER)}"))
    made.unlink()


ONLY_SIF = ("allow container dir = no", "allow container squashfs = no")


def test_where_only_sif_files_are_allowed_where_gives_one(setuid: Setuid) -> None:
    """`where --sif` makes it elsewhere; the program alone starts it, mounted by the kernel."""
    site = setuid.site
    site.tool("squash", "hello-mpi")
    place = json.loads(site.tool("where", "hello-mpi", "--sif", "mine.sif", "--json"))
    words = [setuid.program, "exec", *place["options"], place["image"], "python3", "-c", MAPPED]
    with setuid.limited(*ONLY_SIF):
        said = site.alice(
            "timeout 100 srun --kill-on-bad-exit --nodes 2 --mpi=pmi2 " + shlex.join(words) + " 2>&1; true"
        )
        site.alice(f"{setuid.program} exec {image_folder(site).parent}/*/rootfs true", 255)
    ranks = sorted(line.split()[1:] for line in said.splitlines() if line.startswith("rank "))
    assert [rank[:2] for rank in ranks] == [["cn1", "2"], ["cn2", "2"]], said


@pytest.fixture(scope="module")
def only_sif(setuid: Setuid, built: Cli, tmp_path_factory: pytest.TempPathFactory) -> Setuid:
    """Return the lab with hello-sif, packed for a profile of a capture that found only SIF files allowed."""
    site, work = setuid.site, tmp_path_factory.mktemp("sif")
    with setuid.limited(*ONLY_SIF):
        own = captured(site)["runtimes"][setuid.program]
        assert (own["starts"], own["sif"]) == (False, "kernel")
        assert own["failure"].endswith("configuration disallows users from running sandbox containers")
        capture = shutil.copytree(site.lab.home / "alice" / "capture", work / "capture") / "site.json"
        decided = json.loads(Path(setuid.profile).read_text())
        profile = work / "lab-sif.json"
        profile.write_text(json.dumps({**decided, "name": "lab-sif", "extends": str(capture)}))
        definition = shutil.copytree("bundles/hello-mpi", work / "hello-sif") / "bundle.yaml"
        definition.write_text(definition.read_text().replace("name: hello-mpi\n", "name: hello-sif\n"))
        built("build", definition.parent)
        built("pack", definition.parent, "--site", profile, "-o", work / "hello.tar")
        built("push", work / "hello.tar", profile, "--ssh-config", site.lab.ssh_config)
    captured(site)  # the other profile's
    changed_site = copy.copy(setuid)
    changed_site.profile, changed_site.bundle = str(profile), "hello-sif"
    return changed_site


@pytest.mark.parametrize(("variant", "words"), [("sif", ()), ("squashfs", ("--staging", "squashfs"))])
def test_where_only_sif_files_are_allowed_a_job_starts_one(
    only_sif: Setuid, variant: str, words: tuple[str, ...]
) -> None:
    """The installed one and one in memory; `install` made it, because the plan needs it."""
    with only_sif.limited(*ONLY_SIF):
        ran(only_sif, f"{only_sif.program}-{variant}", *words)


def test_where_only_sif_files_are_allowed_exec_shell_and_doctor_start_one(only_sif: Setuid) -> None:
    site = only_sif.site
    with only_sif.limited(*ONLY_SIF):
        site.alice(f"{TOOL} exec hello-sif -- sh -c 'exit 7'", 7)
        said = site.alice(f"echo 'cat /deployer/canary; exit 5' | {TOOL} shell hello-sif", 5)
        assert "This is the root of an image" in said
        said = " ".join(site.alice(f"{TOOL} doctor hello-sif").split())
        assert "its container sees its own root" in said
        assert site.tool("where", "hello-sif").split()[1].endswith("/image.sif")


#: Prints the fingerprint of a new key, with which it signs a SIF file.
SIGN = (
    "export APPTAINER_CONFIGDIR=$PWD/keys; apptainer key newpair --name a --email a --comment a --password '' "
    "--push=false --bit-length 2048 >&2 && apptainer sign {} >&2 && echo 0 | apptainer key export key.asc >&2 && "
    "apptainer key list | sed -n 's/.*Fingerprint: *//p'"
)


def test_forbidden_and_unsigned_sif_files_are_refused_before_the_job_and_signed_ones_start(only_sif: Setuid) -> None:
    """Where the execution control list is active, an accepted key must have signed the file."""
    site, listed, image = only_sif.site, only_sif.config.with_name("ecl.toml"), image_folder(only_sif.site, "hello-sif")
    keyring = only_sif.config.with_name("global-pgp-public")
    before, keys = listed.read_text(), keyring.read_bytes()
    group = '[[execgroup]]\n  tagname = "ours"\n  mode = "whitelist"\n  dirpath = ""\n  keyfp = ["{}"]\n'

    def refused(reason: str) -> None:
        for words in ("run", "run --staging squashfs", "exec"):
            assert reason in site.alice(f"{TOOL} {words} hello-sif -- true", 3)
        assert site.alice("squeue --noheader").strip() == ""

    with only_sif.limited(*ONLY_SIF, "allow container sif = no"):
        refused("`allow container sif = no`")
    with only_sif.limited(*ONLY_SIF):
        (image / "image.sif").rename(image / "away")
        try:
            refused("it has no SIF file")
        finally:
            (image / "away").rename(image / "image.sif")
        try:
            listed.write_text("activated = true\n" + group.format("0" * 40))
            refused("`activated = true` in ecl.toml: sign the SIF file")
            words = only_sif.program + " exec deployer/images/{}/image.sif true"
            assert "signature not found" in site.alice(words.format(image.name), 255)
            own = site.alice(
                SIGN.format(f"deployer/images/{image.name}/image.sif")
                .replace("apptainer", only_sif.program)
                .replace("APPTAINER", only_sif.program.upper())
            ).split()[0]
            site.lab.sh("login1", "root", f"{only_sif.program} key import --global /home/alice/key.asc").check(
                "import a key"
            )
            listed.write_text("activated = true\n" + group.format(own))
            ran(only_sif, f"{only_sif.program}-squashfs", "--staging", "squashfs")
            site.alice(f"{TOOL} exec hello-sif -- sh -c 'exit 7'", 7)
        finally:
            listed.write_text(before)
            keyring.write_bytes(keys)
