"""The first bytes of deployer.pyz, from which ranks start: one file is opened once and read once.

``python3 deployer.pyz`` takes twice as long as a bare start: the Python modules that run a zip file import many others,
and each deployer module is found and read separately. Therefore the file begins with the few modules of a rank, and
job.sh lets Python run the first of them, ``site.rank.first_module``::

    #!/usr/bin/env python3
    the first module
    \\0 PATH \\n another module        ... and so on; PATH: as in the zip file
    \\0\\0 the zip file
"""

from typing import Dict

#: Bytes that a start reads.
SIZE = 64 * 1024
#: The program that job.sh passes to ``python3 -I -S -c``, with the path of the .pyz, "rank", and its arguments.
PROGRAM = 'import sys; parts = open(sys.argv[1], "rb").read(%d).split(bytes(1)); exec(parts[0])' % SIZE
_LINE = b"#!/usr/bin/env python3\n"


def joined(sources: Dict[str, bytes]) -> bytes:
    """Return the bytes before the zip file from the modules by path, with the first module first."""
    (_, first), *others = sources.items()
    parts = [_LINE + first, *(path.encode() + b"\n" + source for path, source in others), b"", b""]
    return b"\0".join(parts)
