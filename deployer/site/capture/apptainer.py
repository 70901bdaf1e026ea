"""What an Apptainer or Singularity installation can do, from its setuid program and from test containers."""

import base64
import glob
import os
import re
import shutil
import stat
import tempfile
import zlib
from typing import Optional

from deployer.contract.base.errors import DeployerError
from deployer.contract.base.json_records import Record
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

#: Folders below the prefix of an installation that may contain its setuid program.
_FOLDERS = ("libexec", "lib", "lib64", "lib/*")
_NOT_ALLOWED = re.compile(r"^\s*allow\s+setuid\s*=\s*no\b", re.MULTILINE | re.IGNORECASE)
_PATIENCE = 10.0


def facts(tools: Tools, program: str) -> Record:
    """Return what the installation can do, with the keys of a profile's ``SiteRuntime``.

    It starts test containers here. The notes contain the messages of failed starts.
    """
    setuid = starter(shutil.which(program)) is not None
    with tempfile.TemporaryDirectory() as folder:
        image, packed = os.path.join(folder, "image"), os.path.join(folder, "image.sqfs")
        for name in OF_IMAGE:
            os.makedirs(os.path.join(image, name))
        with open(packed, "wb") as stream:
            stream.write(_SQUASHFS.ljust(_LEAST, b"\0"))
        starts = _start(tools, program, image, "FOLDER") is not None
        squashfs = {"squashfs": _way(_start(tools, program, packed, "SQUASHFS"), setuid)} if starts else {}
    return {"setuid": setuid, "starts": starts, **squashfs}


def _start(tools: Tools, program: str, image: str, what: str) -> Optional[Answer]:
    # The image lacks these targets, so each needs an overlay or an underlay.
    binds = [f"--bind={path}:{path}" for path in HOST if os.path.isdir(path)]
    argv = [program, *_WORDS, *binds, image, "/bin/sh", "-c", _LOOK]
    # Like a job: SingularityCE's OCI mode, which an administrator can make the default, cannot start a folder.
    return tools.ask(argv, 4 * EACH, {"SINGULARITY_NO_OCI": "1"}, name=f"{program} exec {what}")


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
    if program is None:
        return None
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    for folder in _FOLDERS:
        for path in glob.glob(os.path.join(glob.escape(prefix), folder, "*", "bin", "starter-suid")):
            found = files.status(path)
            suid = found is not None and found.st_uid == 0 and bool(found.st_mode & stat.S_ISUID)
            if suid and not os.statvfs(path).f_flag & os.ST_NOSUID and not _forbidden(program):
                return path
    return None


def _forbidden(program: str) -> bool:
    """Return whether the configuration has ``allow setuid = no``. Only the program knows the file's path."""
    try:
        answer = process.glance([program, "buildcfg"], _PATIENCE)
    except DeployerError:
        return False
    paths = re.findall(r"^(?:APPTAINER|SINGULARITY)_CONF_FILE=(/.+)$", answer.stdout, re.MULTILINE)
    return any(_NOT_ALLOWED.search(read_text(path)) for path in paths)  # the default is yes
