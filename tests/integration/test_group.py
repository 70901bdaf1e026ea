"""A store for a group, with an owner, a member and a stranger who are real users of this machine."""

import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deployer.connected.bundle.pyz import make_pyz
from deployer.contract.base.tarformat import FILE, FOLDER, SYMLINK, TarEntry
from deployer.contract.bundle.job import Job
from deployer.contract.site import plan as plans
from tests import bundles, running

pytestmark = pytest.mark.needs("root", "charliecloud")

OWNER, MEMBER, STRANGER, GROUP = "deployer-owner", "deployer-member", "deployer-alien", "deployer-group"
#: A launcher that starts one process here.
LAUNCHER = '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift 2; done\nexec "$@"\n'
_FOLDERS = ("/bin", "/dev", "/etc", "/home", "/proc", "/root", "/run", "/sys", "/tmp", "/usr", "/usr/bin", "/var")
_FILES = {"etc/passwd": b"", "etc/group": b"", "etc/hosts": b"", "etc/resolv.conf": b"", "root/secret": b"secret"}


def entries() -> list[tuple[TarEntry, bytes]]:
    """Return a rootfs with busybox, and with a folder that only its owner may read."""
    folders = sorted({*_FOLDERS, *plans.MOUNT_FOLDERS, "/deployer"})
    listed = [(TarEntry(FOLDER, each[1:].encode(), 0o700 if each == "/root" else 0o755), b"") for each in folders]
    content = {**_FILES, "bin/busybox": Path("/usr/bin/busybox").read_bytes(), plans.TOOL[1:]: b""}
    content[plans.CANARY[1:]] = plans.CANARY_TEXT.encode()
    for name, data in sorted(content.items()):
        listed.append((TarEntry(FILE, name.encode(), 0o755 if name.startswith("bin/") else 0o644, len(data)), data))
    return [*listed, (TarEntry(SYMLINK, b"bin/cat", 0o777, 0, b"busybox"), b"")]


@dataclass(frozen=True)
class Place:
    """A folder that all users can see, with the group's store."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def sh(self, user: str, script: str, code: int | None = 0) -> str:
        """Run a script as a user; return what it printed."""
        home = str(self.folder / user)
        argv = ["setpriv", f"--reuid={user}", "--regid=users", "--init-groups", "env", "-i", f"HOME={home}"]
        argv += ["PATH=/usr/bin:/bin", "bash", "-c", f"cd {home}; umask 027; {script}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert code in (None, done.returncode), f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def tool(self, user: str, *words: str, code: int = 0) -> str:
        """Run the site half as a user, under the store for the owner, else under the user's own root folder."""
        root = self.store if user == OWNER else self.folder / user / "root"
        line = shlex.join(["python3", f"{self.folder}/deployer.pyz", words[0], "--root", str(root), *words[1:]])
        return self.sh(user, line, code)

    def images(self) -> list[Path]:
        return sorted((self.store / "images").iterdir())


def _users(*, add: bool) -> None:
    for name, options in ((OWNER, ["-G", GROUP]), (MEMBER, ["-G", GROUP]), (STRANGER, [])):
        words = ["useradd", "--system", "-M", "-N", "-g", "users", *options] if add else ["userdel"]
        subprocess.run([*words, name], check=add, capture_output=True)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Return a new store with an image, which the member has joined."""
    with tempfile.TemporaryDirectory(prefix="deployer-group-", dir="/var/tmp") as made:
        found = Place(Path(made))
        found.folder.chmod(0o755)
        _users(add=False)
        subprocess.run(["groupadd", "--system", "-f", GROUP], check=True)
        _users(add=True)
        try:
            (found.folder / "deployer.pyz").write_bytes(make_pyz())
            launcher = found.folder / "mpiexec.hydra"
            launcher.write_text(LAUNCHER)
            launcher.chmod(0o755)
            option = running.START_OPTION._replace(launcher=launcher.name, pmi="", program=str(launcher))
            plan = running.PLAN._replace(
                scheduler="local", modules=[], start_options=[option], mpi=None, binds=[], environment={}
            )
            for version in ("1.0", "2.0"):
                job = Job("hello", ["/bin/busybox", "echo", f"hello from {version}"], 1, 1, 1, "00:01:00")
                member = running.member(plan._replace(bundle=f"tiny:{version}"))
                path = found.folder / f"tiny-{version}.tar"
                bundles.write(path, bundles.whole(entries()), name="tiny", version=version, jobs=[job], extra=[member])
            for user in (OWNER, MEMBER, STRANGER):
                (found.folder / user).mkdir(0o700)
                shutil.chown(found.folder / user, user)
            found.store.mkdir()
            shutil.chown(found.store, OWNER)
            found.sh(OWNER, f"cd {found.store}; chgrp {GROUP} .; chmod 2750 .; mkdir uses; chmod 3770 uses")
            found.tool(OWNER, "install", f"{found.folder}/tiny-1.0.tar")
            said = found.tool(MEMBER, "join", str(found.store))
            assert f"which only {OWNER} (uid " in said
            yield found
        finally:
            _users(add=False)
            subprocess.run(["groupdel", GROUP], check=False)


def test_a_member_runs_what_the_owner_installed(place: Place) -> None:
    said = place.tool(MEMBER, "run", "tiny", "--wait")
    assert "COMPLETED, exit 0" in said
    log = place.sh(MEMBER, "cat root/jobs/*/output.log")
    assert "hello from 1.0" in log
    assert "uid=" in place.tool(MEMBER, "exec", "tiny", "--", "/bin/busybox", "id")
    assert f"of {OWNER}" in place.tool(MEMBER, "list")
    assert str(place.store) in place.tool(MEMBER, "where", "tiny")
    # What each needs, and who used what.
    assert place.sh(MEMBER, "ls root/images root/layers", code=None).count("\n") <= 3
    assert f"({MEMBER} 20" in place.tool(OWNER, "list")
    assert f"used in the last 14 days by {MEMBER}" in place.tool(OWNER, "remove", "tiny", code=3)
    events = [json.loads(line) for line in place.sh(MEMBER, "cat root/events.jsonl").splitlines()]
    assert [(event["action"], event["user"]) for event in events] == [
        (action, MEMBER) for action in ("join", "run", "exec", "where")
    ]
    assert events[1]["digest"] == json.loads((place.images()[0] / "receipt.json").read_text())["digest"]
    assert "install" in place.tool(OWNER, "log")


#: What a member or a stranger tries, and what it says: the kernel refuses.
REFUSED_BY_KERNEL = {
    "put another image in its place": "mv $image /tmp/ || mv $image $image.old",
    "remove it": "rm -rf $image; test -e $image/receipt.json && echo Permission denied",
    "remove a file of its layer": "rm -f $layer/rootfs/bin/busybox",
    "write to a file of its layer": "echo evil >>$layer/rootfs/bin/busybox",
    "open a file of its layer to all": "chmod a+w $layer/rootfs/bin/busybox",
    "write through a hard link": "ln $layer/rootfs/bin/busybox own && chmod u+w own; echo evil >>$layer/rootfs/bin/cat",
    "write a plan that counts first": "mkdir $image/newer-plans && cp $image/plans/* $image/newer-plans",
    "install beside it": "mkdir $store/images/00000000000000000000000000000000",
    "replace the tool": "cp /bin/true $store/deployer.pyz",
    "put another store in its place": "mv $store $store.old",
    "clear the log": ": >$store/events.jsonl",
    "add to the log": "echo '{}' >>$store/events.jsonl",
    "fill the store": "head -c 1000 /dev/zero >$store/full || head -c 1000 /dev/zero >$store/bundles/full",
}


def state(place: Place) -> str:
    """Return owner, mode, size and time of everything in the store."""
    return subprocess.check_output(["find", place.store, "-printf", "%p %i %m %u %s %T@\n"], text=True)


@pytest.mark.parametrize("user", [MEMBER, STRANGER])
@pytest.mark.parametrize("what", REFUSED_BY_KERNEL)
def test_what_the_kernel_refuses(place: Place, user: str, what: str) -> None:
    image = place.images()[0]
    layer = (image / "rootfs").resolve().parent
    before = state(place)
    variables = f"store={place.store} image={image} layer={layer}"
    said = place.sh(user, f"{variables}; {REFUSED_BY_KERNEL[what]}", code=None)
    assert "Permission denied" in said or "Operation not permitted" in said
    assert state(place) == before


#: Mistakes of the owner or of root that let a member change the store, and what `run` says.
DETECTED = {
    "the folder of images is open to the group": ("chmod g+w $store/images", "chmod g-w $store/images", "can write"),
    "an ACL lets a member write": (
        "setfacl -m u:$member:rwx $layer", "setfacl -b $layer; chmod 2750 $layer", "can write to it"
    ),
    "a folder above is open": ("chmod 777 $place", "chmod 755 $place", "can write to it"),
    "a member made an image": (
        "chown -R $member $image",
        "chown -R $owner:$group $image", "it belongs to $member"
    ),
    "a member replaced a layer": (
        "chown -R $member $layer", "chown -R $owner $layer", "it belongs to $member"
    ),
    "a link leads to a member's store": (
        "mv $store $store.real; cp -a $store.real $home/fake; ln -s $home/fake $store",
        "rm $store; mv $store.real $store; rm -rf $home/fake", "it has become a link"
    ),
    "a member's store has its place": (
        "mv $store $store.real; cp -a $store.real $store; chown -R $member $store",
        "rm -rf $store; mv $store.real $store", "it belongs to $member"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DETECTED)
def test_what_is_detected_before_a_job(place: Place, what: str) -> None:
    if "ACL" in what and not shutil.which("setfacl"):
        pytest.skip("needs setfacl (Debian package acl)")
    do, undo, words = DETECTED[what]
    image = place.images()[0]
    layer = (image / "rootfs").resolve().parent
    variables = f"store={place.store} image={image} layer={layer} place={place.folder} home={place.folder}/{MEMBER} "
    variables += f"member={MEMBER} owner={OWNER} group={GROUP}"
    subprocess.run(["bash", "-ec", f"{variables}; {do}"], check=True)
    try:
        for command in ("run tiny --dry-run", "exec tiny -- /bin/busybox true", "where tiny"):
            said = place.tool(MEMBER, *command.split(), code=3)
            assert "the group's store cannot be trusted: " in said
            assert words.replace("$member", MEMBER) in said
    finally:
        subprocess.run(["bash", "-ec", f"{variables}; {undo}"], check=True)
    place.tool(MEMBER, "run", "tiny", "--dry-run")


def test_a_stranger_cannot_use_the_store(place: Place) -> None:
    assert "Permission denied" in place.tool(STRANGER, "join", str(place.store), code=2)
    record = place.sh(MEMBER, "cat root/group-store.json")
    place.sh(STRANGER, f"mkdir -p root; echo {shlex.quote(record)} >root/group-store.json")
    for command in ("list", "run"):
        said = place.tool(STRANGER, command, *(["tiny"] if command == "run" else []), code=2)
        assert f"cannot access {place.store}/images: Permission denied" in said
    assert "Permission denied" in place.sh(STRANGER, f"touch {place.store}/uses/x", code=1)


def test_marks_are_their_makers_and_keep_nothing_else(place: Place) -> None:
    name = place.images()[0].name
    place.sh(MEMBER, f"cd {place.store}/uses; touch -d 1970-01-02 {name}-0; ln -s /etc/passwd {name}-1")
    assert f"by {MEMBER}" in place.tool(OWNER, "remove", "tiny", code=3)
    place.sh(OWNER, f"rm {place.store}/uses/{name}-[01]")  # the folder's owner may, in spite of the sticky bit
    place.sh(OWNER, f"touch {place.store}/uses/{name}-x")
    said = place.sh(MEMBER, f"rm -f {place.store}/uses/{name}-x; mv {place.store}/uses/{name}-x x", code=None)
    assert said.count("Operation not permitted") == 2
    place.sh(OWNER, f"rm {place.store}/uses/{name}-x")


def test_a_private_root_folder_moves_by_links(place: Place) -> None:
    """The documented way: `cp -al`, then close it to others."""
    old, new = place.folder / OWNER / "old", place.folder / "moved"
    place.sh(
        OWNER, f"umask 002; cp ../tiny-2.0.tar .; python3 ../deployer.pyz install tiny-2.0.tar --root {old} --keep"
    )
    new.mkdir()
    shutil.chown(new, OWNER, GROUP)
    new.chmod(0o2750)
    names = "bundles layers images deployer.pyz"
    place.sh(OWNER, f"cd {old} && cp -al {names} {new}/ && cd {new} && chgrp -R {GROUP} {names}")
    place.sh(OWNER, f"cd {new} && chmod -R g-w,o= {names}")
    layer = next((old / "layers").iterdir()).name
    busybox = [root / "layers" / layer / "rootfs/bin/busybox" for root in (old, new)]
    assert busybox[0].samefile(busybox[1])
    place.sh(MEMBER, f"python3 {new}/deployer.pyz join {new} --root two")
    assert "hello" in place.sh(MEMBER, "python3 two/deployer.pyz exec tiny -- /bin/busybox echo hello")
    assert "tiny:2.0" in place.sh(OWNER, f"python3 ../deployer.pyz list --root {old}")
