"""Scans at the site: which a policy accepts, and what is refused without one."""

import json
import os
import time

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import IntegrityError, Refused, UsageError
from deployer.contract.bundle import scan as scan_records
from deployer.contract.bundle import sshsig
from deployer.contract.bundle.scan import Scan, ScanDemand, Scanner, Vulnerability
from deployer.site.install import gc, install
from deployer.site.storage import scans
from deployer.site.storage.store import Store
from deployer.system import files
from deployer.system.trust import policy
from deployer.system.trust.verify import opened, read_seal
from tests import bundles, running
from tests.signing import TestKey

KEY, OTHER = TestKey(seed=1), TestKey(seed=2)
DAY = 86400
BAD = Vulnerability("CVE-2026-1", "critical", "zlib1g", "1.2", fixed="1.3")
HIGH = BAD._replace(id="CVE-2026-2", severity="high")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(policy, "SYSTEM_FILE", str(tmp_path / "policy.json"))
    monkeypatch.setattr(time, "time", lambda: 100.5 * DAY)
    return Store(str(tmp_path / "root"))


def demand(tmp_path, days=30, signers=None, **fields):
    record = {"schema": "deployer.policy", "format": 1, "min_reader": 1, "scan": dict({"days": days}, **fields)}
    if signers:
        (tmp_path / "signers").write_text(signers)
        record.update(require_signature=True, allowed_signers="signers")
    (tmp_path / "policy.json").write_text(json.dumps(record))


def scanned(digest, findings=(), day=100, database=None, key=None, namespace=sshsig.SCAN_NAMESPACE):
    scanner = Scanner("grype", "1", day * DAY, None if database is None else database * DAY)
    message = Scan(digest, "tiny:1.0", [scanner], list(findings)).text().encode()
    return message + (sshsig.armored(key.sign(message, namespace)).encode() if key else b"")


@pytest.fixture
def bundle(tmp_path):
    return bundles.write(tmp_path / "b.tar")


def digest_of(path):
    with opened(str(path)) as stream:
        return read_seal(stream, str(path)).digest


def put(path, data):
    with open(str(path) + scan_records.SUFFIX, "wb") as stream:
        stream.write(data)


def test_a_policy_demands_a_scan_before_anything_is_unpacked(tmp_path, store, bundle):
    demand(tmp_path)
    with pytest.raises(Refused, match=r"policy\.json demands a scan of the bundle, and none is here") as caught:
        install.install(str(bundle), store)
    assert "on the laptop: `deployer scan" in caught.value.hint
    assert not files.names(store.images)
    put(bundle, scanned(digest_of(bundle)))
    image = install.install(str(bundle), store).image
    assert files.names(store.scans) == [os.path.basename(image.folder) + ".json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"findings": [BAD]}, r"open findings \(critical or worse\): 1: CVE-2026-1 in zlib1g 1.2 \(fixed in 1.3\)"),
        ({"findings": [BAD._replace(id=str(number)) for number in range(5)]}, r"5: 0 in .*, 2 in .*\), \.\.\.$"),
        ({"day": 69}, "knows the vulnerabilities until 1970-03-11, 31 days ago; 30 are allowed"),
        ({"database": 69}, "knows the vulnerabilities until 1970-03-11, 31 days ago"),
        ({"day": 101}, "its date is in the future: 1970-04-12"),
        ({"database": 101}, "its date is in the future"),
    ],
)
def test_what_a_policy_does_not_accept(tmp_path, store, bundle, change, said):
    put(bundle, scanned(digest_of(bundle), **change))
    install.install(str(bundle), store)  # without a policy it is only kept
    demand(tmp_path)
    with pytest.raises(Refused, match="policy.json does not accept the scan of tiny:1.0: .*" + said):
        scans.check(store, digest_of(bundle))
    with pytest.raises(Refused, match=said):
        scans.take(scanned(digest_of(bundle), **change), "it", store)
    scans.take(scanned(digest_of(bundle)), "it", store)
    scans.check(store, digest_of(bundle))


def test_severities_and_statements(tmp_path, store, bundle):
    digest = digest_of(bundle)
    closed = BAD._replace(status="not_affected", because="not loaded")
    demand(tmp_path)
    scans.take(scanned(digest, [closed, HIGH]), "it", store)
    demand(tmp_path, severity="high")
    with pytest.raises(Refused, match=r"\(high or worse\): 1: CVE-2026-2"):
        scans.check(store, digest)


def test_who_may_sign_scans(tmp_path, store, bundle):
    digest = digest_of(bundle)
    signers = 'me namespaces="deployer-scan" {}\nyou namespaces="deployer-bundle" {}\n'
    demand(tmp_path, signers=signers.format(KEY.key.line, OTHER.key.line))
    for data, error, said in (
        (scanned(digest), Refused, "the scan is not signed, and .*policy.json demands it"),
        (scanned(digest, key=OTHER), Refused, "no signer of the scan is accepted .* the namespace deployer-scan"),
        (scanned(digest, key=KEY, namespace=sshsig.NAMESPACE), IntegrityError, "was made for b'deployer-bundle'"),
        (scanned(digest, key=KEY).replace(b"grype", b"trivy"), IntegrityError, "signature by SHA256:.* is wrong"),
    ):
        with pytest.raises(error, match=said):
            scans.take(data, "it", store)
    assert not files.names(store.scans)
    scans.take(scanned(digest, key=KEY), "it", store)
    scans.check(store, digest)
    with open(scans.path_of(store, digest), "wb") as stream:  # by another user, afterwards
        stream.write(scanned(digest))
    with pytest.raises(Refused, match="the scan is not signed"):
        scans.check(store, digest)


def test_a_scan_that_nobody_demands_stops_nothing(tmp_path, store, bundle):
    digest = digest_of(bundle)
    demand(tmp_path, signers=f'me namespaces="deployer-bundle" {KEY.key.line}\n')
    record = json.loads((tmp_path / "policy.json").read_text())
    (tmp_path / "policy.json").write_text(json.dumps({name: record[name] for name in record if name != "scan"}))
    scans.take(scanned(digest, [BAD], key=OTHER), "it", store)
    scans.check(store, digest)
    with pytest.raises(IntegrityError, match="is wrong"):
        scans.take(scanned(digest, key=KEY).replace(b"grype", b"trivy"), "it", store)


def test_the_scan_of_another_bundle(tmp_path, store, bundle):
    put(bundle, scanned("sha256:" + "0" * 64))
    with pytest.raises(Refused, match=r"b\.tar\.scan\.json is the scan of another bundle: sha256:000"):
        install.install(str(bundle), store)
    assert not files.names(store.scans)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"format": 1', b'"format": 3', None),
        (b'"min_reader": 1', b'"min_reader": 2', "cannot need a reader"),
        (b'"format": 1,\n  "min_reader": 1', b'"format": 2,\n  "min_reader": 2', "needs a reader of format 2"),
        (b"sha256:", b"../../sha", "an invalid date or digest"),
        (b'"severity": "critical"', b'"severity": "awful"', "an unknown severity"),
        (b'"made": 8640000', b'"made": 99999999999', "an invalid date or digest"),
        (b'"made": 8640000', b'"made": "x"', "field 'made' is not of type int"),
        (b"CVE-2026-1", b"\\u001b[2J", "field 'id'"),
        (b'"scanners": [', b'"scanners": [], "x": [', "no scanner"),
        (b"{", b"[", "not valid JSON"),
    ],
)
def test_a_malformed_record_is_one_error(tmp_path, store, old, new, said):
    data = scanned("sha256:" + "0" * 64, [BAD])
    assert old in data
    data = data.replace(old, new, 1)
    if said is None:
        assert scans.take(data, "it", store)[0].findings == [BAD]
        return
    with pytest.raises(UsageError, match=said):
        scans.take(data, "it", store)


@pytest.mark.parametrize(
    "wrong", [{"days": -1}, {"days": "x"}, {}, {"days": 1, "severity": "x"}, {"days": 1, "a": 2}, 3]
)
def test_a_demand_that_cannot_be_read_is_an_error(tmp_path, store, wrong):
    record = {"schema": "deployer.policy", "format": 1, "min_reader": 1, "scan": wrong}
    (tmp_path / "policy.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"policy\.json"):
        policy.load()
    demand(tmp_path, days=3)
    assert policy.load()[0].scan == ScanDemand(3, "critical")


def test_run_asks_again(tmp_path, store, monkeypatch, capsys):
    made = running.store(tmp_path / "root")
    digest = "sha256:" + "0" * 64
    os.rename(os.path.join(made.images, "aaaa"), made.image_folder(digest))
    receipt = made.installed()[0].receipt._replace(digest=digest)
    running.write(os.path.join(made.image_folder(digest), "receipt.json"), receipt.record())
    demand(tmp_path)
    words = ["run", "hello", "--root", made.root, "--dry-run"]
    assert main.main(words) == Refused.exit_code
    assert "demands a scan of the bundle, and none is here" in capsys.readouterr().err
    put(tmp_path / "x", scanned(digest))
    assert main.main(["take-scan", str(tmp_path / "x.scan.json"), "--root", made.root]) == 0
    assert "scan of tiny:1.0: " in capsys.readouterr().out
    assert main.main(words) == 0
    monkeypatch.setattr(time, "time", lambda: 140.0 * DAY)
    assert main.main(words) == Refused.exit_code
    assert "40 days ago; 30 are allowed" in capsys.readouterr().err


def test_gc_removes_old_scans_of_bundles_that_are_not_installed(tmp_path, store, bundle, monkeypatch):
    monkeypatch.undo()
    put(bundle, scanned(digest_of(bundle)))
    image = install.install(str(bundle), store).image
    scans.take(scanned("sha256:" + "0" * 64), "it", store)
    assert not gc.find(store, 1)  # it may arrive before its bundle
    for name in files.names(store.scans):
        os.utime(os.path.join(store.scans, name), (1, 1))
    gc.collect(gc.find(store, 1))
    assert files.names(store.scans) == [os.path.basename(image.folder) + ".json"]
