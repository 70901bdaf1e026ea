"""The first module of deployer.pyz; it is short because Python compiles it at each start.

Ranks do not start it: see ``contract.base.first_bytes``. With -I, Python uses nothing from the user's home.
"""

import os
import sys

if sys.version_info < (3, 6):  # the other modules are syntax errors in such a Python
    sys.stderr.write(
        "deployer: error: this is Python %d.%d; deployer needs Python 3.6 or newer\n"
        "hint: start it by a newer one: python3, or one that `module avail python` shows\n" % sys.version_info[:2]
    )
    sys.exit(7)

from deployer.system.tool import tool_bytecode

loader = globals()["__loader__"]
archive = getattr(loader, "archive", "")  # empty: this runs from a folder of sources, where Python keeps bytecode
lacking = bool(archive) and not sys.flags.isolated and not tool_bytecode.use(archive, loader)
archive = os.path.abspath(archive)  # a command may change the folder

from deployer.cli.site.main import FOR_JOBS, main  # noqa: E402

try:
    sys.exit(main())
finally:
    if lacking and sys.argv[1:2] not in [[name] for name in FOR_JOBS]:
        from deployer.system.tool.tool_compiler import keep

        keep(archive)
