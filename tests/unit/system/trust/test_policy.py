import json
from pathlib import Path

import pytest

from deployer.contract.base.errors import Refused, UsageError
from deployer.system.trust import policy
from tests.others import somebody_else
from tests.signing import TestKey

KEY, OTHER, THIRD = TestKey(seed=1), TestKey(seed=2), TestKey(seed=3)


@pytest.fixture(autouse=True)
def system(tmp_path, monkeypatch):
    """Return the folder of the admin's policy."""
    folder = tmp_path / "etc"
    folder.mkdir()
    monkeypatch.setattr(policy, "SYSTEM_FILE", str(folder / "policy.json"))
    return folder


def write(folder, allowed=None, revoked=None, **fields):
    """Write a policy and what it names into a folder; return the policy's path."""
    if allowed is not None:
        (folder / "allowed_signers").write_text("".join(allowed))
        fields["allowed_signers"] = "allowed_signers"
    if revoked is not None:
        (folder / "revoked").write_text(revoked)
        fields["revoked_keys"] = "revoked"
    path = folder / "policy.json"
    path.write_text(json.dumps(dict({"schema": "deployer.policy", "format": 1, "min_reader": 1}, **fields)))
    return str(path)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def test_without_a_policy_all_is_allowed(root):
    assert policy.load(str(root)) == []
    assert policy.judge([], [KEY.key]) == policy.judge([], []) == []


def test_a_demanded_signature(system, root):
    write(system, [KEY.allowed("stager@lab")], require_signature=True)
    policies = policy.load(str(root))
    assert policy.judge(policies, [KEY.key]) == [f"stager@lab ({KEY.key.fingerprint})"]
    assert policy.judge(policies, [OTHER.key, KEY.key]) == [f"stager@lab ({KEY.key.fingerprint})"]
    with pytest.raises(Refused, match=r"not signed, and .*policy\.json demands it"):
        policy.judge(policies, [])
    with pytest.raises(Refused, match="is not among the allowed signers"):
        policy.judge(policies, [OTHER.key])


def test_known_signers_without_a_demand(system):
    write(system, [KEY.allowed()])
    policies = policy.load()
    assert policy.judge(policies, []) == []
    with pytest.raises(Refused, match="not among"):
        policy.judge(policies, [OTHER.key])


def test_a_further_policy_can_only_tighten(system, root, tmp_path):
    write(system, [KEY.allowed("admin"), OTHER.allowed("both")], require_signature=True)
    write(root, [OTHER.allowed("own"), THIRD.allowed("third")], require_signature=False)
    (tmp_path / "signers").write_text(KEY.allowed())
    policies = policy.load(str(root))
    assert [name.split()[0] for name in policy.judge(policies, [OTHER.key])] == ["both", "own"]
    for keys in ([], [KEY.key], [THIRD.key]):
        with pytest.raises(Refused):
            policy.judge(policies, keys)
    assert policy.judge(policies, [KEY.key, THIRD.key])  # each policy has a signer that it accepts
    with pytest.raises(Refused, match="--signers"):
        policy.judge(policy.load(str(root), str(tmp_path / "signers")), [OTHER.key])


def test_dates_are_seen_at_the_time_of_use(system):
    old = KEY.allowed("old", 'valid-before="20260101Z"')
    new = OTHER.allowed("new", 'valid-after="20251201Z"')
    write(system, [old, new], require_signature=True)
    november, december, january = 1761955200, 1765756800, 1767312000
    for when, right, wrong in ((november, KEY, OTHER), (january, OTHER, KEY)):
        assert policy.judge(policy.load(), [right.key], when)
        with pytest.raises(Refused, match="is not valid"):
            policy.judge(policy.load(), [wrong.key], when)
    assert policy.judge(policy.load(), [KEY.key], december)
    assert policy.judge(policy.load(), [OTHER.key], december)


def test_a_revoked_key_counts_nowhere(system, root):
    write(system, revoked=KEY.key.fingerprint + "\n")
    write(root, [KEY.allowed(), OTHER.allowed("other")], require_signature=True)
    policies = policy.load(str(root))
    with pytest.raises(Refused, match="is revoked by"):
        policy.judge(policies, [KEY.key])
    assert policy.judge(policies, [KEY.key, OTHER.key]) == [f"other ({OTHER.key.fingerprint})"]
    with pytest.raises(Refused, match=r"revoked.*not among"):
        policy.judge(policies, [KEY.key, THIRD.key])


@pytest.mark.parametrize(
    "fields",
    [
        {"require_signatures": True},
        {"require_signature": "no"},
        {"require_signature": 1},
        {"require_signature": True},  # by whom?
        {"allowed_signers": "none"},
        {"allowed_signers": 3},
        {"min_reader": 2},
        {"schema": "deployer.receipt"},
    ],
)
def test_a_policy_that_is_not_understood_is_never_taken_for_none(system, fields):
    write(system, **fields)
    with pytest.raises(UsageError, match=r"policy\.json|none"):
        policy.load()


def test_a_policy_that_cannot_be_read(system, root):
    (root / "policy.json").symlink_to("nowhere")
    with pytest.raises(UsageError, match="cannot read"):
        policy.load(str(root))


def test_rollback(system, root):
    warnings = policy.check_rollback(policy.load(), "tiny", "1.9", ["1.2", "1.10", "2.0rc1"])
    assert warnings == ["tiny:1.9 is older than the installed tiny:2.0rc1; from now on tiny means the older one"]
    for there in ([], ["1.9"], ["1.8", "1.9rc1"]):
        assert policy.check_rollback(policy.load(), "tiny", "1.9", there) == []
    path = write(root, refuse_rollback=True)
    with pytest.raises(Refused, match="forbids downgrades") as caught:
        policy.check_rollback(policy.load(str(root)), "tiny", "1.9", ["1.10"])
    assert path in caught.value.message
    assert policy.check_rollback(policy.load(str(root)), "tiny", "1.9", ["1.9"]) == []


def test_the_first_signers_are_pinned(root, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(KEY.allowed("first"))
    second.write_text(OTHER.allowed("second"))
    assert policy.pin_policy(str(root), first.read_text()) == str(root / "policy.json")
    assert policy.pin_policy(str(root), second.read_text()) is None
    first.unlink()
    policies = policy.load(str(root))
    assert policy.judge(policies, [KEY.key]) == [f"first ({KEY.key.fingerprint})"]
    with pytest.raises(Refused):
        policy.judge(policies, [OTHER.key])
    with pytest.raises(Refused):
        policy.judge(policies, [])


def test_a_policy_whose_folder_cannot_be_searched_is_an_error(system):
    write(system, [KEY.allowed()], require_signature=True)
    system.chmod(0)
    with somebody_else(), pytest.raises(UsageError, match=r"cannot access .*policy\.json: Permission denied"):
        policy.load()


def test_a_policy_whose_folder_is_a_file_is_an_error(system):
    system.rmdir()
    system.write_text("{}")
    with pytest.raises(UsageError, match=r"cannot access .*: Not a directory"):
        policy.load()


@pytest.mark.parametrize("link", ["policy.json", "gone.json"])
def test_a_policy_that_is_a_link_to_nothing_is_an_error(system, link):
    (system / "policy.json").symlink_to(link)
    with pytest.raises(UsageError, match="cannot read"):
        policy.load()


def test_a_policy_of_a_root_that_cannot_be_searched_is_not_pinned_again(root):
    root.chmod(0)
    with somebody_else(), pytest.raises(UsageError, match="cannot access"):
        policy.pin_policy(str(root), KEY.allowed())


def test_the_policy_that_the_page_shows_can_be_read(tmp_path):
    page = (Path(__file__).parents[4] / "docs" / "trust.md").read_text(encoding="utf-8")
    (tmp_path / "allowed_signers").write_text("")
    (tmp_path / "policy.json").write_text(page.partition("```json\n")[2].partition("```")[0])
    assert policy.read_policy(str(tmp_path / "policy.json")).require_signature
