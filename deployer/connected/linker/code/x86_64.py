"""Instruction sets of x86-64 code.

A compiler that may use AVX encodes all vector and floating-point instructions in the new form (VEX, EVEX). Hardly any
remain in the old SSE encoding. A file that chooses its code at run time contains both.

Sources: Intel 64 Manual, volume 2, "VEX" and "EVEX"; glibc, sysdeps/x86_64/start.S; Go, src/debug/buildinfo.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from deployer.connected.linker.code.steps import BRANCH, CALL, END, JUMP, POINTER, CodeStep

BEYOND: Sequence[str] = ("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "avx512f")

#: First bytes of frequent VEX and EVEX instructions. Code without any has about 4 such matches in 64 KiB
#: by chance.
_LIKELY = re.compile(
    rb"\xc5[\xc0-\xff][\x10\x11\x12\x14\x16\x28-\x2a\x54\x57-\x59\x5c\x5e\x6e\x6f\x77\x7e\x7f\xd4\xd6\xdb\xeb\xef\xfe]"
    rb"|\xc4[\x42\x62\xc2\xe2][\x80-\xff]"
    rb"|\x62[\x61\x62\x71\x72\xe1\xe2\xf1-\xf3][\x05\x0d\x15\x1d\x25\x2d\x35\x3d\x45\x4d\x55\x5d\x65\x6d\x75\x7c-\x7f"
    rb"\x85\x8d\x95\x9d\xa5\xad\xb5\xbd\xc5\xcd\xd5\xdd\xe5\xed\xf5\xfc-\xff][\x08\x18\x28\x38\x48\x58]"
)
_FEW_IN_64_KIB = 24

#: For each set, by the kernel's name: its instructions in the new encodings. All others belong to AVX.
_SETS = {
    "bmi1": re.compile(r"andn$|bextr|bls(i|msk|r)$"),
    "bmi2": re.compile(r"bzhi|mulx|pdep|pext|rorx|sarx|sh[lr]x"),
    "fma": re.compile(r"vfn?m(add|sub)"),
    "f16c": re.compile(r"vcvt(ph2ps|ps2ph)"),
    "avx2": re.compile(
        r"vp(broadcast|gather|maskmov|s[lr]lv|srav|blendd)|vperm(d|q|ps|pd)$|v(extract|insert|broadcast)i|vgather"
    ),
    "avx": re.compile(r"v"),
}
_AVX_OF_256 = re.compile(r"vpermil|vptest")
_AVX512, _LEGACY = "avx512f", "legacy"
_NEW, _EVEX = (0xC4, 0xC5, 0x62), 0x62
#: The fraction of vector instructions in the new encodings above which the whole file was compiled for them.
_WHOLE, _FEW = 0.8, 4
#: The fraction of a set below which it may come from a few functions that are chosen at run time.
_RARE = 0.02

#: Text in programs that query the processor, or contain code for several processors; and instructions: cpuid, xgetbv.
ASKS = re.compile(
    rb"(?i)avx|cpuinfo|cpu[_ ]?(id|model|flag|feature|info|support|cap|indicator)|getauxval|hwcap|simd|sse[34]|hwy"
)
ASKING = re.compile(rb"\x0f(\xa2|\x01\xd0)")
IRELATIVE = 37
LEVELS = 1

#: Where Go programs record the processors that they were compiled for; they check at startup, and exit on a mismatch.
_GO_LEVEL = re.compile(rb"GOAMD64=v([34])")

#: How C start code passes the address of ``main`` to the C library: lea rdi, [rip + N]; mov rdi, N; mov edi, N.
_POINTER = re.compile(rb"(\x48\x8d\x3d|\x48\xc7\xc7|\xbf)(.{4})", re.DOTALL)
_RELATIVE = b"\x48\x8d\x3d"
_OF_RIP = re.compile(r".*\[rip ([+-]) (0x[0-9a-f]+)\]")
_ENDS = ("ret", "hlt", "ud2")


def counts(parts: Sequence[tuple[bytes, int]]) -> Counter[str]:
    """Return the number of instructions of each set in parts of the code, each with its address."""
    found: Counter[str] = Counter()
    if any(len(_LIKELY.findall(data)) >= _FEW_IN_64_KIB * len(data) / 65536 for data, _ in parts):
        for data, address in parts:
            found.update(_set(data[at - address], *text) for at, _, *text in _decoded(data, address))
    return found


def whole(counts: Counter[str], asks: bool) -> list[str]:
    """Return the sets that a file with these instructions was compiled for."""
    used = [name for name in BEYOND if counts[name]]
    wide = sum(counts[name] for name in used if not name.startswith("bmi"))
    vectors = wide + counts[_LEGACY]
    if wide < max(_FEW, _WHOLE * vectors):
        return []
    return [name for name in used if counts[name] >= _RARE * vectors and not (asks and name == _AVX512)]


def stated(build_info: bytes) -> Sequence[str]:
    """Return the sets that a Go program states."""
    level = _GO_LEVEL.search(build_info)
    return [name for name in BEYOND if name != _AVX512 or level[1] == b"4"] if level else []


def main(start: bytes, entry: int) -> tuple[int, bool] | None:
    """Return the address of ``main`` from the start code at ``entry``; None if it is not recognized."""
    match = _POINTER.search(start)
    if match is None:
        return None
    number = int.from_bytes(match[2], "little", signed=True)
    return entry + match.end() + number if match[1] == _RELATIVE else number, False


def steps(data: bytes, address: int) -> Iterator[CodeStep]:
    """Yield the instructions in order."""
    for at, size, mnemonic, operands in _decoded(data, address):
        name = _set(data[at - address], mnemonic, operands)
        pointer = _OF_RIP.match(operands) if mnemonic == "lea" else None
        target = int(operands, 16) if operands.startswith("0x") else None
        if pointer:
            yield CodeStep(at, name, POINTER, at + size + int(pointer[1] + pointer[2], 16))
        elif mnemonic == "jmp":
            yield CodeStep(at, name, JUMP, target)
        elif target is not None and (mnemonic == "call" or mnemonic.startswith("j")):
            yield CodeStep(at, name, CALL if mnemonic == "call" else BRANCH, target)
        else:
            yield CodeStep(at, name, END if mnemonic in _ENDS else "")


def _decoded(data: bytes, address: int) -> Iterator[tuple[int, int, str, str]]:
    """Yield the address, size, mnemonic and operands of each instruction."""
    import capstone  # slow to import

    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder.skipdata = True
    yield from decoder.disasm_lite(data, address)


def _set(first: int, mnemonic: str, operands: str) -> str:
    """Return an instruction's set; ``_LEGACY`` for vectors in the old encoding; empty for other instructions."""
    if first not in _NEW:
        return _LEGACY if "xmm" in operands else ""
    if mnemonic.startswith("k") or (first == _EVEX and mnemonic.startswith("v")):
        return _AVX512
    if mnemonic.startswith("vp") and "ymm" in operands and not _AVX_OF_256.match(mnemonic):
        return "avx2"
    return next((name for name, pattern in _SETS.items() if pattern.match(mnemonic)), "")
