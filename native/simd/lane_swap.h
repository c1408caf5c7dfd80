// swap_lanes<half>(x): lanes i and i + half of each 2 * half change places; half a power of two.
#pragma once

#include "simd/vec.h"

namespace quire::QUIRE_ISA {

#if defined(__AVX512F__)
template <int half>
inline F32 swap_lanes(F32 x) {
  if constexpr (half <= 2) return {_mm512_permute_ps(x.v, half == 1 ? 0xb1 : 0x4e)};
  return {_mm512_shuffle_f32x4(x.v, x.v, half == 4 ? 0xb1 : 0x4e)};
}
#elif defined(__AVX2__)
template <int half>
inline F32 swap_lanes(F32 x) {
  if constexpr (half <= 2) return {_mm256_permute_ps(x.v, half == 1 ? 0xb1 : 0x4e)};
  return {_mm256_permute2f128_ps(x.v, x.v, 1)};
}
#elif defined(QUIRE_NEON)
template <int half>
inline F32 swap_lanes(F32 x) {
  if constexpr (half == 1) return {vrev64q_f32(x.low), vrev64q_f32(x.high)};
  if constexpr (half == 2) return {vextq_f32(x.low, x.low, 2), vextq_f32(x.high, x.high, 2)};
  return {x.high, x.low};
}
#else
template <int half>
inline F32 swap_lanes(F32 x) {
  return each_lane([&](int i) { return x.v[i ^ half]; });
}
#endif

}  // namespace quire::QUIRE_ISA
