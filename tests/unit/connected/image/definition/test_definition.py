import json
from pathlib import Path

import pytest

from deployer.connected.bundle.sources import from_definition
from deployer.connected.image import inputs
from deployer.connected.image.build import BuildOptions, build
from deployer.connected.image.definition import fetched
from deployer.connected.image.definition.definition import load, schema
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.bundle.manifest import DataNeed
from deployer.contract.site.plan import NO_MPI
from scripts.reference import table

ROOT = Path(__file__).resolve().parents[5]

MINIMAL = """\
name: small
version: "1.0"
base: {debian: bookworm}
jobs:
  first: {command: [python3, x.py]}
  second: {command: ["true"], nodes: 4, time: "1-00:00:00"}
"""


def write(folder: Path, text: str, name: str = "small") -> Path:
    place = folder / name
    place.mkdir()
    (place / "bundle.yaml").write_text(text)
    (place / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\n")
    return place


def message_of(path: Path | str) -> str:
    with pytest.raises(UsageError) as caught:
        load(path)
    return "\n".join(caught.value.lines())


@pytest.mark.parametrize("name", sorted(path.parent.name for path in (ROOT / "bundles").glob("*/bundle.yaml")))
def test_the_definitions_in_the_repository_are_valid(name: str) -> None:
    definition = load(ROOT / "bundles" / name)
    first = (ROOT / "bundles" / name / "bundle.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=../schema.json"
    assert definition.name == name
    if name == "netpipe":
        assert definition.app_folder is None  # its program is in the image
    else:
        assert definition.app_folder is not None
        assert definition.app_folder == ROOT / "bundles" / name / (definition.app or "app")
    assert definition.tag == f"deployer/{name}:{definition.version}"


def test_a_folder_and_its_file_are_the_same_definition(tmp_path: Path) -> None:
    place = write(tmp_path, MINIMAL)
    assert load(place) == load(place / "bundle.yaml") == load(str(place))
    assert load(place).folder == place


def test_defaults_and_the_order_of_jobs(tmp_path: Path) -> None:
    definition = load(write(tmp_path, MINIMAL))
    assert list(definition.jobs) == ["first", "second"]
    first = definition.jobs["first"]
    assert (first.nodes, first.ranks_per_node, first.threads, first.time) == (1, 1, 1, "01:00:00")
    assert definition.jobs["second"].time == "1-00:00:00"
    assert (definition.mpi, definition.families) == (None, None)  # `pack` finds them
    assert definition.app_folder is None


def test_jobs_go_into_a_manifest_as_json(tmp_path: Path) -> None:
    (_, job) = load(write(tmp_path, MINIMAL)).own_jobs
    assert json.loads(json.dumps(job._asdict())) == {
        "name": "second",
        "command": ["true"], "nodes": 4, "ranks_per_node": 1, "threads": 1, "time": "1-00:00:00",
        "workdir": None,
        "stdin": None,
        "memory": None,
        "environment": {},
        "launch": "ranks",
        "gpus": None,
        "links": {},
        "keep": [],
    }  # fmt: skip


def test_a_job_keeps_caches_that_are_known_or_in_its_home(tmp_path: Path) -> None:
    (_, job) = load(write(tmp_path, MINIMAL.replace("nodes: 4", "keep: [triton, ~/.cache/mine]"))).own_jobs
    assert job.keep == ["triton", "~/.cache/mine"]
    with pytest.raises(UsageError, match=r"keep.*invalid cache: 'tritn', perhaps you meant 'triton'"):
        load(write(tmp_path, MINIMAL.replace("nodes: 4", "keep: [tritn]"), "other"))


@pytest.mark.parametrize(
    ("place", "source", "message"),
    [
        ("~/.x", "data/none", "jobs.first.links.~/.x: there is no data 'none'; known: set"),
        ("~/.x", "data/set/none", "there is no "),
        ("~/.x", "app/none", "there is no "),
        ("/x", "data/set", "invalid place: '/x'"),
        ("x", "/data/set", "invalid source: '/data/set'"),
    ],
)
def test_links_lead_to_files_of_the_bundle(tmp_path: Path, place: str, source: str, message: str) -> None:
    text = MINIMAL.replace("x.py]", "x.py], links: {PLACE: SOURCE}") + "data: {set: {folder: set}}\n"
    folder = write(tmp_path, text.replace("PLACE", "~/.x").replace("SOURCE", "data/set/a"))
    (folder / "set").mkdir()
    (folder / "set/a").write_text("a")
    assert load(folder).jobs["first"].links == {"~/.x": "data/set/a"}
    (folder / "bundle.yaml").write_text(text.replace("PLACE", place).replace("SOURCE", source))
    assert message in message_of(folder)


def test_only_ranks_have_gpus_of_their_own(tmp_path: Path) -> None:
    given = MINIMAL.replace('command: ["true"]', 'command: ["true"], launch: torchrun, gpus: 1')
    assert given != MINIMAL
    with pytest.raises(UsageError, match="goes with launch: ranks, not torchrun"):
        load(write(tmp_path, given))
    assert load(write(tmp_path, given.replace("gpus: 1", "gpus: 0"), "none")).jobs


@pytest.mark.parametrize("path", ["work", "/a/../b", "/a\\tb", ""])
def test_a_job_starts_in_an_absolute_folder(tmp_path: Path, path: str) -> None:
    good = MINIMAL.replace("nodes: 4", 'nodes: 4, workdir: "/deployer/job"')
    for name in ("good", "bad", "input"):
        (tmp_path / name).mkdir()
    assert load(write(tmp_path / "good", good)).jobs["second"].workdir == "/deployer/job"
    said = message_of(write(tmp_path / "bad", MINIMAL.replace("nodes: 4", f'nodes: 4, workdir: "{path}"')))
    assert "jobs.second.workdir: invalid working folder: " in said
    assert "write an absolute path of the container" in said
    said = message_of(write(tmp_path / "input", MINIMAL.replace("nodes: 4", f'nodes: 4, stdin: "{path}"')))
    assert "jobs.second.stdin: invalid file for standard input: " in said
    assert "a file of app/ is /deployer/app/FILE" in said


def test_a_job_has_memory_and_variables(tmp_path: Path) -> None:
    good = MINIMAL.replace("nodes: 4", 'nodes: 4, memory: 2000, environment: {NCCL_DEBUG: INFO, TEXT: "a\\nb"}')
    second = load(write(tmp_path, good)).jobs["second"]
    assert (second.memory, second.environment) == (2000, {"NCCL_DEBUG": "INFO", "TEXT": "a\nb"})
    wrong = {
        "memory: 0": "jobs.second.memory: must be at least 1, not 0",
        "memory: 2G": "jobs.second.memory: must be a whole number",
        "environment: {A: 1}": "jobs.second.environment.A: must be text",
        "environment: {A-B: x}": "jobs.second.environment.A-B: is not a name for a variable",
        "environment: {LD_LIBRARY_PATH: /x}": "the site's MPI is found by it (a script in app/ can add folders",
        "environment: {SLURM_NTASKS: '2'}": "the launcher tells the ranks their numbers by it (leave it out)",
        'environment: {A: "\\0"}': "control character",
    }
    for number, (words, said) in enumerate(wrong.items()):
        (tmp_path / str(number)).mkdir()
        bad = write(tmp_path / str(number), MINIMAL.replace("nodes: 4", "nodes: 4, " + words))
        assert said in message_of(bad), words


def test_a_time_limit_has_the_forms_of_the_option(tmp_path: Path) -> None:
    found = load(write(tmp_path, MINIMAL.replace('"1-00:00:00"', "24h")))
    assert {job.name: job.time for job in found.own_jobs}["second"] == "1-00:00:00"


def test_an_unknown_key_gets_a_guess(tmp_path: Path) -> None:
    said = message_of(write(tmp_path, MINIMAL.replace("nodes: 4", "node: 4")))
    assert "jobs.second.node: unknown key, perhaps you meant 'nodes'" in said


def test_all_errors_come_at_once_each_with_its_place(tmp_path: Path) -> None:
    text = (
        'name: Not A Name\nversion: "1"\nbase: {debian: potato}\nmpi: [lam]\njobs: {x: {command: [],\n  time: soon}}\n'
    )
    said = message_of(write(tmp_path, text))
    shown = said.replace(str(tmp_path), "").splitlines()
    assert shown[0] == "deployer: error: /small/bundle.yaml has 5 errors"
    for place in ("1: name", "3: base.debian", "4: mpi.0", "5: jobs.x.command", "6: jobs.x.time"):
        assert any(text.startswith(f"  /small/bundle.yaml:{place}: ") for text in shown)
    assert "'soon' is not [D-]HH:MM:SS" in said


def test_broken_yaml_names_the_file_and_the_line(tmp_path: Path) -> None:
    said = message_of(write(tmp_path, "name: small\nversion: [1\nbase: x\n"))
    assert "bundle.yaml:3: not valid YAML: while parsing a flow sequence expected ',' or ']'" in said


def test_a_version_without_quotes_is_explained(tmp_path: Path) -> None:
    assert "with quotes" in message_of(write(tmp_path, MINIMAL.replace('"1.0"', "1.10")))


def test_an_unknown_definition_names_those_that_exist(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL)
    said = message_of(tmp_path / "smal")
    assert "there is no definition" in said
    assert str(tmp_path / "small") in said
    assert str(tmp_path / "small") in message_of(tmp_path)
    assert "deployer init" in said
    (tmp_path / "small" / "bundle.yaml").unlink()
    assert "deployer init" in message_of(tmp_path / "small")


def test_files_that_it_names_must_be_there(tmp_path: Path) -> None:
    place = write(tmp_path, MINIMAL + "app: code\ndockerfile: Other\n")
    said = message_of(place)
    assert "bundle.yaml:7: app: there is no folder" in said
    assert "bundle.yaml:8: dockerfile: there is no file" in said


def test_only_the_quoted_app_or_the_folder_app_is_the_app(tmp_path: Path) -> None:
    place = write(tmp_path, MINIMAL + "app: code\n")
    (place / "code").mkdir()
    (place / "app").mkdir()
    assert load(place).app_folder == place / "code"


def test_the_checked_in_schema_is_the_models() -> None:
    text = (ROOT / "bundles" / "schema.json").read_text()
    assert json.loads(text) == schema(), "run: deployer schema > bundles/schema.json"


def test_the_table_has_meaning_example_and_default_of_a_key() -> None:
    row = '| `jobs.NAME.time` | text: time limit, [D-]HH:MM:SS or 90m, 24h, 2d: `1-12:00:00` | `"01:00:00"` |\n'
    assert row in table(schema())


# ------------------------------------------------------------------------------------------------ what it names


def test_without_a_dockerfile_the_image_is_the_base(tmp_path: Path) -> None:
    place = write(tmp_path, MINIMAL)
    assert load(place).dockerfile_path == place / "Dockerfile"
    (place / "Dockerfile").unlink()
    assert load(place).dockerfile_path is None
    (place / "containerfile").write_text("FROM scratch\n")
    assert "there is a containerfile" in message_of(place)


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("{}", "base: exactly one of debian, image and archive, not none of them"),
        ("{debian: bookworm, archive: a.tar}", "base: exactly one of debian, image and archive, not debian and arch"),
        ("{image: 'python:3.11'}", "base.image: 'python:3.11' does not name an image by its digest"),
        ("{image: 'python@sha256:abc'}", "does not name an image by its digest"),
        (f"{{image: 'python@sha256:{64 * 'a'}', include: [git]}}", "base.include: goes with debian, not with image"),
        ("{archive: no.tar}", "base.archive: there is no file"),
        (f"{{archive: a.tar, sha256: {63 * 'a'}}}", "base.sha256: "),
        ("{debian: bookwurm}", "not 'bookwurm', perhaps you meant 'bookworm'"),
        ("{debin: bookworm}", "base.debin: unknown key, perhaps you meant 'debian'"),
        ("{debian: bookworm, sha256: " + 64 * "b" + "}", "base.sha256: goes with archive, not with debian"),
    ],
)
def test_a_base_is_one_thing_and_never_the_same_by_chance(tmp_path: Path, base: str, said: str) -> None:
    place = write(tmp_path, MINIMAL.replace("{debian: bookworm}", base))
    (place / "a.tar").touch()
    shown = message_of(place)
    assert said in shown
    assert "bundle.yaml:3: base" in shown


@pytest.mark.parametrize(
    "base",
    ["{image: 'ghcr.example:5000/a/b:1.2@sha256:" + 64 * "a" + "'}", "{archive: a.tar, sha256: " + 64 * "a" + "}"],
)
def test_bases_by_digest_and_of_archives(tmp_path: Path, base: str) -> None:
    place = write(tmp_path, MINIMAL)
    (place / "a.tar").touch()
    (place / "bundle.yaml").write_text(MINIMAL.replace("{debian: bookworm}", base))
    assert load(place).base.debian is None


def test_horovod_needs_a_framework_and_a_stage_of_the_dockerfile(tmp_path: Path) -> None:
    place = write(tmp_path, MINIMAL + "horovod: {version: 0.28.1, stage: tf}\n")
    (place / "Dockerfile").write_text("ARG BASE\nFROM ${BASE} AS first\nFROM first AS TensorFlow\n")
    said = message_of(place)
    assert "bundle.yaml:7: horovod: needs a framework" in said
    assert "horovod.stage: the Dockerfile has no stage 'tf'; it names: first, tensorflow" in said
    text = MINIMAL + "framework: tensorflow\nhorovod: {version: 0.28.1, stage: tensorflow}\n"
    (place / "bundle.yaml").write_text(text)
    assert load(place).horovod is not None
    (place / "bundle.yaml").write_text(text + "mpi: []\n")
    assert "bundle.yaml:9: mpi: must not be empty with horovod" in message_of(place)


def test_build_args_are_args_of_the_dockerfile_and_none_of_build_itself(tmp_path: Path) -> None:
    place = write(tmp_path, MINIMAL + "build_args: {CUDA: '12.4', CUDAA: x, BUILDKIT_SYNTAX: x/y, Http_Proxy: p}\n")
    (place / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nARG CUDA=11 BUILDKIT_SYNTAX Http_Proxy\n")
    said = message_of(place)
    assert "build_args.CUDAA: is not an ARG of the Dockerfile; it has: BASE, BUILDKIT_SYNTAX, CUDA, Http_Proxy" in said
    for name in ("BUILDKIT_SYNTAX", "Http_Proxy"):
        assert f"build_args.{name}: is set by build itself, not by a definition" in said
    (place / "bundle.yaml").write_text(MINIMAL + "build_args: {CUDA: '12.4'}\n")
    assert load(place).build_args == {"CUDA": "12.4"}
    (place / "Dockerfile").unlink()
    assert "build_args.CUDA: is not an ARG of the Dockerfile; it has: none" in message_of(place)


def test_a_definition_may_do_without_mpi(tmp_path: Path) -> None:
    assert load(write(tmp_path, MINIMAL + "mpi: []\n")).families == [NO_MPI]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("python: {requirements: no.txt}", "7: python.requirements: there is no file"),
        ("data: {digits: {folder: absent}}", "7: data.digits.folder: there is no folder"),
        ("data: {digits: {}}", "7: data.digits: data is either a folder, a bundle, or a repository"),
        ("mpi: [openmpi, openmpi]", "7: mpi.1: is given twice"),
        ("name: again", "7: name: is given twice: first on line 1"),
        ("framework: x", "7: framework: must be 'tensorflow' or 'pytorch', not 'x'"),
        ("app: {}", "7: app: "),
        ("dockerfile: ../Outside", "7: dockerfile: "),
        ("data: {Bad Name: {bundle: x}}", "7: data.Bad Name: 'Bad Name' is not valid: it must be lower-case letters"),
        ("python:\n  requirments: r.txt", "8: python.requirments: unknown key, perhaps you meant 'requirements'"),
    ],
)
def test_each_mistake_has_its_line_and_place(tmp_path: Path, more: str, said: str) -> None:
    (tmp_path / "Outside").write_text("FROM x\n")
    assert f"bundle.yaml:{said}" in message_of(write(tmp_path, MINIMAL + more + "\n"))


def test_mistakes_in_the_file_and_in_what_it_names_come_together(tmp_path: Path) -> None:
    text = MINIMAL.replace("bookworm", "potato") + "name: again\npython: {requirements: no.txt}\nx: 1\napp: code\n"
    said = message_of(write(tmp_path, text)).replace(str(tmp_path), "").splitlines()
    assert said[0] == "deployer: error: /small/bundle.yaml has 5 errors"
    assert [line.split(": ")[:2] for line in said[1:]] == [
        ["  /small/bundle.yaml:3", "base.debian"],
        ["  /small/bundle.yaml:7", "name"],
        ["  /small/bundle.yaml:8", "python.requirements"],
        ["  /small/bundle.yaml:9", "x"],
        ["  /small/bundle.yaml:10", "app"],
    ]


def test_what_yaml_reads_as_something_else_is_shown_as_it_is_written(tmp_path: Path) -> None:
    said = message_of(write(tmp_path, MINIMAL.replace('"1-00:00:00"', "10:00:00")))
    assert 'jobs.second.time: must be text, and YAML reads 10:00:00 as something else: write "10:00:00"' in said
    said = message_of(write(tmp_path, MINIMAL.replace('["true"]', "python3 x.py"), "other"))
    assert "jobs.second.command: must be a list: write [python3, x.py]" in said


# ------------------------------------------------------------------------------------------------ what is no definition

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{', '.join(10 * ['*' + old])}]\n" for old, new in ("ab", "bc", "cd", "de", "ef", "fg", "gh")
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "has more than 20000 values when its aliases are expanded"),
        ("a: &a [*a]\n", "has more than 20000 values"),
        ("[" * 700, "is nested too deeply"),
        ("# " + "x" * 2**20, "has more than the 1048576 bytes allowed"),
        ("a: !!python/object/apply:os.system [true]\n", ":1: not valid YAML: could not determine a constructor"),
        ("? {a: b}\n: c\n", ":1: not valid YAML: while constructing a mapping found unhashable key"),
        ("a: b\n---\nc: d\n", ":2: not valid YAML: expected a single document"),
        ("a: 2026-13-45\n", "holds an invalid value: month must be in 1..12"),
        ("a: \x01\n", "not valid YAML: unacceptable character"),
        ("", "is not a definition (bundle.yaml): it has no keys"),
        ("- a\n", "is not a definition (bundle.yaml): it has no keys"),
    ],
)
def test_what_is_no_definition_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    shown = message_of(write(tmp_path, text))
    assert said in shown
    assert len([line for line in shown.splitlines() if not line.startswith("hint: ")]) == 1


def test_an_alias_is_as_good_as_what_it_stands_for(tmp_path: Path) -> None:
    text = MINIMAL.replace("first: {command: [python3, x.py]}", "first: &f {command: [python3, x.py]}\n  third: *f")
    assert load(write(tmp_path, text)).jobs["third"].command == ["python3", "x.py"]


# ------------------------------------------------------------------------------------------------ data

COMMIT = "0123456789" * 4
DATA_BUNDLE = """\
name: digits-data
version: "1.0"
data: {digits: {folder: digits}}
"""


def data_folder(place: Path) -> Path:
    (place / "digits").mkdir()
    (place / "digits" / "x").write_bytes(b"1")
    return place


def test_a_definition_without_a_base_is_one_of_data(tmp_path: Path) -> None:
    place = data_folder(write(tmp_path, DATA_BUNDLE))
    (place / "Dockerfile").unlink()
    definition = load(place)
    assert definition.is_data
    assert definition.data_folders == {"digits": place / "digits"}
    with pytest.raises(UsageError, match="no image to build"):
        build(definition, BuildOptions(), print)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('name: x\nversion: "1"\n', "no base"),
        (DATA_BUNDLE.replace("folder: digits", "bundle: other"), "no base"),
        (DATA_BUNDLE + "jobs: {run: {command: [x]}}\n", "no base, and has jobs"),
        (DATA_BUNDLE + "base: {debian: bookworm}\n", "jobs: must not be empty"),
        (MINIMAL + "data: {digits: {bundle: small}}\n", "data.digits.bundle: is this bundle itself"),
        (MINIMAL + "data: {digits: {bundle: 'other:'}}\n", "data.digits.bundle"),
        (MINIMAL + "data: {digits: {folder: gone}}\n", "no folder"),
        (MINIMAL + "data: {digits: {}}\n", "either a folder, a bundle, or a repository of a hub"),
        (MINIMAL + "data: {w: {hub: org/name}}\n", "hub and revision go together"),
        (
            MINIMAL + f"data: {{w: {{hub: org/name, revision: {COMMIT}, folder: digits}}}}\n",
            "either a folder, a bundle",
        ),
        (MINIMAL + "data: {w: {folder: digits, include: [a]}}\n", "include goes with them"),
        (MINIMAL + "data: {w: {hub: org/name, revision: main}}\n", "a commit, in 40 hexadecimal digits"),
        (MINIMAL + f"data: {{w: {{hub: ../name, revision: {COMMIT}}}}}\n", "a repository of the hub"),
    ],
)
def test_data_that_cannot_be_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    place = data_folder(write(tmp_path, text))
    assert reason in message_of(place)


def test_data_of_a_hub_must_be_fetched_as_they_are_chosen(tmp_path: Path) -> None:
    text = f'name: x\nversion: "1"\ndata: {{w: {{hub: org/name, revision: {COMMIT}, include: ["*.json"]}}}}\n'
    definition = load(write(tmp_path, text))
    with pytest.raises(Refused, match="the files of data w are not fetched"):
        from_definition(definition)
    (definition.folder / "fetched-data" / "w").mkdir(parents=True)
    fetched.mark_data(definition.folder / "fetched-data", "w", f"org/name@{COMMIT}")
    with pytest.raises(Refused, match="the files of data w are not fetched"):
        from_definition(definition)
    fetched.mark_data(definition.folder / "fetched-data", "w", f"org/name@{COMMIT} *.json")
    assert from_definition(definition).data == {"w": definition.folder / "fetched-data" / "w"}


def test_data_of_both_kinds_go_into_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "current", lambda *_: "sha256:1")
    text = MINIMAL + "data: {mine: {folder: digits}, digits: {bundle: 'digits-data:1.0'}, b: {bundle: other}}\n"
    contents = from_definition(load(data_folder(write(tmp_path, text))))
    assert list(contents.data) == ["mine"]
    assert contents.needs == [DataNeed("b", "other"), DataNeed("digits", "digits-data:1.0")]
