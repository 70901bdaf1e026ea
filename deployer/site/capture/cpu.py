"""The instruction sets that matter to compiled programs, with the kernel's names in /proc/cpuinfo.

A profile lists every one of these flags that a node has. A flag that is not listed is missing on the node.
"""

#: x86-64: the flags from which compilers and oneDNN choose code, and that make up the psABI's levels v2 to v4.
FLAGS = (
    "sse4_1", "sse4_2", "avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "avx512f", "avx512bw", "avx512cd", "avx512dq",
    "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip
