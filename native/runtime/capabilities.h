// Which instruction sets this machine and its operating system support.
#pragma once

namespace quire {

// `isa` is scalar; avx2 (avx2 + fma + f16c), avx512 (f + bw + vl + dq), avx512vnni (avx512 + vnni),
// avx512bf16 (avx512vnni + vbmi + gfni + bf16), amx (avx512vnni + vbmi + gfni + tiles, int8 and
// bf16 of AMX, which the system must allow), amx_emulated (avx512vnni); neon, neon_dotprod (neon +
// dotprod) or neon_i8mm (neon_dotprod + i8mm).
bool machine_has(const char* isa);

// Whether `isa` is there to test logic on machines that lack the instructions.
bool is_emulated(const char* isa);

}  // namespace quire
