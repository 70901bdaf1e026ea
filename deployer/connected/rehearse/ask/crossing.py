"""Paths, files and limits shared by the laptop and the container that hosts a simulated site."""

#: Where the laptop writes the order, and the folder that outlives the container, with the programs and the bundles.
ORDER, STATE = "/opt/order.json", "/rehearsal"
PROGRAMS = f"{STATE}/programs"
PYZ = "deployer.pyz"
BUNDLES = f"{STATE}/bundles"
#: The suffix of the marker for a completely copied bundle or folder of programs.
WHOLE = ".whole"
#: The folders of ``--bind``.
BINDS = "/binds"
#: The files of an answer. It has either an outcome or an error.
OUTCOME, ERROR, LOG, RESULT = "outcome.json", "error.json", "output.log", "result.json"
#: The maximum size of each file in bytes. Only the end of a longer log is sent.
LIMITS = {OUTCOME: 16 << 20, ERROR: 1 << 20, LOG: 16 << 20, RESULT: 64 << 20}
