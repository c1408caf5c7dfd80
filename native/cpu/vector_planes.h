// Records of vectors made codes of a byte each by permutations of bytes: 512 bits with VBMI.
//
// An index finds a byte in each of two planes (simd/plane_lookup.h). Bytes are put in such an order
// that fields of a word of 16 outputs lie in their own 64 bits, and shifted to bytes there; fields
// number the codes, and bits above a field may stay because the 64 values repeat.
#pragma once

#include "include/quantized.h"
#include "simd/plane_lookup.h"

#if defined(__AVX512VBMI__)

namespace quire::QUIRE_ISA {

template <VectorForm form>
class PlaneExpander {
 public:
  PlaneExpander(const VectorTable& table, int zero)
      : table_(table),
        values_(_mm512_loadu_si512(table.values)),
        twice_(_mm512_set1_epi8(static_cast<char>(layout.twice_zero(zero)))) {
    for (int i = 0; i < 4; ++i) spread_[i] = repeated_bytes(16 * i);
    for (int i = 0; i < shares; ++i)
      shifts_[i] = _mm512_set1_epi64(field_shifts + i * (64 / shares) * 0x0101010101010101);
    for (int i = 0; i < 2; ++i)
      order_[i] = is_short ? pairs_by_outputs(32 * i) : quarters_by_outputs();
    for (int number = 0; number < registers; ++number)
      for (int bit = 0; bit < layout.high_bits; ++bit)
        high_places_[number][bit] = places_of(number, bit);
  }

  // Write the codes of a record, [8 words][32 outputs][4 inputs].
  [[gnu::always_inline]] void expand(const uint8_t* __restrict record,
                                     uint8_t* __restrict codes) const {
    if constexpr (is_short) {
#pragma GCC unroll 2
      for (int pair = 0; pair < 2; ++pair) {
        const Found found(*this, record, 2 * pair);
        write_octets(record, pair, words_of(found, 0), words_of(found, 1), codes);
      }
    } else {
      const Found found(*this, record, 0);
#pragma GCC unroll 2
      for (int pair = 0; pair < 2; ++pair) {
        const Words words = words_of(found, pair);
        write_octets(record, pair, words, words, codes);
      }
    }
  }

 private:
  static constexpr VectorLayout layout = vector_layout(form);
  static constexpr bool is_short = layout.inputs == 4;
  static constexpr int line = QuantizedWeights::panel_width, word = 4 * line;
  static constexpr int registers = layout.vectors() / 2;  // of indices
  // How many words of 16 outputs have their fields in the same register, and how these lie there.
  static constexpr int shares = is_short ? 2 : 4;
  static constexpr int64_t field_shifts = is_short ? 0x1c1814100c080400 : 0x0e0c0a0806040200;

  // Fields of the even and the odd word of one octet, or of two.
  struct Words {
    __m512i bytes[2];
  };

  // Both planes' bytes of two registers of indices, `number` and the next: each two lines of low
  // bytes.
  struct Found {
    PlaneBytes<2> first, second;

    [[gnu::always_inline]] Found(const PlaneExpander& from, const uint8_t* record, int number) {
      const VectorTable& table = from.table_;
      PlaneIndices<layout.index_bits, 2> indices;
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        indices.low[i] = _mm512_loadu_si512(record + 2 * line * (number + i));
        indices.high[0][i] = _mm512_movepi8_mask(indices.low[i]);
#pragma GCC unroll 3
        for (int bit = 8; bit < layout.index_bits; ++bit)
          indices.high[bit - 7][i] = layout.top == TopBit::index
                                         ? _mm512_movepi8_mask(read_signs(record, number + i))
                                         : from.high_bits(record, number + i, bit - 8);
      }
      first = look_up_plane<layout.index_bits>(table.planes, indices);
      if constexpr (layout.index_bits < 11) {
        second = look_up_plane<layout.index_bits>(table.planes + layout.indices(), indices);
      } else {
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
          second.bytes[i] =
              look_up_runs(table.runs, run_of(record, indices.low[i], i), indices.low[i]);
      }
    }
  };

  Words words_of(const Found& found, int i) const {
    const __m512i first = found.first.bytes[i], second = found.second.bytes[i];
    if constexpr (is_short)
      return {{_mm512_permutex2var_epi8(first, order_[0], second),
               _mm512_permutex2var_epi8(first, order_[1], second)}};
    return {
        {_mm512_permutexvar_epi8(order_[0], first), _mm512_permutexvar_epi8(order_[1], second)}};
  }

  // Bits 4 to 10 of the indices of iq1, whose high bits are a half byte; bit 7 is left as it is.
  static __m512i run_of(const uint8_t* record, __m512i low, int number) {
    const __m512i high = _mm512_loadu_si512(record + layout.high_begin() * line);
    const __m512i mask = _mm512_set1_epi8(15);
    return _mm512_ternarylogic_epi64(mask, _mm512_srli_epi16(low, 4),
                                     number == 0 ? _mm512_slli_epi16(high, 4) : high, 0xca);
  }

  // Where bit `bit` of the indices of register `number` is in its high lines.
  static __m512i places_of(int number, int bit) {
    const auto place = [bit](int64_t vector) {
      return _mm256_set1_epi8(
          static_cast<char>(1 << (vector / layout.high_lines() * layout.high_bits + bit)));
    };
    return _mm512_inserti64x4(_mm512_castsi256_si512(place(2 * number)), place(2 * number + 1), 1);
  }

  // Of register `number` of indices: which have bit `bit` in the high lines.
  __mmask64 high_bits(const uint8_t* record, int number, int bit) const {
    const uint8_t* from = record + layout.high_begin() * line;
    const __m512i high =
        layout.high_lines() == 1
            ? _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))
            : _mm512_loadu_si512(from);
    return _mm512_test_epi8_mask(high, high_places_[number][bit]);
  }

  // Two lines of signs, as they are.
  static __m512i read_signs(const uint8_t* record, int pair) {
    return _mm512_loadu_si512(record + (layout.signs_begin() + 2 * pair) * line);
  }

  // Two lines of eight signs a vector.
  static __m512i all_signs(const uint8_t* record, int pair) {
    const __m512i stored = read_signs(record, pair);
    return layout.top == TopBit::sign ? stored : with_even_parity(stored);
  }

  // Which vectors of two octets have 1 subtracted; of iq1_s the last vector's bit stands for all.
  __mmask64 lowered(const uint8_t* record, int pair) const {
    const __mmask64 stored = high_bits(record, form == VectorForm::iq1_s ? 1 : pair, 3);
    return form == VectorForm::iq1_s ? stored >> 32 | stored >> 32 << 32 : stored;
  }

  // Codes of octets 2 * pair and the next.
  [[gnu::always_inline]] void write_octets(const uint8_t* record, int pair, const Words& even,
                                           const Words& odd, uint8_t* codes) const {
    codes += pair * 4 * word;
    const __m512i signs = layout.has_signs ? all_signs(record, pair) : __m512i{};
    const __mmask64 down = layout.has_shifts() ? lowered(record, pair) : 0;
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      const __m512i spread = _mm512_permutexvar_epi8(spread_[part], signs);
      const auto mask = static_cast<__mmask16>(down >> 16 * part);
      write_words(part < 2 ? even : odd, part, codes, [&](__m512i fields, int i) {
        __m512i code = _mm512_permutexvar_epi8(fields, values_);
        const __m512i places =
            _mm512_set1_epi32(i == 0 ? 0x08040201 : static_cast<int>(0x80402010));
        if constexpr (layout.has_signs)
          code = _mm512_mask_sub_epi8(code, _mm512_test_epi8_mask(spread, places), twice_, code);
        if constexpr (layout.has_shifts())
          code = _mm512_mask_sub_epi32(code, mask, code, _mm512_set1_epi32(0x02020202));
        return code;
      });
    }
  }

  // Two words of 16 outputs, those of `part % 2`, of octet part / 2. code_of(fields, word) are
  // their codes.
  template <class CodeOf>
  [[gnu::always_inline]] void write_words(const Words& words, int part, uint8_t* codes,
                                          const CodeOf& code_of) const {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512i fields = _mm512_multishift_epi64_epi8(shifts_[part % shares], words.bytes[i]);
      _mm512_storeu_si512(codes + (part / 2 * 2 + i) * word + part % 2 * 64, code_of(fields, i));
    }
  }

  const VectorTable table_;
  const __m512i values_, twice_;
  __m512i spread_[4], shifts_[shares], order_[2];
  __m512i high_places_[registers][layout.high_bits > 0 ? layout.high_bits : 1];
};

}  // namespace quire::QUIRE_ISA

#endif
