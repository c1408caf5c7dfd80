// Records of vectors made codes of a byte each, and their scales; include/vectors.h has the layout.
//
// Vectors are copied from their table as they are numbered, output by output; registers of them get
// their signs and are put into the order of records:
//
//   table    [4 vectors][32 outputs][8 inputs]
//   record   [8 words][32 outputs][4 inputs]
#pragma once

#include "cpu/quantized_codes.h"

namespace quire::QUIRE_ISA {

constexpr int vector_line = QuantizedWeights::panel_width;
constexpr int record_octets = 4 * vector_line;  // eights of inputs that share a signs byte

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

// Where the top bit is none of a sign: the seven signs with an eighth that makes their number even.
inline uint8_t with_eighth_sign(uint8_t signs) {
  auto odd = static_cast<uint8_t>(signs & 127);
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

// A record's indices, [8 inputs][32 outputs], or of vectors of 4 [8 inputs][32 outputs][2]; and
// which of 8 inputs are negative or, of iq1, have 1 subtracted.
template <VectorForm form>
struct RecordVectors {
  static constexpr VectorLayout layout = vector_layout(form);
  static constexpr int per_octet = 8 / layout.inputs;
  uint16_t indices[record_octets * per_octet];
  uint8_t masks[record_octets];

  explicit RecordVectors(const uint8_t* record) {
    for (int octet = 0; octet < 4; ++octet)
      for (int part = 0; part < per_octet; ++part) {
        const int number = octet * per_octet + part;
        const uint8_t* __restrict low = record + number * vector_line;
        uint16_t* __restrict to = indices + octet * vector_line * per_octet + part;
        for (int n = 0; n < vector_line; ++n)
          to[n * per_octet] = static_cast<uint16_t>(low[n] | high_index(record, number, n) << 8);
      }
    for (int octet = 0; octet < 4; ++octet) read_masks(record, octet, masks + octet * vector_line);
  }

 private:
  static int high_index(const uint8_t* record, int number, int n) {
    if constexpr (layout.top == TopBit::index)
      return record[(layout.signs_begin() + number) * vector_line + n] >> 7;
    if constexpr (layout.high_bits == 0) return 0;
    return high_of<form>(record, number, n) & ((1 << (layout.index_bits - 8)) - 1);
  }

  static void read_masks(const uint8_t* record, int octet, uint8_t* __restrict to) {
    if constexpr (layout.has_signs) {
      const uint8_t* __restrict signs = record + (layout.signs_begin() + octet) * vector_line;
      for (int n = 0; n < vector_line; ++n)
        to[n] = layout.top == TopBit::sign ? signs[n] : with_eighth_sign(signs[n]);
    } else {
      const int number = form == VectorForm::iq1_s ? 3 : octet;  // of all, or of its own
      for (int n = 0; n < vector_line; ++n)
        to[n] = static_cast<uint8_t>(-(high_of<form>(record, number, n) >> 3));
    }
  }
};

template <VectorForm form>
inline void expand_record(const uint8_t* __restrict table, int zero, const uint8_t* record,
                          uint8_t* __restrict codes) {
  constexpr VectorLayout layout = vector_layout(form);
  const RecordVectors<form> vectors(record);
  alignas(64) uint8_t found[8 * record_octets];
  for (int i = 0; i < record_octets * vectors.per_octet; ++i)
    std::memcpy(found + i * layout.inputs, table + vectors.indices[i] * layout.inputs,
                layout.inputs);
#if defined(QUIRE_VECTORS)
  constexpr int outputs = register_bytes / 8;  // of a register
  // Codes of negative numbers are as far below zero as these are above it.
  const Bytes twice = set1_byte(layout.has_signs ? 2 * zero : 2);
  for (int octet = 0; octet < 4; ++octet)
    for (int n = 0; n < vector_line; n += 2 * outputs) {
      const int at = octet * vector_line + n;
      const auto made = [&](int first) {
        const Bytes x = load_bytes(found + 8 * first);
        return choose(vectors.masks + first, x,
                      layout.has_signs ? subtract(twice, x) : subtract(x, twice));
      };
      uint8_t* even = codes + 2 * octet * word_bytes + 4 * n;
      store_words(made(at), made(at + outputs), even, even + word_bytes);
    }
#else
  for (int at = 0; at < record_octets; ++at)
    for (int i = 0; i < 8; ++i) {
      const int code = found[8 * at + i], other = layout.has_signs ? 2 * zero - code : code - 2;
      uint8_t* word = codes + (at / vector_line * 2 + i / 4) * word_bytes;
      word[at % vector_line * 4 + i % 4] =
          static_cast<uint8_t>(vectors.masks[at] >> i & 1 ? other : code);
    }
#endif
}

// Codes of a record, a byte each.
inline void unpack_vectors(const QuantizedWeights& weights, const uint8_t* record, uint8_t* codes) {
  const uint8_t* table = weights.vector_table;
  switch (weights.vectors) {
    case VectorForm::none:
    case VectorForm::e8p:  // cpu/quantized_lattice.h
      return;
    case VectorForm::iq1_s:
      return expand_record<VectorForm::iq1_s>(table, weights.zero, record, codes);
    case VectorForm::iq1_m:
      return expand_record<VectorForm::iq1_m>(table, weights.zero, record, codes);
    case VectorForm::iq2_xxs:
      return expand_record<VectorForm::iq2_xxs>(table, weights.zero, record, codes);
    case VectorForm::iq2_xs:
      return expand_record<VectorForm::iq2_xs>(table, weights.zero, record, codes);
    case VectorForm::iq2_s:
      return expand_record<VectorForm::iq2_s>(table, weights.zero, record, codes);
    case VectorForm::iq3_xxs:
      return expand_record<VectorForm::iq3_xxs>(table, weights.zero, record, codes);
    case VectorForm::iq3_s:
      return expand_record<VectorForm::iq3_s>(table, weights.zero, record, codes);
  }
}

// The scales of a half of a record, or of it all: a number from 1 to 31 for each output. `lines`
// are the unit's, `number` is the record's place in it.
inline void read_odd_line(const QuantizedWeights& weights, const uint8_t* lines,
                          const uint8_t* record, int number, int half, int8_t* __restrict out) {
  const VectorLayout& layout = vector_layout(weights.vectors);
  const int group = layout.group_size < 32 ? 2 * number + half : number;
  const auto write = [out](const auto& scale_of) {
    for (int n = 0; n < vector_line; ++n) out[n] = static_cast<int8_t>(2 * scale_of(n) + 1);
  };
  if (layout.scale_bits == 4) {
    const uint8_t* line = lines + group / 2 * vector_line;
    write([=](int n) { return line[n] >> group % 2 * 4 & 15; });
  } else if (layout.scale_bits == 3) {
    const uint8_t* low = lines + group / 4 * vector_line;
    const uint8_t* high = lines + (4 + group / 8) * vector_line;
    write([=](int n) { return (low[n] >> group % 4 * 2 & 3) | (high[n] >> group % 8 & 1) << 2; });
  } else if (layout.has_signs) {
    const uint8_t* signs = record + layout.signs_begin() * vector_line;
    write([=](int n) {
      int scale = 0;
      for (int i = 0; i < 4; ++i) scale |= signs[i * vector_line + n] >> 7 << i;
      return scale;
    });
  } else {
    write([=](int n) {
      int scale = 0;
      for (int i = 0; i < 3; ++i) scale |= high_of<VectorForm::iq1_s>(record, i, n) >> 3 << i;
      return scale;
    });
  }
}

}  // namespace quire::QUIRE_ISA
