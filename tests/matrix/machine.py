"""The processor of the matrix's sites and images: this machine's, or one that qemu emulates (``tests.lab.foreign``)."""

import os

#: The kernel's name of the emulated processor; empty: this machine's own.
EMULATED = os.environ.get("DEPLOYER_MATRIX_MACHINE", "")

#: What an emulated node cannot show of itself, as a Neoverse-V2 (Grace) does: its processor.
FACTS = {
    "aarch64": {
        "node": {
            "cpu": {"model": "Neoverse-V2", "flags": ["fp", "asimd", "atomics", "asimdhp", "asimddp", "sve", "sve2"]}
        },
    }
}
