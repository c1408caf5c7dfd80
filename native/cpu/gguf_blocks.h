// What the bits of GGUF's blocks mean: codes as bytes in the order of the inputs, and scales.
// Source: the block structures of ggml (ggml-common.h); quire/checkpoints/gguf/gguf_types.py in
// numpy.
#pragma once

#include <cstdint>
#include <cstring>

#include "include/gguf.h"

namespace quire::QUIRE_ISA {

// A block's scales and offsets: of its groups where there are two levels, and float16 of it all;
// of MXFP4 `scale` is the exponent.
struct BlockScales {
  int8_t groups[16];
  int8_t group_offsets[16];
  uint16_t scale;
  uint16_t offset;
};

constexpr uint64_t each_byte = 0x0101010101010101;

inline uint16_t half_at(const uint8_t* block, int64_t at) {
  uint16_t bits;
  std::memcpy(&bits, block + at, sizeof(bits));
  return bits;
}

// Bytes that are shifted at a time: 16 or 32 in registers of words.
template <int count>
struct ByteWords {
  static constexpr int size = count < 32 ? 16 : 32;
  typedef uint64_t Vector __attribute__((vector_size(size)));
  static Vector load(const uint8_t* from) {
    Vector words;
    std::memcpy(&words, from, size);
    return words;
  }
};

// to[i] = from[i] >> shift & mask for `count` bytes; the mask drops what comes from the neighbour.
template <int count>
inline void shift_bytes(const uint8_t* from, int shift, uint64_t mask, uint8_t* to) {
  using W = ByteWords<count>;
  for (int i = 0; i < count; i += W::size) {
    const typename W::Vector codes = W::load(from + i) >> shift & mask * each_byte;
    std::memcpy(to + i, &codes, W::size);
  }
}

// to[i] |= (from[i] >> shift & mask) << up.
template <int count>
inline void add_bits(const uint8_t* from, int shift, uint64_t mask, int up, uint8_t* to) {
  using W = ByteWords<count>;
  for (int i = 0; i < count; i += W::size) {
    const typename W::Vector codes =
        W::load(to + i) | (W::load(from + i) >> shift & mask * each_byte) << up;
    std::memcpy(to + i, &codes, W::size);
  }
}

// n bytes of 4-bit codes: the low halves of all, then the high ones.
template <int n>
inline void read_nibbles(const uint8_t* from, uint8_t* codes) {
  shift_bytes<n>(from, 0, 15, codes);
  shift_bytes<n>(from, 4, 15, codes + n);
}

// Fifth bits of 32 codes, as a little-endian number.
inline void add_fifth_bits(const uint8_t* from, uint8_t* codes) {
  for (int i = 0; i < 4; ++i) {
    // Bit j in byte j; adding 127 carries it to the top.
    const uint64_t bits = from[i] * each_byte & 0x8040201008040201;
    const uint64_t fifth = ((bits + 127 * each_byte) & 128 * each_byte) >> 3;
    uint64_t word;
    std::memcpy(&word, codes + 8 * i, sizeof(word));
    word |= fifth;
    std::memcpy(codes + 8 * i, &word, sizeof(word));
  }
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
  for (int part = 0; part < 8; ++part)
    shift_bytes<32>(block + 16 + part / 4 * 32, part % 4 * 2, 3, codes + part * 32);
  for (int i = 0; i < 16; ++i) {
    scales.groups[i] = block[i] & 15;
    scales.group_offsets[i] = static_cast<int8_t>(block[i] >> 4);
  }
  read_supers(block, 80, scales);
}

inline void read_q3_k(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  for (int part = 0; part < 8; ++part) {
    shift_bytes<32>(block + 32 + part / 4 * 32, part % 4 * 2, 3, codes + part * 32);
    add_bits<32>(block, part, 1, 2, codes + part * 32);
  }
  const uint8_t* packed = block + 96;
  for (int i = 0; i < 16; ++i) {
    const int low = packed[i % 8] >> i / 8 * 4 & 15, high = packed[8 + i % 4] >> i / 4 * 2 & 3;
    scales.groups[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
  scales.scale = half_at(block, 108);
}

inline void read_q4_k(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  for (int part = 0; part < 4; ++part) read_nibbles<32>(block + 16 + part * 32, codes + part * 64);
  read_scales_and_minima(block + 4, scales);
  read_supers(block, 0, scales);
}

inline void read_q5_k(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  for (int part = 0; part < 4; ++part) read_nibbles<32>(block + 48 + part * 32, codes + part * 64);
  for (int part = 0; part < 8; ++part) add_bits<32>(block + 16, part, 1, 4, codes + part * 32);
  read_scales_and_minima(block + 4, scales);
  read_supers(block, 0, scales);
}

inline void read_q6_k(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  for (int half = 0; half < 2; ++half) {
    read_nibbles<64>(block + half * 64, codes + half * 128);
    for (int part = 0; part < 4; ++part)
      add_bits<32>(block + 128 + half * 32, part * 2, 3, 4, codes + half * 128 + part * 32);
  }
  std::memcpy(scales.groups, block + 192, 16);
  scales.scale = half_at(block, 208);
}

inline void read_iq4_xs(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  const int high = half_at(block, 2);
  for (int i = 0; i < 8; ++i) {
    read_nibbles<16>(block + 8 + i * 16, codes + i * 32);
    const int low = block[4 + i / 2] >> i % 2 * 4 & 15;
    scales.groups[i] = static_cast<int8_t>((low | (high >> 2 * i & 3) << 4) - 32);
  }
  scales.scale = half_at(block, 0);
}

// Codes 0, 1, 2 as digits of fractions in base 3: byte / 256, times 3, has the next one in front.
template <int digits, int count>
inline void read_trits(const uint8_t* from, uint8_t* codes) {
  uint8_t rest[count];
  std::memcpy(rest, from, count);
  for (int digit = 0; digit < digits; ++digit)
    for (int i = 0; i < count; ++i) {
      const int tripled = rest[i] * 3;
      codes[digit * count + i] = static_cast<uint8_t>(tripled >> 8);
      rest[i] = static_cast<uint8_t>(tripled);
    }
}

inline void read_tq1_0(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  read_trits<5, 32>(block, codes);
  read_trits<5, 16>(block + 32, codes + 160);
  read_trits<4, 4>(block + 48, codes + 240);
  scales.scale = half_at(block, 52);
}

inline void read_tq2_0(const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  for (int part = 0; part < 8; ++part)
    shift_bytes<32>(block + part / 4 * 32, part % 4 * 2, 3, codes + part * 32);
  scales.scale = half_at(block, 64);
}

// One block: its codes and scales. What a type does not have of `scales` is left as it is.
inline void read_block(GgufType type, const uint8_t* block, uint8_t* codes, BlockScales& scales) {
  scales.scale = half_at(block, 0);
  switch (type) {
    case GgufType::q4_0:
    case GgufType::iq4_nl:
      return read_nibbles<16>(block + 2, codes);
    case GgufType::q4_1:
      scales.offset = half_at(block, 2);
      return read_nibbles<16>(block + 4, codes);
    case GgufType::q5_0:
      read_nibbles<16>(block + 6, codes);
      return add_fifth_bits(block + 2, codes);
    case GgufType::q5_1:
      scales.offset = half_at(block, 2);
      read_nibbles<16>(block + 8, codes);
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
    case GgufType::tq1_0:
      return read_tq1_0(block, codes, scales);
    case GgufType::tq2_0:
      return read_tq2_0(block, codes, scales);
    case GgufType::mxfp4:
      scales.scale = block[0];
      return read_nibbles<16>(block + 1, codes);
  }
}

}  // namespace quire::QUIRE_ISA
