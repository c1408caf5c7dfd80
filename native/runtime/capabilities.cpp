#include "runtime/capabilities.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace quire {
namespace {

struct Features {
  bool avx2 = false, avx512 = false, avx512vnni = false, avx512bf16 = false, amx = false;
  bool neon = false, neon_dotprod = false, neon_i8mm = false;
};

#if defined(__x86_64__)
uint64_t enabled_state() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Whether the system lets this process, with all threads it will have, use tiles. Linux gives their
// state to those only that ask for it.
bool allows_tiles(uint64_t state) {
  constexpr uint64_t tile_state = 0x60000;
  if ((state & tile_state) != tile_state) return false;
#if defined(__linux__)
  constexpr long request_permission = 0x1023, tile_data = 18;  // asm/prctl.h
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return true;
#endif
}

Features detect() {
  Features found;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  const bool fma = c & (1u << 12), osxsave = c & (1u << 27), f16c = c & (1u << 29);
  if (!osxsave) return found;
  const uint64_t state = enabled_state();
  const bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xe6) == 0xe6;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  found.avx2 = ymm && fma && f16c && (b & (1u << 5));
  const uint32_t f_dq_bw_vl = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);
  found.avx512 = found.avx2 && zmm && (b & f_dq_bw_vl) == f_dq_bw_vl;
  found.avx512vnni = found.avx512 && (c & (1u << 11));
  const uint32_t vbmi_gfni = (1u << 1) | (1u << 8);
  const bool byte_tables = (c & vbmi_gfni) == vbmi_gfni;
  const uint32_t bf16_tile_int8 = (1u << 22) | (1u << 24) | (1u << 25);
  found.amx = found.avx512vnni && byte_tables && (d & bf16_tile_int8) == bf16_tile_int8 &&
              allows_tiles(state);
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
    found.avx512bf16 = found.avx512vnni && byte_tables && (a & (1u << 5));
  return found;
}
#elif defined(__aarch64__)
Features detect() {
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  Features found;
  found.neon = first & HWCAP_ASIMD;
  found.neon_dotprod = found.neon && (first & HWCAP_ASIMDDP);
  found.neon_i8mm = found.neon_dotprod && (second & HWCAP2_I8MM);
  return found;
}
#else
Features detect() { return {}; }
#endif

}  // namespace

bool machine_has(const char* isa) {
  static const Features features = detect();
  if (!std::strcmp(isa, "scalar")) return true;
  if (!std::strcmp(isa, "avx2")) return features.avx2;
  if (!std::strcmp(isa, "avx512")) return features.avx512;
  if (!std::strcmp(isa, "avx512vnni")) return features.avx512vnni;
  if (!std::strcmp(isa, "avx512bf16")) return features.avx512bf16;
  if (!std::strcmp(isa, "amx")) return features.amx;
  if (!std::strcmp(isa, "amx_emulated")) return features.avx512vnni;
  if (!std::strcmp(isa, "neon")) return features.neon;
  if (!std::strcmp(isa, "neon_dotprod")) return features.neon_dotprod;
  return !std::strcmp(isa, "neon_i8mm") && features.neon_i8mm;
}

bool is_emulated(const char* isa) { return !std::strcmp(isa, "amx_emulated"); }

}  // namespace quire
