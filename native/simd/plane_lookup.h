// Tables of bytes that are looked up by permutations of registers: no loads at indices.
//
// For avx512 with VBMI. A permutation finds 64 bytes in 128; a larger table takes one for each 128
// of its bytes, and the index's further bits choose. Twice as fast as tables of 16-bit numbers: an
// index of a vector is looked up in planes, of a byte each (include/vectors.h).
#pragma once

#if defined(__AVX512VBMI__)

#include <immintrin.h>

#include <cstdint>

namespace quire::QUIRE_ISA {

// `count` registers of 64 indices: the low 8 bits of each, and masks of bits 7, 8, ...
template <int bits, int count>
struct PlaneIndices {
  __m512i low[count];
  __mmask64 high[bits - 7][count];
};

template <int count>
struct PlaneBytes {
  __m512i bytes[count];
};

// table[index] of `1 << bits` bytes. Registers are looked up together so that a part of the table
// is loaded once for all of them.
template <int bits, int all_bits, int count>
[[gnu::always_inline]] inline PlaneBytes<count> look_up_plane(
    const uint8_t* table, const PlaneIndices<all_bits, count>& indices) {
  PlaneBytes<count> found;
  if constexpr (bits == 7) {
    __m512i first = _mm512_loadu_si512(table), second = _mm512_loadu_si512(table + 64);
    // Kept in registers: the compiler would load them again for each register of indices.
    if constexpr (count > 1) __asm__("" : "+v"(first), "+v"(second));
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i)
      found.bytes[i] = _mm512_permutex2var_epi8(first, indices.low[i], second);
  } else {
    constexpr int half = 1 << (bits - 1);
    const auto low = look_up_plane<bits - 1>(table, indices);
    const auto high = look_up_plane<bits - 1>(table + half, indices);
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i)
      found.bytes[i] =
          _mm512_mask_blend_epi8(indices.high[bits - 8][i], low.bytes[i], high.bytes[i]);
  }
  return found;
}

// table[index] of 2048 bytes that change once at most in each 16 of them: `runs` has three bytes
// for each 16, [3][128], the first of them, the last, and at which of 16 it changes. `run` has bits
// 4 and up of the index in its low 7 bits.
inline __m512i look_up_runs(const uint8_t* runs, __m512i run, __m512i low) {
  const auto find = [run](const uint8_t* table) {
    return _mm512_permutex2var_epi8(_mm512_loadu_si512(table), run, _mm512_loadu_si512(table + 64));
  };
  const __m512i place = _mm512_and_si512(low, _mm512_set1_epi8(15));
  const __mmask64 changed = _mm512_cmpge_epu8_mask(place, find(runs + 256));
  return _mm512_mask_blend_epi8(changed, find(runs), find(runs + 128));
}

// Seven bits of each byte with an eighth that makes their number even.
inline __m512i with_even_parity(__m512i x) {
  // Of four bits: 128 where their number is odd.
  const __m512i odd = _mm512_broadcast_i32x4(
      _mm_set_epi32(static_cast<int>(0x00808000), static_cast<int>(0x80000080),
                    static_cast<int>(0x80000080), static_cast<int>(0x00808000)));
  const __m512i seven = _mm512_and_si512(x, _mm512_set1_epi8(127));
  const __m512i folded = _mm512_xor_si512(seven, _mm512_srli_epi16(seven, 4));
  const __m512i nibble = _mm512_and_si512(folded, _mm512_set1_epi8(15));
  return _mm512_or_si512(seven, _mm512_shuffle_epi8(odd, nibble));
}

// Orders of bytes for permutations: `byte_of(lane of 64 bits, byte in it)` is which comes there.
template <class ByteOf>
inline __m512i order_of(const ByteOf& byte_of) {
  alignas(64) uint8_t order[64];
  for (int i = 0; i < 64; ++i) order[i] = static_cast<uint8_t>(byte_of(i / 8, i % 8));
  return _mm512_load_si512(order);
}

// Each of 16 bytes four times.
inline __m512i repeated_bytes(int first) {
  return order_of([=](int lane, int i) { return first + 2 * lane + i / 4; });
}

// Of [4][16 outputs] bytes: those of two neighbouring outputs side by side, four pairs a lane.
inline __m512i quarters_by_outputs() {
  return order_of([](int lane, int i) { return i / 2 * 16 + 2 * lane + i % 2; });
}

// Of [2][16 outputs] bytes from `first` on of two registers: each output's two side by side, two
// pairs of neighbouring outputs a lane.
inline __m512i pairs_by_outputs(int first) {
  return order_of(
      [=](int lane, int i) { return i % 2 * 64 + first + i / 4 * 16 + 2 * lane + i / 2 % 2; });
}

}  // namespace quire::QUIRE_ISA

#endif
