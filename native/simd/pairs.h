// Pairs: one register of pairs of bfloat16, a word of 32 bits each, for dot products of two.
//
// QUIRE_PAIRS is defined where this instruction set multiplies them, in vectors or in matrix tiles,
// QUIRE_DOTS where in vectors. There are as many pairs as lanes.
//   load_pairs(p), store_pairs(p, x), set1_pair(word), keep(x, mask): x and the mask, in each word;
//   interleave(low, high): pairs (low[i], high[i]); *_partial(.., n): of the first n, the others 0;
//   only_low(p), only_low_partial(p, n): pairs (p[i], 0);
//   with_high(x, y): the low halves of x, and those of y as high ones;
//   round_pairs(x, y): x and y to bfloat16, those of x first; denormals may become 0;
//   rounded(x): floats to bfloat16 and back;
//   widen_even(x), widen_odd(x): the low and the high half of each pair as floats;
//   dot(a, b, c), where QUIRE_DOTS: c plus each pair's two products. Denormals are taken and left
//   as 0. The order of the two additions is the processor's, the same for every element;
//   fma(word, b, c): the same, `word` in each pair of a.
#pragma once

#include "simd/matrix_tiles.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {

#if defined(__AVX512BF16__)
#define QUIRE_DOTS
#endif
#if defined(QUIRE_DOTS) || defined(QUIRE_MATRIX_TILES)
#define QUIRE_PAIRS

struct Pairs {
  __m512i v;
};

inline Pairs load_pairs(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_pairs(uint32_t* p, Pairs x) { _mm512_storeu_si512(p, x.v); }
inline Pairs set1_pair(uint32_t word) { return {_mm512_set1_epi32(static_cast<int>(word))}; }
inline Pairs keep(Pairs x, uint32_t mask) { return {_mm512_and_si512(x.v, set1_pair(mask).v)}; }

inline Pairs interleave_halves(__m256i low, __m256i high) {
  alignas(64) static constexpr uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                     21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                     11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  return {_mm512_permutexvar_epi16(_mm512_load_si512(order), both)};
}
inline Pairs interleave(const BF16* low, const BF16* high) {
  return interleave_halves(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low)),
                           _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)));
}
inline Pairs interleave_partial(const BF16* low, const BF16* high, int n) {
  return interleave_halves(_mm256_maskz_loadu_epi16(first(n), low),
                           _mm256_maskz_loadu_epi16(first(n), high));
}

inline Pairs widened(__m256i bits) { return {_mm512_cvtepu16_epi32(bits)}; }
inline Pairs only_low(const BF16* p) {
  return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Pairs only_low_partial(const BF16* p, int n) {
  return widened(_mm256_maskz_loadu_epi16(first(n), p));
}
inline Pairs with_high(Pairs x, Pairs high) {
  return {_mm512_or_si512(keep(x, 0xffff).v, _mm512_slli_epi32(high.v, 16))};
}

#if defined(QUIRE_DOTS)
inline Pairs round_pairs(F32 x, F32 y) {
  return {reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y.v, x.v))};
}
inline F32 dot(Pairs a, Pairs b, F32 c) {
  return {_mm512_dpbf16_ps(c.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}
inline F32 fma(uint32_t a, Pairs b, F32 c) { return dot(set1_pair(a), b, c); }
#else
inline Pairs round_pairs(F32 x, F32 y) {
  return {_mm512_inserti64x4(_mm512_castsi256_si512(to_bf16(x)), to_bf16(y), 1)};
}
#endif
inline F32 rounded(F32 x) { return from_bf16(to_bf16(x)); }
inline F32 widen_even(Pairs x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(x.v, 16))}; }
inline F32 widen_odd(Pairs x) { return {_mm512_castsi512_ps(keep(x, 0xffff0000).v)}; }

#endif

}  // namespace quire::QUIRE_ISA
