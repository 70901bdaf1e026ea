import json
import zlib

import pytest

from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle import plan_update, sshsig
from deployer.contract.bundle.plan_update import PlanUpdate
from tests.running import PLAN
from tests.signing import TestKey

UPDATE = PlanUpdate("sha256:" + "a" * 64, "hello:1", 1000, [PLAN, PLAN._replace(partition="gpu")])


def changed(**fields):
    return json.dumps(dict(json.loads(UPDATE.text()), **fields)).encode()


def test_what_is_written_is_read_with_any_number_of_signatures():
    message = UPDATE.text().encode()
    blobs = [TestKey(seed=seed).sign(message) for seed in (1, 2)]
    for count in (0, 1, 2):
        data = message + "".join(map(sshsig.armored, blobs[:count])).encode()
        assert plan_update.split(data) == (message, blobs[:count])
        assert plan_update.read(data, "it") == UPDATE
        assert plan_update.unpacked(plan_update.packed(data), "it") == data


@pytest.mark.parametrize("after", ["x", "-----BEGIN SSH SIGNATURE-----\nAAAA\n", "-----BEGIN SSH SIGNATURE-----"])
def test_what_follows_a_signature_is_a_whole_signature(after):
    message = UPDATE.text().encode()
    armored = sshsig.armored(TestKey().sign(message))
    with pytest.raises(IntegrityError, match="armor"):
        plan_update.split(message + (armored + after).encode())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not valid JSON"),
        (changed(schema="deployer.bundle"), "'deployer.bundle' record, not deployer.plan_update"),
        (changed(format=2, min_reader=2), "needs a reader of format 2"),
        (changed(plans=[]), "has no plan"),
        (changed(bundle="other:1"), "not for one bundle"),
        (changed(plans=[PLAN.record(), PLAN.record()]), "different partitions"),
        (changed(plans=[PLAN.record(), PLAN._replace(site="x", partition="gpu").record()]), "one site"),
        (changed(plans=[PLAN._replace(site="../../x").record()]), "invalid name of a site: '../../x'"),
        (changed(plans=[dict(PLAN.record(), binds=1)]), "binds"),
    ],
)  # fmt: skip
def test_what_is_no_plan_update_is_refused(data, said):
    with pytest.raises(UsageError, match=said):
        plan_update.read(data, "it")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{}", "damaged"),
        (plan_update.packed(b"x" * 1000)[:-5], "incomplete"),
        (plan_update.packed(b"x") + b"y", "incomplete"),
        (zlib.compress(bytes(plan_update.MAX_SIZE + 1)), "more than the 4194304 bytes"),
    ],
)
def test_what_push_did_not_send_is_refused(data, said):
    with pytest.raises(UsageError, match=said):
        plan_update.unpacked(data, "it")
