"""One decoded instruction, as far as following a program's control flow needs it."""

from typing import NamedTuple

#: What an instruction does with its target: a jump, a jump under a condition, a call, or taking its address. ``END``:
#: nothing after it is executed next.
JUMP, BRANCH, CALL, POINTER, END = "jump", "branch", "call", "pointer", "end"


class CodeStep(NamedTuple):
    """An instruction.

    Attributes:
        address: its address.
        set: its instruction set by the kernel's name; another text for older instructions.
        kind: one of the kinds above; empty for others.
        target: the address that it jumps to, calls or takes; None if it is computed.
    """

    address: int
    set: str
    kind: str = ""
    target: int | None = None
