// Matrix tiles: the few instructions of AMX that kernels use, or the same bits from vectors.
//
// QUIRE_MATRIX_TILES is defined where this instruction set has either. A thread has eight
// registers:
//
//   0 .. 3  sums   rows of 16 numbers of 32 bits: rows[0] in 0 and 1, rows[1] in 2 and 3
//   4, 5    left   rows of `inner` bytes: rows[0] in 4, rows[1] in 5
//   6, 7    right  inner / 4 rows of 64 bytes: a word of 4 bytes or of 2 bfloat16 for each output
//
// TileConfiguration(inner, rows) sets their shapes while it lives, 16 rows where none are given;
// their contents are then 0. Rows lie `stride` bytes apart in memory.
//   zero_tile<t>(), load_tile<t>(p, stride), store_tile<t>(p, stride)
//   multiply_bytes<sum, left, right>(): sum[m][n] += left[m][k] * right[k / 4][4 n + k % 4], signed
//   bytes over all k, exact.
//   multiply_bfloat16<sum, left, right>(): float sums. Source: Intel's Software Developer's Manual,
//   volume 2, TDPBF16PS: of each output the even inputs and the odd ones are added up from 0 in
//   ascending order by fused multiply-adds; the odd sum is added to the even one, that to
//   sum[m][n]. Each operation rounds to nearest even, takes denormals as 0 and leaves none.
#pragma once

#include "simd/flush_denormals.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {

constexpr int tile_rows = 16;       // of sums and of the left side
constexpr int tile_row_bytes = 64;  // of sums and of the right side
constexpr int whole_tiles[2] = {tile_rows, tile_rows};

struct TileShape {
  int rows, row_bytes;
};

constexpr TileShape tile_shape(int t, int inner, const int (&rows)[2]) {
  if (t >= 6) return {inner / 4, tile_row_bytes};
  if (t >= 4) return {rows[t - 4], inner};
  return {rows[t / 2], tile_row_bytes};
}

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define QUIRE_MATRIX_TILES

// In assembly: GCC 12's intrinsics do not say that the configuration and tiles are read from
// memory, and stores before them are dropped or come too late.
class TileConfiguration {
 public:
  explicit TileConfiguration(int inner, const int (&rows)[2] = whole_tiles) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    for (int t = 0; t < 8; ++t) {
      const TileShape shape = tile_shape(t, inner, rows);
      shapes.row_bytes[t] = static_cast<uint16_t>(shape.row_bytes);
      shapes.rows[t] = static_cast<uint8_t>(shape.rows);
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
  }
  ~TileConfiguration() { __asm__ volatile("tilerelease" ::: "memory"); }
  TileConfiguration(const TileConfiguration&) = delete;
  TileConfiguration& operator=(const TileConfiguration&) = delete;
};

template <int t>
inline void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(t));
}
template <int t>
inline void load_tile(const void* p, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(t) : "memory");
}
template <int t>
inline void store_tile(void* p, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(t) : "memory");
}
template <int sum, int left, int right>
inline void multiply_bytes() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(left), "i"(right));
}
template <int sum, int left, int right>
inline void multiply_bfloat16() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(left), "i"(right));
}

#elif defined(QUIRE_EMULATES_TILES)
#define QUIRE_MATRIX_TILES

struct alignas(64) EmulatedTile {
  int rows = 0, row_bytes = 0;
  int8_t bytes[tile_rows][tile_row_bytes] = {};
};
inline thread_local EmulatedTile emulated_tiles[8];

class TileConfiguration {
 public:
  explicit TileConfiguration(int inner, const int (&rows)[2] = whole_tiles) {
    for (int t = 0; t < 8; ++t) {
      const TileShape shape = tile_shape(t, inner, rows);
      emulated_tiles[t] = {};
      emulated_tiles[t].rows = shape.rows;
      emulated_tiles[t].row_bytes = shape.row_bytes;
    }
  }
  ~TileConfiguration() {
    for (EmulatedTile& tile : emulated_tiles) tile.rows = 0;
  }
  TileConfiguration(const TileConfiguration&) = delete;
  TileConfiguration& operator=(const TileConfiguration&) = delete;
};

template <int t>
inline void zero_tile() {
  std::memset(emulated_tiles[t].bytes, 0, sizeof(emulated_tiles[t].bytes));
}
template <int t>
inline void load_tile(const void* p, int64_t stride) {
  EmulatedTile& tile = emulated_tiles[t];
  zero_tile<t>();
  for (int row = 0; row < tile.rows; ++row)
    std::memcpy(tile.bytes[row], static_cast<const char*>(p) + row * stride,
                static_cast<size_t>(tile.row_bytes));
}
template <int t>
inline void store_tile(void* p, int64_t stride) {
  const EmulatedTile& tile = emulated_tiles[t];
  for (int row = 0; row < tile.rows; ++row)
    std::memcpy(static_cast<char*>(p) + row * stride, tile.bytes[row],
                static_cast<size_t>(tile.row_bytes));
}
template <int sum, int left, int right>
inline void multiply_bytes() {
  const EmulatedTile &a = emulated_tiles[left], &b = emulated_tiles[right];
  for (int m = 0; m < a.rows; ++m) {
    int32_t sums[16];
    std::memcpy(sums, emulated_tiles[sum].bytes[m], sizeof(sums));
    for (int k = 0; k < b.rows; ++k)
      for (int n = 0; n < 16; ++n)
        for (int i = 0; i < 4; ++i) sums[n] += a.bytes[m][4 * k + i] * b.bytes[k][4 * n + i];
    std::memcpy(emulated_tiles[sum].bytes[m], sums, sizeof(sums));
  }
}
template <int sum, int left, int right>
inline void multiply_bfloat16() {
  const FlushDenormals flush;
  const EmulatedTile &a = emulated_tiles[left], &b = emulated_tiles[right];
  for (int m = 0; m < a.rows; ++m)
    for (int n = 0; n < 16; n += F32::lanes) {
      F32 even = zero(), odd = zero();
      for (int k = 0; k < b.rows; ++k) {
        const auto* x = reinterpret_cast<const BF16*>(a.bytes[m]) + 2 * k;
        const auto* w = reinterpret_cast<const BF16*>(b.bytes[k]) + 2 * n;
        even = fma(set1_even(x), load_even(w), even);
        odd = fma(set1_odd(x), load_odd(w), odd);
      }
      auto* sums = reinterpret_cast<float*>(emulated_tiles[sum].bytes[m]) + n;
      store(sums, load(sums) + (even + odd));
    }
}

#endif

}  // namespace quire::QUIRE_ISA
