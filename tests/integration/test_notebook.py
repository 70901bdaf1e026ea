"""A notebook on a node, opened from the laptop through the login node; and what another user there can do with it."""

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Site, nothing_left
from tests.jupyter_client import Jupyter

pytestmark = [pytest.mark.integration, pytest.mark.needs("root", "docker")]

BUNDLE = """\
name: notebooks
version: "1"
base: {debian: bookworm, include: [python3]}
jobs: {hello: {command: [python3, -c, pass]}}
"""
#: Without JupyterLab's pages, which only a browser needs.
DOCKERFILE = """\
ARG BASE
FROM ${BASE} AS python
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv
RUN python3 -m venv /opt/jupyter && \
    /opt/jupyter/bin/pip install --only-binary :all: jupyter-server==2.21.1 ipykernel==7.1.0
FROM ${BASE}
COPY --from=python /opt/jupyter /opt/jupyter
ENV PATH=/opt/jupyter/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
"""
#: As another user: asks Jupyter with no token and a wrong one, and looks for a folder or socket to use.
STRANGER = """
import glob, os, sys, urllib.error, urllib.request
for headers in ({}, {"Authorization": "token x"}):
    try:
        urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/api/kernels", headers=headers), timeout=10)
        print("opened")
    except urllib.error.HTTPError as error:
        print(error.code)
print([path for path in glob.glob("/tmp/deployer-home-2001-*") if os.access(path, os.R_OK | os.X_OK)])
print([path for path in glob.glob("/proc/[0-9]*/environ") if os.stat(path).st_uid == 2001 and os.access(path, os.R_OK)])
"""


@pytest.fixture(scope="module")
def notebooks(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the name of an image with Jupyter on the lab."""
    folder = tmp_path_factory.mktemp("notebooks")
    (folder / "bundle.yaml").write_text(BUNDLE)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    site.cli("build", folder)
    site.cli("pack", folder, "--site", "lab", "-o", folder / "b.tar")
    site.cli("push", folder / "b.tar", "lab", "--ssh-config", site.lab.ssh_config)
    yield "notebooks"
    site.cli("remove", *site.options, "notebooks", "--force")


def commands_of(site: Site, node: str) -> str:
    return site.lab.sh(node, "root", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '").stdout


@pytest.mark.slow
def test_a_notebook_is_used_by_its_user_alone_and_ends_with_the_terminal(
    site: Site, notebooks: str, tmp_path: Path
) -> None:
    argv = ["env", "--default-signal=INT", ROOT / ".venv" / "bin" / "deployer", "notebook", *site.options, notebooks]
    pipe, environment = subprocess.PIPE, site.cli.environment
    port = 18888 + os.getpid() % 1000
    with nothing_left(site.lab), subprocess.Popen(
        [*argv, "--port", str(port)],
        cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True,
    ) as laptop:  # fmt: skip
        try:
            assert laptop.stdout is not None
            line = laptop.stdout.readline().strip()
            match = re.fullmatch(rf"http://127\.0\.0\.1:{port}/tree\?token=([0-9a-f]{{48}})", line)
            assert match, (line, laptop.stderr and laptop.poll() is not None and laptop.stderr.read())
            token = match[1]
            browser = Jupyter(port, token)
            printed = browser.run("import os, socket; print(socket.gethostname(), os.environ['JUPYTER_RUNTIME_DIR'])")
            node, private = printed.split()
            assert node in ("cn1", "cn2")
            assert browser.ask("GET", "/api/kernels")[0] == 200
            assert Jupyter(port, "x").ask("GET", "/api/kernels")[0] == 403
            assert Jupyter(port, token, "rebound.example").ask("GET", "/api/kernels")[0] == 403
            (listening,) = re.findall(r"(\S+:\d+) .*\"jupyter", site.lab.sh(node, "root", "ss -ltnpH").stdout)
            assert not listening.startswith(("0.0.0.0", "*", "127."))
            for place in (node, "login1"):
                words = ["setpriv", "--reuid", "2002", "--regid", "2002", "--clear-groups", "python3", "-c", STRANGER]
                done = site.lab.sh(place, "root", shlex.join([*words, f"http://{listening}"]))
                assert done.stdout.splitlines() == ["403", "403", "[]", "[]"], done
                assert token not in commands_of(site, place)
            assert "kernel-" in site.lab.sh(node, "root", f"ls {private}").stdout  # its sockets
            assert token not in subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout
        finally:
            os.killpg(laptop.pid, signal.SIGINT)
        assert laptop.wait(60) == 130
        until = time.monotonic() + 60
        while site.alice("squeue -h") and time.monotonic() < until:
            time.sleep(0.5)
        assert not site.alice("squeue -h")
    site.cli("result", *site.options, "-o", tmp_path / "fetched")
    assert (tmp_path / "fetched" / "notebook" / "jupyter.log").is_file()
    state = environment["XDG_STATE_HOME"]
    assert subprocess.run(["grep", "-r", token, tmp_path / "fetched", state], check=False).returncode == 1
    with pytest.raises(ConnectionRefusedError):
        browser.ask("GET", "/api")


def test_an_image_without_jupyter_and_a_shell_on_a_node(site: Site, notebooks: str) -> None:
    refused = site.cli("notebook", *site.options, "hello-mpi", code=3).stderr
    assert "hello-mpi:1.0.0 has no Jupyter\nhint: add jupyterlab to the image" in refused
    words = [str(ROOT / ".venv" / "bin" / "deployer"), "shell", *site.options, notebooks, "--time", "5m"]
    typed = "sleep 8; echo 'hostname; echo $((40 + 2)); ls /opt; exit 3'; sleep 8"
    shell = f"({typed}) | script -qec {shlex.quote(shlex.join(words))} /dev/null"
    done = subprocess.run(
        ["bash", "-c", shell],
        cwd=ROOT,
        env=site.cli.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3, done
    assert re.search(r"^cn[12]\r?\n42\r?\n.*jupyter", done.stdout, re.MULTILINE), done.stdout
