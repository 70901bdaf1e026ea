"""What an installation of Apptainer or Singularity can do: its setuid program, and a container that is started."""

import glob
import os
import shutil
import stat
import tempfile
from typing import Optional

from deployer.contract.json_records import Record
from deployer.site.capture.tools import EACH, Tools
from deployer.system import files

#: Folders of the host with all that /bin/true needs. The image lacks them, so each needs an overlay or an underlay.
_HOST = ("/bin", "/usr", "/lib", "/lib64")
_WORDS = ("--quiet", "exec", "--cleanenv", "--no-home", "--no-mount=home,cwd,tmp,hostfs")

#: Folders of an installation that may have it, below its prefix.
_FOLDERS = ("libexec", "lib", "lib64", "lib/*")


def facts(tools: Tools, program: str) -> Record:
    """Return what the installation can do, with the keys of a profile's ``SiteRuntime``; a start here is tried."""
    with tempfile.TemporaryDirectory() as image:
        for name in ("dev", "proc", "sys", "etc", "tmp"):
            os.mkdir(os.path.join(image, name))
        binds = ["--bind=%s:%s" % (path, path) for path in _HOST if os.path.isdir(path)]
        # If it fails, its words are in the notes.
        said = tools.ask([program, *_WORDS, *binds, image, "/bin/true"], 4 * EACH, name=program + " exec FOLDER")
    found: Record = {"setuid": starter(shutil.which(program)) is not None}
    return dict(found, starts=said is not None)


def starter(program: Optional[str]) -> Optional[str]:
    """Return the path of the setuid program of the installation of ``program``; None: it has none that works.

    On a file system that is mounted nosuid it does not work.
    """
    if program is None:
        return None
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    for folder in _FOLDERS:
        for path in glob.glob(os.path.join(glob.escape(prefix), folder, "*", "bin", "starter-suid")):
            found = files.status(path)
            suid = found is not None and found.st_uid == 0 and bool(found.st_mode & stat.S_ISUID)
            if suid and not os.statvfs(path).f_flag & os.ST_NOSUID:
                return path
    return None
