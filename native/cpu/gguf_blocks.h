// What the bits of GGUF's blocks mean: codes as bytes in the order of the inputs, and scales.
// Source: the block structures of ggml (ggml-common.h); quire/quantization/gguf_types.py in numpy.
#pragma once

#include <cstdint>
#include <cstring>

#include "include/gguf.h"

namespace quire::QUIRE_ISA {

// A block's scales and offsets: of its groups where there are two levels, and float16 of it all.
struct BlockScales {
  int8_t groups[16];
  int8_t group_offsets[16];
  uint16_t scale;
  uint16_t offset;
};

inline uint16_t half_at(const uint8_t* block, int64_t at) {
  uint16_t bits;
  std::memcpy(&bits, block + at, sizeof(bits));
  return bits;
}

// 16 bytes of 4-bit codes: the low halves of all, then the high ones.
inline void read_nibbles(const uint8_t* from, int n, uint8_t* codes) {
  for (int i = 0; i < n; ++i) codes[i] = from[i] & 15;
  for (int i = 0; i < n; ++i) codes[n + i] = from[i] >> 4;
}

// Fifth bits of 32 codes, as a little-endian number.
inline void add_fifth_bits(const uint8_t* from, uint8_t* codes) {
  uint32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((bits >> i & 1) << 4);
}

// The eight 6-bit scales and minima of Q4_K and Q5_K from their 12 bytes:
//
//   byte 0..3    scale 0..3 in bits 0-5, top bits of scale 4..7 in bits 6-7
//   byte 4..7    minimum 0..3 in bits 0-5, top bits of minimum 4..7 in bits 6-7
//   byte 8..11   scale 4..7 in bits 0-3, minimum 4..7 in bits 4-7
inline void read_scales_and_minima(const uint8_t* packed, BlockScales& scales) {
  for (int i = 0; i < 4; ++i) {
    scales.groups[i] = static_cast<int8_t>(packed[i] & 63);
    scales.groups[4 + i] = static_cast<int8_t>((packed[8 + i] & 15) | packed[i] >> 6 << 4);
    scales.group_offsets[i] = static_cast<int8_t>(packed[4 + i] & 63);
    scales.group_offsets[4 + i] = static_cast<int8_t>(packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4);
  }
}

// The super scales of a scale and of a minimum, which is subtracted, at `at` and `at` + 2.
inline void read_supers(const uint8_t* block, int64_t at, BlockScales& scales) {
  scales.scale = half_at(block, at);
  scales.offset = half_at(block, at + 2) ^ 0x8000;
}

inline void read_q2_k(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  for (int i = 0; i < 128; ++i) {
    const int half = i / 64 * 128, shift = i % 64 / 32 * 2;
    const uint8_t byte = block[16 + i / 64 * 32 + i % 32];
    codes[half + i % 64] = byte >> shift & 3;
    codes[half + 64 + i % 64] = byte >> (4 + shift) & 3;
  }
  for (int i = 0; i < 16; ++i) {
    scales.groups[i] = block[i] & 15;
    scales.group_offsets[i] = static_cast<int8_t>(block[i] >> 4);
  }
  read_supers(block, 80, scales);
}

inline void read_q3_k(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  for (int part = 0; part < 8; ++part) {
    const uint8_t* low = block + 32 + part / 4 * 32;
    const int shift = part % 4 * 2;
    for (int i = 0; i < 32; ++i)
      codes[part * 32 + i] =
          static_cast<uint8_t>((low[i] >> shift & 3) | (block[i] >> part & 1) << 2);
  }
  const uint8_t* packed = block + 96;
  for (int i = 0; i < 16; ++i) {
    const int low = packed[i % 8] >> i / 8 * 4 & 15, high = packed[8 + i % 4] >> i / 4 * 2 & 3;
    scales.groups[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
  scales.scale = half_at(block, 108);
}

inline void read_q4_k(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  for (int part = 0; part < 4; ++part) read_nibbles(block + 16 + part * 32, 32, codes + part * 64);
  read_scales_and_minima(block + 4, scales);
  read_supers(block, 0, scales);
}

inline void read_q5_k(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  for (int part = 0; part < 4; ++part) read_nibbles(block + 48 + part * 32, 32, codes + part * 64);
  for (int part = 0; part < 8; ++part)
    for (int i = 0; i < 32; ++i)
      codes[part * 32 + i] |= static_cast<uint8_t>((block[16 + i] >> part & 1) << 4);
  read_scales_and_minima(block + 4, scales);
  read_supers(block, 0, scales);
}

inline void read_q6_k(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  for (int half = 0; half < 2; ++half) {
    read_nibbles(block + half * 64, 64, codes + half * 128);
    for (int part = 0; part < 4; ++part)
      for (int i = 0; i < 32; ++i)
        codes[half * 128 + part * 32 + i] |=
            static_cast<uint8_t>((block[128 + half * 32 + i] >> part * 2 & 3) << 4);
  }
  std::memcpy(scales.groups, block + 192, 16);
  scales.scale = half_at(block, 208);
}

inline void read_iq4_xs(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  const int high = half_at(block, 2);
  for (int i = 0; i < 8; ++i) {
    read_nibbles(block + 8 + i * 16, 16, codes + i * 32);
    const int low = block[4 + i / 2] >> i % 2 * 4 & 15;
    scales.groups[i] = static_cast<int8_t>((low | (high >> 2 * i & 3) << 4) - 32);
  }
  scales.scale = half_at(block, 0);
}

// One block: its codes and scales. What a type does not have of `scales` is left as it is.
inline void read_block(GgufType type, const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  scales.scale = half_at(block, 0);
  switch (type) {
    case GgufType::q4_0:
    case GgufType::iq4_nl:
      return read_nibbles(block + 2, 16, codes);
    case GgufType::q4_1:
      scales.offset = half_at(block, 2);
      return read_nibbles(block + 4, 16, codes);
    case GgufType::q5_0:
      read_nibbles(block + 6, 16, codes);
      return add_fifth_bits(block + 2, codes);
    case GgufType::q5_1:
      scales.offset = half_at(block, 2);
      read_nibbles(block + 8, 16, codes);
      return add_fifth_bits(block + 4, codes);
    case GgufType::q8_0:
      for (int i = 0; i < 32; ++i) codes[i] = block[2 + i] ^ 128;
      return;
    case GgufType::q2_k:
      return read_q2_k(block, codes, scales);
    case GgufType::q3_k:
      return read_q3_k(block, codes, scales);
    case GgufType::q4_k:
      return read_q4_k(block, codes, scales);
    case GgufType::q5_k:
      return read_q5_k(block, codes, scales);
    case GgufType::q6_k:
      return read_q6_k(block, codes, scales);
    case GgufType::iq4_xs:
      return read_iq4_xs(block, codes, scales);
  }
}

}  // namespace quire::QUIRE_ISA
