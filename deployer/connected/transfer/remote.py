"""One authenticated ssh connection to a site with the user's ssh configuration, and the site's deployer commands.

A master connection is opened once, and commands and copies use it. The site's login shell may print anything, so each
line that this module reads begins with a marker.
"""

import base64
import contextlib
import functools
import hashlib
import logging
import os
import re
import secrets
import shlex
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, NoReturn

import deployer
from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.ground import locked_folder, progress, this_machine
from deployer.connected.site_profile.profile import Profile, known
from deployer.contract.base import dialogue, json_records, placeholders
from deployer.contract.base.errors import (
    BY_EXIT_CODE,
    EXIT_INTERRUPTED,
    DeployerError,
    MissingTool,
    SpaceError,
    TransferError,
    UsageError,
)
from deployer.contract.base.json_records import Fields
from deployer.contract.base.shell import for_any_login_shell, quoted
from deployer.contract.base.text import printable
from deployer.system import files, process, terminal
from deployer.system.process import Completed

log = logging.getLogger("deployer.remote")

#: Errors from ssh if it cannot make a control socket, and the options to continue without one.
_NO_MULTIPLEXING = re.compile(r"ControlPath|ControlSocket|control socket|Unix domain socket|mux(server|client)_")
_ALONE = ("-o", "ControlMaster=no", "-o", "ControlPath=none")


#: The prefix of each line that is read.
MARK = dialogue.ANSWER
#: The first command of each script: login shell start-up files may have printed text without a line end.
_NEW_LINE = "echo; echo >&2"
#: What scripts print at their start. Some start-up files end the login shell before that.
_BEGUN = f"{MARK}begun"
_CONNECT_SECONDS = 60  # the user may have to type a passphrase
_POLL_SECONDS = 0.01  # between two checks for the connection's socket
_ASK_SECONDS = 1.0  # then ssh itself is asked, which takes a process
_CALL_SECONDS = 120
_SIZE_SECONDS = 10  # only for a progress bar
_UPLOAD_SECONDS = 24 * 3600
#: The most files of a folder to list.
_MOST_FILES = 10000

#: The site half of deployer, in the workspace.
_TOOL = "deployer.pyz"
#: A released version, as the site tool prints it for ``--version``.
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,5}")
#: Characters of that output for `tr` to keep, so that a word that is not a release's version cannot become one.
_VERSION_CHARACTERS = "a-zA-Z0-9.+-"
#: Bytes of a path in an sftp batch. A line has two paths and less than 2048 bytes.
_MAX_SFTP_PATH = 900
#: The admin's folder at the site. The path is fixed, so no user can choose another.
ADMINS_FOLDER = "/etc/deployer"
#: Prints the owner, permissions and path of the folder and of each existing file of a published profile. A link is
#: refused, because it has all permissions: its target may be in a folder that others can write.
_ADMINS = (
    f"for path in {ADMINS_FOLDER} {ADMINS_FOLDER}/profile.json {ADMINS_FOLDER}/profile.facts.json; do\n"
    f'  [ -e "$path" ] && echo {MARK}admins=$(stat -c "%u %a" "$path") "$path"\n'
    "done; true"
)

#: Succeeds if the Python "$p" exists; if it starts and is new enough.
_EXISTS = 'command -v "$p"'
_STARTS = "\"$p\" -c 'import sys; sys.exit(sys.version_info < (3, 6))' </dev/null"

#: Starts a command as after a login, with the site's modules and settings, as for job.sh. Output of the login shell
#: goes to standard error.
_LOGIN = ["sh", "-c", """exec bash -l -c 'exec "$@" >&3 3>&-' bash "$@" 3>&1 >&2""", "sh"]

#: The most characters of an unusable Python's last output.
_MAX_REASON = 160

#: Environment variables that ssh needs.
_ENVIRONMENT = ("SSH_AUTH_SOCK", "SSH_ASKPASS", "DISPLAY", "KRB5CCNAME", "TERM")

_TRY_SSH = "check that ssh HOST works"
#: Errors from ssh: a pattern for its output, our message, and the hint.
_SSH_ERRORS = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|REVOKED HOST KEY", "the site's host key is not the one in known_hosts",
     "ask the site whether its key changed; if so, remove the old key with ssh-keygen -R HOST"),
    (r"Host key verification failed", "the site's host key is not known here yet",
     "log in once with ssh HOST, and compare the fingerprint that it shows with the one that the site publishes"),
    (r"Permission denied", "the site refused the login", "check the user name and the key: try ssh HOST"),
    (r"Could not resolve hostname", "the login host's name cannot be resolved",
     "check that it is in ~/.ssh/config, or name another file by --ssh-config or in $DEPLOYER_SSH_CONFIG"),
    (r"timed out|refused|No route to host|unreachable|closed|reset by|Broken pipe|not responding|broke",
     "the login node does not answer",
     "check the network and the node, then try again; parts that arrived complete are not sent again"),
    (r"[Cc]an't open user config file|Bad configuration option|terminating, \d+ bad configuration",
     "the ssh configuration cannot be used", "check the file given with --ssh-config"),
)  # fmt: skip


class Attended(NamedTuple):
    """The outcome of a site command on this terminal.

    Attributes:
        status: its exit code.
        job: the name of the job that it submitted, empty if none.
        number: the scheduler's job number, empty if none.
    """

    status: int
    job: str
    number: str


class RemoteFile(NamedTuple):
    """The state of a file on the site.

    Attributes:
        size: bytes.
        inode: its number.
        time: seconds since 1970, in decimal, of its last change.
    """

    size: int
    inode: int
    time: str


class Remote:
    """A connection to a site's login node, for use in a ``with`` block.

    Attributes:
        host: the login host, as given to ssh.
        workspace: the site's root folder as in the profile. ``~`` is the user's home on the site, and placeholders are
            allowed. After ``prepare`` it is the actual path.
        inbox: the site's folder for arriving files, with the same rules; empty: they arrive in the workspace.
        python: the site's Python that ``prepare`` found.
        options: the ssh options that select the connection.
    """

    def __init__(self, profile: Profile, ssh_config: Path | None = None) -> None:
        if ssh_config is not None and not ssh_config.is_file():
            raise UsageError(f"there is no ssh configuration {ssh_config}", "give an existing file with --ssh-config")
        self.host = known(profile.login.host, profile, "login", "host")
        self.workspace = known(profile.workspace, profile, "workspace")
        self.inbox = profile.login.inbox or ""
        self._pythons = profile.login.python
        self.python = ""
        self._folder = locked_folder.LockedFolder(locked_folder.SSH, this_machine.folder_for_sockets())
        self._user_options = ["-F", str(ssh_config)] if ssh_config else []
        self.options = self._user_options
        self._env = process.base_environment(*_ENVIRONMENT)
        self._master: process.Background | None = None
        self._given_up = False

    def __enter__(self) -> "Remote":
        """Open the connection, or use an open connection from the user's own ControlMaster.

        Raises:
            TransferError: the connection failed, with the reason.
            MissingTool: ssh not found.
        """
        with ExitStack() as cleanup:
            cleanup.callback(self._close)
            self._open()
            cleanup.pop_all()
        return self

    def give_up(self) -> None:
        """Make another thread that opens or prepares this connection end soon, with a TransferError nobody shows."""
        self._given_up = True
        master = self._master
        if master is not None:
            master.stop()

    def _go_on(self, pid: int = 0) -> None:
        """Raise TransferError if the connection is no longer needed, or end a running ssh, ``pid``."""
        if self._given_up and pid:
            os.kill(pid, signal.SIGTERM)  # not SIGKILL: ssh may need to restore the terminal's echo
        elif self._given_up:
            raise TransferError(f"the connection to {self.host} is not needed any more")

    def _open(self) -> None:
        settings = self._settings()
        if "\ncontrolpath " in settings and self._is_open():  # otherwise ssh has no connection to reuse
            return
        self.options = [*self._user_options, *_patience(settings), "-o", f"ControlPath={self._folder.name}/%C"]
        argv = ["ssh", *self.options, "-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-N", self.host]
        self._master = process.Background(argv, env=self._env, log=f"{self._folder.name}/master.log")
        deadline = time.monotonic() + _CONNECT_SECONDS
        asked = time.monotonic()
        while time.monotonic() < deadline:
            self._go_on()
            status = self._master.poll()
            if status is not None:
                output = self._master.output()
                if _NO_MULTIPLEXING.search(output):
                    log.debug("no multiplexing, so each command logs in for itself: %s", output)
                    self.options = [*self._user_options, *_patience(settings), *_ALONE]
                    return
                self._explain(output or f"ssh ended with {status}")
            if self._has_socket() or time.monotonic() - asked > _ASK_SECONDS:
                if self._is_open():
                    return
                asked = time.monotonic()
            time.sleep(_POLL_SECONDS)
        raise TransferError(f"no connection to {self.host} within {_CONNECT_SECONDS} s", self._try(_TRY_SSH))

    def _has_socket(self) -> bool:
        """Return whether ssh has made our connection's socket, or is about to. This starts no process."""
        return any(path.is_socket() for path in Path(self._folder.name).iterdir())

    def _is_open(self) -> bool:
        argv = ["ssh", *self.options, "-O", "check", self.host]
        return process.run(argv, timeout=20, env=self._env, check=False, tick=self._go_on).returncode == 0

    def _settings(self) -> str:
        """Return ssh's settings for the host, one per line; empty if ssh cannot read them (it reports why later)."""
        argv = ["ssh", *self._user_options, "-G", self.host]
        return process.run(argv, timeout=20, env=self._env, check=False, tick=self._go_on).stdout

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, trace: TracebackType | None) -> None:
        self._close()

    def shell(
        self, script: str, timeout: float = _CALL_SECONDS, check: bool = True, hear: Callable[[str], bool] | None = None
    ) -> Completed:
        """Run a POSIX shell script on the site with any login shell.

        The script is sent to standard input of ``sh``, because csh cannot read quoted arguments with several lines.

        Args:
            timeout: seconds.
            check: raise an error if the script fails.
            hear: receives each line of its standard error and returns whether to leave it out of the result.

        Raises:
            TransferError: the connection failed.
            DeployerError: the script failed, with its exit code.
        """
        self._go_on()
        argv, stdin = self._ssh(["sh"]), f"{_NEW_LINE}; echo {_BEGUN}\n{script}\n"
        done = process.run(argv, timeout, self._env, stdin=stdin, check=False, hear=hear, tick=self._go_on)
        self._check_line(done)
        if _BEGUN not in done.stdout.splitlines():
            raise self._not_begun(done.last_words() if done.stdout.strip() or done.stderr.strip() else "")
        if check and done.returncode:
            self._raise_far(done)
        return done

    def prepare(self, tries: bool = False) -> None:
        """Find the site's Python, and send the site tool (``deployer.pyz``) unless the workspace has the same one.

        A newer tool is kept and used, with a warning: waiting jobs were written for it, and it accepts our commands.
        An existing tool is used only if it belongs to the user or root, or is in a folder of a group whose members
        trust each other. Otherwise its owner could change it after the check.

        Args:
            tries: nobody chose these Pythons, so each is started: it may be too old, or its module may be missing.

        Raises:
            TransferError: the workspace cannot be used.
            MissingTool: the site has none of the Python interpreters.
        """
        self.workspace = self._with_variables(self.workspace, "workspace")
        self.inbox = self._with_variables(self.inbox, "login.inbox")
        tool = make_pyz()
        there = self._path(_TOOL)
        script = "\n".join(
            [
                f"for p in {shlex.join(self._pythons)}; do",
                f"  {_EXISTS} >/dev/null 2>&1 || continue",
                f"  if {f'said=$({_STARTS} 2>&1)' if tries else 'true'}; then echo {MARK}python=$p; break; fi",
                f'  echo {MARK}useless="$p: $(printf %s "$said" | tail -n 1 | cut -c 1-{_MAX_REASON})"',
                "done",
                f"mkdir -p {self._path('incoming')} {self._path('images')} || exit 6",
                f"echo {MARK}home=$(cd {self._path()} && pwd)",
                f"if [ -f {there} ] && {_is_trusted(there, self._path())}; then",
                f"  if {_has_digest(there, tool)}; then echo {MARK}same=yes; else",
                f'  v=$("$p" {there} --version </dev/null 2>/dev/null | head -c 40 | tr -cd {_VERSION_CHARACTERS})',
                f'  printf \'%s\\n\' {MARK}version="$v" {MARK}owner="$(stat -c %U {there} 2>/dev/null)"',
                "  fi",
                "fi",
                _ADMINS,
            ]
        )
        done = self.shell(script, check=False)
        self.admins_files = _admins_files(done)
        answers = dict(re.findall(rf"^{MARK}(\w+)=(.*)", done.stdout, re.MULTILINE))
        if done.returncode or "home" not in answers:
            self._check_space(done.stderr)
            hint = "check that you may write to the workspace given in the profile"
            raise TransferError(f"{self.host}: cannot use {self.workspace}: {done.last_words()}", hint)
        if "python" not in answers:
            where = "give its path: --python PATH" if tries else "write its path into login.python of the site profile"
            lacking = "no Python 3.6 or newer under these names" if tries else "none of the Pythons of its profile"
            reasons = _marked(done, "useless")
            why = "; ".join(printable(text if text[-2:] != ": " else f"{text}older than 3.6") for text in reasons)
            text = f"{self.host} has {lacking}: {', '.join(self._pythons)}{f' ({why})' if why else ''}"
            hint = f"look there for one, also in modules (`module avail python`, `command -v python3`), and {where}; "
            hint += "for one that needs its module, write a script that sets the variables of the module and starts it"
            raise MissingTool(text, hint)
        self.python, self.workspace = answers["python"], answers["home"]
        version, owner = answers.get("version", ""), answers.get("owner") or "UNKNOWN"
        if _is_newer(version):
            newer = f"which is newer than this deployer ({deployer.__version__})"
            text = f"{newer}: jobs may wait there that need it; update deployer here"
            terminal.warn(f"{self.host} keeps its {_TOOL} {version} (owner: {owner}), {text}")
        elif "same" not in answers:
            self._put(tool)

    @property
    def multiplexes(self) -> bool:
        """Return whether all commands share one connection. Otherwise each logs in and may ask the user."""
        return self.options[-len(_ALONE) :] != [*_ALONE]

    def check_open(self) -> None:
        """Raise TransferError if the connection has ended: without it, each command would log in for itself."""
        if self._master is not None and self._master.poll() is not None:
            self._explain(self._master.output() or "the connection closed")

    @functools.cached_property
    def admins_files(self) -> dict[str, tuple[int, int]]:
        """The owner's id and the mode of the admin's folder and of a published profile's files, by path."""
        return _admins_files(self.shell(_ADMINS))

    def site(
        self,
        words: Sequence[str],
        timeout: float = _CALL_SECONDS,
        login: bool = False,
        rest: Sequence[str] = (),
        hear: Callable[[str], None] | None = None,
        tell: Callable[[int, int], None] | None = None,
    ) -> Fields:
        """Run a command of the site's deployer and return its JSON answer. Errors at the site are raised here.

        Args:
            words: the command and its arguments, without ``--json``.
            timeout: seconds.
            login: run it as after a login, with the site's modules and settings.
            rest: the words after ``--``.
            hear: called with each line for the user, such as a warning.
            tell: called with done and total bytes at each progress report.
        """
        before = [*_reporting(tell), *(_LOGIN if login else [])]
        script = shlex.join([*before, *self._site_argv(words), "--json", *(["--", *rest] if rest else [])])
        return self._answer(self.shell(script, timeout, check=False, hear=dialogue.listener(tell)), words, hear)

    def feed(self, words: Sequence[str], pieces: Iterable[bytes]) -> Fields:
        """Run a command like ``site``, with ``pieces`` on its standard input."""
        argv = self._ssh(["sh", "-c", f"{_NEW_LINE}; exec " + shlex.join([*self._site_argv(words), "--json"])])
        return self._answer(process.feed(argv, pieces, _CALL_SECONDS, self._env), words)

    def converse(
        self,
        words: Sequence[str],
        reply: Callable[[Fields], Iterable[bytes]],
        timeout: float,
        tell: Callable[[int, int], None] | None = None,
        then: Sequence[str] = (),
        later: Callable[[Fields], None] | None = None,
        hear: Callable[[str], None] | None = None,
    ) -> Fields:
        """Run a command that first prints an answer. Send it the pieces that ``reply`` makes from that answer.

        Args:
            words: as in ``site``.
            timeout: seconds after the last piece.
            tell: as in ``site``.
            then: the command to run afterwards, whose answer is returned; empty: none.
            later: called with each answer after the first.
            hear: as in ``site``.
        """

        def receive_later(line: str) -> None:
            if later and line.startswith("{") and line.endswith("}"):
                later(self._read(line))

        def receive(line: str) -> Iterable[bytes] | None:
            return reply(self._read(line[len(MARK) :])) if line.startswith(MARK) else None

        command = [*_reporting(tell), *self._site_argv(words), "--json", *(["--", *then] if then else [])]
        argv, listener = self._ssh(["sh", "-c", f"{_NEW_LINE}; exec {shlex.join(command)}"]), dialogue.listener(tell)
        done = process.converse(argv, receive, _CALL_SECONDS, timeout, self._env, listener, receive_later)
        return self._answer(done, words, hear)

    def attach(
        self,
        words: Sequence[str],
        caller: Sequence[str] = (),
        login: bool = False,
        recorded: bool = False,
        reported: Callable[[], None] | None = None,
        heard: Callable[[bytes], bool] | None = None,
    ) -> Attended:
        """Run a command of the site's deployer on this terminal and return its outcome.

        Args:
            caller: the options with which the user's commands select this site, for hints of the command.
            login: as in ``site``.
            recorded: the same command again finds the job that this one submits.
            reported: called when the site has reported the job.
            heard: receives each line of the command's output and returns whether to keep it from the terminal.

        Raises:
            TransferError: the connection broke. The submitted job continues.
        """
        # ssh allocates no terminal: its signals would end the process that watches the job. Variables tell the command
        # that its output is on a terminal.
        names = [dialogue.ANNOUNCE]
        names += [dialogue.TERMINAL] if sys.stderr.isatty() else []
        values = {**dict.fromkeys(names, "1"), **terminal.for_the_site(), dialogue.CALLER: quoted(caller)}
        variables = [f"{name}={value}" for name, value in values.items()]
        script = f"echo {_BEGUN}; exec " + shlex.join(["env", *variables, *self._site_argv(words)])
        if login:  # start-up files may end the login shell
            script = "exec " + shlex.join([*_LOGIN, "sh", "-c", script])
        begun: list[bool] = []
        job = number = ""

        def hear(line: bytes) -> bool:
            nonlocal job, number
            announced = re.match(rf"{MARK}([\w.+-]+) ([\w.;\[\]-]+)$", line.decode("utf-8", "replace"))
            if announced and not job:
                job, number = announced.groups()
            if announced and reported:
                reported()
            return announced is not None

        # Only `run` announces a job. Other commands may print anything, and much of it.
        announces = words[0] == "run" and "--dry-run" not in words
        argv, mark = self._ssh(["sh", "-c", script]), f"{_BEGUN}\n".encode()
        listener = hear if announces else heard
        status = process.attach(argv, self._env, listener, after=mark, begun=lambda: begun.append(True))
        if status == 255:
            message, hint = f"the connection to {self.host} broke", "try again"
            if job:
                follows = "the same command again follows it, and " if recorded else ""
                hint = f"the job continues: {follows}`status {job}` shows it"
            elif announces:
                message += " before the site reported a job"
                follows = "the same command again follows it if there is one" if recorded else "see `jobs`"
                hint = f"the job may have been submitted: {follows}"
            raise TransferError(message, hint)
        if not begun and status != EXIT_INTERRUPTED:
            raise self._not_begun("")
        return Attended(status, job, number)

    def on_terminal(self, words: Sequence[str]) -> int:
        """Run a command of the site's deployer on a terminal there, as after a login, and return its exit status."""
        login = for_any_login_shell(["bash", "-l", "-c", "exec " + shlex.join(self._site_argv(words))])
        return process.attach(["ssh", "-t", *self.options, self.host, login], self._env)

    @contextlib.contextmanager
    def tunnel(self, port: int, address: str, there: str) -> Iterator[None]:
        """Forward a port of this machine, for its own users, to a port of a node while the block runs.

        Raises:
            TransferError: ssh does not forward it.
        """
        words = ["-L", f"127.0.0.1:{port}:{address}:{there}", self.host]
        done = process.run(["ssh", *self.options, "-O", "forward", *words], 20, self._env, check=False)
        if done.returncode:
            raise TransferError(f"ssh cannot forward port {port}: {done.last_words()}", "choose another with --port")
        try:
            yield
        finally:  # the connection may be the user's own, which stays
            process.run(["ssh", *self.options, "-O", "cancel", *words], 20, self._env, check=False)

    def fetch(self, path: str, limit: int) -> bytes:
        """Return the content of a file on the site.

        Raises:
            TransferError: the file is unreadable or larger than ``limit`` bytes.
        """
        # As one line of text with the marker: a login shell may print anything before it.
        script = f"printf %s {MARK}file=; gzip -9c {shlex.quote(path)} | base64 | tr -d '\\n'; echo"
        lines = _marked(self.shell(script), "file")
        whole = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            data = whole.decompress(base64.b64decode(lines[-1]), limit + 1)
        except (IndexError, ValueError, zlib.error) as error:
            raise TransferError(f"{self.host}: cannot fetch {path}", "try again; it needs gzip and base64") from error
        if len(data) > limit or not whole.eof:
            raise TransferError(f"{self.host}: {path} is incomplete, or has more than {limit} bytes")
        return data

    def has(self, folder: str, name: str) -> bool:
        """Return whether a folder on the site contains this name.

        Raises:
            TransferError: the connection failed.
            DeployerError: the folder cannot be entered, so the answer is unknown.
        """
        test = f"[ -e {shlex.quote(name)} ] || [ -L {shlex.quote(name)} ]"
        script = f"cd -- {shlex.quote(folder)} >/dev/null || exit 5; if {test}; then echo {MARK}has; fi"
        return f"{MARK}has" in self.shell(script).stdout.splitlines()

    def files_in(self, folder: str) -> dict[str, RemoteFile]:
        """Return the files below a folder on the site by their paths. Very long lists are cut.

        Raises:
            TransferError: the connection failed.
            DeployerError: the folder cannot be entered.
        """
        listing = f"find . -type f -printf '{MARK}file=%s %i %T@ %P\\n' | head -n {_MOST_FILES}"
        lines = _marked(self.shell(f"cd -- {shlex.quote(folder)} >/dev/null || exit 5; {listing}"), "file")
        rows = filter(None, (re.fullmatch(r"(\d{1,18}) (\d{1,20}) (\d{1,18}\.?\d*) (.+)", line) for line in lines))
        return {row[4]: RemoteFile(int(row[1]), int(row[2]), row[3]) for row in rows}

    def get(self, folder: str, wanted: Sequence[tuple[str, Path, bool]]) -> None:
        """Copy files from a folder on the site. A file that no longer exists is left out.

        Args:
            wanted: the name, the file to write, and whether to add what is missing at its end, for each.

        Raises:
            TransferError: the connection failed.
            SpaceError: the disk is full.
        """
        lines = [
            f"-get {'-a' if adds else '-p'} {_sftp_quoted(f'{folder}/{name}')} {_sftp_quoted(str(path.absolute()))}"
            for name, path, adds in wanted
        ]
        done = self._sftp(lines, self.options, self.host)
        self._check_space(done.stderr)
        if done.returncode:
            self._explain(done.stderr)

    def _sftp(self, lines: Sequence[str], options: Sequence[str], host: str) -> Completed:
        """Run the lines of a batch file with sftp."""
        batch = Path(self._folder.name, "batch")
        batch.write_text("\n".join(lines) + "\n")
        argv = ["sftp", "-q", *options, "-b", str(batch), host]
        return process.run(argv, timeout=_UPLOAD_SECONDS, env=self._env, check=False)

    def download(self, folder: str, target: Path) -> None:
        """Copy a folder from the site to ``target``, which gets its name when it is complete.

        Raises:
            UsageError: ``target`` exists.
            TransferError: the copy failed.
        """
        if files.lexists(str(target)):
            raise UsageError(f"{target} exists", "name a new folder, or remove it")
        with files.errors_named(f"write {target}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            part = tempfile.TemporaryDirectory(prefix=f".{target.name}.part-", dir=target.parent)
        with part:
            new = str(Path(part.name, "new").absolute())
            lines = [f"get -rp {_sftp_quoted(folder)} {_sftp_quoted(new)}"]  # p: keep the files' times
            sftp = functools.partial(self._sftp, lines, self.options, self.host)
            done = progress.of_folder("fetch", Path(part.name), self._total_for_bar(folder), sftp)
            if done.returncode:
                self._check_space(done.stderr)
                self._explain(done.stderr)
            with files.errors_named(f"write {target}"):
                Path(part.name, "new").rename(target)

    def _total_for_bar(self, folder: str) -> int | None:
        """Return a site folder's approximate size in bytes; None: no bar is shown, or it takes too long."""
        if not (terminal.shows_progress() and self.multiplexes):
            return None
        with contextlib.suppress(DeployerError):  # the copy reports the error
            return self.size(folder) or None
        return None

    def size(self, folder: str) -> int:
        """Return the approximate size in bytes of a folder on the site; 0: empty or unknown.

        Raises:
            TransferError: the connection failed.
            JobFailed: it takes too long.
        """
        script = f"echo {MARK}size=$(du -sk {shlex.quote(folder)} 2>/dev/null | cut -f 1)"
        sizes = _marked(self.shell(script, _SIZE_SECONDS, check=False), "size")
        return int(sizes[-1]) * 1024 if sizes and re.fullmatch(r"\d{1,15}", sizes[-1]) else 0

    def remove(self, names: Sequence[str], unless: str = "") -> None:
        """Remove files and folders below the workspace. An empty name means the workspace itself, if it is empty.

        Args:
            unless: a shell pattern. If a name in the workspace matches it, nothing is removed.
        """
        words = [f"rm -rf {self._path(name)}" if name else f"rmdir {self._path()}" for name in names]
        guard = [f"ls -d {self._path()}/{unless} >/dev/null 2>&1 && exit 0"] if unless else []
        self.shell("\n".join([*guard, *(f"{word} 2>/dev/null" for word in words)]), check=False)

    def upload(self, paths: Sequence[Path], target: str, host: str) -> None:
        """Copy files into the site's folder ``target`` with sftp through ``host``, which may allow nothing else.

        Each file gets its final name when it is complete.

        Raises:
            SpaceError: the site has no free space or quota.
            TransferError: the copy failed for another reason.
        """
        lines = [f"-mkdir {_sftp_quoted(target)}"]
        for file in paths:
            path = f"{target}/{file.name}"
            lines.append(f"put {_sftp_quoted(str(file))} {_sftp_quoted(path + '.tmp')}")
            lines.append(f"rename {_sftp_quoted(path + '.tmp')} {_sftp_quoted(path)}")
        # BatchMode=no: otherwise -b prevents ssh from asking for a passphrase.
        options = [*self._user_options, *_patience(self._settings()), "-o", "BatchMode=no"]
        done = self._sftp(lines, options, host)
        if done.returncode:
            self._upload_failed(done, max(file.stat().st_size for file in paths))

    # --- internal ---

    def _with_variables(self, folder: str, key: str) -> str:
        """Return a folder from the profile. The user's login shell supplies the values of its placeholders.

        Args:
            key: its key in the profile.

        Raises:
            UsageError: a variable is empty on the site, or its value is unsafe.
        """
        names = placeholders.names(folder)
        if not names:
            return folder
        question = shlex.quote(placeholders.question(names))
        output = self.shell(f'printf %s {question} | "${{SHELL:-/bin/sh}}" -l', check=False).stdout
        return placeholders.expand(folder, placeholders.answers(output, names), key)

    def _path(self, below: str = "") -> str:
        """Return a path below the workspace, quoted for sh. A leading ``~`` is expanded on the site."""
        whole = f"{self.workspace}/{below}" if below else self.workspace
        if whole.startswith("~/"):
            return '"$HOME"/' + shlex.quote(whole[2:])
        return shlex.quote(whole)

    def _put(self, tool: bytes) -> None:
        """Write the site tool into the workspace. If that fails, or the connection breaks, the old one stays.

        It arrives in its own folder, because another laptop may send one at the same time. A leftover folder is removed
        like abandoned parts.
        """
        self._go_on()
        name = f"incoming/tool-{secrets.token_hex(8)}"
        folder, arrived = self._path(name), self._path(f"{name}/{_TOOL}")
        counted = f'[ "$(wc -c < {arrived})" -eq {len(tool)} ]'
        compared = f"if command -v sha256sum >/dev/null 2>&1; then {_has_digest(arrived, tool)}; else {counted}; fi"
        whole = f"{{ {{ {compared}; }} || {{ echo it did not arrive complete >&2; false; }}; }}"
        script = f"mkdir {folder} && cat > {arrived} && {whole} && mv -f {arrived} {self._path(_TOOL)}"
        script += f"; code=$?; rm -rf {folder}; exit $code"
        done = process.feed(self._ssh(["sh", "-c", script]), [tool], _CALL_SECONDS, env=self._env)
        self._check_line(done)
        if done.returncode:
            self._check_space(done.stderr)
            hint = "if it is another user's, choose a workspace of your own, or of your group, in the profile"
            raise TransferError(f"{self.host}: cannot write {self.workspace}/{_TOOL}: {done.last_words()}", hint)

    def _site_argv(self, words: Sequence[str]) -> list[str]:
        if not self.python:
            raise AssertionError("prepare() comes first")
        return [self.python, f"{self.workspace}/{_TOOL}", *words]

    def _ssh(self, argv: Sequence[str]) -> list[str]:
        return ["ssh", *self.options, self.host, for_any_login_shell(argv)]

    def _upload_failed(self, done: Completed, need: int) -> NoReturn:
        """Raise SpaceError for a full disk. sftp prints only "Failure", so the free space is read on the site."""
        script = f"rm -f {self._path('incoming')}/*/*.tmp; df -Pk {self._path()} | tail -n 1"
        columns = self.shell(script, check=False).stdout.split()
        free = int(columns[-3]) * 1024 if len(columns) >= 6 and columns[-3].isdigit() else need
        self._check_space("No space" if free < need else done.stderr)
        self._explain(done.stderr)

    def _check_space(self, errors: str) -> None:
        if re.search(r"quota exceeded|No space", errors, re.IGNORECASE):
            where = f"{self.host}:{self.workspace}"
            hint = "free some space, or set another workspace in the profile"
            raise SpaceError(f"{where}: no space or quota left", hint)

    def _answer(self, done: Completed, words: Sequence[str], hear: Callable[[str], None] | None = None) -> Fields:
        """Return the answer of a finished command of the site's deployer. Errors at the site are raised here."""
        self._check_line(done)
        if done.returncode:
            self._raise_far(done)
        for line in done.stderr.splitlines():
            if hear and line.startswith("deployer: "):
                hear(printable(line[len("deployer: ") :]))
        lines = done.stdout.splitlines()
        begins = [number for number, line in enumerate(lines) if line.startswith("{")]
        if not begins:
            raise TransferError(f"{self.host} gave no answer to {' '.join(words)}", "see the command's log")
        answer = lines[begins[-1] :]
        several = answer[0] == "{" and "}" in answer  # then each bracket is a line
        return self._read("\n".join(answer[: answer.index("}") + 1 if several else 1]))

    def _read(self, text: str) -> Fields:
        what = f"the answer of {self.host}"
        return Fields(json_records.parse(text.encode(), what, TransferError), what, TransferError)

    def _check_line(self, done: Completed) -> None:
        if done.returncode == 255 or done.returncode < 0:
            self._explain(done.stderr or "the connection closed for an unknown reason")

    def _not_begun(self, output: str) -> TransferError:
        """Return the error for a login shell that ended before it ran a command, with its output."""
        hint = f"try: ssh {self.host} echo works; if it prints nothing, a start-up file there (~/.bashrc, ~/.cshrc) "
        hint += "ends shells without a terminal, or the site allows no commands: see the file, or ask the site"
        why = f": {output}" if output else ""
        return TransferError(f"{self.host}: the login shell ended before it ran a command{why}", hint)

    def _raise_far(self, done: Completed) -> NoReturn:
        """Raise an error of the site's deployer here, with its exit code and hint."""
        lines = done.stderr.splitlines()
        message = next((line for line in reversed(lines) if line.startswith("deployer: error: ")), "")
        hint = next((line[len("hint: ") :] for line in reversed(lines) if line.startswith("hint: ")), "")
        error = DeployerError(f"{self.host}: {message[len('deployer: error: ') :] or done.last_words()}", hint)
        # Other codes come from a shell or a killed program, and are undocumented.
        error.exit_code = done.returncode if done.returncode in BY_EXIT_CODE else DeployerError.exit_code
        raise error

    def _explain(self, output: str) -> NoReturn:
        log.debug("ssh printed: %s", output)
        for pattern, message, hint in _SSH_ERRORS:
            if re.search(pattern, output):
                raise TransferError(f"{self.host}: {message}", self._try(hint))
        words = " / ".join(output.strip().splitlines()[-3:])
        raise TransferError(f"{self.host}: {words or 'the connection failed'}", self._try(_TRY_SSH))

    def _try(self, hint: str) -> str:
        """Return a hint with the command to try in place of ``ssh HOST``."""
        return hint.replace("ssh HOST", quoted(["ssh", *self._user_options, self.host]))

    def _close(self) -> None:
        if self._master is not None:
            self._master.stop()
            self._master = None
        self._folder.cleanup()


def _patience(settings: str) -> list[str]:
    """Return the option that closes a dead connection, unless the user's configuration sets it."""
    own = re.search(r"^serveraliveinterval [1-9]", settings, re.MULTILINE)
    return [] if own else ["-o", "ServerAliveInterval=15"]


def _reporting(tell: Callable[[int, int], None] | None) -> list[str]:
    """Return the words before a site command that let it report its progress if ``tell`` receives it."""
    return ["env", f"{dialogue.PROGRESS}=1"] if tell else []


def _marked(done: Completed, name: str) -> list[str]:
    """Return the values that a script printed in lines with our marker and this name."""
    begin = f"{MARK}{name}="
    return [line[len(begin) :] for line in done.stdout.splitlines() if line.startswith(begin)]


def _has_digest(path: str, data: bytes) -> str:
    """Return a shell test whether the file ``path``, already quoted, has this content."""
    return f'[ "$(sha256sum < {path} 2>/dev/null)" = "{hashlib.sha256(data).hexdigest()}  -" ]'


def _is_trusted(path: str, folder: str) -> str:
    """Return a shell test whether ``path`` in ``folder`` may be started. Both are already quoted.

    Its owner must be the user or root, or its author must be in a group that shares the folder with the user.
    """
    # Without `find`, the folder is not trusted. H: the folder may be a link, and links have all permissions.
    shared = f'[ -w {folder} ] && [ -n "$(find -H {folder} -prune ! -perm -0002 2>/dev/null)" ]'
    roots = f'[ "$(stat -c %u {path} 2>/dev/null)" = 0 ]'
    # A stranger's link could lead elsewhere later.
    return f"{{ {{ [ ! -L {path} ] && {{ [ -O {path} ] || {roots}; }}; }} || {{ {shared}; }}; }}"


def _is_newer(version: str) -> bool:
    """Return whether a site tool of this version is newer than this program. Unreleased versions have no order."""
    both = [version, deployer.__version__]
    if not all(map(_VERSION.fullmatch, both)):
        return False
    there, here = ([int(number) for number in text.split(".")] for text in both)
    return there > here


def _admins_files(done: Completed) -> dict[str, tuple[int, int]]:
    matches = filter(None, (re.fullmatch(r"(\d+) ([0-7]+) (/\S+)", line) for line in _marked(done, "admins")))
    return {match[3]: (int(match[1]), int(match[2], 8)) for match in matches}


def _sftp_quoted(path: str) -> str:
    """Return a path quoted for sftp's batch files.

    Raises:
        TransferError: it has a line end or a NUL, or is too long. The path may come from the site, a batch line can be
            a local command, and sftp splits long lines.
    """
    whole = path.replace("\\", "\\\\").replace('"', '\\"')
    too_long = len(whole.encode("utf-8", "replace")) > _MAX_SFTP_PATH
    if too_long or "\n" in path or "\0" in path:
        why = f"has more than {_MAX_SFTP_PATH} bytes" if too_long else "has a line end or a NUL"
        raise TransferError(f"sftp cannot copy {printable(path)}: its path {why}", "rename it")
    return f'"{whole}"'
