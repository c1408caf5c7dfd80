// Tables of 16 or 8 floats in registers, and the codes of 32 inputs that are looked up in them.
//
//   RowTable<bits>(values)         2 ** bits floats
//   RowCodes<bits>(bytes)          as include/row_tables.h has them; 16 bytes are read
//   codes.look_up(table, i)        the floats of inputs i * lanes ... of the 32
//
// AVX-512 looks at the low four bits of an index, AVX2 at the low three: what lies above a code
// needs no clearing, as a table of 8 is there twice. NEON looks bytes up in four registers.
#pragma once

#include "simd/words.h"

namespace quire::QUIRE_ISA {

constexpr int row_code_registers = 32 / F32::lanes;

#if defined(__AVX2__)
// Four words from bytes 0, bits, 2 * bits ...
template <int bits>
inline __m128i load_row_words(const uint8_t* bytes) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  if constexpr (bits == 4) return words;
  return _mm_shuffle_epi8(words,
                          _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
}
#endif

#if defined(__AVX512F__)

template <int bits>
struct RowTable {
  __m512 values;
  RowTable() = default;
  explicit RowTable(const float* from)
      : values(bits == 4 ? _mm512_loadu_ps(from) : _mm512_broadcast_f32x8(_mm256_loadu_ps(from))) {}
};

template <int bits>
class RowCodes {
 public:
  RowCodes() = default;
  explicit RowCodes(const uint8_t* bytes)
      : words_(_mm512_broadcast_i32x4(load_row_words<bits>(bytes))) {}

  F32 look_up(const RowTable<bits>& table, int i) const {
    const int a = 4 * i * bits, b = a + bits, c = b + bits, d = c + bits;
    const __m512i counts = _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
    return {_mm512_permutexvar_ps(_mm512_srlv_epi32(words_, counts), table.values)};
  }

 private:
  __m512i words_;
};

#elif defined(__AVX2__)

template <int bits>
struct RowTable {
  __m256 low, high;
  RowTable() = default;
  explicit RowTable(const float* from)
      : low(_mm256_loadu_ps(from)), high(_mm256_loadu_ps(from + (bits == 4 ? 8 : 0))) {}
};

template <int bits>
class RowCodes {
 public:
  RowCodes() = default;
  explicit RowCodes(const uint8_t* bytes)
      : words_(_mm256_broadcastsi128_si256(load_row_words<bits>(bytes))) {}

  F32 look_up(const RowTable<bits>& table, int i) const {
    const int a = 2 * i * bits, b = a + bits;
    const __m256i counts = _mm256_setr_epi32(a, a, a, a, b, b, b, b);
    const __m256i codes = _mm256_srlv_epi32(words_, counts);
    const __m256 low = _mm256_permutevar8x32_ps(table.low, codes);
    if constexpr (bits == 3) return {low};
    const __m256 high = _mm256_permutevar8x32_ps(table.high, codes);
    return {_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)))};
  }

 private:
  __m256i words_;
};

#elif defined(QUIRE_NEON)

template <int bits>
struct RowTable {
  uint8x16x4_t bytes;
  RowTable() = default;
  explicit RowTable(const float* from) {
    for (int i = 0; i < 4; ++i)
      bytes.val[i] = vreinterpretq_u8_f32(vld1q_f32(from + 4 * i % (1 << bits)));
  }
};

template <int bits>
class RowCodes {
 public:
  RowCodes() = default;
  explicit RowCodes(const uint8_t* bytes) {
    uint8x16_t words = vld1q_u8(bytes);
    if constexpr (bits == 3) {
      constexpr uint8_t from[16] = {0, 1, 2, 255, 3, 4, 5, 255, 6, 7, 8, 255, 9, 10, 11, 255};
      words = vqtbl1q_u8(words, vld1q_u8(from));
    }
    words_ = vreinterpretq_u32_u8(words);
  }

  F32 look_up(const RowTable<bits>& table, int i) const {
    return {values_at(table, 2 * i * bits), values_at(table, (2 * i + 1) * bits)};
  }

 private:
  float32x4_t values_at(const RowTable<bits>& table, int shift) const {
    const uint32x4_t codes = (words_ >> shift) & ((1u << bits) - 1);
    const uint32x4_t places = codes * 0x04040404u + 0x03020100u;  // of a float's four bytes
    return vreinterpretq_f32_u8(vqtbl4q_u8(table.bytes, vreinterpretq_u8_u32(places)));
  }

  uint32x4_t words_;
};

#else

template <int bits>
struct RowTable {
  float values[1 << bits];
  RowTable() = default;
  explicit RowTable(const float* from) { std::memcpy(values, from, sizeof(values)); }
};

template <int bits>
class RowCodes {
 public:
  RowCodes() = default;
  explicit RowCodes(const uint8_t* bytes) {
    for (int word = 0; word < 4; ++word) {
      words_[word] = 0;
      std::memcpy(words_ + word, bytes + word * bits, bits);
    }
  }

  F32 look_up(const RowTable<bits>& table, int i) const {
    return each_lane(
        [&](int lane) { return table.values[words_[lane] >> i * bits & ((1 << bits) - 1)]; });
  }

 private:
  uint32_t words_[4];
};

#endif

}  // namespace quire::QUIRE_ISA
