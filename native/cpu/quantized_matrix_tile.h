// Quantized linears by matrix tiles: the sums of quantized_tile.h, bit for bit.
//
// The dot products of up to 16 rows with 16 outputs over one group come from a tile, those of the
// next groups while vectors turn this one's into floats:
//
//   tiles    | group 0 | group 1 | group 2 | group 3 |
//   vectors                      | group 0 | group 1 |   sums of 16 outputs stay in registers
//
// Codes are signed bytes, zero subtracted (cpu/matrix_blocks.h).
#pragma once

#include "cpu/matrix_activations.h"
#include "cpu/quantized_tile.h"

namespace quire::QUIRE_ISA {

#if defined(QUIRE_MATRIX_TILES)

// Dot products on their way from tiles to memory. A part is a group of quantized_tile.h.
constexpr int tiles_in_flight = 4;

template <int halves>
struct PartialDots {
  static constexpr int64_t line = QuantizedWeights::panel_width * 4;  // bytes of codes
  alignas(64) int32_t dots[tiles_in_flight][tile_rows][F32::lanes];

  template <int slot>
  void start_in(const QuantizedTile& tile, int64_t rows, int64_t part, int first) {
    constexpr int left = 4 + slot % 2, right = 6 + slot % 2;
    const int64_t begin = part / halves * tile.joined, half = part % halves;
    const MatrixActivations activations(tile.activations, rows, tile.groups);
    zero_tile<slot>();
    for (int64_t i = begin; i < smaller(begin + tile.joined, tile.groups); ++i) {
      load_tile<left>(activations.codes_of(i, 0) + 16 * half, activations.inputs);
      load_tile<right>(tile.codes + i * record_codes + half * 4 * line + 4 * first, line);
      multiply_bytes<slot, left, right>();
    }
    store_tile<slot>(dots[slot], tile_row_bytes);
  }

  // Multiply a part of `rows` rows by 16 outputs from `first` on, and store to dots[part % 4].
  void start(const QuantizedTile& tile, int64_t rows, int64_t part, int first) {
    switch (part % tiles_in_flight) {
      case 0:
        return start_in<0>(tile, rows, part, first);
      case 1:
        return start_in<1>(tile, rows, part, first);
      case 2:
        return start_in<2>(tile, rows, part, first);
      default:
        return start_in<3>(tile, rows, part, first);
    }
  }
};

// Add a part's dot products to the sums of 16 outputs from `first` on; those of a first half to
// `products`, until the other's are added.
template <int halves, int rows>
inline void add_part(const QuantizedTile& tile, const int32_t (&dots)[tile_rows][F32::lanes],
                     int64_t part, int first, F32 (&products)[rows], F32 (&sums)[rows]) {
  constexpr int panel = QuantizedWeights::panel_width;
  const int64_t half = part % halves, line = part * tile.joined * panel + first;
  const MatrixActivations a(tile.activations, rows, tile.groups);
  const int64_t own = a.place_of(part / halves * tile.joined, half, 0);
  const auto* scales = reinterpret_cast<const float*>(tile.lines) + line;
  const F32 scale = load(scales);
#pragma GCC unroll 16
  for (int m = 0; m < rows; ++m) {
    const F32 dot = to_float(I32{load_bytes(reinterpret_cast<const uint8_t*>(dots[m]))});
    const F32 row_scale = set1(a.scales[own + m]);
    if (halves == 1 || tile.scaled_halves)
      sums[m] = fma(dot, scale * row_scale, sums[m]);
    else if (half == 0)
      products[m] = dot * scale;
    else
      sums[m] = fma(fma(dot, scale, products[m]), row_scale, sums[m]);
  }
  if (!tile.offsets_begin) return;
  const F32 offset = load(scales + tile.offsets_begin / static_cast<int64_t>(sizeof(float)));
#pragma GCC unroll 16
  for (int m = 0; m < rows; ++m) sums[m] = fma(offset, set1(a.sums[own + m]), sums[m]);
}

template <int halves, int rows>
void run_quantized_matrix_tile(const QuantizedTile& tile) {
  constexpr int panel = QuantizedWeights::panel_width, ahead_of_vectors = 2;
  const int64_t parts = ceil_div(tile.groups, tile.joined) * halves;
  PartialDots<halves> partial;
  for (int first = 0; first < panel; first += F32::lanes) {
    F32 products[rows], sums[rows];
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m)
      sums[m] = tile.first ? zero() : load(tile.out + m * panel + first);
    const char* ahead = first ? nullptr : tile.ahead;
    for (int64_t part = 0; part < smaller<int64_t>(parts, ahead_of_vectors); ++part)
      partial.start(tile, rows, part, first);
    for (int64_t part = 0; part < parts; ++part) {
      if (ahead && part % halves == 0) {
        const int64_t bytes = tile.joined * tile.ahead_bytes;
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + i, 0, 2);
        ahead += bytes;
      }
      if (part + ahead_of_vectors < parts)
        partial.start(tile, rows, part + ahead_of_vectors, first);
      add_part<halves, rows>(tile, partial.dots[part % tiles_in_flight], part, first, products,
                             sums);
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m) store(tile.out + m * panel + first, sums[m]);
  }
}

template <int halves, int rows = 1>
RunQuantizedTile matrix_tile_of(int64_t wanted) {
  if constexpr (rows < tile_rows)
    if (wanted != rows) return matrix_tile_of<halves, rows + 1>(wanted);
  return run_quantized_matrix_tile<halves, rows>;
}

#endif

}  // namespace quire::QUIRE_ISA
