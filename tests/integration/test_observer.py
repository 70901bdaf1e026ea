"""The observer of a node beside real programs that are not Python, in an image that has none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Makes the namespaces' network and an image of static programs with a read-only root, and runs a job in it.
NODE = """
set -eu
ip link set lo up
image=$1; out=$2; python=$3; job=$4
mount -t tmpfs none "$image"
mkdir "$image"/bin "$image"/etc "$image"/tmp "$image"/dev "$image"/proc "$image"/data
cp /bin/busybox "$out"/../reach "$image"/bin/
echo nameserver 127.0.0.1 > "$image"/etc/resolv.conf
echo 127.0.0.1 localhost > "$image"/etc/hosts
echo hello > "$image"/data/input
mount --rbind /dev "$image"/dev
mount --rbind /proc "$image"/proc
mount -t tmpfs none "$image"/tmp
mount -o remount,ro "$image"
mkfifo "$out"/ready
"$python" -m deployer.connected.rehearse.watch.observer --out "$out" --node node1 --peer 10.77.0.12 \
    --measure "$image"/tmp > "$out"/ready &
observer=$!
read -r word < "$out"/ready
test "$word" = ready
status=0
"$python" -c 'import os, sys
from deployer.connected.rehearse.watch import syscalls
syscalls.confine()
syscalls.announce()
os.execvp(sys.argv[1], sys.argv[1:])' chroot "$image" /bin/busybox sh -c "$job" || status=$?
kill "$observer"
wait "$observer"
exit "$status"
"""

#: A static program: a connection and a datagram, with all descriptors closed before, in a child that ignores SIGTERM.
REACH = """
#include <arpa/inet.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static int reach(int kind, const char *address, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &to.sin_addr);
    int s = socket(AF_INET, kind, 0);
    return kind == SOCK_STREAM ? connect(s, (void *)&to, sizeof to) : sendto(s, "x", 1, 0, (void *)&to, sizeof to);
}
int main(void) {
    signal(SIGTERM, SIG_IGN);
    for (int each = 0; each < 100; each++) close(each);
    if (fork() == 0) {
        reach(SOCK_STREAM, "198.51.100.7", 443);
        reach(SOCK_DGRAM, "198.51.100.8", 514);
        reach(SOCK_STREAM, "10.77.0.12", 80);
        return 0;
    }
    wait(0);
    return 0;
}
"""

JOB = """
busybox nslookup data.example.org
/bin/reach
no-such-solver --fast
echo x > /etc/settings
busybox mkdir /opt
busybox dd if=/dev/zero of=/tmp/big bs=1M count=3 2>/dev/null
busybox cat /data/input /data/weights.bin
busybox env other-solver
exit 3
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Run the job; return its exit status, its observations, what it used and the files that it opened."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "reach.c").write_text(REACH)
    compile_it = ["gcc", "-static", "-o", str(folder / "reach"), str(folder / "reach.c")]
    subprocess.run(compile_it, check=True, timeout=60)
    image, out = folder / "image", folder / "out"
    image.mkdir()
    out.mkdir()
    unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child"]
    words = [*unshare, "--mount-proc", "bash", "-c", NODE, "bash", str(image), str(out), sys.executable, JOB]
    done = subprocess.run(words, cwd=str(ROOT), capture_output=True, text=True, timeout=120, check=False)
    assert (out / "node1.used.json").exists(), done.stderr
    observations = [json.loads(line) for line in (out / "node1.network.jsonl").read_text().splitlines()]
    used = json.loads((out / "node1.used.json").read_text())
    return done, observations, used, (out / "node1.files").read_text().splitlines()


def of(seen, kind):
    return {item["what"]: item["about"] for item in seen[1] if item["kind"] == kind}


@pytest.mark.needs("root")
def test_host_names_and_addresses(seen):
    hosts, addresses = of(seen, "host"), of(seen, "address")
    assert set(hosts) == {"data.example.org"}
    assert hosts["data.example.org"]["command"] == "busybox nslookup data.example.org"
    assert set(addresses) == {"198.51.100.7 port 443", "198.51.100.8 port 514"}
    assert {about["program"] for about in addresses.values()} == {"reach"}


@pytest.mark.needs("root")
def test_refused_writes_and_what_is_missing(seen):
    writes = of(seen, "write")
    assert {what: about["why"] for what, about in writes.items()} == {
        "/etc/settings": "read-only",
        "/opt": "read-only",
    }
    assert set(of(seen, "program")) == {"no-such-solver", "other-solver"}
    assert "/data/weights.bin" in of(seen, "missing")
    assert not of(seen, "blind")


@pytest.mark.needs("root")
def test_what_was_used_and_opened(seen):
    done, _, used, opened = seen
    assert done.returncode == 3
    assert "hello" in done.stdout  # the job saw what it always sees
    assert {"/bin/busybox", "/bin/reach", "/data/input"} <= set(opened)
    assert 3 * 1024**2 <= used["temporary"] < 4 * 1024**2
    assert used["files_opened"] == len(opened)
