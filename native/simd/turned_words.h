// Four registers of 16-byte lanes: bytes looked up in a table for each lane, words turned round,
// and 16 bytes gathered for each lane.
#pragma once

#include "simd/dot.h"

namespace quire::QUIRE_ISA {

// Of each 16 bytes, table[x] for x below 16.
inline Bytes look_up(Bytes tables, Bytes x) {
#if defined(__AVX512F__)
  return _mm512_shuffle_epi8(tables, x);
#elif defined(__AVX2__)
  return _mm256_shuffle_epi8(tables, x);
#elif defined(QUIRE_NEON)
  return {vqtbl1q_u8(tables.low, x.low), vqtbl1q_u8(tables.high, x.high)};
#else
  Bytes found;
  for (int i = 0; i < register_bytes; ++i) found.v[i] = tables.v[x.v[i]];
  return found;
#endif
}

#if defined(__AVX512F__) || defined(__AVX2__)

#if defined(__AVX512F__)
inline Bytes low_words(Bytes a, Bytes b) { return _mm512_unpacklo_epi32(a, b); }
inline Bytes high_words(Bytes a, Bytes b) { return _mm512_unpackhi_epi32(a, b); }
inline Bytes low_pairs(Bytes a, Bytes b) { return _mm512_unpacklo_epi64(a, b); }
inline Bytes high_pairs(Bytes a, Bytes b) { return _mm512_unpackhi_epi64(a, b); }
#else
inline Bytes low_words(Bytes a, Bytes b) { return _mm256_unpacklo_epi32(a, b); }
inline Bytes high_words(Bytes a, Bytes b) { return _mm256_unpackhi_epi32(a, b); }
inline Bytes low_pairs(Bytes a, Bytes b) { return _mm256_unpacklo_epi64(a, b); }
inline Bytes high_pairs(Bytes a, Bytes b) { return _mm256_unpackhi_epi64(a, b); }
#endif

// Word i of register j to word j of register i, in each 16 bytes.
inline void turn_words(Bytes (&x)[4]) {
  const Bytes a = low_words(x[0], x[1]), b = low_words(x[2], x[3]);
  const Bytes c = high_words(x[0], x[1]), d = high_words(x[2], x[3]);
  x[0] = low_pairs(a, b);
  x[1] = high_pairs(a, b);
  x[2] = low_pairs(c, d);
  x[3] = high_pairs(c, d);
}

#elif defined(QUIRE_NEON)

inline void turn_words(uint8x16_t (&x)[4]) {
  const auto words = [&](int i) { return vreinterpretq_u32_u8(x[i]); };
  const auto pairs = [](uint32x4_t v) { return vreinterpretq_u64_u32(v); };
  const uint64x2_t a = pairs(vzip1q_u32(words(0), words(1)));
  const uint64x2_t b = pairs(vzip1q_u32(words(2), words(3)));
  const uint64x2_t c = pairs(vzip2q_u32(words(0), words(1)));
  const uint64x2_t d = pairs(vzip2q_u32(words(2), words(3)));
  x[0] = vreinterpretq_u8_u64(vzip1q_u64(a, b));
  x[1] = vreinterpretq_u8_u64(vzip2q_u64(a, b));
  x[2] = vreinterpretq_u8_u64(vzip1q_u64(c, d));
  x[3] = vreinterpretq_u8_u64(vzip2q_u64(c, d));
}
inline void turn_words(Bytes (&x)[4]) {
  uint8x16_t low[4] = {x[0].low, x[1].low, x[2].low, x[3].low};
  uint8x16_t high[4] = {x[0].high, x[1].high, x[2].high, x[3].high};
  turn_words(low);
  turn_words(high);
  for (int i = 0; i < 4; ++i) x[i] = {low[i], high[i]};
}

#else

inline void turn_words(Bytes (&x)[4]) {
  Bytes turned[4];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) std::memcpy(turned[i].v + 4 * j, x[j].v + 4 * i, 4);
  std::memcpy(x, turned, sizeof(turned));
}

#endif

// Lane i: the 16 bytes `stride` bytes after those of the lane before.
inline Bytes gather_lanes(const char* first, int64_t stride) {
#if defined(__AVX512F__)
  const auto at = [=](int64_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(first + i * stride));
  };
  const __m512i two = _mm512_inserti32x4(_mm512_castsi128_si512(at(0)), at(1), 1);
  return _mm512_inserti32x4(_mm512_inserti32x4(two, at(2), 2), at(3), 3);
#else
  Bytes found;
  for (int64_t i = 0; i < register_bytes / 16; ++i)
    std::memcpy(reinterpret_cast<char*>(&found) + 16 * i, first + i * stride, 16);
  return found;
#endif
}

}  // namespace quire::QUIRE_ISA
