"""The first bytes of deployer.pyz, from which ranks start: one file is opened once, and read once.

``python3 deployer.pyz`` takes twice the time of a bare start: Python's own modules that run a zip file import many
others, and each module of ours is looked for and read apart. So the file begins with the few modules of a rank, and
job.sh lets Python run the first of them, ``site.rank.first_module``::

    #!/usr/bin/env python3
    the first module
    \\0 PATH \\n another module        ... and so on; PATH: as in the zip file
    \\0\\0 the zip file
"""

from typing import Dict

#: Bytes that a start reads.
SIZE = 64 * 1024
#: What job.sh gives to ``python3 -I -S -c``, with the path of the .pyz, "rank", and its words.
PROGRAM = 'import sys; parts = open(sys.argv[1], "rb").read(%d).split(bytes(1)); exec(parts[0])' % SIZE
_LINE = b"#!/usr/bin/env python3\n"


def joined(sources: Dict[str, bytes]) -> bytes:
    """Return what is before the zip file, given the modules by their paths, the first one first."""
    (_, first), *others = sources.items()
    parts = [_LINE + first, *(path.encode() + b"\n" + source for path, source in others), b"", b""]
    return b"\0".join(parts)
