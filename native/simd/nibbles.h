// Codes of 4 bits, two a byte, as floats in the lanes.
#pragma once

#include "simd/words.h"

namespace quire::QUIRE_ISA {

// The bytes of `lanes` pairs.
inline Words load_words(const Int4Pair* p) {
#if defined(__AVX512F__)
  return (Words)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#elif defined(QUIRE_NEON)
  const uint16x8_t wide = vmovl_u8(vld1_u8(reinterpret_cast<const uint8_t*>(p)));
  const uint32x4_t halves[] = {vmovl_u16(vget_low_u16(wide)), vmovl_u16(vget_high_u16(wide))};
  return same_bits<Words>(halves);
#else
  Words words;
  for (int lane = 0; lane < F32::lanes; ++lane) words[lane] = p[lane].bits;
  return words;
#endif
}

// Of words below 256, their lower or their upper 4 bits.
inline F32 lower_codes(Words pairs) { return to_float(pairs & 15); }
inline F32 upper_codes(Words pairs) { return to_float(pairs >> 4); }

// code * scale + minimum of codes that share both: `lower` and `upper` of pairs.
#if defined(__AVX512F__)
class CodeValues {
 public:
  CodeValues(float scale, float minimum)
      : table_(fma(to_float(count_from(0)), set1(scale), set1(minimum)).v) {}
  F32 lower(Words pairs) const { return {_mm512_permutexvar_ps((__m512i)pairs, table_)}; }
  F32 upper(Words pairs) const { return lower(pairs >> 4); }

 private:
  __m512 table_;  // the value of each code; indices are taken by their last 4 bits
};
#else
class CodeValues {
 public:
  CodeValues(float scale, float minimum) : scale_(set1(scale)), minimum_(set1(minimum)) {}
  F32 lower(Words pairs) const { return fma(lower_codes(pairs), scale_, minimum_); }
  F32 upper(Words pairs) const { return lower(pairs >> 4); }

 private:
  F32 scale_, minimum_;
};
#endif

}  // namespace quire::QUIRE_ISA
