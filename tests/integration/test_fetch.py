"""`fetch` with programs of others, then the same job on a simulated site without a network. Needs user namespaces."""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import ROOT, WORKSPACE, Cli, Site
from tests.lab import Lab
from tests.lab.internet import Fault, Internet
from tests.lab.internet.hub import TOKEN

HOST = "data.example.org"
DEFINITION = """
name: fetches
version: 1.0.0
base: {debian: bookworm, include: [python3, python3-requests, curl, wget, ca-certificates]}
mpi: []
jobs:
  train: {command: [python3, /deployer/app/train.py], time: "00:05:00"}
"""
PROGRAM = """
import json, os, pathlib, subprocess, urllib.request
import requests

cache = pathlib.Path(os.path.expanduser("~/.cache/tool"))
places = {name: cache / name for name in ("urllib", "requests", "curl", "wget")}
def get(name, path):
    url = f"https://data.example.org/{name}"
    if name == "urllib":
        urllib.request.urlretrieve(url, path)
    elif name == "requests":
        path.write_bytes(requests.get(url, timeout=60).content)
    else:
        subprocess.run(["curl", "-fsSLo", path, url] if name == "curl" else ["wget", "-qO", path, url], check=True)
for name, path in places.items():
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        get(name, path)
os.makedirs("data", exist_ok=True)
if not os.path.exists("data/model"):
    first = requests.get("https://huggingface.co/org/gated/resolve/main/model.safetensors", timeout=60)
    first.raise_for_status()
    open("data/model", "wb").write(first.content)
pathlib.Path("result.json.txt").write_text("x")
print({name: path.stat().st_size for name, path in places.items()}, os.path.getsize("data/model"), flush=True)
"""
BODY = os.urandom(300_000)


@pytest.fixture
def internet(tmp_path: Path) -> Iterator[Internet]:
    with Internet(tmp_path / "internet") as made:
        for name in ("urllib", "requests", "curl", "wget"):
            made.files(HOST).put(f"/{name}", name.encode() + BODY)
        made.files(HOST).fault("/requests", Fault.CUT)
        made.hub.add("org/gated", {"model.safetensors": BODY}, license_="apache-2.0", gated=True)
        yield made


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    folder = tmp_path / "fetches"
    (folder / "app").mkdir(parents=True)
    (folder / "bundle.yaml").write_text(DEFINITION)
    (folder / "app" / "train.py").write_text(PROGRAM)
    made = deployer("build", folder, env={})  # the base comes from Debian's mirror, not from the lab's internet
    assert made.returncode == 0, made.stderr
    return folder


def deployer(*words: object, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    argv = [str(ROOT / ".venv" / "bin" / "deployer"), *map(str, words)]
    return subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=900, check=False)


def fetched(definition: Path, internet: Internet, *words: str, token: str = TOKEN) -> dict[str, Any]:
    done = deployer("fetch", definition, "--json", *words, env={**internet.environment, "HF_TOKEN": token})
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def test_what_programs_download_is_at_the_same_places_without_a_network(definition: Path, internet: Internet) -> None:
    record = fetched(definition, internet)
    assert record["kept"]["home"] == {".cache": [4, 4 * len(BODY) + len("urllibrequestscurlwget")]}
    assert record["kept"]["job"] == {"data": [1, len(BODY)]}
    assert record["licences"] == {"org/gated": "apache-2.0"}
    lock = (definition / "fetch.lock").read_text()
    assert lock.count('"sha256"') == 5
    assert "Signature" not in lock
    assert not [path for path in definition.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]

    done = deployer("rehearse", definition, "--json", env={"https_proxy": "http://127.0.0.1:9"})
    assert (done.returncode, json.loads(done.stdout)["findings"]) == (0, []), done.stderr

    before = len(internet.requests)
    again = fetched(definition, internet)
    assert (again["received"] < 20_000, again["changed"]) == (True, [])
    assert {seen.status for seen in internet.requests[before:] if seen.host == HOST} == {304}
    assert (definition / "fetch.lock").read_text() == lock


def test_the_lock_refuses_other_files_and_keeps_the_last_ones(definition: Path, internet: Internet) -> None:
    fetched(definition, internet)
    again = fetched(definition, internet, "--locked")
    assert (again["received"] < 20_000, again["changed"]) == (True, [])
    path, last = definition / "fetch.lock", hashlib.sha256(b"curl" + BODY).hexdigest()
    path.write_text(path.read_text().replace(last, "0" * 64))
    refused = deployer("fetch", definition, "--locked", env={**internet.environment, "HF_TOKEN": TOKEN})
    assert refused.returncode == 4
    assert f"https://{HOST}/curl: it is not the file in the lock: SHA-256 {last}" in refused.stderr
    assert len(list((definition / "fetched").rglob("curl"))) == 1
    assert f"changed: https://{HOST}/curl" in fetched(definition, internet)["changed"]
    internet.files(HOST).fault("/wget", Fault.GONE)
    gone = deployer("fetch", definition, env={**internet.environment, "HF_TOKEN": TOKEN})
    assert gone.returncode == 1
    assert f"https://{HOST}/wget: it is gone (not found)" in gone.stderr


def test_a_gated_model_without_a_login_is_named(definition: Path, internet: Internet) -> None:
    home = {"HF_TOKEN": "", "HF_HOME": str(definition)}
    done = deployer("fetch", definition, env={**internet.environment, **home})
    assert done.returncode == 1
    assert "it is gated: accept its terms on its page, and log in" in done.stderr
    assert not (definition / "fetched").exists()
    assert sorted(path.name for path in definition.iterdir()) == ["app", "bundle.yaml"]


@pytest.mark.slow
def test_a_job_is_ended_at_a_text_or_a_time_and_its_files_are_kept(definition: Path, internet: Internet) -> None:
    program = definition / "app" / "train.py"
    program.write_text(PROGRAM + "import time; print('epoch 1', flush=True); time.sleep(600)\n")
    record = fetched(definition, internet, "--until", "epoch 1")
    assert (record["ending"], len(record["downloads"])) == ("it printed the text of --until", 5)
    record = fetched(definition, internet, "--time", "30s")
    assert (record["ending"], len(record["downloads"])) == ("the time limit ended it (--time)", 5)


READER = """
import http.server, os, subprocess, time, urllib.error, urllib.request
import requests

def read(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()

def curl(url):
    return subprocess.run(["curl", "-fsSL", url], check=True, stdout=subprocess.PIPE).stdout

url, plain = "https://data.example.org/", "http://data.example.org/"
found = [read(url + "urllib?token=secret"), requests.get(url + "requests", timeout=60).content, curl(url + "curl")]
found += [curl(url + "moved"), read(plain + "wget"), str(requests.get(url + "api", timeout=60).json()).encode()]
print("sizes", [len(each) for each in found], flush=True)
rank, ranks, near = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
if ranks == "2":
    try:
        read(url + "other?token=secret")
    except urllib.error.HTTPError as error:
        print("other:", error, flush=True)
    port = int(os.environ["MASTER_PORT"])
    if rank == "0":
        with http.server.HTTPServer(("", port), http.server.SimpleHTTPRequestHandler) as server:
            for _ in range(int(ranks) - 1):
                server.handle_request()
    for _ in range(60 if rank != "0" else 0):
        try:
            print("near", len(read(f"http://{near}:{port}/")) > 0, flush=True)
            break
        except OSError:
            time.sleep(0.5)
"""


@pytest.mark.slow
def test_what_a_program_reads_without_a_copy_is_answered_on_nodes(
    definition: Path, internet: Internet, lab: Lab, cli: Cli, tmp_path: Path
) -> None:
    internet.files(HOST).put("/api", b"[1, 2, 3]", {"Content-Type": "application/json"})
    internet.files(HOST).put("/moved", b"")
    internet.files(HOST).fault("/moved", Fault.MOVED, "https://cdn.example.org/real?Signature=abc")
    internet.files("cdn.example.org").put("/real", BODY)
    (definition / "app" / "train.py").write_text(READER)
    record = fetched(definition, internet)
    paths = ("api", "curl", "moved", "requests", "urllib")
    assert record["replayed"] == [f"http://{HOST}/wget", *(f"https://{HOST}/{path}" for path in paths)]
    assert (record["kept"]["home"], record["kept"]["job"]) == ({}, {})
    answers = {path.name: path.read_bytes() for path in (definition / "fetched" / "train" / "replay").iterdir()}
    assert not [name for name, body in answers.items() if b"secret" in body or b"Signature" in body]
    assert answers.pop("hosts") == HOST.encode()
    done = deployer("rehearse", definition, "--json", env={"https_proxy": "http://127.0.0.1:9"})
    assert (done.returncode, json.loads(done.stdout)["findings"]) == (0, []), done.stderr
    fetched(definition, internet, "--locked")
    assert (definition / "fetched" / "train" / "replay" / "key.pem").read_bytes() == answers["key.pem"]

    path = tmp_path / "reads.tar"
    cli("pack", definition, "--site", "lab", "-o", path)
    cli("push", path, "lab", "--ssh-config", lab.ssh_config)
    site = Site(cli, lab)
    site.run("--nodes", "2", bundle="fetches")
    log = site.alice(f"cat $(ls -td {WORKSPACE}/jobs/* | head -n 1)/output.log")
    sizes = [len(BODY) + len(name) for name in ("urllib", "requests", "curl")] + [len(BODY), len(BODY) + 4, 9]
    assert log.count(f"sizes {sizes}") == 2, log
    assert (log.count("near True"), log.count("other: HTTP Error 502: not recorded by `deployer fetch`")) == (1, 2), log
    assert log.count(f"GET https://{HOST}/other: not recorded by `deployer fetch`") == 2
    assert "secret" not in log


HUB_DATA = """
name: weights
version: 1.0.0
data:
  model: {{hub: org/model, revision: {model}}}
  texts: {{hub: datasets/org/texts, revision: {texts}, include: ["*.jsonl"]}}
"""


def test_repositories_of_a_hub_are_data_of_a_revision(internet: Internet, tmp_path: Path) -> None:
    shards = {f"model-{number}.safetensors": os.urandom(3_000_000) for number in range(3)}
    more = {"config.json": b"{}", "pytorch_model.bin": b"pickle", "sub/vocab.txt": b"a"}
    model = internet.hub.add("org/model", {**shards, **more}, license_="apache-2.0")
    texts = internet.hub.add("org/texts", {"a.jsonl": b"{}\n", "b.csv": b"1"}, kind="dataset", gated=True)
    folder = tmp_path / "weights"
    folder.mkdir()
    revisions = {"model": model.branches["main"], "texts": texts.branches["main"]}
    (folder / "bundle.yaml").write_text(HUB_DATA.format(**revisions))

    assert "are not fetched" in deployer("pack", folder, "-o", tmp_path / "b.tar", env={}).stderr
    refused = deployer("fetch", folder, env={**internet.environment, "HF_TOKEN": "hf_wrong"})
    assert refused.returncode == 3
    assert "it is gated" in refused.stderr
    first, second = fetched(folder, internet)["data"]
    assert (first["files"], first["left"], first["licence"]) == (6, ["pytorch_model.bin"], "apache-2.0")
    assert first["running"] == []
    assert sorted(path.name for path in (folder / "fetched-data" / "texts").iterdir()) == ["a.jsonl"]
    assert second["received"] == 3
    assert (folder / "fetched-data" / "model" / "model-1.safetensors").read_bytes() == shards["model-1.safetensors"]
    assert [each["received"] for each in fetched(folder, internet, "--locked")["data"]] == [0, 0]

    changed = {**shards, "model-1.safetensors": os.urandom(3_000_000)}
    revisions["model"] = model.commit({**changed, **more})
    (folder / "bundle.yaml").write_text(HUB_DATA.format(**revisions))
    assert "are not fetched" in deployer("pack", folder, "-o", tmp_path / "b.tar", env={}).stderr
    assert deployer("fetch", folder, "--locked", env={**internet.environment, "HF_TOKEN": TOKEN}).returncode == 3
    assert fetched(folder, internet)["data"][0]["received"] == 3_000_000
    packed = deployer("pack", folder, "-o", tmp_path / "b.tar", env={})
    assert packed.returncode == 0, packed.stderr
    assert not [path for path in folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]

    model.commits[revisions["model"]]["config.json"] = b"[]"  # what no hub does
    assert (
        "is not the file in fetch.lock"
        in deployer("fetch", folder, env=internet.environment | {"HF_TOKEN": TOKEN}).stderr
    )
