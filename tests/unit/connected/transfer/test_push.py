"""push and receive as one: real ones on both sides, with the fake line of test_remote between them."""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deployer.cli.laptop import main as cli
from deployer.cli.site import main as site_cli
from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.site_profile.profile import load
from deployer.connected.transfer.push import DamagedBundle, Pushed, PushOptions, _Sending, push, push_to
from deployer.connected.transfer.remote import Remote
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, IntegrityError, Refused, SpaceError, TransferError, UsageError
from deployer.contract.base.json_records import Fields
from deployer.contract.bundle import delta
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.scan import Scan, Scanner
from deployer.contract.rules.findings import ERROR, Finding
from deployer.contract.rules.verdict import judged
from deployer.site.install.receive import receive
from deployer.site.storage.store import Store
from deployer.system.trust.verify import begin, opened
from tests import bundles, running
from tests.unit.connected.transfer.test_remote import far
from tests.unit.site.install.test_squash import stand_in

pytestmark = pytest.mark.thorough

__all__ = ["far"]

#: Of no pattern, and as large as the parts of these tests: each goes alone.
BIG = [(f"deployer/wheels/{number}", os.urandom(400_000)) for number in range(4)]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "PART_SIZE", 500_000)


def install(path: Path, **options: Any) -> Pushed:
    return push(path, load("lab"), None, PushOptions(**{"without_plan": True, **options}))


def kept(far: Path, name: str = "tiny-1.0") -> bytes:
    return (far / "deployer" / "bundles" / f"{name}.tar").read_bytes()


def incoming(far: Path) -> list[Path]:
    return list((far / "deployer" / "incoming").iterdir())


def test_push_installs_and_a_second_push_sends_nothing(far: Path, tmp_path: Path) -> None:
    bundle = bundles.write(tmp_path / "b.tar")
    first = install(bundle)
    assert 0 < first.sent < bundle.stat().st_size
    assert first.folder
    assert Path(first.folder, "rootfs", "bin", "tool").is_file()
    assert kept(far) == bundle.read_bytes()
    assert incoming(far) == []
    second = install(bundle)
    assert (second.sent, second.folder) == (0, first.folder)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_install_over_there_shows_its_progress_on_a_terminal(
    far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    told: list[tuple[int, int]] = []
    converse = Remote.converse

    def heard(self: Remote, words: Any, reply: Any, timeout: float, tell: Any, *others: Any) -> Any:
        telling = tell and (lambda *done: (told.append(done), tell(*done))[1])
        return converse(self, words, reply, timeout, telling, *others)

    monkeypatch.setattr(Remote, "converse", heard)
    done = install(bundles.write(tmp_path / "b.tar", extra=BIG))
    assert done.folder
    err = capsys.readouterr().err
    assert ("install:" in err) is bool(told) is terminal
    assert "deployer-progress" not in err
    if terminal:
        assert all(0 < count <= total for count, total in told)


def test_an_error_of_the_far_side_is_told_though_progress_was_heard(
    far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    (far / "deployer").mkdir()
    (far / "deployer" / "policy.json").write_text("{")
    with pytest.raises(DeployerError, match="login1: "):
        install(bundles.write(tmp_path / "b.tar"))


def test_only_what_changed_is_sent(far: Path, tmp_path: Path) -> None:
    install(bundles.write(tmp_path / "a.tar", extra=BIG))
    bundle = bundles.write(
        tmp_path / "b.tar", extra=[*BIG[:2], ("deployer/app/new.py", b"pass"), *BIG[2:]], version="2"
    )
    done = install(bundle)
    assert done.sent < 20_000
    assert kept(far, "tiny-2") == bundle.read_bytes()
    full = install(bundles.write(tmp_path / "c.tar", extra=BIG, version="3"), full=True)
    assert full.sent > 1_600_000
    assert kept(far, "tiny-3") == (tmp_path / "c.tar").read_bytes()


def test_a_command_after_the_install_runs_in_the_same_process(
    far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, alone = list[Pushed](), list[int]()
    for number in range(2):  # of which the second is installed already
        told = {"handed_over": lambda: alone.append(len(installed)), "installed": installed.append}
        done = install(bundles.write(tmp_path / "b.tar"), then=["list", "--json"], **told)
        assert [each["name"] for each in done.then.record["images"]] == ["tiny"]
        assert done._replace(then=None, checked=None) == installed[number]._replace(checked=None)
        assert (done.sent > 0) is (number == 0)
    assert alone == [0, 1]  # each before the answer to its install
    assert "then" not in done.record()
    with pytest.raises(DeployerError, match="login1: no image absent"):
        install(
            bundles.write(tmp_path / "c.tar", version="2"), then=["run", "absent", "--json"], installed=installed.append
        )
    assert installed[-1].folder != done.folder
    # A data-transfer node runs no commands, so the caller has to run it.
    monkeypatch.setattr(Remote, "upload", lambda *_: pytest.fail("sent"))
    with pytest.raises(pytest.fail.Exception, match="sent"):
        install(bundles.write(tmp_path / "d.tar", version="3"), then=["list"], transfer_host="login1")


@pytest.mark.parametrize("pieces", ["none", "some", "all"])
def test_the_site_is_on_its_own_from_the_last_piece_on(tmp_path: Path, pieces: str) -> None:
    """While pieces are missing an error has left nothing; and times are of this push, whoever was faster."""
    path, alone = bundles.write(tmp_path / "b.tar", extra=BIG), list[str]()
    known = {"folder": None, "held": delta.held_text(()), "free": 10**12, "python": "3.6"}
    with opened(str(path)) as stream:
        bundle = begin(stream, str(path))
        remote: Any = SimpleNamespace(host="login1", workspace="/r")
        sending = _Sending(stream, bundle, remote, PushOptions(handed_over=lambda: alone.append("x")))
        given = sending.pieces(Fields(known, "known"))
        for piece in given if pieces != "none" else ():
            assert (alone == ["x"]) is (piece == delta.END)
            if pieces == "some":
                break
        done = sending.pushed(Fields({"folder": "/r/images/x", "warnings": []}, "taken"))
    assert 0 <= done.seconds_transfer < 60
    assert 0 <= done.seconds_install < 60


def _flip(path: Path, content: bytes) -> None:
    """Change the first byte of ``content`` in a file."""
    bundles.flip(path, path.read_bytes().index(content))


def test_of_a_bundle_that_deploy_packed_what_is_sent_is_verified(far: Path, tmp_path: Path) -> None:
    bundle = bundles.write(tmp_path / "b.tar", extra=BIG)
    whole = bundle.read_bytes()
    with opened(str(bundle)) as stream:
        packed = begin(stream, str(bundle)).digest
    _flip(bundle, BIG[1][1])
    with pytest.raises(DamagedBundle, match="does not match its digest"):
        install(bundle, packed=packed)
    assert not (far / "deployer" / "images").exists() or not list((far / "deployer" / "images").iterdir())
    assert incoming(far) == []  # not one part
    _flip(bundle, bytes([BIG[1][1][0] ^ 1]) + BIG[1][1][1:])
    assert bundle.read_bytes() == whole
    assert install(bundle, packed=packed).folder
    changed = bundles.write(tmp_path / "c.tar", extra=[*BIG, ("deployer/app/new.py", b"pass")], version="2")
    whole = changed.read_bytes()
    with opened(str(changed)) as stream:
        packed = begin(stream, str(changed)).digest
    _flip(changed, BIG[1][1])
    with pytest.raises(IntegrityError, match="does not match its digest"):
        install(changed)  # a push by hand verifies all of it
    assert install(changed, packed=packed).folder  # the site has its own copy of the rest, and verifies that
    assert kept(far, "tiny-2") == whole
    with pytest.raises(IntegrityError, match="was replaced during the deploy"):
        install(bundle, packed=packed)


def test_what_check_refuses_is_not_sent_unless_it_is_forced(far: Path, tmp_path: Path) -> None:
    plan = running.PLAN._replace(start_options=[running.START_OPTION._replace(pmi="cray_shasta")])
    bundle = bundles.write(tmp_path / "b.tar", extra=[running.member(plan)])
    with pytest.raises(Refused) as error:
        install(bundle)
    assert "pmi.not-offered" in error.value.message
    assert "push --force" in error.value.hint
    assert not (far / "deployer").exists()  # not one byte
    done = install(bundle, force=True)
    assert (done.checked.verdict, done.folder is not None) == ("REFUSE", True)


def test_a_bundle_is_sent_if_one_of_its_jobs_can_run(far: Path, tmp_path: Path) -> None:
    """One job's error stopped the bundle. With a job to run, this job alone is judged."""

    def carried(*accepted: str) -> tuple[str, bytes]:
        packed = judged([], ["bind.place", "fabric.provider", *accepted])
        return running.member(running.PLAN._replace(checked=packed))

    good = Job("a", ["x"], 1, 1, 1, "00:01:00")
    jobs = [good, good._replace(name="b", workdir="/nowhere")]
    both = bundles.write(tmp_path / "b.tar", extra=[carried()], jobs=jobs)
    with pytest.raises(Refused, match=r"command\.missing: job a"):
        install(both, job="a")
    with pytest.raises(Refused, match="2 more findings"):
        install(both)
    other = bundles.write(tmp_path / "c.tar", extra=[carried("command.missing")], jobs=jobs, version="2")
    with pytest.raises(Refused, match=r"workdir\.missing: /nowhere \(job b\)"):
        install(other, job="b")
    assert install(other, dry_run=True).checked.said == "REFUSE for job b"  # type: ignore[union-attr]
    assert install(other, job="a").checked.verdict != "REFUSE"  # type: ignore[union-attr]


@pytest.mark.parametrize("first", [True, False])
def test_a_partition_that_check_refuses_does_not_stop_the_others(
    far: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], first: bool
) -> None:
    packed = judged([], ["bind.place", "fabric.provider"])._replace(deployer="0.0.1")
    good = running.PLAN._replace(checked=packed)
    bad = good._replace(start_options=[running.START_OPTION._replace(pmi="cray_shasta")])
    site = load("lab")
    batch = site.partitions["batch"]
    both = site.model_copy(update={"partitions": {"batch": batch, "fat": batch}})
    pair = (bad, good) if first else (good, bad)
    names = ("deployer/plans/lab.json", "deployer/plans/lab/fat.json")
    plans = [plan._replace(partition=name) for plan, name in zip(pair, ("batch", "fat"), strict=True)]
    extra = [(name, json_records.dumps(plan.record())) for name, plan in zip(names, plans, strict=True)]
    done = push(bundles.write(tmp_path / "b.tar", extra=extra), both, None, PushOptions())
    assert done.folder is not None
    assert done.checked.verdict != "REFUSE"
    said = capsys.readouterr().err
    name = "batch" if first else "fat"
    assert f"check refuses partition {name} of lab: pmi.not-offered" in said
    assert f"check for lab is {done.checked.verdict} now, but the plan in the bundle, which `run`" in said
    assert "has RUN (by deployer 0.0.1; this is " in said


def test_a_bundle_without_a_plan_for_the_site_is_refused_before_anything_is_sent(far: Path, tmp_path: Path) -> None:
    moon = running.member(running.PLAN._replace(site="moon"))
    for extra, has in (((), "its plans: none"), ((moon,), "its plans: moon")):
        bundle = bundles.write(tmp_path / "b.tar", extra=list(extra))
        for options in ({}, {"force": True}, {"dry_run": True}):
            with pytest.raises(Refused, match=r"tiny:1\.0 has no plan for lab") as error:
                install(bundle, without_plan=False, **options)
            assert has in error.value.message
            assert "--site lab" in error.value.hint
    assert not (far / "deployer").exists()
    assert install(
        bundles.write(tmp_path / "c.tar", extra=[running.member(running.PLAN)]), without_plan=False, force=True
    ).folder
    lost = install(bundles.write(tmp_path / "d.tar", version="2")).warnings  # asked for: said at least
    assert any("it has no plan for lab, which tiny:1.0 has" in line for line in lost)


def test_push_takes_what_was_accepted_and_asks_of_no_other_site(far: Path, tmp_path: Path) -> None:
    wrong = Finding("pmi.not-offered", ERROR, "v", "m", "r")
    plan = running.PLAN._replace(start_options=[running.START_OPTION._replace(pmi="cray_shasta")])
    # Nor has the bundle's image a place for the site's MPI.
    accepted = plan._replace(checked=judged([wrong], ["bind.place", "pmi.not-offered"]))
    done = install(bundles.write(tmp_path / "b.tar", extra=[running.member(accepted)]))
    assert done.checked.verdict == "UNKNOWN"  # nobody captured the lab's MPI
    moon = running.member(plan._replace(site="moon"))
    assert install(bundles.write(tmp_path / "c.tar", extra=[moon], version="2")).checked is None


def test_the_squashfs_file_is_made_there_too_and_once(far: Path, tmp_path: Path) -> None:
    bundle = bundles.write(tmp_path / "b.tar", extra=[("deployer/kit/mksquashfs", stand_in(tmp_path).encode(), 0o755)])
    assert install(bundle, squashfs=True, dry_run=True).squashfs is None
    first = install(bundle)
    assert (first.squashfs, first.folder is not None) == (None, True)
    told = install(bundle, squashfs=True)  # installed already: nothing is sent
    assert (told.sent, told.squashfs.record["mksquashfs"]["version"]) == (0, "4.5.1")
    assert Path(str(first.folder), "image.sqfs").stat().st_size == told.squashfs.record["size"]
    assert install(bundle, squashfs=True).squashfs is None


def test_a_dry_run_tells_and_sends_nothing(far: Path, tmp_path: Path) -> None:
    bundle = bundles.write(tmp_path / "b.tar", extra=BIG)
    told = install(bundle, dry_run=True)
    assert (told.folder, incoming(far)) == (None, [])
    assert (told.sent, told.parts) == (install(bundle).sent, told.parts)


def test_a_cut_costs_the_part_in_flight(far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundles.write(tmp_path / "b.tar", extra=BIG)
    whole = install(bundle, dry_run=True).sent
    real = (tmp_path / "bin" / "ssh").read_text()
    cut = real.replace(
        "for last; do :; done;",
        'case "$*" in *" take "*) for l; do :; done; HOME="$FAKE/home"; '
        'export HOME; head -c 1000000 | sh -c "$l" 2>/dev/null; exit 255 ;; esac; for last; do :; done;',
    )
    assert cut != real
    (tmp_path / "bin" / "ssh").write_text(cut)
    with pytest.raises(TransferError) as caught:
        install(bundle)
    assert "not sent again" in caught.value.hint
    (folder,) = incoming(far)
    assert sorted(path.suffix for path in folder.iterdir()) == [".begun", ".end", ".part"]
    (tmp_path / "bin" / "ssh").write_text(real)
    again = install(bundle)
    assert again.sent < whole - 2 * 400_000
    assert kept(far) == bundle.read_bytes()
    assert incoming(far) == []


def test_parts_that_are_too_old_come_again(far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundles.write(tmp_path / "b.tar", extra=BIG)
    with monkeypatch.context() as patched:
        patched.setattr(delta, "END", b"")  # the line is cut behind the last part
        with pytest.raises(DeployerError, match="between two parts"):
            install(bundle)
    (folder,) = incoming(far)
    os.utime(folder, (1, 1))
    assert install(bundle).sent > 4 * 400_000
    assert kept(far) == bundle.read_bytes()


def test_what_an_earlier_push_left_damaged_is_sent_again_at_once(
    far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a stream that was damaged on its way, when the receiver was killed before it could check."""
    bundle = bundles.write(tmp_path / "b.tar", extra=BIG)
    with monkeypatch.context() as patched:
        patched.setattr(delta, "END", b"")  # the line is cut behind the last part
        with pytest.raises(DeployerError, match="between two parts"):
            install(bundle)
    (folder,) = incoming(far)
    (part,) = folder.glob("*.begun")
    bundles.flip(part, part.stat().st_size // 2)
    assert 400_000 < install(bundle).sent < bundle.stat().st_size
    assert "had damaged data of an earlier push, and removed it; it is sent again" in capsys.readouterr().err
    assert kept(far) == bundle.read_bytes()


def test_through_a_transfer_host(far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundles.write(tmp_path / "b.tar", extra=BIG)
    monkeypatch.setenv("FAKE_SFTP", "remote write: Disk quota exceeded")
    with pytest.raises(SpaceError, match="quota"):
        install(bundle, transfer_host="dtn")
    monkeypatch.setenv("FAKE_SFTP", "Connection reset by peer")
    with pytest.raises(TransferError, match="does not answer"):
        install(bundle, transfer_host="dtn")
    monkeypatch.setenv("FAKE_SFTP", "")
    assert install(bundle, transfer_host="dtn").folder
    assert kept(far) == bundle.read_bytes()
    assert incoming(far) == []


def test_files_arrive_in_the_inbox_of_the_site_through_its_transfer_host(far: Path, tmp_path: Path) -> None:
    bundle = bundles.write(tmp_path / "b.tar", extra=BIG)
    inbox = tmp_path / "wharf" / "alice"
    inbox.mkdir(parents=True)
    (far / ".profile").write_text(f"export WHARF={inbox.parent}\n")
    site = load("lab")
    login = site.login.model_copy(update={"transfer": "dtn", "inbox": "$WHARF/alice"})
    assert push(bundle, site.model_copy(update={"login": login}), options=PushOptions(without_plan=True)).folder
    assert kept(far) == bundle.read_bytes()
    assert incoming(far) == []
    (parts,) = inbox.iterdir()
    assert any(path.suffix == ".end" for path in parts.iterdir())


def test_too_little_space_is_told_before_anything_is_sent(
    far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundles.write(tmp_path / "b.tar")
    monkeypatch.setattr("deployer.contract.bundle.delta.Ending.end", property(lambda self: 10**15))
    with pytest.raises(SpaceError, match=r"has .* MB free; bundle and image need .* MB"):
        install(bundle)
    assert incoming(far) == []


def _scan(path: Path, made: float) -> str:
    with opened(str(path)) as stream:
        digest = begin(stream, str(path)).digest
    Path(f"{path}.scan.json").write_text(Scan(digest, "tiny:1.0", [Scanner("grype", "1", int(made))], []).text())
    return f"{digest[7:39]}.json"


def _demand_scans(root: Path) -> None:
    root.mkdir(exist_ok=True)
    record = {"schema": "deployer.policy", "format": 1, "min_reader": 1, "scan": {"days": 30}}
    (root / "policy.json").write_text(json.dumps(record))


def test_the_scan_beside_a_bundle_is_sent_before_it(far: Path, tmp_path: Path) -> None:
    root, bundle = far / "deployer", bundles.write(tmp_path / "b.tar", extra=BIG)
    _demand_scans(root)
    with pytest.raises(DeployerError, match=r"/policy\.json demands a scan of the bundle, and none is here") as caught:
        install(bundle)
    assert caught.value.exit_code == Refused.exit_code
    name = _scan(bundle, time.time() - 31 * 86400)
    with pytest.raises(DeployerError, match=r"does not accept the scan of tiny:1\.0: .*, 31 days ago; 30 are allowed"):
        install(bundle)
    _scan(bundle, time.time())
    assert install(bundle).folder
    assert [path.name for path in (root / "scans").iterdir()] == [name]
    (root / "scans" / name).unlink()
    assert install(bundle).sent == 0  # a new scan of an installed bundle is sent too
    assert (root / "scans" / name).is_file()


def test_media_carry_the_scan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, bundle = tmp_path / "root", bundles.write(tmp_path / "b.tar")
    _demand_scans(root)
    push_to(bundle, tmp_path / "without")
    assert site_cli.main(["receive", str(tmp_path / "without"), "--root", str(root)]) == Refused.exit_code
    assert "demands a scan of the bundle" in capsys.readouterr().err
    name = _scan(bundle, time.time())
    push_to(bundle, tmp_path / "with")
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path / "with", check=True)
    assert site_cli.main(["receive", str(tmp_path / "with"), "--root", str(root)]) == 0
    assert (root / "scans" / name).is_file()


def test_media(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    first = bundles.write(tmp_path / "a.tar", extra=BIG)
    push_to(first, tmp_path / "media1")
    words = [sys.executable, str(tmp_path / "media1" / "deployer.pyz"), "receive", str(tmp_path / "media1")]
    subprocess.run([*words, "--root", str(root)], check=True)
    assert (root / "deployer.pyz").read_bytes() == make_pyz()  # jobs call it on the nodes
    receipt = tmp_path / "receipt.json"
    assert site_cli.main(["receipt", "--root", str(root), "-o", str(receipt)]) == 0
    second = bundles.write(tmp_path / "b.tar", extra=BIG[1:], version="2")
    assert cli.main(["push", str(second), "--to", str(tmp_path / "media2"), "--have", str(receipt), "--json"]) == 0
    wrote = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert wrote["sent"] < 20_000
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path / "media2", check=True)
    assert (tmp_path / "media2" / "deployer.pyz").is_file()
    assert site_cli.main(["receive", str(tmp_path / "media2"), "--root", str(root)]) == 0
    assert (root / "bundles" / "tiny-2.tar").read_bytes() == second.read_bytes()
    assert list((tmp_path / "media2").glob("*.end"))  # media are left alone
    assert not list((root / "incoming").iterdir())


def test_a_medium_tells_its_reader_what_to_do(tmp_path: Path) -> None:
    """Each command of README.txt works as it is written, in the folder of the copy."""
    bundle = bundles.write(
        tmp_path / "a.tar", jobs=[Job(name, ["true"], 1, 1, 1, "00:01:00") for name in ("train", "test")]
    )
    medium, root = tmp_path / "medium", tmp_path / "root"
    written = push_to(bundle, medium)
    text = (medium / "README.txt").read_text()
    assert written.digest in text
    assert "its name follows tiny:1.0 (default: train; others: test)" in text
    lines = [line.strip() for line in text.splitlines()]
    commands = [line for line in lines if line.startswith(("sha256sum", "python3", "cd ROOT"))]
    commands += [line.partition(": ")[2] for line in lines if ": python3" in line]
    assert [command.split()[-3:] for command in commands] == [
        ["sha256sum", "-c", "SHA256SUMS"],
        [".", "--root", "ROOT"],
        ["run", "tiny:1.0", "--wait"],
        ["deployer.pyz", "inspect", "."],
    ]
    for command in (commands[0], commands[3], commands[1]):
        words = command.replace("ROOT", str(root)).replace("python3", sys.executable)
        said = subprocess.run(shlex.split(words), cwd=medium, check=True, capture_output=True, text=True).stdout
        assert ("job train: 1 node x 1 rank" in said) == (command == commands[3])
    assert (root / "deployer.pyz").is_file()


def test_the_medium_asks_for_the_space_that_receive_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = bundles.whole(bundles.ENTRIES)
    monkeypatch.setattr(bundles, "ENTRIES", bundles.ENTRIES * 100)  # the number that the manifest has
    push_to(bundles.write(tmp_path / "a.tar", pieces=pieces), tmp_path / "medium")
    text = (tmp_path / "medium" / "README.txt").read_text()
    megabytes = text.partition("that all nodes share; ")[2].partition(" MB must be free")[0]
    free = SimpleNamespace(f_bavail=1, f_frsize=4096, f_files=0, f_favail=0)
    monkeypatch.setattr("os.statvfs", lambda _: free)
    with pytest.raises(SpaceError, match=f" 4.1 kB free; {megabytes} MB are needed"):
        receive(str(tmp_path / "medium"), Store(str(tmp_path / "root")))


def test_a_medium_with_several_plans_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployer.connected.transfer.push.plans_in", lambda manifest: ["big", "small"])
    push_to(bundles.write(tmp_path / "a.tar"), tmp_path / "medium")
    text = (tmp_path / "medium" / "README.txt").read_text()
    assert "Run a job; SITE is one of big, small.\n" in text
    assert "run tiny:1.0 --wait --plan SITE -- COMMAND\n" in text


def test_media_into_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "mine").touch()
    with pytest.raises(UsageError, match="not empty"):
        push_to(bundles.write(tmp_path / "a.tar"), tmp_path / "media")
    assert (tmp_path / "media" / "mine").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["push", "B"],
        ["push", "B", "lab", "--to", "D"],
        ["push", "B", "lab", "--have", "R"],
        ["push", "B", "--to", "D", "--full", "--have", "R"],
        ["push", "B", "--to", "D", "--dry-run"],
    ],
)
def test_options_that_do_not_go_together(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert "deployer: error: " in capsys.readouterr().err


def test_the_line_ends_with_the_laptops_process(far: Path, tmp_path: Path) -> None:
    code = "import sys,time;from deployer.connected.transfer import remote as r\n"
    code += "from deployer.connected.site_profile.profile import load\n"
    code += "r._ENVIRONMENT=('FAKE',)\nwith r.Remote(load('lab')): print('up',flush=True);time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    marker = str(tmp_path / "bin" / "ssh")
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert _gone(marker)


def _gone(marker: str) -> bool:
    for _ in range(100):
        lines = [Path("/proc", pid, "cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
        if not any(marker in _read(path) for path in lines):
            return True
        time.sleep(0.05)
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_prefixes_are_of_digests() -> None:
    sha = hashlib.sha256(b"").hexdigest()
    assert delta.read_held(delta.held_text([sha, sha])) == {bytes.fromhex(sha)[:8]}


@pytest.mark.parametrize("host", [None, "dtn1"])
def test_a_refusal_of_the_site_names_the_bundle_and_no_path_there(far: Path, tmp_path: Path, host: str | None) -> None:
    """The site assembles it in a folder of its own, which is gone, or which nobody here can read."""
    workspace = far / "deployer"
    workspace.mkdir()
    key = "maker@lab ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43
    (workspace / "allowed_signers").write_text(f"{key}\n")
    policy = json_records.stamped("policy", {"require_signature": True, "allowed_signers": "allowed_signers"})
    (workspace / "policy.json").write_text(json.dumps(policy))
    with pytest.raises(DeployerError) as caught:
        install(bundles.write(tmp_path / "b.tar"), transfer_host=host)
    assert caught.value.exit_code == Refused.exit_code
    said = f"the bundle is not signed, and {workspace}/policy.json demands it"
    assert caught.value.message == f"login1: tiny:1.0: {said}"
