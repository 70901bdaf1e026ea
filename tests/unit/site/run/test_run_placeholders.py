"""The plan of a job with the variables of the user's login shell."""

import os
import pwd
import stat

import pytest

from deployer.contract.base.errors import UsageError
from deployer.contract.site import plan as plans
from deployer.contract.site.plan import Bind
from deployer.site.run.prepare import placeholders
from tests import running as made

PLAN = made.PLAN._replace(
    account="$PROJECT",
    directives=["--wckey=${PROJECT}"],
    mounts=("/scratch/$PROJECT", "$SCRATCH"),
    batch=plans.Batch(storage=("gdata/$PROJECT",)),
)
HAS = {"PROJECT": "ab12", "SCRATCH": "/lustre/alice"}


def test_account_storage_and_mounts_get_their_values():
    plan = placeholders.expanded(PLAN, HAS)
    assert (plan.account, plan.batch.storage) == ("ab12", ("gdata/ab12",))
    assert plan.directives == ["--wckey=ab12"]
    assert plan.mounts == ("/scratch/ab12", "/lustre/alice")
    assert {("/scratch/ab12", "/scratch/ab12"), ("/lustre/alice", "/lustre/alice")} <= {bind[:2] for bind in plan.binds}


def test_outer_binds_come_first():
    plan = PLAN._replace(binds=[Bind("/opt/x", "/scratch/ab12/mpi", "inside")])
    targets = [bind.target for bind in placeholders.expanded(plan, HAS).binds]
    assert targets == ["/lustre/alice", "/scratch/ab12", "/scratch/ab12/mpi"]


def test_a_mount_that_hides_the_image_is_refused_after_it_is_expanded():
    with pytest.raises(UsageError, match="/usr"):
        placeholders.expanded(PLAN, {**HAS, "SCRATCH": "/usr"})


def test_a_plan_without_placeholders_asks_nobody(monkeypatch):
    monkeypatch.setattr(placeholders.process, "run", None)
    assert placeholders.expanded(made.PLAN, {}) == made.PLAN


def login_shell(folder, monkeypatch, text):
    """Let the user's login shell be a script: like a shell, it reads commands from its standard input."""
    shell = folder / "shell"
    shell.write_text(f'#!/bin/bash\n{text}\n[ "$1" = -l ] && exec bash --norc\n')
    shell.chmod(stat.S_IRWXU)
    entry = pwd.getpwuid(os.getuid())
    fields = [*entry[:6], str(shell)]
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(fields))


def test_what_the_environment_lacks_is_asked_of_the_login_shell(tmp_path, monkeypatch):
    login_shell(
        tmp_path, monkeypatch, "echo Welcome; echo deployer-variable OTHER=x; export PROJECT=ab12 SCRATCH='a b'"
    )
    assert placeholders.values(["PROJECT", "ABSENT"], {}) == {"PROJECT": "ab12"}
    assert placeholders.values(["PROJECT"], {"PROJECT": "mine"}) == {"PROJECT": "mine"}
    with pytest.raises(UsageError, match=r"\$SCRATCH is unsafe: 'a b'"):
        placeholders.expanded(PLAN, {"PROJECT": "ab12"})


def test_a_login_shell_that_fails_is_as_if_it_had_nothing(tmp_path, monkeypatch):
    login_shell(tmp_path, monkeypatch, "exit 1")
    with pytest.raises(UsageError, match=r"\$PROJECT is empty or not set"):
        placeholders.expanded(PLAN, {})
