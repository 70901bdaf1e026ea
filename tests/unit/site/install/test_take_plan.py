"""take-plan: whose plans a site takes, and what its jobs use then."""

import json
import os

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import IntegrityError, Refused, UsageError
from deployer.contract.bundle import sshsig
from deployer.contract.bundle.plan_update import PlanUpdate
from deployer.site.install import take_plan
from deployer.system import files
from deployer.system.trust import policy
from tests import running
from tests.signing import TestKey

KEY, OTHER = TestKey(seed=1), TestKey(seed=2)
DIGEST = "sha256:" + "0" * 64
NEW = running.PLAN._replace(modules=["intel-mpi/2021.16"])


def update(plan=NEW, made=1000, digest=DIGEST, key=None):
    message = PlanUpdate(digest, plan.bundle, made, [plan]).text().encode()
    return message + (sshsig.armored(key.sign(message)).encode() if key else b"")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return a store with hello:1, whose own plan is for the lab."""
    monkeypatch.setattr(policy, "SYSTEM_FILE", str(tmp_path / "policy.json"))
    made = running.store(tmp_path / "root")
    os.rename(os.path.join(made.images, "aaaa"), made.image_folder(DIGEST))
    receipt = made.installed()[0].receipt._replace(digest=DIGEST)
    running.write(os.path.join(made.image_folder(DIGEST), "receipt.json"), receipt.record())
    return made


def demand(tmp_path, key=KEY, **fields):
    (tmp_path / "signers").write_text(f'me namespaces="deployer-bundle" {key.key.line}\n')
    record = dict({"schema": "deployer.policy", "format": 1, "min_reader": 1, "require_signature": True}, **fields)
    (tmp_path / "policy.json").write_text(json.dumps(dict(record, allowed_signers="signers")))


def test_a_newer_plan_is_used_and_the_bundle_s_own_stays(store):
    (image,) = store.installed()
    assert image.plan("lab").modules == running.PLAN.modules
    taken = take_plan.take(update(), "it", store)
    assert taken.warnings == ("the plan is not signed: whoever sent it decides what jobs bind and set",)
    assert image.plan("lab") == image.plan() == NEW
    other = NEW._replace(site="other")
    take_plan.take(update(other), "it", store)  # a site for which the bundle has no plan
    assert (image.sites(), image.plan("other"), image.plan("lab")) == (["lab", "other"], other, NEW)
    os.unlink(image.newer_plan("lab"))
    assert image.plan("lab").modules == running.PLAN.modules


def test_the_policy_for_bundles_decides_who_may_send_a_plan(store, tmp_path):
    demand(tmp_path)
    (image,) = store.installed()
    for data, error, said in (
        (update(), Refused, "the plan is not signed, and .*policy.json demands it"),
        (update(key=OTHER), Refused, "no signer of the plan is accepted by .*policy.json"),
        (update(key=KEY).replace(b"2021.16", b"2021.17"), IntegrityError, "signature by SHA256:.* is wrong"),
    ):
        with pytest.raises(error, match=said):
            take_plan.take(data, "it", store)
    message = update()
    with pytest.raises(IntegrityError, match="made for b'deployer-scan'"):
        take_plan.take(message + sshsig.armored(KEY.sign(message, sshsig.SCAN_NAMESPACE)).encode(), "it", store)
    assert not files.lexists(image.newer_plan("lab"))
    taken = take_plan.take(update(key=KEY), "it", store)
    assert (taken.signers, taken.warnings) == ([f"me ({KEY.key.fingerprint})"], ())
    assert image.plan("lab") == NEW


def test_a_plan_belongs_to_the_bundle_that_it_names(store):
    for data, said in (
        (update(digest="sha256:" + "1" * 64), "not installed under"),
        (update(digest="sha256:" + "0" * 32 + "1" * 32), "not installed under"),  # an image's folder has 32 digits
        (update(digest="../../x"), "not installed under"),
        (update(NEW._replace(bundle="other:1")), "its digest is that of hello"),
    ):
        with pytest.raises(UsageError, match=said):
            take_plan.take(data, "it", store)
    assert store.installed()[0].plan("lab").modules == running.PLAN.modules


def test_an_older_plan_is_a_warning_or_refused(store, tmp_path):
    take_plan.take(update(made=1000), "it", store)
    old = "the plan for lab is older than the one that is in use"
    assert old in take_plan.take(update(made=999), "it", store).warnings
    demand(tmp_path, refuse_rollback=True)
    with pytest.raises(Refused, match=f"{old}, and .*policy.json forbids downgrades"):
        take_plan.take(update(made=998, key=KEY), "it", store)
    assert store.installed()[0].update("lab").made == 999


def test_a_damaged_plan_is_replaced_unless_a_policy_forbids_downgrades(store, tmp_path):
    (image,) = store.installed()
    for damage in ("{", '{"schema": "deployer.plan_update", "format": 1, "min_reader": 1}', ""):
        files.write_text(image.newer_plan("lab"), damage)
        (warning,) = take_plan.take(update(), "it", store).warnings[1:]
        assert warning.startswith("the plan for lab that was kept is damaged, and is replaced: ")
        assert image.plan("lab") == NEW
    files.write_text(image.newer_plan("lab"), "{")
    demand(tmp_path, refuse_rollback=True)
    with pytest.raises(Refused, match=r"is damaged, and .*policy.json forbids downgrades") as caught:
        take_plan.take(update(key=KEY), "it", store)
    assert caught.value.hint == "remove {}, then send the plan again".format(image.newer_plan("lab"))


def test_the_command_reads_a_file_that_was_carried(store, tmp_path, capsys):
    (tmp_path / "new.plan").write_bytes(update(key=KEY))
    (tmp_path / "signers").write_text(f"me {OTHER.key.line}\n")
    words = ["take-plan", str(tmp_path / "new.plan"), "--root", store.root]
    assert main.main([*words, "--signers", str(tmp_path / "signers")]) == Refused.exit_code
    assert main.main(words) == 0
    said = capsys.readouterr()
    assert "jobs of hello:1 use this plan for lab from now on: " in said.out
    assert "which no policy here knows" in said.err


def test_a_damaged_newer_plan_is_an_error_and_no_other_plan_is_used(store):
    (image,) = store.installed()
    take_plan.take(update(), "it", store)
    with open(image.newer_plan("lab"), "w") as stream:
        stream.write("{")
    with pytest.raises(UsageError, match=r"newer-plans/lab\.json is not valid JSON"):
        image.plan("lab")
