"""What crosses between the laptop and a container that hosts a simulated site: paths, files and their limits."""

#: Where the laptop puts the order; the folder that outlives the container, and in it the programs and the bundles.
ORDER, STATE = "/opt/order.json", "/rehearsal"
PROGRAMS = f"{STATE}/programs"
PYZ = "deployer.pyz"
BUNDLES = f"{STATE}/bundles"
#: What is added to the name of a bundle, or of a folder of programs, that was copied whole.
WHOLE = ".whole"
#: The folders of ``--bind``.
BINDS = "/binds"
#: The files of an answer. There is an outcome or an error.
OUTCOME, ERROR, LOG, RESULT, OPENED = "outcome.json", "error.json", "output.log", "result.json", "opened.txt"
#: The most bytes of each; of the log, the end is sent.
LIMITS = {OUTCOME: 16 << 20, ERROR: 1 << 20, LOG: 16 << 20, RESULT: 64 << 20, OPENED: 64 << 20}
