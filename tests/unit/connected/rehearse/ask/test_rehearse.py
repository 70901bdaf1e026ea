"""What a rehearsal refuses before it starts anything."""

import collections
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from deployer.connected.rehearse.ask import rehearse
from deployer.connected.rehearse.ask.rehearse import SiteTools
from deployer.connected.rehearse.ask.request import RehearsalRequest
from deployer.connected.rehearse.world import own_paths
from deployer.connected.rehearse.world.simulated_plan import RehearsedLayout
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.bundle.job import Job
from deployer.contract.site.plan import NOT_STAGED, SQUASHFS, StartOption
from deployer.site.storage import store
from deployer.system import process
from tests import bundles, running
from tests.unit.connected.rehearse.world.test_simulated_plan import MANIFEST
from tests.unit.site.proof.test_result import LAUNCH

TOOLS = SiteTools(b"", Path("/kit/bin/ch-run"))


@pytest.mark.parametrize("bound", [".", "cache", "cache/deployer/rehearse/"])
def test_a_bind_with_the_folder_of_rehearsals_is_refused(bound, tmp_path, monkeypatch):
    bundle = bundles.write(tmp_path / "b.tar", jobs=[Job("main", ["true"], 1, 1, 1, "00:01:00")])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    request = RehearsalRequest(str(bundle), None, None, None, 10, binds=[f"{tmp_path}/{bound}:/data"])
    with pytest.raises(UsageError, match="the job could change it"):
        rehearse.rehearse(request, TOOLS, print)


def test_a_job_with_gpus_is_not_rehearsed_for_nodes_that_have_none(tmp_path):
    bundle = bundles.write(tmp_path / "b.tar", jobs=[Job("main", ["true"], 1, 2, 1, "00:01:00", gpus=2)])
    site = running.PLAN._replace(node=running.PLAN.node._replace(gpus=0))
    request = RehearsalRequest(str(bundle), None, site, None, 10)
    with pytest.raises(Refused, match=f"2 ranks per node x 2 GPUs = 4, but a node has no GPU of {site.partition}"):
        rehearse.rehearse(request, TOOLS, print)


@pytest.mark.parametrize("name", ["command", "train"])
def test_a_job_of_any_name_is_rehearsed_by_its_name(name, tmp_path, monkeypatch):
    asked = []
    site = object.__new__(rehearse._Site)
    site._root = tmp_path / "rehearse" / "root"
    monkeypatch.setattr(site, "_ask", lambda words, timeout: asked.append(words) or {"folder": str(tmp_path)})
    job = Job(name, ["true"], 1, 1, 1, "00:01:00")
    request = RehearsalRequest("b.tar", None, None, None, 10)
    site.prepare(request, RehearsedLayout(1, 1, 1, 1), MANIFEST._replace(jobs=[job]), job, {"digest": "sha256:0"})
    assert asked[0][-3:] == [f"{MANIFEST.name}@0", name, "--"]


def test_deployers_of_two_versions_have_tools_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearse.own_paths, "bytecode", lambda: tmp_path / "pyz" / "x")
    sites, asked = [], []
    for pyz in (b"old", b"new"):
        world = tmp_path / pyz.decode()
        world.mkdir()
        sites.append(rehearse._Site(tmp_path / "root", world, TOOLS._replace(pyz=pyz), rehearse.no_bar))
        monkeypatch.setattr(sites[-1], "_ask", lambda words, timeout: {"images": []})
        monkeypatch.setattr(sites[-1], "_call", lambda words, timeout: asked.append(words))
        sites[-1].bring_tool()
    old, new = (site._tool for site in sites)
    assert (old.read_bytes(), new.read_bytes()) == (b"old", b"new")
    monkeypatch.setattr(store, "running_archive", lambda: str(new))
    assert store.Store(str(tmp_path / "root")).tool == str(new)
    assert store.Store(str(tmp_path / "elsewhere")).tool == str(tmp_path / "elsewhere" / "deployer.pyz")
    sites[1].remove_old()
    assert [path.parent for path in (tmp_path / "root" / "tools").glob("*/deployer.pyz")] == [new.parent]
    assert asked == [["gc", f"--keep={sys.maxsize}"]]  # what killed installs left, and no whole image


def test_rehearsals_of_one_image_install_it_one_after_the_other(tmp_path, monkeypatch):
    bundle = bundles.write(tmp_path / "b.tar", jobs=[])
    monkeypatch.setattr(rehearse.own_paths, "bytecode", lambda: tmp_path / "pyz" / "x")
    at_once, most = collections.Counter(), []

    def ask(words, *_):
        at_once[words[-1]] += 1
        most.append(max(at_once.values()))
        time.sleep(0.2)
        at_once[words[-1]] -= 1
        return {"folder": str(tmp_path)}

    def install(number):
        world = tmp_path / f"world{number}"
        world.mkdir()
        site = rehearse._Site(tmp_path / "root", world, TOOLS, rehearse.no_bar)
        site._ask = ask
        site.install(str(bundle), print)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(install, range(3)))
    assert most == [1, 1, 1]


def test_a_result_that_the_job_made_a_link_is_not_read(tmp_path):
    (tmp_path / "secret").write_text('{"findings": []}')
    (tmp_path / "result.json").symlink_to(tmp_path / "secret")
    assert rehearse._result(tmp_path) is None
    assert rehearse._result(tmp_path / "nowhere") is None
    (tmp_path / "result.json").unlink()
    (tmp_path / "secret").rename(tmp_path / "result.json")
    assert rehearse._result(tmp_path) == {"findings": []}


def test_what_runs_outside_of_the_container_cannot_be_changed(tmp_path, monkeypatch):
    """The order for the simulated site: only the job's folder, and what the user binds, can be changed."""
    orders = []

    def answer(argv, timeout, own, stdin, check):
        orders.append(json.loads(stdin))
        return process.Completed(argv, 0, json.dumps({"exit_code": 0}), "")

    monkeypatch.setattr(process, "run", answer)
    root = tmp_path / "rehearse" / "root"
    folder = root / "jobs" / "job-1"
    request = RehearsalRequest("b.tar", None, None, None, 10, binds=["/data/set:/data"])
    rehearse._Site(root, tmp_path, TOOLS, rehearse.no_bar).run(request, RehearsedLayout(1, 1, 1, 1), folder, None, [])
    order = orders[0]
    assert order["writable"] == [str(folder), str(tmp_path / "site"), "/data/set"]
    assert {str(root), "/kit/bin", *(str(folder / name) for name in ("job.sh", "agent", "job.json"))} <= set(
        order["readable"]
    )
    assert order["fixed"] == [str(folder / name) for name in ("environment", "machines")]
    assert order["seen"] == str(tmp_path / "rehearse" / "observed" / "job-1")
    assert not any(order["seen"].startswith(path + "/") for path in order["readable"] + order["writable"])


def test_a_python_whose_prefix_is_the_home_does_not_show_the_home(monkeypatch):
    monkeypatch.setattr(own_paths.sys, "base_prefix", "/home/user")
    assert "/home/user/lib" in own_paths.python()
    assert "/home/user" not in own_paths.python()


def test_what_filled_the_disk_is_removed_and_the_log_stays(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "job"
    (folder / "many").mkdir(parents=True)
    (folder / "big").write_bytes(bytes(100))
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "output.log").write_text("epoch 1\n")
    rehearse._clear(folder)
    assert [path.name for path in folder.iterdir()] == ["output.log"]
    assert (tmp_path / "elsewhere").is_dir()
    monkeypatch.setattr(rehearse, "_MAX_LOG", 5)
    monkeypatch.setattr(rehearse.files, "CHUNK", 2)
    rehearse._clear(folder)
    assert (folder / "output.log").read_text() == "ch 1\n"
    secret = tmp_path / "elsewhere" / "secret"
    secret.write_text("longer than that")
    (folder / "output.log").unlink()
    (folder / "output.log").symlink_to(secret)
    rehearse._clear(folder)
    assert secret.read_text() == "longer than that"


def test_a_bind_with_the_programs_of_the_rehearsal_is_refused(tmp_path, monkeypatch):
    program = tmp_path / "project" / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "project")
    for bound in ("project", "link", "project/.venv"):
        with pytest.raises(UsageError, match=r"a program that deployer consists of, .*the job could change it"):
            own_paths.check_binds([f"{tmp_path}/{bound}:/data"], [str(program)])
    own_paths.check_binds([f"{tmp_path}/other:/data"], [str(program)])
    monkeypatch.setattr(own_paths.sys, "executable", str(program))
    with pytest.raises(UsageError, match="the job could change it"):
        own_paths.check_binds([f"{tmp_path}/project"])


def test_a_job_can_make_files_where_it_can_at_the_site():
    folder = Path("/root/images/a")
    option = StartOption("charliecloud-folder", "charliecloud", NOT_STAGED, "srun", "", None)
    site = SimpleNamespace(start_options=[option])
    assert rehearse._layered(folder, [], None) == [str(folder / "data")]
    assert rehearse._layered(folder, [], site) == [str(folder / "data"), str(folder / "app")]
    site.start_options.append(option._replace(staging=SQUASHFS))
    assert rehearse._layered(folder, [Path("/root/images/b")], site) == [str(folder / "data"), "/root/images/b/data"]


@pytest.mark.parametrize("used", [["sha256:b"], []])
def test_the_bundles_whose_data_a_job_reads(used, tmp_path, monkeypatch):
    site = object.__new__(rehearse._Site)
    images = [{"digest": f"sha256:{name}", "folder": f"/root/images/{name}"} for name in "ab"]
    monkeypatch.setattr(site, "_ask", lambda words, timeout: {"images": images if used else None})
    running.write(str(tmp_path / "job.json"), LAUNCH._replace(data=used).record())
    assert site.carriers(tmp_path) == [Path("/root/images/b")] * len(used)


def test_a_site_that_cannot_be_simulated_has_its_own_remedy(tmp_path, monkeypatch):
    said = {"exit_code": None, "error": "cannot join the nodes", "hint": "modprobe veth"}
    done = [process.Completed([], 0, json.dumps(each), "") for each in (said, {**said, "hint": ""})]
    monkeypatch.setattr(process, "run", lambda *_, **__: done.pop(0))
    request = RehearsalRequest("b.tar", None, None, None, 10)
    site = rehearse._Site(tmp_path / "root", tmp_path, TOOLS, rehearse.no_bar)
    for hint in ("modprobe veth", "--engine docker"):
        with pytest.raises(Refused, match="cannot join the nodes") as caught:
            site.run(request, RehearsedLayout(1, 1, 1, 1), tmp_path / "job", None, [])
        assert hint in caught.value.hint
