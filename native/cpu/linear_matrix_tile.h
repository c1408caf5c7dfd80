// bfloat16 linears by matrix tiles, and by vectors that add in the same order.
//
// Of each 32 inputs an output gets what simd/matrix_tiles.h says: sum += even + odd, where even and
// odd start at 0 and take their 16 products in ascending order. So rows that vectors multiply have
// the bits of rows in tiles. A tile takes as long for 1 row as for 16 and reads weights line by
// line; vectors ask memory further ahead, and are done with a few rows before memory is.
#pragma once

#include "cpu/linear_rows.h"
#include "simd/matrix_tiles.h"

namespace quire::QUIRE_ISA {

#if defined(QUIRE_MATRIX_TILES)

// Ask memory for a step's share of what a later tile wants.
inline void prefetch_step(const char* ahead, int64_t stride, int step) {
  __builtin_prefetch(ahead + step * stride);
  __builtin_prefetch(ahead + step * stride + 64);
}

// Up to 32 rows: two tiles of them times the two tiles that a panel is wide.
struct MatrixFormat : BrainWords {
  static constexpr int tile_rows = 2 * quire::QUIRE_ISA::tile_rows;
};

template <>
struct TileState<MatrixFormat> {
  FlushDenormals flush;
  TileConfiguration tiles{group_words * sizeof(BrainWords::Word)};
};

template <int row_tiles>
void run_matrix_tile(const Tile<MatrixFormat>& tile) {
  constexpr int64_t panel = LinearWeights::panel_width, line = panel * sizeof(float);
  constexpr int64_t row_bytes = group_words * sizeof(BrainWords::Word);
  constexpr int second = 16 * panel;  // row
  const auto* a = reinterpret_cast<const char*>(tile.activations);
  const auto* w = reinterpret_cast<const char*>(tile.weights);
  const char* ahead = tile.prefetch;
  zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
  for (int64_t group = 0; group < tile.groups; ++group) {
#pragma GCC unroll 16
    for (int step = 0; step < group_words; ++step) prefetch_step(ahead, tile.prefetch_stride, step);
    load_tile<4>(a, row_bytes);
    load_tile<6>(w, line);
    multiply_bfloat16<0, 4, 6>();
    load_tile<7>(w + tile_row_bytes, line);
    multiply_bfloat16<1, 4, 7>();
    if constexpr (row_tiles == 2) {
      load_tile<5>(a + 16 * row_bytes, row_bytes);
      multiply_bfloat16<2, 5, 6>();
      multiply_bfloat16<3, 5, 7>();
    }
    a += tile.rows * row_bytes;
    w += group_words * line;
    ahead += group_words * tile.prefetch_stride;
  }
  alignas(64) float sums[2 * second];
  store_tile<0>(sums, line);
  store_tile<1>(sums + 16, line);
  if constexpr (row_tiles == 2) {
    store_tile<2>(sums + second, line);
    store_tile<3>(sums + second + 16, line);
  }
  for (int64_t i = 0; i < tile.rows * panel; i += F32::lanes)
    store(tile.out + i, tile.first ? load(sums + i) : load(tile.out + i) + load(sums + i));
}

template <>
inline RunTile<MatrixFormat> tile_of<MatrixFormat>(int64_t rows) {
  return rows > 16 ? run_matrix_tile<2> : run_matrix_tile<1>;
}

// Few rows: what a tile adds up, in registers.
struct EvenOddFormat : BrainWords {
  static constexpr int tile_rows = 4;
};

template <>
struct TileState<EvenOddFormat> {
  FlushDenormals flush;
};

// even and odd += a group of inputs times a panel of weights.
template <int rows>
inline void add_group(const Tile<EvenOddFormat>& tile, const uint32_t* a, const BF16* w,
                      const char* ahead, Sums<rows>& even, Sums<rows>& odd) {
#pragma GCC unroll 4
  for (int word = 0; word < group_words; ++word, w += step_weights<EvenOddFormat>) {
    prefetch_step(ahead, tile.prefetch_stride, word);
    const F32 w0 = load_even(w), w1 = load_even(w + 2 * F32::lanes);
    const F32 u0 = load_odd(w), u1 = load_odd(w + 2 * F32::lanes);
#pragma GCC unroll 4
    for (int m = 0; m < rows; ++m) {
      const auto* pair = reinterpret_cast<const BF16*>(a + m * group_words + word);
      const F32 x = set1_even(pair), y = set1_odd(pair);
      even[m][0] = fma(x, w0, even[m][0]);
      even[m][1] = fma(x, w1, even[m][1]);
      odd[m][0] = fma(y, u0, odd[m][0]);
      odd[m][1] = fma(y, u1, odd[m][1]);
    }
  }
}

template <int rows>
void run_even_odd_tile(const Tile<EvenOddFormat>& tile) {
  Sums<rows> sums;
#pragma GCC unroll 4
  for (int m = 0; m < rows; ++m) sums[m][0] = sums[m][1] = zero();
  const uint32_t* a = tile.activations;
  const BF16* w = tile.weights;
  const char* ahead = tile.prefetch;
  for (int64_t group = 0; group < tile.groups; ++group) {
    Sums<rows> even, odd;
#pragma GCC unroll 4
    for (int m = 0; m < rows; ++m) even[m][0] = even[m][1] = odd[m][0] = odd[m][1] = zero();
    add_group<rows>(tile, a, w, ahead, even, odd);
#pragma GCC unroll 4
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < tile_vectors; ++v) sums[m][v] = sums[m][v] + (even[m][v] + odd[m][v]);
    a += rows * group_words;
    w += group_words * step_weights<EvenOddFormat>;
    ahead += group_words * tile.prefetch_stride;
  }
#pragma GCC unroll 4
  for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < tile_vectors; ++v) {
      float* out = tile.out + m * LinearWeights::panel_width + v * F32::lanes;
      store(out, tile.first ? sums[m][v] : load(out) + sums[m][v]);
    }
}

template <>
inline RunTile<EvenOddFormat> tile_of<EvenOddFormat>(int64_t rows) {
  constexpr RunTile<EvenOddFormat> instances[] = {run_even_odd_tile<1>, run_even_odd_tile<2>,
                                                  run_even_odd_tile<3>, run_even_odd_tile<4>};
  return instances[rows - 1];
}

using FewRowsFormat = EvenOddFormat;
using ManyRowsFormat = MatrixFormat;
#else
using FewRowsFormat = BrainFormat;
using ManyRowsFormat = BrainFormat;
#endif

}  // namespace quire::QUIRE_ISA
