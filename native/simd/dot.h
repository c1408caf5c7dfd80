// Integer dot products: unsigned bytes of weights times signed bytes of activations.
//
// I32 is one register of int32, as many lanes as F32. dot_words<range, rows, vectors, words> adds
// to sums[row][vector] the products of `words` words of four inputs: weights [word][32 outputs][4],
// activations of row m at a + m * stride, both from the first word on. Activations lie in
// -127..127. Exact in every instruction set.
//
// What the weights' bytes can be decides how many products fit in 16 bits where there is no
// instruction that sums four in 32. Range::byte subtracts `byte_bias` from each weight first.
#pragma once

#include "simd/vec.h"

namespace quire::QUIRE_ISA {

enum class Range { below_16, below_64, byte };

constexpr int word_bytes = 32 * 4;  // weights of one word of a panel

#if defined(__AVX512F__)
struct I32 {
  __m512i v;
};
inline I32 set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline F32 to_float(I32 x) { return {_mm512_cvtepi32_ps(x.v)}; }
#elif defined(__AVX2__)
struct I32 {
  __m256i v;
};
inline I32 set1(int32_t x) { return {_mm256_set1_epi32(x)}; }
inline F32 to_float(I32 x) { return {_mm256_cvtepi32_ps(x.v)}; }
#else
struct I32 {
  int32_t v[4];
};
inline I32 set1(int32_t x) { return {{x, x, x, x}}; }
inline F32 to_float(I32 x) {
  return each_lane([&](int i) { return static_cast<float>(x.v[i]); });
}
#endif

// The activations of a word, as memory.
struct Word {
  int8_t inputs[4];
};
inline int32_t word_at(const int8_t* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

#if defined(__AVX512VNNI__)

constexpr int byte_bias = 0;

// In assembly: left to itself the compiler keeps the broadcasts of all rows and words for the
// second vector, far more than there are registers, and spills them.
template <Range, int rows, int vectors, int words>
inline void dot_words(const uint8_t* w, const int8_t* a, int64_t stride,
                      I32 (&sums)[rows][vectors]) {
  static_assert(vectors == 2, "a panel is two registers");
#pragma GCC unroll 8
  for (int word = 0; word < words; ++word) {
    const __m512i w0 = _mm512_loadu_si512(w + word * word_bytes);
    const __m512i w1 = _mm512_loadu_si512(w + word * word_bytes + 64);
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m) {
      __m512i x;
      __asm__ volatile(
          "vpbroadcastd %[a], %[x]\n\t"
          "vpdpbusd %[x], %[w0], %[sum0]\n\t"
          "vpdpbusd %[x], %[w1], %[sum1]"
          : [sum0] "+v"(sums[m][0].v), [sum1] "+v"(sums[m][1].v), [x] "=&v"(x)
          : [a] "m"(*reinterpret_cast<const Word*>(a + m * stride + 4 * word)), [w0] "v"(w0),
            [w1] "v"(w1));
    }
  }
}

#elif defined(__AVX2__)

constexpr int byte_bias = 128;

#if defined(__AVX512F__)
using Bytes = __m512i;
using Signs = __mmask64;
constexpr int register_bytes = 64;
inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Bytes multiply_pairs(Bytes u, Bytes s) { return _mm512_maddubs_epi16(u, s); }
inline Bytes add_pairs(Bytes a, Bytes b) { return _mm512_add_epi16(a, b); }
inline I32 add_wide(I32 sum, Bytes pairs) {
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
inline Bytes remove_bias(Bytes u) { return _mm512_xor_si512(u, _mm512_set1_epi8(-128)); }
inline Bytes magnitude(Bytes s) { return _mm512_abs_epi8(s); }
inline Signs signs_of(Bytes s) { return _mm512_movepi8_mask(s); }
inline Bytes with_signs(Bytes x, Signs signs) {
  return _mm512_mask_sub_epi8(x, signs, _mm512_setzero_si512(), x);
}
#else
using Bytes = __m256i;
using Signs = __m256i;
constexpr int register_bytes = 32;
inline Bytes load_bytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Bytes multiply_pairs(Bytes u, Bytes s) { return _mm256_maddubs_epi16(u, s); }
inline Bytes add_pairs(Bytes a, Bytes b) { return _mm256_add_epi16(a, b); }
inline I32 add_wide(I32 sum, Bytes pairs) {
  return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
inline Bytes remove_bias(Bytes u) { return _mm256_xor_si256(u, _mm256_set1_epi8(-128)); }
inline Bytes magnitude(Bytes s) { return _mm256_abs_epi8(s); }
inline Signs signs_of(Bytes s) { return s; }
inline Bytes with_signs(Bytes x, Signs signs) { return _mm256_sign_epi8(x, signs); }
#endif

// A pair of products takes at most 2 * 127 * (largest weight) of 16 bits: eight of them fit when
// weights are below 16, two below 64, one up to 128 in magnitude.
template <Range range, int rows, int vectors, int words>
inline void dot_words(const uint8_t* w, const int8_t* a, int64_t stride,
                      I32 (&sums)[rows][vectors]) {
  constexpr int fit = range == Range::below_16 ? 8 : range == Range::below_64 ? 2 : 1;
  constexpr int span = fit < words ? fit : words;
#pragma GCC unroll 8
  for (int first = 0; first < words; first += span) {
    Bytes pairs[rows][vectors];
#pragma GCC unroll 8
    for (int i = 0; i < span; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        Bytes weights = load_bytes(w + (first + i) * word_bytes + v * register_bytes);
        Signs signs{};
        if constexpr (range == Range::byte) {
          weights = remove_bias(weights);
          signs = signs_of(weights);
          weights = magnitude(weights);
        }
#pragma GCC unroll 16
        for (int m = 0; m < rows; ++m) {
          Bytes x = set1(word_at(a + m * stride + 4 * (first + i))).v;
          if constexpr (range == Range::byte) x = with_signs(x, signs);
          const Bytes products = multiply_pairs(weights, x);
          pairs[m][v] = i ? add_pairs(pairs[m][v], products) : products;
        }
      }
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[m][v] = add_wide(sums[m][v], pairs[m][v]);
  }
}

#else

constexpr int byte_bias = 0;

template <Range, int rows, int vectors, int words>
inline void dot_words(const uint8_t* w, const int8_t* a, int64_t stride,
                      I32 (&sums)[rows][vectors]) {
  for (int word = 0; word < words; ++word)
    for (int m = 0; m < rows; ++m)
      for (int v = 0; v < vectors; ++v)
        for (int lane = 0; lane < F32::lanes; ++lane)
          for (int i = 0; i < 4; ++i)
            sums[m][v].v[lane] += w[word * word_bytes + (v * F32::lanes + lane) * 4 + i] *
                                  a[m * stride + 4 * word + i];
}

#endif

}  // namespace quire::QUIRE_ISA
