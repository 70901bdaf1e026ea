"""What flatten leaves out because no job reads it: caches always; with ``lean``, what few jobs read, and copies.

The groups of the expressions have the names of ``flatten.CHANGES``.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator

from deployer.connected.rootfs.entries import FileContent
from deployer.connected.rootfs.merge import Rootfs, TreeNode
from deployer.contract.base.grouping import grouped

#: What package managers would download again. Without the internet, none of it is of use.
_CACHES = (
    rb"(?P<caches_dropped>var/cache/(apt|apk|dnf|libdnf5|yum|zypp)/|var/lib/apt/lists/"
    rb"|(root|home/[^/]+)/\.cache/pip/"
    rb"|(opt|root|home/[^/]+|usr/local)/[^/]*(conda|mamba|forge)[^/]*/pkgs/[^/]+\.(conda|tar\.bz2)$)"
)
#: astropy imports its own tests. Copyright notices must go with the programs.
_LEAN = (
    rb"|(?P<tests_dropped>(.*/)?(site|dist)-packages/(?!astropy/).+/tests/|usr/(local/)?lib/python3[^/]*/test/)"
    rb"|(?P<manuals_dropped>usr/(local/)?share/(doc|gtk-doc|help|info|locale|man)/.*(?<!/copyright)$)"
)
_FOR_COMPILERS = (
    rb"|(?P<for_compilers_dropped>.*(\.(a|la|h|hh|hpp|hxx|cuh|inl)|/include/.*)(?<!/pyconfig\.h)(?<!\.py)$)"
)
#: Bytes from which a copy becomes a link.
_COPY = 64 * 1024
_PIECE = 4 * 1024 * 1024
#: Compilers, and libraries that compile while a job runs.
_COMPILER = re.compile(
    rb"(.*/)?bin/([^/]+-)?(cc|c\+\+|clang|g\+\+|gcc|hipcc|icx|nvcc|tcc)(-[\d.]+)?$"
    rb"|.*/lib(clang|[Cc]ling|hiprtc|nvrtc)[^/]*\.so"
)


def rules(root: Rootfs, lean: bool) -> re.Pattern[bytes]:
    """Return what matches the paths to leave out; the name of the matching group is the kind of change."""
    if not lean:
        return re.compile(_CACHES)
    compiles = any(_COMPILER.match(path) for path, _ in root.walk())
    return re.compile(_CACHES + _LEAN + (b"" if compiles else _FOR_COMPILERS))


def copies(nodes: Iterable[TreeNode]) -> Iterator[tuple[TreeNode, TreeNode]]:
    """Yield each large file that has the content and mode of an earlier one, with the earlier one."""
    contents = ((node, node.data) for node in nodes)
    large = [((node.mode, data.size), (node, data)) for node, data in contents if data and data.size >= _COPY]
    for alike in grouped(large).values():
        first: dict[bytes, TreeNode] = {}
        for node, data in alike if len(alike) > 1 else ():
            earlier = first.setdefault(_digest(data), node)
            if earlier is not node:
                yield node, earlier


def _digest(data: FileContent) -> bytes:
    state = hashlib.sha256()
    for start in range(0, data.size, _PIECE):
        state.update(data.read(start, _PIECE))
    return state.digest()
