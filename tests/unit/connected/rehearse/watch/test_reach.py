import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from deployer.connected.rehearse.watch import reach, syscalls
from deployer.connected.rehearse.watch.reach import Reach
from deployer.connected.rehearse.watch.syscalls import CallListener

NOBODY = 65534


class Inside(reach.tracee.Tracee):
    """A process that counts as one in a container: nothing here may change its root folder."""

    def __init__(self, task):
        super().__init__(task)
        self.inside = self.apart = True


class Seen:
    def __init__(self):
        self.notes = []
        self.reach = None

    def add(self, kind, what, about):
        self.notes.append((kind, what, about))

    def of(self, kind):
        return [what for each, what, _ in self.notes if each == kind]


@pytest.fixture
def tmp_path():
    """A folder that every user can enter, and that is not below /dev, which is not observed."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def observe(monkeypatch, tmp_path):
    """Return a function that runs a script for sh to its end, and returns what it reached for."""
    monkeypatch.setattr(reach.tracee, "Tracee", Inside)
    tmp_path.chmod(0o777)

    def run(words, ports=(), local=(), limited=False):
        seen = Seen()
        monkeypatch.setattr(reach, "listening", lambda: set(ports))
        seen.reach = Reach(seen.add, local)
        name = f"\0deployer-test-{os.getpid()}"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
            server.listen(1)
            words = ["/bin/sh", "-c", words] if isinstance(words, str) else words
            child = os.fork()
            if child == 0:
                try:
                    os.chdir(str(tmp_path))
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                    if limited and os.getuid() == 0:  # root may write everywhere
                        os.setgroups([])
                        os.setgid(NOBODY)
                        os.setuid(NOBODY)
                    if syscalls.announce(name) is None:
                        os.execv(words[0], words)
                finally:
                    os._exit(100)
            connection, _ = server.accept()
            with connection:
                _, extra, _, _ = connection.recvmsg(100, socket.CMSG_SPACE(4))
                [descriptor] = struct.unpack("i", extra[0][2][:4])
                listener = CallListener(descriptor)
                connection.send(syscalls.READY)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            while True:
                (_, events), *_ = poll.poll(20000)
                if not events & select.POLLIN:
                    break
                seen.reach.handle(listener)
            listener.close()
        seen.reach.end()
        seen.status = os.waitpid(child, 0)[1]
        assert os.WEXITSTATUS(seen.status) != 100
        return seen

    return run


def test_programs_that_are_not_there(observe, tmp_path):
    seen = observe("env gone-1 x; gone-2; ./gone-3; /usr/gone-4; env true; exit 0")
    assert sorted(seen.of("program")) == [str(tmp_path / "gone-3"), "/usr/gone-4", "gone-1", "gone-2"]
    about = {what: about for kind, what, about in seen.notes if kind == "program"}
    assert about["gone-1"]["program"] == "env"
    assert about["gone-1"]["command"] == "env gone-1 x"


def test_a_script_whose_interpreter_is_not_there(observe, tmp_path):
    (tmp_path / "job").write_text("#!/opt/gone/python\n")
    (tmp_path / "job").chmod(0o755)
    seen = observe("env ./job; exit 0")
    assert seen.of("program") == ["/opt/gone/python"]
    assert seen.notes[0][2]["needed_by"] == str(tmp_path / "job")


def test_a_32_bit_program_is_reported_because_a_rehearsal_ends_it(observe, tmp_path):
    (tmp_path / "old").write_bytes(b"\x7fELF\x01\x01\x01" + bytes(60))
    (tmp_path / "old").chmod(0o755)
    seen = observe("env ./old; exit 0")
    assert seen.of("blind") == [f"a 32-bit program, which a rehearsal ends: {tmp_path}/old"]
    assert [about["ended"] for kind, _, about in seen.notes if kind == "blind"] == ["yes"]


def test_a_program_for_another_c_library(observe, tmp_path):
    data = bytearray(Path(os.path.realpath("/bin/cat")).read_bytes())
    at = data.index(b"/lib64/ld-")
    data[at : at + 7] = b"/lib99/"
    (tmp_path / "cat").write_bytes(bytes(data))
    (tmp_path / "cat").chmod(0o755)
    seen = observe("env ./cat; exit 0")
    assert [what[:10] for what in seen.of("program")] == ["/lib99/ld-"]


def test_files_that_a_program_missed_before_it_failed(observe, tmp_path):
    seen = observe("cat /data/gone.txt; cat other; :")
    assert seen.of("missing") == ["/data/gone.txt", str(tmp_path / "other")]
    assert [about["exit_code"] for _, _, about in seen.notes] == ["1", "1"]


def test_a_program_that_succeeds_without_a_file_of_a_site(observe):
    seen = observe(["/usr/bin/perl", "-e", "for (qw(/no-site/a /etc/no-b c)) { open(F, $_) } opendir(D, '/no-site/d')"])
    assert seen.of("missing") == ["/no-site/a", "/no-site/d"]
    assert [about["exit_code"] for _, _, about in seen.notes] == ["0", "0"]


def test_files_that_a_program_can_do_without_are_not_reported(observe):
    script = "import os\ntry: open('gone')\nexcept OSError: pass\n"
    seen = observe([sys.executable, "-I", "-c", script])
    assert [kind for kind, _, _ in seen.notes] == ["blind"]  # this Python has no audit hook
    assert seen.of("blind")[0].startswith("a Python ran without the audit hook: ")
    hooked = observe([sys.executable, "-I", "-c", "open('node-1.jsonl', 'a')"])
    assert hooked.of("blind") == []


def test_writes_that_are_refused(observe, tmp_path):
    folder = tmp_path / "fixed"
    folder.mkdir()
    (folder / "there").write_text("")
    (folder / "there").chmod(0o444)
    folder.chmod(0o555)
    if os.getuid() == 0:
        os.chown(str(folder), NOBODY, NOBODY)
    seen = observe(
        "echo > fixed/new; echo >> fixed/there; mkdir fixed/a fixed; rm -f fixed/there fixed/gone; :", limited=True
    )
    folder.chmod(0o755)
    found = [what[len(str(tmp_path)) + 1 :] for what in seen.of("write")]
    assert found == ["fixed/new", "fixed/there", "fixed/a", "fixed/there"]
    assert {about["why"] for kind, _, about in seen.notes if kind == "write"} == {"not permitted"}


def test_what_may_be_written_is_not_reported(observe, tmp_path):
    seen = observe("mkdir -p a/b; echo x > a/b/c; mv a/b/c a/d; rm -r a; echo x > /dev/null", limited=True)
    assert seen.notes == []
    assert list(tmp_path.iterdir()) == []


CONNECT = """
import socket
for family, address in {}:
    with socket.socket(family, socket.SOCK_DGRAM if address[1:] == (9,) else socket.SOCK_STREAM) as s:
        s.settimeout(0.01)
        try: s.connect(address)
        except OSError: pass
"""


def test_addresses_and_daemons(observe):
    # Datagrams, so that nothing leaves this machine; a connection only to this machine.
    addresses = [
        (2, ("192.0.2.7", 9)),
        (2, ("192.0.2.8", 9)),
        (2, ("127.0.0.1", 1)),
        (2, ("127.0.0.1", 2)),
        (1, "/run/gone.sock"),
        (1, "\0gone-abstract"),
        (1, "/run/nscd/socket"),
    ]
    seen = observe([sys.executable, "-I", "-c", CONNECT.format(addresses)], ports=[2], local=["192.0.2.8"])
    assert seen.of("address") == ["192.0.2.7 port 9"]
    assert seen.of("daemon") == ["/run/gone.sock", "@gone-abstract", "127.0.0.1 port 1"]


CONNECT_AND_END = """
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.7", 9))
"""


def test_an_address_is_told_even_if_its_process_cannot_be_asked_for_more(observe, monkeypatch):
    def ended(who, host):
        raise OSError(3, "No such process")

    monkeypatch.setattr(Inside, "licence", ended)
    seen = observe([sys.executable, "-I", "-c", CONNECT_AND_END])
    assert seen.of("address") == ["192.0.2.7 port 9"]


def test_a_licence_is_read_while_the_call_waits(monkeypatch):
    notes = Seen()
    made = Reach(notes.add)
    who = Inside(os.getpid())
    monkeypatch.setattr(Inside, "licence", lambda who, host: "LM_LICENSE_FILE")
    judge = made._connecting(who, struct.pack("=H", socket.AF_INET) + struct.pack("!H", 27000) + b"\xc0\0\x02\x07")
    monkeypatch.undo()
    judge()
    assert [(what, about["licence"]) for _, what, about in notes.notes] == [("192.0.2.7 port 27000", "LM_LICENSE_FILE")]


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (struct.pack("=HHII", 40, 0, 1024, 2), "vsock:2 port 1024"),
        (struct.pack("=H", 40), "family:40"),
        (struct.pack("=HI", 30, 7), "family:30"),
        (struct.pack("=HHII", socket.AF_NETLINK, 0, 0, 0), None),
        (struct.pack("=HHII", socket.AF_UNSPEC, 0, 0, 0), None),
    ],
)
def test_addresses_of_other_families_are_told(address, text):
    notes = Seen()
    judge = Reach(notes.add)._connecting(Inside(os.getpid()), address)
    if judge is not None:
        judge()
    assert notes.of("address") == ([text] if text else [])


def test_a_number_that_was_outside_of_a_container_is_looked_at_anew(monkeypatch):
    class Reused(reach.tracee.Tracee):
        looks = 0

        def __init__(self, task):
            super().__init__(task)
            Reused.looks += 1
            self.inside = self.apart = Reused.looks > 1

    monkeypatch.setattr(reach.tracee, "Tracee", Reused)
    made = Reach(Seen().add)
    assert [made._who(os.getpid(), False).apart for _ in range(3)] == [False, True, True]
    assert Reused.looks == 2


def test_a_path_with_dots_is_the_one_that_the_kernel_uses(observe, tmp_path):
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "real/data").write_text("")
    (tmp_path / "link").symlink_to("real/sub")
    seen = observe("cat link/../gone; :")
    assert seen.of("missing") == [str(tmp_path / "real/gone")]
    root = Inside(os.getpid()).root
    for path, plain in (
        ("link/../new/file", "real/new/file"),
        ("link/..", "real"),
        ("gone/../x", "x"),
        ("link/x", "link/x"),
    ):
        assert reach._plain(root, str(tmp_path / path)) == str(tmp_path / plain)
    assert reach._plain(root, "//../..") == "/"


def test_a_list_of_files_that_is_full_says_so(monkeypatch):
    made = Reach(Seen().add)
    monkeypatch.setattr(reach, "_MAX_OPENED", 1)
    made._add("/one")
    made._add("/one")
    assert made.all_listed
    made._add("/two")
    assert (made.opened, made.all_listed) == ({"/one"}, False)


def test_opened_files_are_listed(observe, tmp_path):
    (tmp_path / "input").write_text("x")
    (tmp_path / "link").symlink_to("input")
    seen = observe("cat link")
    assert str(tmp_path / "input") in seen.reach.opened
    assert os.path.realpath("/bin/cat") in seen.reach.opened
    assert any("/libc.so" in name for name in seen.reach.opened)


def test_the_program_sees_no_difference(observe, tmp_path):
    script = "cat gone; echo $? > codes; env gone; echo $? >> codes; exec 3</dev/null; cat <&3; exit 7"
    plain = subprocess.call(["/bin/sh", "-c", script], cwd=str(tmp_path), stderr=subprocess.DEVNULL)
    before = (tmp_path / "codes").read_text()
    seen = observe(script)
    assert os.WEXITSTATUS(seen.status) == plain == 7
    assert (tmp_path / "codes").read_text() == before == "1\n127\n"


def test_the_main_thread_is_told_from_others(observe):
    program = """
import socket, threading
def ask(port):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.7", port))
ask(7)
thread = threading.Thread(target=ask, args=(9,))
thread.start()
thread.join()
"""
    seen = observe([sys.executable, "-c", program])
    main = {what: about["main"] for kind, what, about in seen.notes if kind == "address"}
    assert main == {"192.0.2.7 port 7": "yes", "192.0.2.7 port 9": ""}
