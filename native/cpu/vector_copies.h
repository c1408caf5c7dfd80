// Records of vectors made codes of a byte each by loads from their table: what all instruction sets
// can.
//
// Registers of vectors get their signs. Vectors of 4 inputs are words of a record as they come;
// those of 8 are put into its order:
//
//   table    [4 vectors][32 outputs][8 inputs]
//   record   [8 words][32 outputs][4 inputs]
#pragma once

#include "cpu/quantized_codes.h"

namespace quire::QUIRE_ISA {

constexpr int vector_line = QuantizedWeights::panel_width;

// The bytes of a register or more whose bits choose: byte i of `other` where bit i is set.
#if defined(QUIRE_NEON)
inline Bytes choose(const uint8_t* bits, Bytes x, Bytes other) {
  alignas(16) static constexpr uint8_t places[] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                   1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t place = vld1q_u8(places);
  const auto mask = [&](const uint8_t* two) {
    return vtstq_u8(vcombine_u8(vdup_n_u8(two[0]), vdup_n_u8(two[1])), place);
  };
  return {vbslq_u8(mask(bits), other.low, x.low), vbslq_u8(mask(bits + 2), other.high, x.high)};
}
inline Bytes subtract(Bytes a, Bytes b) {
  return {vsubq_u8(a.low, b.low), vsubq_u8(a.high, b.high)};
}
// Words 2 i of two registers in turn, and words 2 i + 1.
inline void store_words(Bytes a, Bytes b, uint8_t* even, uint8_t* odd) {
  const auto store_pair = [](uint8x16_t first, uint8x16_t second, uint8_t* to_even,
                             uint8_t* to_odd) {
    const uint32x4_t x = vreinterpretq_u32_u8(first), y = vreinterpretq_u32_u8(second);
    const uint32x4x2_t parts = vuzpq_u32(x, y);
    vst1q_u8(to_even, vreinterpretq_u8_u32(parts.val[0]));
    vst1q_u8(to_odd, vreinterpretq_u8_u32(parts.val[1]));
  };
  store_pair(a.low, a.high, even, odd);
  store_pair(b.low, b.high, even + 16, odd + 16);
}
#elif defined(__AVX512F__)
inline Bytes choose(const uint8_t* bits, Bytes x, Bytes other) {
  uint64_t mask;
  std::memcpy(&mask, bits, sizeof(mask));
  return _mm512_mask_blend_epi8(mask, x, other);
}
inline Bytes subtract(Bytes a, Bytes b) { return _mm512_sub_epi8(a, b); }
inline void store_words(Bytes a, Bytes b, uint8_t* even, uint8_t* odd) {
  const __m512i count = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  _mm512_storeu_si512(even, _mm512_permutex2var_epi32(a, count, b));
  _mm512_storeu_si512(
      odd, _mm512_permutex2var_epi32(a, _mm512_add_epi32(count, _mm512_set1_epi32(1)), b));
}
#elif defined(__AVX2__)
inline Bytes choose(const uint8_t* bits, Bytes x, Bytes other) {
  int32_t four;
  std::memcpy(&four, bits, sizeof(four));
  const __m256i bytes = _mm256_shuffle_epi8(
      _mm256_set1_epi32(four),
      _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0));
  const __m256i places = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  return _mm256_blendv_epi8(x, other, _mm256_cmpeq_epi8(_mm256_and_si256(bytes, places), places));
}
inline Bytes subtract(Bytes a, Bytes b) { return _mm256_sub_epi8(a, b); }
inline void store_words(Bytes a, Bytes b, uint8_t* even, uint8_t* odd) {
  const auto store_part = [](__m256 part, uint8_t* to) {
    const __m256i ordered = _mm256_permute4x64_epi64(_mm256_castps_si256(part), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), ordered);
  };
  const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
  store_part(_mm256_shuffle_ps(x, y, 0x88), even);
  store_part(_mm256_shuffle_ps(x, y, 0xdd), odd);
}
#endif

// Where the top bit is none of a sign: the seven signs with an eighth that makes their number even,
// or odd.
inline uint8_t with_eighth_sign(uint8_t signs, bool makes_odd) {
  auto odd = static_cast<uint8_t>((signs & 127) ^ makes_odd);
  odd = static_cast<uint8_t>(odd ^ odd >> 4);
  odd = static_cast<uint8_t>(odd ^ odd >> 2);
  odd = static_cast<uint8_t>(odd ^ odd >> 1);
  return static_cast<uint8_t>((signs & 127) | odd << 7);
}

// What vector `number` of output n has in the high lines.
template <VectorForm form>
inline int high_of(const uint8_t* record, int number, int n) {
  constexpr VectorLayout layout = vector_layout(form);
  constexpr int lines = static_cast<int>(layout.high_lines()), bits = layout.high_bits;
  const uint8_t* line = record + (layout.high_begin() + number % lines) * vector_line;
  return line[n] >> number / lines * bits & ((1 << bits) - 1);
}

// A record's indices, [vector][32 outputs], and bits for each weight: whether it is negative, and
// whether it has 1 subtracted. Bits lie as registers take them: [8 inputs][32 outputs] bytes of 8
// inputs, or of vectors of 4 [8 vectors][32 outputs] half bytes.
template <VectorForm form>
struct RecordVectors {
  static constexpr VectorLayout layout = vector_layout(form);
  static constexpr int vectors = static_cast<int>(layout.vectors());
  alignas(64) uint16_t indices[vectors * vector_line];
  alignas(64) uint8_t negative[4 * vector_line];
  alignas(64) uint8_t lowered[4 * vector_line];  // all 8 inputs alike

  explicit RecordVectors(const uint8_t* record) {
    for (int number = 0; number < vectors; ++number) {
      const uint8_t* __restrict low = record + number * vector_line;
      uint16_t* __restrict to = indices + number * vector_line;
      for (int n = 0; n < vector_line; ++n)
        to[n] = static_cast<uint16_t>(low[n] | high_index(record, number, n) << 8);
    }
    for (int octet = 0; octet < 4; ++octet) {
      uint8_t* __restrict const to = negative + octet * vector_line;
      uint8_t* __restrict const shifts = lowered + octet * vector_line;
      const uint8_t* __restrict signs = record + (layout.signs_begin() + octet) * vector_line;
      const int number = form == VectorForm::iq1_s ? 3 : octet;  // whose bit lowers these
      for (int n = 0; n < vector_line; ++n) {
        if constexpr (layout.has_signs)
          to[n] = layout.top == TopBit::sign
                      ? signs[n]
                      : with_eighth_sign(signs[n], has_odd_signs(octet * vector_line + n));
        if constexpr (layout.has_shifts())
          shifts[n] = static_cast<uint8_t>(
              -(layout.has_signs ? signs[n] >> 7 : high_of<form>(record, number, n) >> 3));
      }
      if constexpr (layout.inputs == 4) divide_halves(to);
    }
  }

  // Whether input `input` of output n is negative.
  bool is_negative(int input, int n) const {
    if (layout.inputs == 8) return negative[input / 8 * vector_line + n] >> input % 8 & 1;
    return negative[(input / 4 * vector_line + n) / 2] >> (n % 2 * 4 + input % 4) & 1;
  }

 private:
  // Of vectors of 8 inputs: whether an eighth sign makes their number odd.
  bool has_odd_signs(int vector) const {
    return layout.inputs == 8 && indices[vector] >= layout.odd_from;
  }

  static int high_index(const uint8_t* record, int number, int n) {
    if constexpr (layout.top == TopBit::index)
      return record[(layout.signs_begin() + number) * vector_line + n] >> 7;
    if constexpr (layout.high_bits == 0) return 0;
    return high_of<form>(record, number, n) & ((1 << (layout.index_bits - 8)) - 1);
  }

  // The low halves of 32 bytes, then the high ones.
  static void divide_halves(uint8_t* bytes) {
    uint8_t low[vector_line / 2], high[vector_line / 2];
    for (int i = 0; i < vector_line / 2; ++i) {
      const int first = bytes[2 * i], second = bytes[2 * i + 1];
      low[i] = static_cast<uint8_t>((first & 15) | second << 4);
      high[i] = static_cast<uint8_t>(first >> 4 | (second & 0xf0));
    }
    std::memcpy(bytes, low, sizeof(low));
    std::memcpy(bytes + sizeof(low), high, sizeof(high));
  }
};

#if defined(QUIRE_VECTORS)
// A register of vectors that lie in a table of Vector where `indices` say.
template <class Vector>
inline Bytes gather(const uint8_t* table, const uint16_t* indices) {
  typedef Vector Vectors __attribute__((vector_size(register_bytes)));
  const auto at = [&](int i) {
    Vector vector;
    std::memcpy(&vector, table + indices[i] * sizeof(Vector), sizeof(vector));
    return vector;
  };
  Vectors found;
  if constexpr (register_bytes / sizeof(Vector) == 4)
    found = Vectors{at(0), at(1), at(2), at(3)};
  else if constexpr (register_bytes / sizeof(Vector) == 8)
    found = Vectors{at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)};
  else
    found = Vectors{at(0), at(1), at(2),  at(3),  at(4),  at(5),  at(6),  at(7),
                    at(8), at(9), at(10), at(11), at(12), at(13), at(14), at(15)};
  Bytes bytes;
  std::memcpy(&bytes, &found, sizeof(bytes));
  return bytes;
}
#endif

// By loads from the table.
template <VectorForm form>
class VectorExpander {
 public:
  VectorExpander(const VectorTable& table, int zero)
      : table_(table.codes), twice_(layout.twice_zero(zero)) {}

  // Write the codes of a record, [8 words][32 outputs][4 inputs].
  void expand(const uint8_t* record, uint8_t* __restrict codes) const {
    const RecordVectors<form> vectors(record);
#if defined(QUIRE_VECTORS)
    const Bytes twice = set1_byte(twice_), two = set1_byte(2);
    const auto finished = [&](int at, Bytes x) {  // `at` counts eights of inputs
      if constexpr (layout.has_signs) x = choose(vectors.negative + at, x, subtract(twice, x));
      if constexpr (layout.has_shifts()) x = choose(vectors.lowered + at, x, subtract(x, two));
      return x;
    };
    if constexpr (layout.inputs == 4) {
      for (int i = 0; i < 8 * vector_line; i += register_bytes / 4) {
        const Bytes x = finished(i / 2, gather<uint32_t>(table_, vectors.indices + i));
        std::memcpy(codes + 4 * i, &x, sizeof(x));
      }
    } else {
      constexpr int outputs = register_bytes / 8;  // of a register
      for (int octet = 0; octet < 4; ++octet)
        for (int n = 0; n < vector_line; n += 2 * outputs) {
          const auto found = [&](int i) {
            return finished(i, gather<uint64_t>(table_, vectors.indices + i));
          };
          const int first = octet * vector_line + n;
          uint8_t* even = codes + 2 * octet * word_bytes + 4 * n;
          store_words(found(first), found(first + outputs), even, even + word_bytes);
        }
    }
#else
    for (int input = 0; input < 32; ++input)
      for (int n = 0; n < vector_line; ++n) {
        const int vector = vectors.indices[input / layout.inputs * vector_line + n];
        int code = table_[vector * layout.inputs + input % layout.inputs];
        if constexpr (layout.has_signs)
          if (vectors.is_negative(input, n)) code = twice_ - code;
        if constexpr (layout.has_shifts())
          if (vectors.lowered[input / 8 * vector_line + n]) code -= 2;
        codes[input / 4 * word_bytes + 4 * n + input % 4] = static_cast<uint8_t>(code);
      }
#endif
  }

 private:
  static constexpr VectorLayout layout = vector_layout(form);
  const uint8_t* const table_;
  const int twice_;
};

}  // namespace quire::QUIRE_ISA
