"""nf-core configurations: what is certain becomes a fact with its line, the rest is listed."""

from pathlib import Path

import pytest

from deployer.connected.site_profile.importers import files as importers
from deployer.connected.site_profile.importers.draft import Draft
from deployer.connected.site_profile.profile import load
from deployer.contract.errors import UsageError

WHOLE = """\
// a site
params {
    config_profile_description = 'Site X'
    max_memory = 500.GB
    account = null
}
process {
    executor = 'slurm'
    queue = 'work'
    clusterOptions = "--account=${System.getenv('PROJECT')} -C milan --qos=std --exclude=n1"
    beforeScript = '''
        module use /sw/modules
        module load tools apps/singularity/3.8.7
        source /sw/init.sh
        ulimit -n 4096; module load $(cat /etc/x) `id`
    '''
    resourceLimits = [ memory: 230.GB, cpus: 128, time: 24.h ]
    withLabel: 'gpu' {
        queue = 'gpu'
        clusterOptions = '--gres=gpu:a100:1'
        containerOptions = '--nv'
    }
}
singularity {
    enabled = true
    runOptions = '-B /scratch,/db:/db -B /local:/tmp --home /x --no-mount hostfs --nv'
}
env { FOO = 'bar' }
"""


def draft(tmp_path: Path, text: str, system: str | None = None, name: str = "x.config") -> Draft:
    path = tmp_path / name
    path.write_text(text)
    return importers.draft([path], system=system)


def kinds(found: Draft) -> set[str]:
    return {each.kind for each in found.unexpressed}


def test_facts_of_a_whole_site(tmp_path: Path) -> None:
    found = draft(tmp_path, WHOLE)
    tree = found.tree()
    assert (tree["name"], tree["description"]) == ("x", "Site X")
    assert tree["scheduler"] == {"kind": "slurm", "account": "$PROJECT", "gpu_request": "gres"}
    assert tree["policy"] == {"runtimes": ["singularity"]}
    assert tree["runtimes"] == {
        "singularity": {"module": ["tools", "apps/singularity/3.8.7"], "arguments": ["--no-mount=hostfs"]}
    }
    assert (tree["module_paths"], tree["scripts"]) == (["/sw/modules"], ["/sw/init.sh"])
    assert tree["mounts"] == ["/scratch", "/db"]
    work, gpu = tree["partitions"]["work"], tree["partitions"]["gpu"]
    assert work == {
        "constraint": "milan", "qos": "std", "directives": ["--exclude=n1"], "environment": {"FOO": "bar"}
    }  # fmt: skip
    # Its own options replace those of all jobs.
    assert gpu == {"node": {"gpus": {"type": "a100"}}, "environment": {"FOO": "bar"}}
    assert found.sources()["scheduler.account"] == ["x.config:10"]


def test_a_site_is_a_profile_that_the_loader_accepts_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(draft(tmp_path, WHOLE).yaml())
    assert "kind: slurm  # x.config:8" in path.read_text()
    profile = load(str(path))
    assert profile.source.kind == "document"
    assert "x.config (nf-core configuration)" in profile.source.where


def test_what_is_not_expressed_has_its_line(tmp_path: Path) -> None:
    found = draft(tmp_path, WHOLE)
    said = {str(each) for each in found.unexpressed}
    assert "x.config:11: a command before each job: ulimit -n 4096" in said
    assert "x.config:11: a command before each job: module load $(cat /etc/x) `id`" in said
    assert "x.config:26: a mount on another path: /local:/tmp" in said
    assert "x.config:26: an option of the container runtime: --home /x" in said
    # Both partitions have these limits, so they are facts of neither.
    assert "x.config:17: a limit over several partitions: memory: 230.GB" in said


def test_memory_is_a_fact_of_the_only_partition(tmp_path: Path) -> None:
    text = "process { executor = 'slurm'; queue = 'all'\n resourceLimits = [memory: 500.GB, time: '36h'] }\n"
    found = draft(tmp_path, text)
    assert found.tree()["partitions"]["all"] == {"node": {"memory_mb": 512000}}
    # The workflow keeps to it; the partition's own limit can be longer.
    assert "x.config:2: a limit of time per job: time: 36h" in map(str, found.unexpressed)


def test_a_program_names_partitions_and_its_conditions_are_listed(tmp_path: Path) -> None:
    text = """process {
    executor = 'slurm'
    queue = { task.time <= 24.h ? (task.memory < 9.GB ? 'tiny' : 'fast') : task.label.contains('gpu') ? 'gpu' : 'long' }
    clusterOptions = { task.time <= 8.h ? '--qos short' : '--qos long' }
}
"""
    found = draft(tmp_path, text)
    assert list(found.tree()["partitions"]) == ["tiny", "fast", "gpu", "long"]
    assert "qos" not in str(found.tree()["partitions"])
    assert {"a partition that a program chooses", "options that a program chooses"} <= kinds(found)


def test_the_default_partition_if_none_is_named(tmp_path: Path) -> None:
    text = """process { executor = 'slurm'
    beforeScript = '''
        module load x
    '''.stripIndent()
    resourceLimits = [memory: 9.GB] }
env { OMP_PLACES = 1; SINGULARITY_CACHEDIR = '/x' }
"""
    found = draft(tmp_path, text)
    # The largest of its nodes is not known to be like the others: no memory.
    assert found.tree()["partitions"] == {"default": {"queue": "", "environment": {"OMP_PLACES": "1"}}}
    assert found.tree()["modules"] == ["x"]
    assert "a variable of a runtime's cache, or of the workflow" in kinds(found)


def test_a_statement_of_a_program_is_not_followed(tmp_path: Path) -> None:
    text = """
if (System.getenv('HOST') == 'a') { process.queue = 'a' } else { process.queue = 'b' }
def f(x) { process.executor = 'lsf' }
process.executor = "pbspro"
singularity.enabled = params.hpc ? true : false
process.queue = "${params.project}-queue"
"""
    found = draft(tmp_path, text)
    assert found.tree()["scheduler"] == {"kind": "pbs"}
    assert "partitions" not in found.tree()
    assert "runtimes" not in found.tree()
    assert {"a statement of a program", "a runtime that a program chooses"} <= kinds(found)


def test_an_account_that_the_user_must_give(tmp_path: Path) -> None:
    text = """params.project = null
process { executor = 'slurm'; queue = 'q'; clusterOptions = { "-A ${params.project}" } }
apptainer.enabled = true
"""
    tree = draft(tmp_path, text).tree()
    assert tree["policy"] == {"runtimes": ["apptainer"], "account": True}
    assert "account" not in tree["scheduler"]


def test_one_profile_of_a_file_can_be_selected(tmp_path: Path) -> None:
    text = """process.executor = 'slurm'
profiles {
    small { process.queue = 's'
            process.clusterOptions = '--qos=low' }
    big {
        process { queue = 'b'
                  clusterOptions = '-M other' }
    }
}
"""
    assert draft(tmp_path, text, "big").tree()["partitions"] == {"b": {"cluster": "other"}}
    assert draft(tmp_path, text).tree()["partitions"] == {"s": {"qos": "low"}, "b": {"cluster": "other"}}


@pytest.mark.parametrize(
    ("name", "options", "facts"),
    [
        ("sge", '-P proj -l rocky -l h_vmem=4G -ac "x=1 2"', {"directives": ["-l rocky", "-ac 'x=1 2'"]}),
        ("lsf", '-P proj -gpu "num=1:j_exclusive=yes" -R "rusage[mem=4]"', {}),
        ("pbspro", "-P proj -l storage=gdata/a+scratch/b -l ngpus=1", {}),
    ],
)
def test_options_of_other_batch_systems(tmp_path: Path, name: str, options: str, facts: dict[str, object]) -> None:
    tree = draft(tmp_path, f"process {{ executor = '{name}'; queue = 'q'; clusterOptions = '{options}' }}\n").tree()
    assert tree["partitions"] == {"q": facts}
    assert tree["scheduler"]["account"] == "proj"
    assert tree["scheduler"].get("gpu_request") == {"sge": None, "lsf": "gpu", "pbspro": "ngpus"}[name]
    assert tree["scheduler"].get("storage") == (["gdata/a", "scratch/b"] if name == "pbspro" else None)


def test_a_parallel_environment(tmp_path: Path) -> None:
    tree = draft(tmp_path, "process { executor = 'uge'; queue = 'all.q'; penv = 'mpi' }\n").tree()
    assert tree["scheduler"] == {"kind": "gridengine"}
    assert tree["partitions"] == {"all.q": {"parallel_environment": "mpi"}}
    several = "process { executor = 'sge'; queue = 'q'; penv = { task.cpus > 1 ? 'sharedmem' : null } }\n"
    assert draft(tmp_path, several).tree()["partitions"]["q"] == {"parallel_environment": "sharedmem"}


def test_a_text_without_an_end_is_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^x.config:2: a text or comment that begins here has no end$"):
        draft(tmp_path, "process.executor = 'slurm'\n/* process.queue = 'q'\n")
    with pytest.raises(UsageError, match=r"^x.config:1: a text that begins here has no end$"):
        draft(tmp_path, "process.executor = 'slurm\n")


@pytest.mark.parametrize(
    "script",
    [
        "if [ -f /etc/old ]; then\nmodule load x\nfi",
        "[ -d /gpu ] && module load x",
        "[ -d /gpu ] && echo a &&\n# b\nmodule load x",
        "[ -d /gpu ] || module load x",
        "cat > a << END\nmodule load x\nEND",
        "f() {\nmodule load x\n}",
        "function f {\nmodule load x\n}",
        "a | { cd /\nmodule load x\n}",
        "bash -c '\nmodule load x\n'",
        "exit\nmodule load x",
        "# a; module load x",
        "echo a \\\\\n module load x",
    ],
)
def test_a_command_that_may_not_run_is_not_a_fact(tmp_path: Path, script: str) -> None:
    text = f'process {{\nexecutor = \'slurm\'\nqueue = \'a\'\nbeforeScript = """{script}"""\n}}\n'
    found = draft(tmp_path, text)
    assert "modules" not in found.tree()
    assert script.startswith("#") or any("module load x" in str(each) for each in found.unexpressed)


def test_commands_that_certainly_run_are_facts(tmp_path: Path) -> None:
    script = "module use /m && module load a\n[ -d /x ] && echo b; module load c  # it's needed\n"
    text = f'process {{\nexecutor = \'slurm\'\nqueue = \'a\'\nbeforeScript = """{script}"""\n}}\n'
    assert draft(tmp_path, text).tree()["modules"] == ["a", "c"]


def test_a_resource_beside_gpus_is_noted(tmp_path: Path) -> None:
    text = "process { executor = 'slurm'; queue = 'a'; clusterOptions = '--gres=lscratch:200,gpu:1' }\n"
    said = [str(each) for each in draft(tmp_path, text).unexpressed]
    assert "x.config:1: a resource that is not a GPU: --gres=lscratch:200" in said


def test_a_resource_of_grid_engine_is_quoted(tmp_path: Path) -> None:
    text = "process { executor = 'sge'; queue = 'a'; clusterOptions = '-l h=a|b' }\n"
    assert draft(tmp_path, text).tree()["partitions"]["a"]["directives"] == ["-l 'h=a|b'"]


def test_a_list_as_a_variable_is_noted_as_such(tmp_path: Path) -> None:
    found = draft(tmp_path, "process { executor = 'slurm'; queue = 'a' }\nenv { FOO = ['a'] }\n")
    assert [each.text for each in found.unexpressed] == ["FOO=a list"]
