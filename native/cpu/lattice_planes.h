// Records of E8P made codes of four bits by products of matrices of bits (GFNI).
//
// A weight is 2 c - 15 quarters of a code c from 2 to 13: for a distance of 1/2 + f from 0,
//
//   bit 3       whether it is not negative
//   bits 2, 1   those of f, inverted where it is negative
//   bit 0       whether 1/4 is added, not subtracted
//
// Of 8 inputs each bit is a byte, which signs invert all at once. The four bytes of two vectors are
// a matrix of 8 x 8 bits; transposed it has two codes in each byte.
#pragma once

#include "cpu/quantized_codes.h"
#include "simd/plane_lookup.h"

#if defined(__AVX512VBMI__)

namespace quire::QUIRE_ISA {

// Registers of 64 vectors taken apart.
class LatticeDecoder {
 public:
  // Of 16 vectors of each 16 bytes four at a time: register i has vectors 4 i, 4 i + 1, ... of
  // all. Each 8 bytes are 8 inputs of two neighbouring vectors, the first in the high halves.
  struct Codes {
    __m512i of[4];
  };

  explicit LatticeDecoder(const VectorTable& table) : planes_(table.planes) {}

  [[gnu::always_inline]] Codes codes_of(__m512i numbers, __m512i stored) const {
    PlaneIndices<8, 1> indices;
    indices.low[0] = numbers;
    indices.high[0][0] = _mm512_movepi8_mask(numbers);
    const __m512i low = look_up_plane<8>(planes_, indices).bytes[0];
    const __m512i high = look_up_plane<8>(planes_ + layout.indices(), indices).bytes[0];
    const __m512i even = product(stored, seven_and_parity);
    const __mmask64 odd =
        _mm512_cmpge_epu8_mask(numbers, _mm512_set1_epi8(static_cast<char>(layout.odd_from)));
    const __m512i positive = _mm512_mask_sub_epi8(even, odd, even, _mm512_set1_epi8(-128));
    const __m512i added = product(stored, highest);
    const __m512i second = _mm512_xor_si512(high, positive);
    const __m512i third = _mm512_xor_si512(low, positive);
    const __m512i upper[2] = {_mm512_unpacklo_epi8(positive, second),
                              _mm512_unpackhi_epi8(positive, second)};
    const __m512i lower[2] = {_mm512_unpacklo_epi8(third, added),
                              _mm512_unpackhi_epi8(third, added)};
    Codes codes;
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      codes.of[2 * i] = transposed(_mm512_unpacklo_epi16(upper[i], lower[i]));
      codes.of[2 * i + 1] = transposed(_mm512_unpackhi_epi16(upper[i], lower[i]));
    }
    return codes;
  }

 private:
  static constexpr VectorLayout layout = vector_layout(VectorForm::e8p);
  // Matrices, 8 bits a row, the highest bit's first.
  static constexpr int64_t seven_and_parity = 0x010204081020407f;
  static constexpr int64_t highest = static_cast<int64_t>(0x8080808080808080);
  static constexpr int64_t each = static_cast<int64_t>(0x8040201008040201);

  // The opposite of bits of each byte.
  static __m512i product(__m512i bytes, int64_t matrix) {
    return _mm512_gf2p8affine_epi64_epi8(bytes, _mm512_set1_epi64(matrix), 0xff);
  }
  static __m512i transposed(__m512i matrices) {
    return _mm512_gf2p8affine_epi64_epi8(_mm512_set1_epi64(each), matrices, 0);
  }

  const uint8_t* const planes_;
};

// Codes of a record, outputs n and n + 16 in a byte.
class LatticePairs {
 public:
  using Codes = LatticeDecoder::Codes;

  explicit LatticePairs(const VectorTable& table)
      : decoder_(table), order_(order_of([](int lane, int i) {
          return lane % 2 * line + i % 2 * 16 + lane / 2 * 4 + i / 2;
        })) {}

  // Of octets 2 * pair, in two registers of outputs, and the next.
  [[gnu::always_inline]] Codes codes_of(const uint8_t* record, int pair) const {
    const uint8_t* const from = record + 2 * pair * line;
    return decoder_.codes_of(_mm512_permutexvar_epi8(order_, _mm512_loadu_si512(from)),
                             _mm512_permutexvar_epi8(order_, _mm512_loadu_si512(from + 4 * line)));
  }

 private:
  static constexpr int line = QuantizedWeights::panel_width;
  const LatticeDecoder decoder_;
  const __m512i order_;
};

// Twice the codes of a record, as codes of four bits lie (cpu/quantized_codes.h), but words are
// rotated by a bit: those of octets 0 and 2 or 1 and 3 of an output have a byte's bits.
struct LatticeHalves {
  static constexpr Range range = Range::below_64;
  static constexpr int64_t record_bytes = record_codes / 2;
  static Bytes low(Bytes rotated) { return rotated & set1_byte(0x1e); }
  static Bytes high(Bytes rotated) { return low(_mm512_ror_epi32(rotated, 4)); }
  Bytes load(const uint8_t* record, int word, int vector) const {
    const Bytes both = load_bytes(record + word % 4 * word_bytes + vector * register_bytes);
    return word < 4 ? low(both) : high(both);
  }
};

// Codes of a record in the order of tiles.
class LatticeExpander {
 public:
  LatticeExpander(const VectorTable& table, int) : decoder_(table) {
    for (int octet = 0; octet < 2; ++octet)
      order_[octet] = order_of([octet](int lane, int i) {
        const int pair = lane % 2 * 4 + i / 2;
        return (octet + 2 - i % 2 * 2) * line + pair / 4 * 16 + lane / 2 * 4 + pair % 4;
      });
  }

  // As LatticeHalves takes them.
  [[gnu::always_inline]] void expand_halves(const uint8_t* record, uint8_t* codes) const {
    each_register(record, [&](int word, int vector, Bytes rotated) {
      _mm512_storeu_si512(codes + word * word_bytes + vector * register_bytes, rotated);
    });
  }

  // Quarters and 16, as other vectors are expanded: [8 words][32 outputs][4 inputs].
  [[gnu::always_inline]] void expand(const uint8_t* record, uint8_t* __restrict codes) const {
    each_register(record, [&](int word, int vector, Bytes rotated) {
      uint8_t* const to = codes + word * word_bytes + vector * register_bytes;
      _mm512_storeu_si512(to, LatticeHalves::low(rotated) | set1_byte(1));
      _mm512_storeu_si512(to + 4 * word_bytes, LatticeHalves::high(rotated) | set1_byte(1));
    });
  }

 private:
  static constexpr int line = QuantizedWeights::panel_width;

  // use(word, vector, codes) for words 0 to 3 with those four later.
  template <class Use>
  [[gnu::always_inline]] void each_register(const uint8_t* record, const Use& use) const {
#pragma GCC unroll 2
    for (int octet = 0; octet < 2; ++octet) {
      const auto codes =
          decoder_.codes_of(two_lines(record, octet), two_lines(record + 4 * line, octet));
#pragma GCC unroll 2
      for (int vector = 0; vector < 2; ++vector) {
        const __m512 x = _mm512_castsi512_ps(codes.of[2 * vector]);
        const __m512 y = _mm512_castsi512_ps(codes.of[2 * vector + 1]);
        const __m512i first = _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88));
        const __m512i second = _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd));
        use(2 * octet, vector, _mm512_rol_epi32(first, 1));
        use(2 * octet + 1, vector, _mm512_rol_epi32(second, 1));
      }
    }
  }

  // Lines `first` and `first` + 2 of four.
  __m512i two_lines(const uint8_t* lines, int first) const {
    return _mm512_permutex2var_epi8(_mm512_loadu_si512(lines), order_[first],
                                    _mm512_loadu_si512(lines + 2 * line));
  }

  const LatticeDecoder decoder_;
  __m512i order_[2];
};

}  // namespace quire::QUIRE_ISA

#endif
