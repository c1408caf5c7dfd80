// Records of 1024 codes and their bit planes.
//
//   4 bits: byte i of 512 holds codes i and i + 512, the low half first
//   2 bits: byte i of 256 holds codes i, i + 256, i + 512, i + 768
//   1 bit:  byte i of 128 holds codes i + 128 b in bit b
//   3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2, the low bits' plane first; 8 bits are bytes
#pragma once

#include "include/quantized.h"
#include "simd/dot.h"

namespace quire::QUIRE_ISA {

constexpr int record_codes = QuantizedWeights::record_codes;

#if !defined(QUIRE_VECTORS)
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

#endif

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

inline void pack_record(int bits, const uint8_t* codes, uint8_t* record) {
  if (bits == 8) std::memcpy(record, codes, record_codes);
  if (bits >= 4 && bits <= 6) pack_plane<4, 0>(codes, record);
  if (bits <= 3) pack_plane<2, 0>(codes, record);
  if (bits == 3) pack_plane<1, 2>(codes, record + record_codes / 4);
  if (bits == 5) pack_plane<1, 4>(codes, record + record_codes / 2);
  if (bits == 6) pack_plane<2, 4>(codes, record + record_codes / 2);
}

// Where a kernel takes the codes of a record from, a register at a time: load(record, word, vector)
// are 4 inputs of the outputs from vector * F32::lanes on.

// Bytes that lie in memory as they are.
template <Range range_>
struct ByteCodes {
  static constexpr Range range = range_;
  static constexpr int64_t record_bytes = record_codes;
  Bytes load(const uint8_t* record, int word, int vector) const {
    return load_bytes(record + word * word_bytes + vector * register_bytes);
  }
};

#if defined(QUIRE_VECTORS)
// Bits of one plane, moved to `shift`.
template <int bits, int shift>
inline Bytes load_plane(const uint8_t* plane, int word, int vector) {
  constexpr int words = bits;  // of one part of the plane: a byte holds 8 / bits parts
  const Bytes bytes = load_bytes(plane + word % words * word_bytes + vector * register_bytes);
  const int low = word / words * bits;
  const bool alone = shifts_bytes && shift == 0 && low == 8 - bits;  // nothing to clear
  return shift_right(bytes, low - shift) & set1_byte(alone ? 255 : ((1 << bits) - 1) << shift);
}

// Planes as they are packed, taken apart in registers.
template <int bits>
struct PackedCodes {
  static constexpr Range range = bits == 8  ? Range::byte
                                 : bits > 4 ? Range::below_64
                                            : Range::below_16;
  static constexpr int64_t record_bytes = record_codes / 8 * bits;
  Bytes load(const uint8_t* record, int word, int vector) const {
    if constexpr (bits == 8)
      return load_bytes(record + word * word_bytes + vector * register_bytes);
    if constexpr (bits == 2 || bits == 4) return load_plane<bits, 0>(record, word, vector);
    constexpr int low = bits < 4 ? 2 : 4;
    return load_plane<low, 0>(record, word, vector) |
           load_plane<bits - low, low>(record + record_codes / 8 * low, word, vector);
  }
};

template <int bits>
inline void store_codes(const uint8_t* record, uint8_t* codes) {
#pragma GCC unroll 8
  for (int word = 0; word < record_codes / word_bytes; ++word)
#pragma GCC unroll 4
    for (int vector = 0; vector < word_bytes / register_bytes; ++vector) {
      const Bytes bytes = PackedCodes<bits>{}.load(record, word, vector);
      std::memcpy(codes + word * word_bytes + vector * register_bytes, &bytes, sizeof(bytes));
    }
}

// Four bits that number the bytes of a table.
template <Range range_>
struct BookCodes {
  static constexpr Range range = range_;
  static constexpr int64_t record_bytes = record_codes / 2;
  const uint8_t* table;
  Bytes load(const uint8_t* record, int word, int vector) const {
    return look_up(table, load_plane<4, 0>(record, word, vector));
  }
};
#endif

// One record to a byte a code.
inline void unpack_record(int bits, const uint8_t* record, uint8_t* codes) {
  if (bits == 8) std::memcpy(codes, record, record_codes);
#if defined(QUIRE_VECTORS)
  if (bits == 6) store_codes<6>(record, codes);
  if (bits == 5) store_codes<5>(record, codes);
  if (bits == 4) store_codes<4>(record, codes);
  if (bits == 3) store_codes<3>(record, codes);
  if (bits == 2) store_codes<2>(record, codes);
#else
  if (bits >= 4 && bits <= 6) unpack_plane<4, 0, true>(record, codes);
  if (bits <= 3) unpack_plane<2, 0, true>(record, codes);
  if (bits == 3) unpack_plane<1, 2, false>(record + record_codes / 4, codes);
  if (bits == 5) unpack_plane<1, 4, false>(record + record_codes / 2, codes);
  if (bits == 6) unpack_plane<2, 4, false>(record + record_codes / 2, codes);
#endif
}

// codes[i] = table[codes[i]] for codes below 16.
inline void look_up_codes(const uint8_t* table, uint8_t* codes) {
#if defined(QUIRE_VECTORS)
  for (int i = 0; i < record_codes; i += register_bytes) {
    const Bytes bytes = look_up(table, load_bytes(codes + i));
    std::memcpy(codes + i, &bytes, sizeof(bytes));
  }
#else
  for (int i = 0; i < record_codes; ++i) codes[i] = table[codes[i]];
#endif
}

// Write codes with a number added to each. All arguments are values: a member or what a reference
// names may lie in the bytes that are written, for all that the compiler knows, and it would go
// byte by byte.
inline void add_to_codes(const uint8_t* from, int64_t count, uint8_t added, uint8_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(from[i] + added);
}

}  // namespace quire::QUIRE_ISA
