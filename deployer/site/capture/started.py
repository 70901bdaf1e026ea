"""Whether a runtime can start the user's own folder, tested with the same words that a job would use."""

import os
import re
import tempfile
from typing import Callable, Sequence

from deployer.contract.base.errors import DeployerError
from deployer.contract.base.json_records import Record
from deployer.site.capture.tools import EACH, Answer, Tools
from deployer.system import files

#: Returns the argv that starts a command from the runtime's name, an image, a private folder, the host folders to bind
#: at their own paths, and the command. The adapters of runtimes are in a higher layer than this one.
TrialWords = Callable[[str, str, str, Sequence[str], Sequence[str]], Sequence[str]]

#: Host folders with everything the command needs, and the folders of an image.
HOST = ("/bin", "/usr", "/lib", "/lib64")
OF_IMAGE = ("dev", "proc", "sys", "etc", "tmp")
_MOST = 200
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def facts(tools: Tools, name: str, words: TrialWords) -> Record:
    """Return ``starts`` and, if it is false, ``failure``, with the keys of a profile's ``SiteRuntime``.

    Both are unknown if the start takes too long, and for root, who does not normally use these runtimes.
    """
    if os.getuid() == 0:
        return {}
    folder = tempfile.mkdtemp()
    try:
        image, private = os.path.join(folder, "image"), os.path.join(folder, "private")
        host = [path for path in HOST if os.path.isdir(path)]
        for path in (*OF_IMAGE, *(path[1:] for path in host)):
            os.makedirs(os.path.join(image, path))
        os.mkdir(private, 0o700)
        argv = words(name, image, private, host, ["/bin/sh", "-c", ":"])
        answer = tools.ask(argv, 2 * EACH, any_status=True, name=f"{name}, a folder")
    finally:
        try:
            files.remove_tree(folder)
        except (OSError, DeployerError) as error:  # a killed container may still be writing
            tools.note(f"{folder} was not removed: {error}")
    if answer is None:
        return {}
    if answer.status == 0:
        return {"starts": True}
    return {"starts": False, "failure": failure(tools, f"{name}, a folder", answer, folder)}


def failure(tools: Tools, name: str, answer: Answer, folder: str) -> str:
    """Return and note the last words of a start that failed. ``folder`` is the temporary one, which says nothing."""
    lines = _COLOUR.sub("", answer.both.replace(folder, "FOLDER")).split("\n")
    said = (" ".join(line.split()) for line in reversed(lines))
    # SingularityCE ends with ": exit status 1".
    last = next((words for words in said if words[:1] not in ("", ":")), "exit %d" % answer.status)
    tools.note("%s: exit %d: %s" % (name, answer.status, last))
    return last[:_MOST]
