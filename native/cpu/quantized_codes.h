// Records of 1024 codes and their bit planes.
//
//   4 bits: byte i of 512 holds codes i and i + 512, the low half first
//   2 bits: byte i of 256 holds codes i, i + 256, i + 512, i + 768
//   1 bit:  byte i of 128 holds codes i + 128 b in bit b
//   3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2, the low bits' plane first; 8 bits are bytes
#pragma once

#include "include/quantized.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {

constexpr int record_codes = QuantizedWeights::record_codes;

// out[i] |= plane << shift, for a plane of `bits` bits. `set` writes instead.
template <int bits, int shift, bool set>
inline void unpack_plane(const uint8_t* __restrict plane, uint8_t* __restrict out) {
  constexpr int parts = 8 / bits, bytes = record_codes / parts;
  for (int part = 0; part < parts; ++part) {
    uint8_t* __restrict to = out + part * bytes;
    for (int i = 0; i < bytes; ++i) {
      const auto code =
          static_cast<uint8_t>((plane[i] >> (part * bits) & ((1 << bits) - 1)) << shift);
      to[i] = set ? code : static_cast<uint8_t>(to[i] | code);
    }
  }
}

template <int bits, int shift>
inline void pack_plane(const uint8_t* __restrict codes, uint8_t* __restrict plane) {
  constexpr int parts = 8 / bits, bytes = record_codes / parts;
  for (int i = 0; i < bytes; ++i) {
    int byte = 0;
    for (int part = 0; part < parts; ++part)
      byte |= (codes[i + part * bytes] >> shift & ((1 << bits) - 1)) << (part * bits);
    plane[i] = static_cast<uint8_t>(byte);
  }
}

// One record to a byte a code.
inline void unpack_record(int bits, const uint8_t* record, uint8_t* codes) {
  if (bits == 8) std::memcpy(codes, record, record_codes);
  if (bits >= 4 && bits <= 6) unpack_plane<4, 0, true>(record, codes);
  if (bits <= 3) unpack_plane<2, 0, true>(record, codes);
  if (bits == 3) unpack_plane<1, 2, false>(record + record_codes / 4, codes);
  if (bits == 5) unpack_plane<1, 4, false>(record + record_codes / 2, codes);
  if (bits == 6) unpack_plane<2, 4, false>(record + record_codes / 2, codes);
}

inline void pack_record(int bits, const uint8_t* codes, uint8_t* record) {
  if (bits == 8) std::memcpy(record, codes, record_codes);
  if (bits >= 4 && bits <= 6) pack_plane<4, 0>(codes, record);
  if (bits <= 3) pack_plane<2, 0>(codes, record);
  if (bits == 3) pack_plane<1, 2>(codes, record + record_codes / 4);
  if (bits == 5) pack_plane<1, 4>(codes, record + record_codes / 2);
  if (bits == 6) pack_plane<2, 4>(codes, record + record_codes / 2);
}

// codes[i] = table[codes[i]] for codes below 16.
inline void look_up_codes(const uint8_t* table, uint8_t* codes) {
#if defined(__AVX512BW__)
  const __m512i values =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  for (int i = 0; i < record_codes; i += 64)
    _mm512_storeu_si512(codes + i, _mm512_shuffle_epi8(values, _mm512_loadu_si512(codes + i)));
#elif defined(__AVX2__)
  const __m256i values =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  for (int i = 0; i < record_codes; i += 32) {
    auto* p = reinterpret_cast<__m256i*>(codes + i);
    _mm256_storeu_si256(p, _mm256_shuffle_epi8(values, _mm256_loadu_si256(p)));
  }
#else
  for (int i = 0; i < record_codes; ++i) codes[i] = table[codes[i]];
#endif
}

}  // namespace quire::QUIRE_ISA
