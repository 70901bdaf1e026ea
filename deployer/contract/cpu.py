"""The instruction sets that matter to compiled programs, by the kernel's names in /proc/cpuinfo.

A profile that lists a node's flags lists all that it has of these: one that is not listed is not there.
"""

#: x86-64: what compilers and oneDNN choose by; the levels v2 to v4 of the psABI are made of them.
FLAGS = (
    "sse4_1", "sse4_2", "avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "avx512f", "avx512bw", "avx512cd", "avx512dq",
    "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip
