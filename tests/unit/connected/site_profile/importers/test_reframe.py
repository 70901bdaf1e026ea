"""ReFrame's site configurations: Python is parsed and never run."""

from pathlib import Path

import pytest

from deployer.connected.site_profile.importers import files as importers
from deployer.connected.site_profile.importers.draft import Draft
from deployer.connected.site_profile.profile import load
from deployer.contract.errors import UsageError

SETTINGS = """\
import os
from site_tools import account
login = {'name': 'login', 'scheduler': 'local', 'launcher': 'local', 'environs': ['a']}
base = {'scheduler': 'slurm', 'launcher': 'srun'}
site_configuration = {
    'systems': [
        {
            'name': 'alps', 'descr': 'A system', 'hostnames': ['ln.*'], 'modules': ['cray'],
            'partitions': [
                login,
                {**base, 'name': 'gpu',
                 'access': ['-p gpu_a100 --constraint=gpu', f'--account={account()}'],
                 'container_platforms': [{'type': 'Sarus', 'modules': ['sarus']},
                                         {'type': 'Singularity', 'modules': ['PDC', 'singularity']}],
                 'devices': [{'type': 'gpu', 'arch': 'sm_90', 'num_devices': 4}],
                 'processor': {'arch': 'neoverse_v2', 'num_cpus': 288, 'num_cpus_per_core': 1, 'num_sockets': 4},
                 'resources': [{'name': 'gpu', 'options': ['--gres=gpu:{n}']},
                               {'name': 'mem', 'options': ['--mem={size}']}],
                 'env_vars': [['A', 'b'], ['B', os.environ['HOME'] + '/x']]},
                dict(base, name='other'),
            ] + [{'name': n, 'scheduler': 'slurm', 'launcher': 'alps'} for n in ('x', 'y')],
        },
    ]
}
site_configuration['systems'][0]['partitions'].append(
    {'name': 'mc', 'scheduler': 'squeue', 'launcher': 'alps', 'prepare_cmds': ['module use /m', 'echo hi']})
"""


def draft(tmp_path: Path, text: str, name: str = "settings.py", system: str | None = None) -> Draft:
    path = tmp_path / name
    path.write_text(text)
    return importers.draft([path], system=system)


def test_facts_of_a_python_file(tmp_path: Path) -> None:
    found = draft(tmp_path, SETTINGS)
    tree = found.tree()
    assert list(tree["partitions"]) == ["gpu", "mc"]
    assert tree["partitions"]["gpu"] == {
        "queue": "gpu_a100",
        "constraint": "gpu",
        "launcher": "srun",
        "architecture": "aarch64",
        "environment": {"A": "b"},
        "node": {
            "cores": 288, "threads_per_core": 1, "sockets": 4,
            "gpus": {"count": 4, "kind": "nvidia", "capability": "9.0"},
        },
    }  # fmt: skip
    assert tree["partitions"]["mc"] == {"queue": "", "module_paths": ["/m"]}
    assert tree["scheduler"] == {"kind": "slurm", "gpu_request": "gres"}
    assert tree["runtimes"]["singularity"] == {"module": ["PDC", "singularity"]}
    assert tree["policy"]["runtimes"] == ["sarus", "singularity"]
    assert tree["policy"]["account"] is True  # its name is computed
    assert tree["modules"] == ["cray"]


def test_what_only_the_program_knows_is_listed_with_its_line(tmp_path: Path) -> None:
    said = [str(each) for each in draft(tmp_path, SETTINGS).unexpressed]
    assert "settings.py:20: computed by a program: a partition: dict(base, name='other')" in said
    assert "settings.py:26: a launcher that a profile cannot name: alps" in said
    assert "settings.py:26: a command before each job: echo hi" in said
    assert "settings.py:19: a variable of jobs: B=$HOME/x" in said


def test_it_is_never_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f"""import os
os.mkdir({str(mark)!r})
site_configuration = {{'systems': [{{'name': 'a', 'partitions': [
    {{'name': 'p', 'scheduler': (os.mkdir({str(mark)!r}), 'slurm')[1], 'launcher': 'srun'}}]}}]}}
"""
    assert draft(tmp_path, text).tree()["scheduler"] == {"kind": "slurm"}
    assert not mark.exists()


def test_of_several_systems_one_is_selected(tmp_path: Path) -> None:
    text = "site_configuration = {'systems': [{'name': 'a'}, {'name': 'b', 'descr': 'second'}]}\n"
    with pytest.raises(UsageError, match="has 2 systems: a, b") as caught:
        draft(tmp_path, text)
    assert caught.value.hint == "select one: --system NAME"
    assert draft(tmp_path, text, system="b").tree()["description"] == "second"
    with pytest.raises(UsageError, match="has no system 'c'"):
        draft(tmp_path, text, system="c")


@pytest.mark.parametrize("name", ["settings.yaml", "settings.json"])
def test_yaml_and_json(tmp_path: Path, name: str) -> None:
    text = '{"systems": [{"name": "a", "partitions": [{"name": "p", "scheduler": "pbs", "access": ["-q long"]}]}]}\n'
    found = draft(tmp_path, text, name)
    assert found.tree()["partitions"] == {"p": {"queue": "long"}}
    assert found.tree()["scheduler"] == {"kind": "pbs"}
    assert found.sources()["partitions.p.queue"] == [f"{name}:1"]
    (tmp_path / "draft.yaml").write_text(found.yaml())
    assert load(str(tmp_path / "draft.yaml")).partitions["p"].queue == "long"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("site_configuration = {\n", r"^settings.py:1: not a Python file: "),
        ("x = 1\n", r"^settings.py does not bind a mapping to `site_configuration`"),
        ("site_configuration = " + "-" * 200_000 + "1\n", "nested too deeply|not a Python file"),
        ("site_configuration = " + "[" * 150 + "]" * 150 + "\n", "nested too deeply"),
        ("a = 'x'\n" + "a = a + a\n" * 60, "has a text of more than"),
        ("a = [1]\n" + "a = a + a\n" * 60, "has more than 50000 values"),
        ("n = 9\n" + "n = n * n\n" * 60, "does not bind"),
    ],
)
def test_hostile_python(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        draft(tmp_path, text)


def test_the_commands_of_one_list_are_one_script(tmp_path: Path) -> None:
    settings = SETTINGS.replace("'modules': ['cray'],", "'prepare_cmds': ['if true; then', 'module load x', 'fi'],", 1)
    found = draft(tmp_path, settings, system="alps")
    assert "modules" not in found.tree()
    assert "module load x" in [each.text for each in found.unexpressed]


def test_shared_lists_are_not_written_out(tmp_path: Path) -> None:
    shared = "a = ['x']\n" + "a = [a, a, a, a, a, a, a, a]\n" * 12
    variables = "'env_vars': [['A', a], ['B', {}]],"
    found = draft(tmp_path, shared + SETTINGS.replace("'modules': ['cray'],", variables, 1), system="alps")
    said = [each.text for each in found.unexpressed]
    assert {"A=a list", "B=a mapping"} <= set(said)


def test_a_number_that_python_does_not_print(tmp_path: Path) -> None:
    number = "0x" + "f" * 9000
    devices = f"devices: [{{type: gpu, num_devices: {number}}}]"
    text = f"systems: [{{name: a, env_vars: [[C, {number}]], partitions: [{{name: b, scheduler: slurm, {devices}}}]}}]"
    found = draft(tmp_path, text, "settings.yaml")
    assert "C=a large number" in [each.text for each in found.unexpressed]
    assert found.get("partitions", "b", "node", "gpus", "count") is None
