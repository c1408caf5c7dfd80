// The micro-kernel of E4M3 codes: a few rows times one panel over one block, codes made floats in
// registers. Sums are those of linear_tile.h on what dequantize() writes, bit for bit.
#pragma once

#include "cpu/linear_tile.h"
#include "cpu/quantized_block.h"

namespace quire::QUIRE_ISA {

// One call of a tile.
struct FloatCodesTile {
  const float* activations;  // [group][row][16], two groups a record
  const PanelMap& map;
  RecordSpan span;
  int halves;           // of a record that have scales of their own
  const float* scales;  // [record][half][32 outputs]
  bool first;           // whether this is the first block: `out` is written, else added to
  float* out;           // [row][32 outputs]
};

template <int rows>
void run_float_codes_tile(const FloatCodesTile& tile) {
  constexpr int64_t panel = QuantizedWeights::panel_width, record = 2 * rows * group_words;
  const int words = 8 / tile.halves;
  for (int64_t part = 0; part < panel; part += tile_width) {
    Sums<rows> sums;
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m) sums[m][0] = sums[m][1] = zero();
    for (int64_t r = 0; r < tile.span.records; ++r) {
      const auto* codes = reinterpret_cast<const uint8_t*>(tile.span.panel +
                                                           tile.map.codes_of(tile.span.first + r));
      const float* scales = tile.scales + r * tile.halves * panel + part;
      for (int word = 0; word < 8; ++word) {
        const float* scale = scales + word / words * panel;
        const F32 scale0 = load(scale), scale1 = load(scale + F32::lanes);
        const uint8_t* bytes = codes + word * word_bytes + 4 * part;
        const E4m3Numbers numbers0(load_bytes(bytes));
        const E4m3Numbers numbers1(load_bytes(bytes + register_bytes));
        const float* a =
            tile.activations + r * record + word / 4 * rows * group_words + word % 4 * 4;
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
          multiply_add<rows>(sums, a + i, numbers0[i] * scale0, numbers1[i] * scale1);
      }
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < tile_vectors; ++v) {
        float* out = tile.out + m * panel + part + v * F32::lanes;
        store(out, tile.first ? sums[m][v] : load(out) + sums[m][v]);
      }
  }
}

// The instance for a tile of 1 .. max_tile_rows rows.
template <int rows = 1>
auto float_codes_tile_of(int64_t wanted) -> void (*)(const FloatCodesTile&) {
  if constexpr (rows < max_tile_rows)
    if (wanted != rows) return float_codes_tile_of<rows + 1>(wanted);
  return run_float_codes_tile<rows>;
}

}  // namespace quire::QUIRE_ISA
