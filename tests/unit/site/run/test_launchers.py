"""Each launcher's words for the layouts of the papers, and what it and the ranks find in their environment."""

import signal
import subprocess
import sys

import pytest

from deployer.contract.site.layout import lay_out
from deployer.contract.site.plan import NodeShape
from deployer.site.run.launchers import LAUNCHERS
from deployer.site.run.launchers.interface import MACHINES, LaunchRequest

SKYLAKE = NodeShape(sockets=2, cores=48, threads_per_core=2, memory_mb=90000, numa_domains=2)


def start(ranks, threads, launcher, family="", version="", pmi=""):
    return LaunchRequest(lay_out(768, ranks, threads, SKYLAKE), pmi, LAUNCHERS[launcher].program, family, version)


@pytest.mark.parametrize(
    ("ranks", "threads", "words"),
    [
        (1, 48, "--ntasks=768 --ntasks-per-node=1 --cpus-per-task=96 --distribution=block:cyclic --cpu-bind=cores"),
        (2, 48, "--ntasks=1536 --ntasks-per-node=2 --cpus-per-task=48 --distribution=block:cyclic --cpu-bind=cores"),
        (4, 12, "--ntasks=3072 --ntasks-per-node=4 --cpus-per-task=24 --distribution=block:cyclic --cpu-bind=cores"),
        (4, 11, "--ntasks=3072 --ntasks-per-node=4 --cpus-per-task=22 --distribution=block:cyclic --cpu-bind=cores"),
        (96, 1, "--ntasks=73728 --ntasks-per-node=96 --cpus-per-task=1 --distribution=block:cyclic --cpu-bind=threads"),
    ],
)
def test_srun(ranks, threads, words):
    found = LAUNCHERS["srun"].words(start(ranks, threads, "srun", pmi="pmi2"))
    assert " ".join(found) == "srun --mpi=pmi2 --nodes=768 " + words + " --kill-on-bad-exit=1"


@pytest.mark.parametrize(("ranks", "threads", "domain"), [(1, 48, 96), (2, 48, 48), (4, 12, 24), (4, 11, 22)])
def test_intel_mpi_under_srun_keeps_what_srun_bound(ranks, threads, domain):
    found = LAUNCHERS["srun"].environment(start(ranks, threads, "srun", "intel"))
    assert found == {"I_MPI_PIN_DOMAIN": "%d:compact" % domain}
    assert LAUNCHERS["srun"].environment(start(ranks, threads, "srun", "mpich")) == {}


@pytest.mark.parametrize(("ranks", "threads", "domain"), [(1, 48, 96), (2, 48, 48), (4, 12, 24), (4, 11, 24)])
def test_hydra_of_intel_mpi(ranks, threads, domain):
    launcher, how = LAUNCHERS["mpiexec.hydra"], start(ranks, threads, "mpiexec.hydra", "intel")
    assert " ".join(launcher.words(how)) == "mpiexec.hydra -bootstrap slurm -n %d -ppn %d" % (768 * ranks, ranks)
    given = dict(launcher.environment(how), I_MPI_PIN_RESPECT_CPUSET="0", OMP_NUM_THREADS=str(threads))
    assert launcher.exports(how, given) == {
        "I_MPI_PIN_DOMAIN": "%d:compact" % domain,
        "I_MPI_PIN_RESPECT_CPUSET": "0",
        "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "--mpi=none --cpus-per-task=%d --cpu-bind=cores"
        % (ranks * how.layout.cpus_per_rank),
    }


def test_the_sites_own_word_on_placement_holds():
    how = start(4, 12, "mpiexec.hydra", "intel")
    given = {"I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "1"}
    assert LAUNCHERS["mpiexec.hydra"].exports(how, given)["I_MPI_JOB_RESPECT_PROCESS_PLACEMENT"] == "1"


def test_hydra_of_mpich_is_told_the_cores():
    how = start(4, 11, "mpiexec.hydra", "mpich")
    launcher = LAUNCHERS["mpiexec.hydra"]
    assert " ".join(launcher.words(how)[-2:]) == "-bind-to core:11"
    assert launcher.words(start(96, 1, "mpiexec.hydra"))[-1] == "hwthread:1"
    assert launcher.exports(how, {}) == {"HYDRA_LAUNCHER_EXTRA_ARGS": "--mpi=none --cpus-per-task=88 --cpu-bind=cores"}


@pytest.mark.parametrize(
    ("ranks", "threads", "version", "words"),
    [
        (1, 48, "5.0.11", "-np 768 --stdin none --map-by ppr:1:node:PE=48 --bind-to core"),
        (2, 48, "5.0.11", "-np 1536 --stdin none --map-by ppr:1:numa:PE=24 --bind-to core"),
        (4, 12, "4.1.4", "-np 3072 --stdin none --map-by ppr:2:numa:PE=12 --bind-to core"),
        (4, 11, "5.0.11", "-np 3072 --stdin none --map-by ppr:2:numa:PE=11 --bind-to core"),
        (96, 1, "5.0.11", "-np 73728 --stdin none --map-by ppr:48:numa:HWTCPUS:PE=1 --bind-to hwthread"),
        (96, 1, "4.1.4", "-np 73728 --stdin none --use-hwthread-cpus --map-by ppr:48:numa:PE=1 --bind-to hwthread"),
    ],
)
def test_mpirun(ranks, threads, version, words):
    found = LAUNCHERS["mpirun"].words(start(ranks, threads, "mpirun", "openmpi", version))
    assert " ".join(found) == "mpirun " + words


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("5.0.11", "--map-by ppr:48:numa:HWTCPUS:PE=1 --bind-to hwthread:if-supported"),
        ("4.1.4", "--use-hwthread-cpus --map-by ppr:48:numa:PE=1 --bind-to hwthread:if-supported"),
    ],
)
def test_mpirun_of_an_image_pins_only_if_it_can(version, words):
    how = start(96, 1, "mpirun", "openmpi", version)._replace(inside=True)
    assert " ".join(LAUNCHERS["mpirun"].words(how)).endswith(" --stdin none " + words)


def test_mpiruns_daemons_get_the_settings_of_the_ranks():
    given = {"OMPI_MCA_pml": "ob1", "PMIX_MCA_gds": "hash", "OMP_NUM_THREADS": "2", "OPAL_PREFIX": "/opt/openmpi"}
    found = LAUNCHERS["mpirun"].exports(start(4, 12, "mpirun", "openmpi"), given)
    assert found == {"OMPI_MCA_pml": "ob1", "PMIX_MCA_gds": "hash"}


@pytest.mark.parametrize(
    ("version", "name", "daemon"),
    [("5.0.11", "PRTE_MCA_prte_launch_agent", "prted"), ("4.1.4", "OMPI_MCA_orte_launch_agent", "orted")],
)
def test_mpirun_and_its_daemons_do_not_see_sigterm(version, name, daemon):
    how = start(4, 12, "mpirun", "openmpi", version)._replace(tool=("/usr/bin/python3", "/w/deployer.pyz"))
    launcher = LAUNCHERS["mpirun"]
    assert launcher.words(how)[:5] == ["/usr/bin/python3", "/w/deployer.pyz", "shield", "--", "mpirun"]
    assert launcher.exports(how, {}) == {name: "/usr/bin/python3 /w/deployer.pyz shield -- " + daemon}
    for other in (how._replace(batch=False), how._replace(tool=("/usr/bin/python3", "/my work/deployer.pyz"))):
        assert (launcher.words(other)[0], launcher.exports(other, {})) == ("mpirun", {})


def test_what_is_shielded_has_sigterm_blocked_and_nothing_else_changed():
    code = "import sys; from deployer.cli.site.main import main; sys.exit(main(sys.argv[1:]))"
    command = ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]
    said = subprocess.check_output([sys.executable, "-c", code, "shield", "--", *command]).decode()
    blocked, ignored = (int(line.split()[1], 16) for line in said.splitlines())
    assert blocked == 1 << (signal.SIGTERM - 1)
    assert not ignored & (1 << (signal.SIGPIPE - 1))


def test_on_one_machine_nothing_is_asked_of_slurm():
    how = start(4, 12, "mpiexec.hydra", "intel")._replace(batch=False)
    launcher = LAUNCHERS["mpiexec.hydra"]
    assert launcher.words(how)[1:3] == ["-bootstrap", "fork"]
    assert launcher.exports(how, launcher.environment(how)) == {"I_MPI_PIN_DOMAIN": "24:compact"}


def test_a_failed_rank_must_end_by_a_signal_where_an_exit_code_does_not_end_the_others():
    names = [name for name, launcher in LAUNCHERS.items() if not launcher.ends_on_exit]
    assert names == ["mpiexec.hydra", "ibrun"]


def test_pals_binds_whole_cores_and_starts_programs_from_their_own_path():
    """As ALCF's example with --depth and --cpu-bind core; it never reads a host file with slots."""
    pals, how = LAUNCHERS["pals"], start(4, 12, "pals", pmi="cray")._replace(agent=True)
    found = ["FILE" if word == MACHINES else word for word in pals.words(how)]
    assert found[:7] == ["mpiexec", "-n", "3072", "--ppn", "4", "--hostfile", "FILE"]
    assert found[7:] == ["--pmi", "cray", "--no-transfer", "--depth", "12", "--cpu-bind", "core"]
    shared = pals.words(start(96, 1, "pals", pmi="pmix"))
    assert shared[-4:] == ["--depth", "1", "--cpu-bind", "depth"]
    assert pals.slots(how).text == ""
    each = pals.one_a_node(how)
    assert each[:5] == ["mpiexec", "-n", "768", "--ppn", "1"]
    assert each[-5:] == ["--pmi", "none", "--no-transfer", "--cpu-bind", "none"]


def test_pals_gets_the_cpus_of_each_rank_where_the_site_keeps_cores_for_itself():
    """Aurora's own list, with the second hardware threads; --depth would put rank 6 on both sockets."""
    shape = NodeShape(2, 102, 2, 90000, 2, domain_cpus=("1-51,105-155", "53-103,157-207"))
    how = LaunchRequest(lay_out(1, 12, 8, shape), "pmix", "mpiexec")
    firsts = [1, 9, 17, 25, 33, 41, 53, 61, 69, 77, 85, 93]
    lists = ":".join("%d-%d,%d-%d" % (at, at + 7, at + 104, at + 111) for at in firsts)
    assert LAUNCHERS["pals"].words(how)[-2:] == ["--cpu-bind", "list:" + lists]


def test_ibrun_reads_the_batch_job():
    how = start(4, 12, "ibrun", "intel")
    launcher = LAUNCHERS["ibrun"]
    assert launcher.words(how) == ["ibrun"]
    assert launcher.environment(how) == {"I_MPI_PIN_DOMAIN": "24:compact"}
    assert launcher.exports(how, {"I_MPI_DEBUG": "5", "PATH": "/x"}) == {
        "I_MPI_DEBUG": "5", "SLURM_NTASKS": "3072", "SLURM_NPROCS": "3072",
    }  # fmt: skip
