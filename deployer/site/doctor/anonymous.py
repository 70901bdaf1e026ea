"""Text without names: only words from deployer's own documents, small numbers, and versions are kept.

All other words are replaced with placeholders: known names with those of ``redact``, the rest with ``word-1``, etc.
"""

import errno
import os
import re
from typing import Any, Dict, FrozenSet, Mapping, Match, Sequence

from deployer.contract.site.runtime_table import RUNTIMES
from deployer.site.capture.redact import Redaction
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.system.tool import documents

_TOKEN = re.compile(r"\w(?:[\w.+-]*\w)?")
#: Names of steps, systems and version parts that the documents may lack, and folders that all systems have. After a
#: slash, no other word is kept.
_MORE = (
    "aarch64 almalinux centos debian enterprise fedora hat leap linux opensuse oracle red rhel rocky stream suse "
    "ubuntu x86_64 broken codec completed drain gnu idle intel-mpi libzstd mixed ok os pmi2 pmix right skipped sysctl "
    "us usable works zstd"
)
_PLACES = (
    "bin dev etc home include lib lib64 linux libexec local mnt modules opt proc run sbin share shm sys tmp usr var "
    "cray cuda hpcx intel mpi mpich mvapich2 nvidia oneapi openmpi python3 x86_64-linux-gnu aarch64-linux-gnu"
)
_FOLDERS = frozenset(_PLACES.split())
_PROGRAMS = frozenset([*RUNTIMES, *(known.program for known in RUNTIMES.values())])
_PLACEHOLDER = re.compile(r"(?:account|address|folder|host|job|partition|site|bundle|user)-\d+")
_SUFFIX = r"(?:[.+-](?:el\d{1,2}(?:_\d{1,2})?|x86_64|aarch64|amd64|arm64|cloud|default|generic|rt|dfsg\d|rc\d{1,2}))*"
_NUMBER = re.compile(r"v?\d{1,4}(?:\.\d{1,4}){0,5}(?:-\d{1,4}(?:\.\d{1,4}){0,3})?" + _SUFFIX)
_FILE = re.compile(
    r"lib(?:c|cuda|fabric|ibverbs|m|mpi|mpifort|nccl|pmi2?|pmix|psm2|uc[pst])\.so(?:\.\d{1,3})*|python3(?:\.\d{1,2})?"
)
#: The part to keep of a kernel version that includes its builder's name.
_BEGINNING = re.compile(r"\d{1,2}(?:\.\d{1,4})+-")
#: The maximum number of digits to keep: ids of users and jobs, and telephone numbers, have more.
_DIGITS = 11


class Anonymous:
    """Replaces names and unknown words in JSON values; keys must be deployer's own.

    Args:
        names: known names by kind, as for ``Redaction``.
    """

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self._redact = Redaction(names)
        #: Texts of deployer's own, which are kept whole.
        self._ours = frozenset([*(page.code for page in documents.every_page()), *RUNTIMES, *SCHEDULERS])
        self._vocabulary = _vocabulary()
        self._unknown: Dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        """Return ``value`` without names."""
        if isinstance(value, str):
            return value if value in self._ours else _TOKEN.sub(self._word, self._redact(value))
        if isinstance(value, dict):
            return {key: self(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self(each) for each in value]
        return value

    def _word(self, match: Match[str]) -> str:
        word, before = match.group(), match.string[: match.start()]
        known = _FOLDERS if before.endswith("/") else self._vocabulary
        if word.lower() in known or word in _PROGRAMS or len(word) == 1 or _PLACEHOLDER.fullmatch(word):
            return word
        if _FILE.fullmatch(word) or (_NUMBER.fullmatch(word) and sum(map(str.isdigit, word)) <= _DIGITS):
            return word
        version = _BEGINNING.match(word)
        return (version.group() if version else "") + self._unknown.setdefault(
            word.lower(), "word-%d" % (len(self._unknown) + 1)
        )


def _vocabulary() -> FrozenSet[str]:
    """Return the words of the documents and of the system's error messages, except those with digits."""
    texts = [*documents.by_name().values(), *map(os.strerror, errno.errorcode)]
    words = {word.lower() for text in texts for word in _TOKEN.findall(text)}
    return frozenset(_MORE.split()).union(word for word in words if not any(map(str.isdigit, word)))
