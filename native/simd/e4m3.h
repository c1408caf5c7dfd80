// Registers of E4M3 codes as floats and as pairs of bfloat16, which have all their numbers.
//
//   E4m3Numbers(codes)[i]: byte i of each word, for i of 0 .. 3, as a float
//   store_e4m3_pairs(codes, low, high): to low bytes 0 and 1 of each word as bfloat16, to high
//   bytes 2 and 3
//
// A number is looked up by its code, the two bytes of bfloat16 apart: with byte tables of 128
// entries (AVX512-VBMI) or, by shuffles of 16, by the bits of its exponent, where numbers that are
// not normal have other entries.
#pragma once

#include "simd/dot.h"
#include "simd/pairs.h"
#include "simd/words.h"

namespace quire::QUIRE_ISA {

inline float e4m3_number(int code) {
  const uint32_t bits = static_cast<uint32_t>(code & 128) << 24 | (code & 127) << 20;
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number * 0x1p120f;
}

// Floats: an exponent of 0 has no leading 1, which float's exponent would have. It is taken away
// again, since numbers that are not normal take some processors a long time.
class E4m3Numbers {
 public:
  explicit E4m3Numbers(Bytes codes) : codes_(codes) {}

  F32 operator[](int i) const {
    const Words bytes = same_bits<Words>(byte_of(codes_, i));
    const F32 size = as_float(((bytes & 127) << 20) + (120u << 23));
    const F32 rest = size - set1(0x1p-7f);
    const F32 number = select(less(size, set1(0x1p-6f)), rest + rest, size);
    return as_float(same_bits<Words>(number) | (bytes & 128) << 24);
  }

 private:
  Bytes codes_;
};

// The bytes of the bfloat16 of codes 0 .. 127.
struct E4m3Bytes {
  alignas(64) uint8_t low[128], high[128];
  constexpr E4m3Bytes() : low(), high() {
    for (uint32_t code = 0; code < 128; ++code) {
      uint32_t bits = (code << 4) + (120u << 7);
      if (code < 8) {  // code * 2 ** -9
        uint32_t power = 0;
        while (code >> power > 1) ++power;
        bits = code == 0 ? 0 : (118 + power) << 7 | (code << (7 - power) & 0x7f);
      }
      low[code] = static_cast<uint8_t>(bits);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
};
inline constexpr E4m3Bytes e4m3_bytes;

#if defined(__AVX512VBMI__)

inline Bytes look_up_128(const uint8_t* table, Bytes codes) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
}

// Pairs of bfloat16 of bytes 0 and 1 of each word, and of bytes 2 and 3.
struct E4m3Pairs {
  Pairs low, high;

  explicit E4m3Pairs(Bytes codes, const E4m3Bytes* bytes = &e4m3_bytes) {
    const Bytes low_bytes = look_up_128(bytes->low, codes);
    const Bytes high_bytes =  // a | (b & c)
        _mm512_ternarylogic_epi32(look_up_128(bytes->high, codes), codes, _mm512_set1_epi8(-128),
                                  0xf8);
    const __m512 first = _mm512_castsi512_ps(_mm512_unpacklo_epi8(low_bytes, high_bytes));
    const __m512 second = _mm512_castsi512_ps(_mm512_unpackhi_epi8(low_bytes, high_bytes));
    low.v = _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0x88));
    high.v = _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0xdd));
  }
};

inline void store_e4m3_pairs(Bytes codes, BF16* low, BF16* high) {
  const E4m3Pairs pairs(codes);
  _mm512_storeu_si512(low, pairs.low.v);
  _mm512_storeu_si512(high, pairs.high.v);
}

#elif defined(QUIRE_VECTORS)

// table[x] for x below 16, 0 for other x below 128.
#if defined(QUIRE_NEON)
inline Bytes look_up_below_16(const uint8_t* table, Bytes x) { return look_up(table, x); }
#elif defined(__AVX512F__)
inline Bytes look_up_below_16(const uint8_t* table, Bytes x) {
  return look_up(table, _mm512_add_epi8(x, _mm512_set1_epi8(0x70)));
}
#else
inline Bytes look_up_below_16(const uint8_t* table, Bytes x) {
  return look_up(table, _mm256_add_epi8(x, _mm256_set1_epi8(0x70)));
}
#endif

// Words of bytes 0 and 1 of each word of two registers in turn, and of bytes 2 and 3.
#if defined(QUIRE_NEON)
inline void store_interleaved(Bytes x, Bytes y, BF16* low, BF16* high) {
  const auto store_half = [](uint8x16_t x_half, uint8x16_t y_half, BF16* to_low, BF16* to_high) {
    const uint32x4_t first = vreinterpretq_u32_u8(vzip1q_u8(x_half, y_half));
    const uint32x4_t second = vreinterpretq_u32_u8(vzip2q_u8(x_half, y_half));
    const uint32x4x2_t words = vuzpq_u32(first, second);
    vst1q_u8(reinterpret_cast<uint8_t*>(to_low), vreinterpretq_u8_u32(words.val[0]));
    vst1q_u8(reinterpret_cast<uint8_t*>(to_high), vreinterpretq_u8_u32(words.val[1]));
  };
  store_half(x.low, y.low, low, high);
  store_half(x.high, y.high, low + 8, high + 8);
}
#elif defined(__AVX512F__)
inline void store_interleaved(Bytes x, Bytes y, BF16* low, BF16* high) {
  const __m512 first = _mm512_castsi512_ps(_mm512_unpacklo_epi8(x, y));
  const __m512 second = _mm512_castsi512_ps(_mm512_unpackhi_epi8(x, y));
  _mm512_storeu_ps(low, _mm512_shuffle_ps(first, second, 0x88));
  _mm512_storeu_ps(high, _mm512_shuffle_ps(first, second, 0xdd));
}
#else
inline void store_interleaved(Bytes x, Bytes y, BF16* low, BF16* high) {
  const __m256 first = _mm256_castsi256_ps(_mm256_unpacklo_epi8(x, y));
  const __m256 second = _mm256_castsi256_ps(_mm256_unpackhi_epi8(x, y));
  _mm256_storeu_ps(reinterpret_cast<float*>(low), _mm256_shuffle_ps(first, second, 0x88));
  _mm256_storeu_ps(reinterpret_cast<float*>(high), _mm256_shuffle_ps(first, second, 0xdd));
}
#endif

// The high byte of normal numbers by the three high bits of their exponent; what is other in the
// bytes of codes below 16 than these say, where some are not normal.
struct E4m3Shuffles {
  alignas(16) uint8_t high[16], low_change[16], high_change[16];
  constexpr E4m3Shuffles() : high(), low_change(), high_change() {
    for (int i = 0; i < 16; ++i) {
      high[i] = e4m3_bytes.high[i % 8 * 16 + 15];
      low_change[i] = static_cast<uint8_t>(e4m3_bytes.low[i] ^ i << 4);
      high_change[i] = static_cast<uint8_t>(e4m3_bytes.high[i] ^ e4m3_bytes.high[15]);
    }
  }
};
inline constexpr E4m3Shuffles e4m3_shuffles;

inline void store_e4m3_pairs(Bytes codes, BF16* low, BF16* high) {
  const Bytes size = codes & set1_byte(127);
  const Bytes low_bytes =
      (shift_right(size, -4) & set1_byte(0xf0)) ^ look_up_below_16(e4m3_shuffles.low_change, size);
  const Bytes high_bytes = look_up(e4m3_shuffles.high, shift_right(size, 4) & set1_byte(7)) ^
                           look_up_below_16(e4m3_shuffles.high_change, size);
  store_interleaved(low_bytes, high_bytes | (codes & set1_byte(128)), low, high);
}

#else

inline void store_e4m3_pairs(Bytes codes, BF16* low, BF16* high) {
  for (int i = 0; i < register_bytes; ++i) {
    const int size = codes.v[i] & 127;
    const auto bits = static_cast<uint16_t>(e4m3_bytes.low[size] |
                                            (e4m3_bytes.high[size] | (codes.v[i] & 128)) << 8);
    std::memcpy((i % 4 < 2 ? low : high) + i / 4 * 2 + i % 2, &bits, sizeof(bits));
  }
}

#endif

}  // namespace quire::QUIRE_ISA
