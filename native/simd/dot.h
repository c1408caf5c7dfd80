// Integer dot products: unsigned bytes of weights times signed bytes of activations.
//
// I32 is one register of int32, as many lanes as F32; Bytes is one of bytes, a word of four inputs
// for each lane. dot_words<Codes, rows, vectors, words>(codes, w, first, part, a, stride, sums)
// adds to sums[row][vector] the products of words first .. first + words - 1 of a record at w:
// vectors part .. part + vectors - 1 of a panel's width, as codes.load(w, word, vector) has them.
// Activations of row m, from the first word on, are at a + m * stride and lie in -127..127, or -128
// with weights that are not Range::byte. Exact in every instruction set.
//
// What the weights' bytes can be, Codes::range, decides how many products fit in 16 bits where
// there is no instruction that sums four in 32.
#pragma once

#include "simd/vec.h"

namespace quire::QUIRE_ISA {

enum class Range { below_16, below_64, byte, full_byte };

constexpr int word_bytes = 32 * 4;  // weights of one word of a panel

// The cache that few rows ask memory for weights into, as __builtin_prefetch numbers them: 2 is L2,
// 3 is L1. Zen 5 is faster with L1; avx512bf16 is used where its products measured fast, as there.
//
// How many tiles of rows take codes apart for themselves, of one bit plane and of two, before that
// costs more than codes unpacked to memory once for all. Zen 5 takes them apart in units that
// its products leave free.
#if defined(__AVX512BF16__)
constexpr int asked_cache = 3;
constexpr int packed_tiles_of_planes[] = {8, 3};
#else
constexpr int asked_cache = 2;
constexpr int packed_tiles_of_planes[] = {2, 2};
#endif

}  // namespace quire::QUIRE_ISA

#if defined(QUIRE_NEON)
#include "simd/neon_dot.h"
#else

namespace quire::QUIRE_ISA {

#if defined(__AVX512F__)
struct I32 {
  __m512i v;
};
using Bytes = __m512i;
inline I32 set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline F32 to_float(I32 x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Bytes set1_byte(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
// Bits of 16-bit lanes: to the right for n > 0, else to the left.
inline Bytes shift_right(Bytes x, int n) {
  typedef uint16_t Lanes __attribute__((vector_size(64)));
  const auto lanes = reinterpret_cast<Lanes>(x);
  return reinterpret_cast<Bytes>(n < 0 ? lanes << -n : lanes >> n);
}
// Byte i of each word, unsigned.
inline I32 byte_of(Bytes x, int i) {
  return {_mm512_and_si512(_mm512_srlv_epi32(x, _mm512_set1_epi32(8 * i)), _mm512_set1_epi32(255))};
}
// table[x] for x below 16.
inline Bytes look_up(const uint8_t* table, Bytes x) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), x);
}
#elif defined(__AVX2__)
struct I32 {
  __m256i v;
};
using Bytes = __m256i;
inline I32 set1(int32_t x) { return {_mm256_set1_epi32(x)}; }
inline F32 to_float(I32 x) { return {_mm256_cvtepi32_ps(x.v)}; }
inline Bytes load_bytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Bytes set1_byte(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
inline Bytes shift_right(Bytes x, int n) {
  typedef uint16_t Lanes __attribute__((vector_size(32)));
  const auto lanes = reinterpret_cast<Lanes>(x);
  return reinterpret_cast<Bytes>(n < 0 ? lanes << -n : lanes >> n);
}
inline I32 byte_of(Bytes x, int i) {
  return {_mm256_and_si256(_mm256_srlv_epi32(x, _mm256_set1_epi32(8 * i)), _mm256_set1_epi32(255))};
}
inline Bytes look_up(const uint8_t* table, Bytes x) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), x);
}
#else
struct I32 {
  int32_t v[4];
};
struct Bytes {
  uint8_t v[16];
};
inline I32 set1(int32_t x) { return {{x, x, x, x}}; }
inline F32 to_float(I32 x) {
  return each_lane([&](int i) { return static_cast<float>(x.v[i]); });
}
inline Bytes load_bytes(const uint8_t* p) {
  Bytes x;
  std::memcpy(x.v, p, 16);
  return x;
}
inline I32 byte_of(Bytes x, int i) { return {{x.v[i], x.v[4 + i], x.v[8 + i], x.v[12 + i]}}; }
#endif
constexpr int register_bytes = sizeof(Bytes);

// Rows of a tile at most, and registers of outputs that a tile of `rows` rows holds together: as
// many as there are registers for.
constexpr int dot_rows = F32::lanes == 16 ? 6 : F32::lanes == 8 ? 4 : 2;
template <int rows>
constexpr int dot_vectors = F32::lanes == 16  ? 2
                            : F32::lanes == 4 ? 1
                            : rows == 1       ? 4
                                              : 2;
constexpr bool shifts_bytes = false;  // shift_right has lanes of 16 bits

// What dot_words takes from weights of Range::byte before it multiplies.
constexpr int byte_zero = 0;

// The activations of a word, as memory.
struct Word {
  int8_t inputs[4];
};

// 32 activations as dot_words wants them for weights of `range`: in place, or widened to 16 bits in
// `wide` (64 bytes): the even inputs, then, odd_inputs bytes on, the odd ones.
constexpr int odd_inputs = 32;
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
template <Range range>
constexpr bool widens = range >= Range::byte;
inline void widen(const int8_t* a, int8_t* wide) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
  auto* out = reinterpret_cast<__m256i*>(wide);
  _mm256_storeu_si256(out, _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
  _mm256_storeu_si256(out + 1, _mm256_srai_epi16(x, 8));
}
#else
template <Range>
constexpr bool widens = false;
inline void widen(const int8_t*, int8_t*) {}
#endif

#if defined(__AVX512VNNI__)

// In assembly: left to itself the compiler keeps the broadcasts of all rows and words for the
// second vector, far more than there are registers, and spills them.
template <class Codes, int rows, int vectors, int words>
inline void dot_words(const Codes& codes, const uint8_t* w, int first, int, const int8_t* a,
                      int64_t stride, I32 (&sums)[rows][vectors]) {
  static_assert(vectors == 2, "a panel is two registers");
#pragma GCC unroll 8
  for (int word = 0; word < words; ++word) {
    const Bytes w0 = codes.load(w, first + word, 0), w1 = codes.load(w, first + word, 1);
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

#if defined(__AVX512F__)
inline Bytes multiply_pairs(Bytes u, Bytes s) { return _mm512_maddubs_epi16(u, s); }
inline I32 add_wide(I32 sum, Bytes pairs) {
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
#else
inline Bytes multiply_pairs(Bytes u, Bytes s) { return _mm256_maddubs_epi16(u, s); }
inline I32 add_wide(I32 sum, Bytes pairs) {
  return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
#endif

// In assembly, for the reason given above.
inline Bytes broadcast(const int8_t* word) {
  Bytes x;
  __asm__ volatile("vpbroadcastd %1, %0" : "=v"(x) : "m"(*reinterpret_cast<const Word*>(word)));
  return x;
}
// Sums of two products each, in 16 bits.
inline void set_pairs(Bytes& pairs, Bytes weights, Bytes x) {
  __asm__ volatile("vpmaddubsw %2, %1, %0" : "=v"(pairs) : "v"(weights), "v"(x));
}
inline void add_pairs(Bytes& pairs, Bytes weights, Bytes x) {
  Bytes products;
  __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
                   : "+v"(pairs), "=&v"(products)
                   : "v"(weights), "v"(x));
}
// Two products of 16 bits each, in 32.
inline void add_products(I32& sum, Bytes weights, Bytes x) {
  Bytes products;
  __asm__ volatile("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
                   : "+v"(sum.v), "=&v"(products)
                   : "v"(weights), "v"(x));
}

// Weights of 4 bits: the pairs of eight words, at most 8 * 2 * 127 * 15, fit in 16 bits.
template <class Codes, int rows, int vectors, int words>
inline void dot_below_16(const Codes& codes, const uint8_t* w, int first, int part, const int8_t* a,
                         int64_t stride, I32 (&sums)[rows][vectors]) {
  Bytes pairs[rows][vectors];
#pragma GCC unroll 8
  for (int word = 0; word < words; ++word) {
    Bytes weights[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) weights[v] = codes.load(w, first + word, part + v);
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m) {
      const Bytes x = broadcast(a + m * stride + 4 * word);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v)
        word ? add_pairs(pairs[m][v], weights[v], x) : set_pairs(pairs[m][v], weights[v], x);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < rows; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sums[m][v] = add_wide(sums[m][v], pairs[m][v]);
}

// Weights of 6 bits: those of two words, at most 2 * 2 * 127 * 63.
template <class Codes, int rows, int vectors, int words>
inline void dot_below_64(const Codes& codes, const uint8_t* w, int first, int part, const int8_t* a,
                         int64_t stride, I32 (&sums)[rows][vectors]) {
#pragma GCC unroll 8
  for (int word = 0; word < words; word += 2) {
    Bytes weights[vectors][2];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) weights[v][i] = codes.load(w, first + word + i, part + v);
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m) {
      const Bytes x0 = broadcast(a + m * stride + 4 * word);
      const Bytes x1 = broadcast(a + m * stride + 4 * word + 4);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        Bytes pairs;
        set_pairs(pairs, weights[v][0], x0);
        add_pairs(pairs, weights[v][1], x1);
        sums[m][v] = add_wide(sums[m][v], pairs);
      }
    }
  }
}

// Weights of 8 bits: a pair of products does not fit in 16 bits, so weights and activations are
// widened to 16 bits first.
template <class Codes, int rows, int vectors, int words>
inline void dot_bytes(const Codes& codes, const uint8_t* w, int first, int part, const int8_t* a,
                      int64_t stride, I32 (&sums)[rows][vectors]) {
  const Bytes low = reinterpret_cast<Bytes>(set1(0x00ff00ff).v);
#pragma GCC unroll 8
  for (int word = 0; word < words; ++word)
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      Bytes weights[vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        const Bytes bytes = codes.load(w, first + word, part + v);
        weights[v] = odd ? shift_right(bytes, 8) : bytes & low;
      }
#pragma GCC unroll 16
      for (int m = 0; m < rows; ++m) {
        const Bytes x = broadcast(a + m * stride + odd_inputs * odd + 4 * word);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) add_products(sums[m][v], weights[v], x);
      }
    }
}

template <class Codes, int rows, int vectors, int words>
inline void dot_words(const Codes& codes, const uint8_t* w, int first, int part, const int8_t* a,
                      int64_t stride, I32 (&sums)[rows][vectors]) {
  if constexpr (Codes::range == Range::below_16)
    dot_below_16<Codes, rows, vectors, words>(codes, w, first, part, a, stride, sums);
  else if constexpr (Codes::range == Range::below_64)
    dot_below_64<Codes, rows, vectors, words>(codes, w, first, part, a, stride, sums);
  else
    dot_bytes<Codes, rows, vectors, words>(codes, w, first, part, a, stride, sums);
}

#else

template <class Codes, int rows, int vectors, int words>
inline void dot_words(const Codes& codes, const uint8_t* w, int first, int part, const int8_t* a,
                      int64_t stride, I32 (&sums)[rows][vectors]) {
  for (int word = 0; word < words; ++word)
    for (int v = 0; v < vectors; ++v) {
      const Bytes weights = codes.load(w, first + word, part + v);
      for (int m = 0; m < rows; ++m)
        for (int i = 0; i < register_bytes; ++i)
          sums[m][v].v[i / 4] += weights.v[i] * a[m * stride + 4 * word + i % 4];
    }
}

#endif

}  // namespace quire::QUIRE_ISA

#endif
