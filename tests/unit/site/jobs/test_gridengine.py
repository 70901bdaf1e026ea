"""Grid Engine's words, as its commands were seen to say them (8.1.9)."""

import pytest

from deployer.contract.base.errors import Refused, TransferError, UsageError
from deployer.contract.site.plan import GpuRequest
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import JobRequest, Queue

gridengine = SCHEDULERS["gridengine"]
SILENT = """\
error: commlib error: got select error (Connection refused)
unable to send message to qmaster using port 6444 on host "login1": got send error
"""
QSTAT = """\
<?xml version='1.0'?>
<job_info  xmlns:xsd="http://arc.liv.ac.uk/repos/darcs/sge/source/dist/util/resources/schemas/qstat/qstat.xsd">
  <queue_info>
    <job_list state="running">
      <JB_job_number>2</JB_job_number>
      <JAT_prio>0.50000</JAT_prio>
      <JB_name>t2</JB_name>
      <JB_owner>alice</JB_owner>
      <state>%s</state>
      <JAT_start_time>2026-11-22T14:06:27</JAT_start_time>
      <queue_name>batch@cn1</queue_name>
      <slots>4</slots>
    </job_list>
  </queue_info>
  <job_info>
    <job_list state="pending">
      <JB_job_number>3</JB_job_number>
      <state>qw</state>
      <queue_name></queue_name>
      <slots>4</slots>
    </job_list>
  </job_info>
</job_info>
"""
QUEUE = """\
queuename                      qtype resv/used/tot. load_avg arch          states
---------------------------------------------------------------------------------
batch@cn1                      BIP   0/2/4          7.37     lx-amd64
      2 0.50000 t2         alice        dr    11/22/2026 14:06:27     2
---------------------------------------------------------------------------------
batch@cn2                      BIP   0/2/4          -NA-     lx-amd64      au
"""


def request(**values):
    return JobRequest("hello", "/j", "/j/output.log", 2, 2, 2, "1", 60, parallel_environment="mpi")._replace(**values)


def test_a_job_that_was_taken_and_one_that_was_not():
    assert gridengine.parse_submit(0, "12\n", "") == "12"
    unknown = 'Unable to run job: job rejected: the requested parallel environment "nope" does not exist\nExiting.\n'
    with pytest.raises(Refused, match='parallel environment "nope" does not exist'):
        gridengine.parse_submit(1, "", unknown)
    with pytest.raises(TransferError, match="unable to send message to qmaster"):
        gridengine.parse_submit(1, "", SILENT)
    with pytest.raises(Refused, match="no job id"):
        gridengine.parse_submit(0, "", "")


@pytest.mark.parametrize(
    ("letters", "name"), [("r", "RUNNING"), ("dr", "DELETED"), ("hqw", "HELD"), ("Eqw", "ERROR"), ("t", "TRANSFERRING")]
)
def test_states(letters, name):
    found = gridengine.parse_states(0, QSTAT % letters, "")
    assert found == {"2": (name, "", "", "cn1", True), "3": ("PENDING", "", "", "", True)}
    with pytest.raises(TransferError, match="unable to send"):
        gridengine.parse_states(1, "", SILENT)
    with pytest.raises(TransferError, match="no XML"):
        gridengine.parse_states(0, "", "")


def test_a_queue():
    assert gridengine.parse_queue(0, QUEUE, "") == Queue(True, 2, 1, "1 free, 1 au")
    assert gridengine.parse_queue(1, "", "") is None
    with pytest.raises(TransferError):
        gridengine.parse_queue(1, "", SILENT)


def test_a_job_that_ended_before_it_was_cancelled_is_no_failure():
    gridengine.parse_cancel(1, 'denied: job "99" does not exist\n', "")
    with pytest.raises(TransferError):
        gridengine.parse_cancel(1, "", SILENT)


def test_outputs_of_active_jobs():
    said = "job_number:                 3\nstdout_path_list:           NONE:NONE:/home/a/jobs/x/output.log\n"
    assert gridengine.parse_outputs(0, said, "") == {"/home/a/jobs/x/output.log"}


def test_what_qsub_would_read_otherwise_is_refused():
    for path in ("/a b/output.log", "/$HOME/output.log", "host:/j/output.log", "/a,b/output.log"):
        with pytest.raises(UsageError, match="cannot write to the path"):
            gridengine.directives(request(log=path))
    with pytest.raises(UsageError, match="cannot be in a directive"):
        gridengine.directives(request(account="a b"))
    with pytest.raises(Refused, match="the plan names none"):
        gridengine.directives(request(parallel_environment=""))
    assert "-pe mpi 8" in gridengine.directives(request())


def test_gpus_are_given_per_slot():
    assert "-l gpu=2" in gridengine.directives(request(gpus=GpuRequest("gpu", 8, None)))
    with pytest.raises(Refused, match="2 GPUs cannot be divided among 4 slots per node") as caught:
        gridengine.directives(request(gpus=GpuRequest("gpu", 2, None)))
    assert "--gpus 0" not in caught.value.hint  # it is refused beside a directive for GPUs
