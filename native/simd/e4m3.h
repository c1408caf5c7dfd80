// Registers of E4M3 codes as floats: byte i of each word, for i of 0 .. 3.
//
// With byte tables (AVX512-VBMI) the two high bytes of a float are looked up: E4M3 numbers need no
// others. Else an exponent of 0 has no leading 1, which float's exponent would have: it is taken
// away again, since numbers that are not normal take some processors a long time.
#pragma once

#include "simd/dot.h"
#include "simd/words.h"

namespace quire::QUIRE_ISA {

inline float e4m3_number(int code) {
  const uint32_t bits = static_cast<uint32_t>(code & 128) << 24 | (code & 127) << 20;
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number * 0x1p120f;
}

#if defined(__AVX512VBMI__)

// The third and the fourth byte of the floats of codes 0 .. 127.
struct E4m3Bytes {
  alignas(64) uint8_t third[128], fourth[128];
  constexpr E4m3Bytes() : third(), fourth() {
    for (uint32_t code = 0; code < 128; ++code) {
      uint32_t bits = (code << 20) + (120u << 23);
      if (code < 8) {  // code * 2 ** -9
        uint32_t power = 0;
        while (code >> power > 1) ++power;
        bits = code == 0 ? 0 : (118 + power) << 23 | (code << (23 - power) & 0x7fffff);
      }
      third[code] = static_cast<uint8_t>(bits >> 16);
      fourth[code] = static_cast<uint8_t>(bits >> 24);
    }
  }
};
inline constexpr E4m3Bytes e4m3_bytes;

inline Bytes look_up_128(const uint8_t* table, Bytes codes) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
}

class E4m3Numbers {
 public:
  explicit E4m3Numbers(Bytes codes)
      : third_(look_up_128(e4m3_bytes.third, codes)),
        fourth_(_mm512_ternarylogic_epi32(look_up_128(e4m3_bytes.fourth, codes), codes,
                                          _mm512_set1_epi8(-128), 0xf8)) {}  // a | (b & c)

  F32 operator[](int i) const {
    // Word j: bytes 0, 0, j * 4 + i of third_, j * 4 + i of fourth_.
    const __m512i first =
        _mm512_set_epi32(0x3c7c0000, 0x38780000, 0x34740000, 0x30700000, 0x2c6c0000, 0x28680000,
                         0x24640000, 0x20600000, 0x1c5c0000, 0x18580000, 0x14540000, 0x10500000,
                         0x0c4c0000, 0x08480000, 0x04440000, 0x00400000);
    const __m512i from = _mm512_add_epi32(first, _mm512_set1_epi32(i * 0x01010000));
    constexpr uint64_t high_halves = 0xccccccccccccccccULL;
    return {
        _mm512_castsi512_ps(_mm512_maskz_permutex2var_epi8(high_halves, fourth_, from, third_))};
  }

 private:
  Bytes third_, fourth_;
};

#else

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

#endif

}  // namespace quire::QUIRE_ISA
