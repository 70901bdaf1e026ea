"""What an Apptainer or Singularity installation can do, from its setuid program and from test containers."""

import base64
import functools
import glob
import grp
import os
import pwd
import re
import shutil
import stat
import tempfile
import zlib
from typing import Dict, Iterator, List, Optional, Tuple

from deployer.contract.base.errors import DeployerError
from deployer.contract.base.json_records import Record
from deployer.contract.bundle import sif
from deployer.contract.elf.machines import BY_KERNEL, SUPPORTED
from deployer.contract.site import plan as plans
from deployer.site.capture import started
from deployer.site.capture.started import HOST, OF_IMAGE
from deployer.site.capture.tools import EACH, Answer, Tools, read_text
from deployer.system import files, process

_WORDS = ("exec", "--cleanenv", "--no-home", "--no-mount=home,cwd,tmp,hostfs")
#: Prints the names of the programs that the runtime started alongside this one.
_LOOK = 'for task in $(grep -sl "^PPid:[^0-9]*$PPID\\$" /proc/[0-9]*/status); do grep ^Name: $task; done; :'
#: ``OF_IMAGE`` as a SquashFS file of 246 bytes (mksquashfs -all-root -nopad -no-xattrs).
_SQUASHFS = zlib.decompress(
    base64.b85decode(
        "c-qS-E-YqafB_~j$;cqcaDa)Cfd$B30G0U$rQbp6|4@(s<xhap$Ds5BD6Pj(aVt5c;`9jyRs%L+0b^!E=?EUh^DYkaW;WPxGggK%eaZ=#CEIa"
        "#p$S9#5jGnWkov?11~-edM<z^)TE>vlFk_|aNj`_JiH$QCF3_;IWb|lm>DKO+mWViTX3`xdhNBi7_7Wgn2@MRa8gChv3NI*Oo)X8flu_A$@gd"
        "ATEDa#?1(XK>l3G9<"
    )
)
#: The number of bytes that Apptainer reads to recognize a file.
_LEAST = 64 * 1024

#: Folders below the prefix of an installation that may contain its other programs.
_FOLDERS = ("libexec", "lib", "lib64", "lib/*")
#: As the runtime reads its configuration.
_DIRECTIVE = re.compile(r"^[ \t]*([a-zA-Z _-]+?)[ \t]*=[ \t]*(.*\S)", re.MULTILINE)
_PATHS, _OWNERS, _GROUPS = ("limit container " + kind for kind in ("paths", "owners", "groups"))
#: The execution control list, beside the configuration, and its switch. Its other keys are no directives.
_ECL, _SIGNED = "ecl.toml", "activated"
_PATIENCE = 10.0


def facts(tools: Tools, program: str) -> Record:
    """Return what the installation can do, with the keys of a profile's ``SiteRuntime``.

    It starts test containers here. The notes contain the messages of failed starts.
    """
    setuid = starter(shutil.which(program)) is not None
    places = [tempfile.gettempdir(), os.getcwd(), os.path.expanduser("~")]
    allowed = [path for path in places if os.access(path, os.W_OK) and not _outside(settings(program), path)]
    with tempfile.TemporaryDirectory(dir=(allowed or places)[0]) as folder:
        image, packed = os.path.join(folder, "image"), os.path.join(folder, "image.file")
        for name in OF_IMAGE:
            os.makedirs(os.path.join(image, name))
        answer, failure = _start(tools, program, image, "FOLDER")
        own = {"failure": failure} if failure else {}
        form, machine = plans.SQUASHFS if answer else plans.SIF, os.uname().machine
        if answer or machine in SUPPORTED:  # a SIF file states its architecture
            header = b"" if answer else sif.header(_LEAST, BY_KERNEL[machine].oci)
            with open(packed, "wb") as stream:
                stream.write(header + _SQUASHFS.ljust(_LEAST, b"\0"))
            started_file, last_words = _start(tools, program, packed, form.upper())
            own[form] = _way(started_file, setuid)
            if failure and last_words not in ("", failure):
                own["failure"] = f"{failure}; {last_words}"
    return {"setuid": setuid, "starts": answer is not None, **own}


def _start(tools: Tools, program: str, image: str, what: str) -> Tuple[Optional[Answer], str]:
    """Return the answer of a start, None if it failed, and the last words of one that failed."""
    # The image lacks these targets, so each needs an overlay or an underlay.
    binds = [f"--bind={path}:{path}" for path in HOST if os.path.isdir(path)]
    argv = [program, *_WORDS, *binds, image, "/bin/sh", "-c", _LOOK]
    # Like a job: SingularityCE's OCI mode, which an administrator can make the default, cannot start a folder.
    name = f"{program} exec {what}"
    answer = tools.ask(argv, 4 * EACH, {"SINGULARITY_NO_OCI": "1"}, any_status=True, name=name)
    if answer is None or answer.status == 0:
        return answer, ""
    return None, started.failure(tools, name, answer, os.path.dirname(image))


def _way(answer: Optional[Answer], setuid: bool) -> str:
    """Return how a SquashFS file was started: only a setuid program can let the kernel mount one."""
    if answer is None:
        return "refused"
    if "temporary sandbox" in answer.both:
        return "unpacked"
    return "fuse" if not setuid or "squashfuse" in answer.out else "kernel"


def starter(program: Optional[str]) -> Optional[str]:
    """Return the path of the setuid program of ``program``'s installation; None if it has no working one.

    It does not work on a file system mounted with nosuid, or if the administrator's configuration forbids it.
    """
    for path in _installed(program, "starter-suid") if program else ():
        found = files.status(path)
        suid = found is not None and found.st_uid == 0 and bool(found.st_mode & stat.S_ISUID)
        if suid and not os.statvfs(path).f_flag & os.ST_NOSUID:
            return None if _first(settings(str(program)), "allow setuid") == "no" else path
    return None


def _installed(program: str, name: str) -> Iterator[str]:
    """Yield the paths of another program of an installation."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    for folder in _FOLDERS:
        yield from glob.iglob(os.path.join(glob.escape(prefix), folder, "*", "bin", name))


def mounter(name: str, place: str) -> Optional[str]:
    """Return the squashfuse_ll that can mount a file in ``place`` as a folder for a runtime; None: nothing can.

    A setuid program cannot start the folder, because root has no access to a user's mount.
    """
    program = shutil.which(name)
    if program is None or starter(program) or not shutil.which("fusermount3"):
        return None
    if refusal(program, place, plans.NOT_STAGED, (os.getuid(), os.getgid())):
        return None
    return next(_installed(program, "squashfuse_ll"), None) or shutil.which("squashfuse_ll")


@functools.lru_cache(maxsize=None)
def settings(program: str) -> Dict[str, List[str]]:
    """Return the administrator's settings by name. Only the program knows the file's path."""
    try:
        answer = process.glance([program, "buildcfg"], _PATIENCE)
    except DeployerError:
        return {}
    found: Dict[str, List[str]] = {}
    for path in re.findall(r"^(?:APPTAINER|SINGULARITY)_CONF_FILE=(/.+)$", answer.stdout, re.MULTILINE):
        both = read_text(path) + "\n" + read_text(os.path.join(os.path.dirname(path), _ECL))
        for name, text in _DIRECTIVE.findall(both):
            found.setdefault(name, []).extend(word.strip() for word in text.split(","))
    return found


def refusal(program: str, image: str, form: str, owner: Tuple[int, int], signed: bool = False) -> Optional[str]:
    """Return why the administrator's settings forbid an image; None if they do not, or it is unknown.

    Args:
        image: its path, or the folder in which it will be.
        form: as in ``StartOption``.
        owner: the numbers of its user and group.
        signed: whether it has a signature, which may be of a key that the site does not accept.
    """
    own = settings(program)
    allow = "allow container " + (form if form in (plans.SIF, plans.SQUASHFS) else "dir")
    if _first(own, allow) == "no":
        return f"the site sets `{allow} = no`"
    if form == plans.SIF and not signed and _first(own, _SIGNED).startswith("true"):
        return f"the site sets `{_SIGNED} = true` in {_ECL}: sign the SIF file with an accepted key (apptainer sign)"
    wrong = {_PATHS: image} if _outside(own, image) else {}
    try:
        names = {_OWNERS: pwd.getpwuid(owner[0]).pw_name, _GROUPS: grp.getgrgid(owner[1]).gr_name}
    except KeyError:
        names = {}
    wrong.update((limit, name) for limit, name in names.items() if own.get(limit) and name not in own[limit])
    for limit, image_s in wrong.items():
        return f"the site sets `{limit} = {', '.join(own[limit])}`, not {image_s}"
    return None


def _first(own: Dict[str, List[str]], name: str) -> str:
    return own.get(name, [""])[0]  # of several lines, the first one counts


def _outside(own: Dict[str, List[str]], image: str) -> bool:
    """Return whether an image is in none of the allowed folders. The runtime compares the beginnings of paths."""
    allowed = tuple(os.path.realpath(path) for path in own.get(_PATHS, []))
    return bool(allowed) and not os.path.realpath(image).startswith(allowed)
