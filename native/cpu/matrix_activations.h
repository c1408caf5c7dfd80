// Activations of quantized linears as matrix tiles take them: a tile's codes apart from scales.
#pragma once

#include "cpu/linear_rows.h"
#include "cpu/quantized_tile.h"
#include "simd/matrix_tiles.h"

namespace quire::QUIRE_ISA {

#if defined(QUIRE_MATRIX_TILES)

// Rounded as for vectors, in tiles of up to two strips of rows.
struct QuantizedMatrixFormat : QuantizedFormat {
  using QuantizedFormat::QuantizedFormat;
  static constexpr int tile_rows = 2 * quire::QUIRE_ISA::tile_rows;
};

// Fewer groups than vectors take at once: L1 has to hold the rows' activations, codes that were
// unpacked and the sums of two bursts.
template <>
constexpr int64_t block_groups<QuantizedMatrixFormat> = 8;

// The strips of a call's tiles, and how many rows the registers of each have. Some tiles have a row
// less: what a register's last row is then multiplied to is not looked at.
struct Strips {
  int count, rows[2];
  explicit Strips(const Tiles& tiles) {
    const auto most = static_cast<int>(ceil_div(tiles.num_rows, tiles.count));
    count = most > tile_rows ? 2 : 1;
    rows[0] = count == 2 ? tile_rows : most;
    rows[1] = count == 2 ? most - tile_rows : most;
  }
};

// The lines of a tile of rows and a block in another order. Codes are loaded 16 rows at a time and
// scales a few rows later: lines with both would come to L1 twice.
struct MatrixActivations {
  static constexpr int64_t inputs = 32;  // of a group

  int8_t* codes;  // [group][row][32 inputs]
  float* scales;  // [group][half][row], as in ActivationGroup
  float* sums;    // the same
  int64_t rows;

  MatrixActivations(const void* lines, int64_t rows, int64_t groups)
      : codes(static_cast<int8_t*>(const_cast<void*>(lines))),
        scales(reinterpret_cast<float*>(codes + groups * rows * inputs)),
        sums(scales + groups * 2 * rows),
        rows(rows) {}

  int8_t* codes_of(int64_t group, int64_t row) const {
    return codes + (group * rows + row) * inputs;
  }
  int64_t place_of(int64_t group, int64_t half, int64_t row) const {
    return (group * 2 + half) * rows + row;
  }
};

inline void arrange_lines(const QuantizedMatrixFormat&, uint32_t* lines, int64_t rows,
                          int64_t groups) {
  constexpr int64_t most = block_groups<QuantizedMatrixFormat> * QuantizedMatrixFormat::tile_rows;
  alignas(64) ActivationGroup filled[most];
  std::memcpy(filled, lines, static_cast<size_t>(groups * rows) * sizeof(ActivationGroup));
  const MatrixActivations to(lines, rows, groups);
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t row = 0; row < rows; ++row) {
      const ActivationGroup& from = filled[group * rows + row];
      std::memcpy(to.codes_of(group, row), from.codes, sizeof(from.codes));
      for (int half = 0; half < 2; ++half) {
        const int64_t place = to.place_of(group, half, row);
        to.scales[place] = from.scale[half];
        to.sums[place] = from.sum[half];
      }
    }
}

#endif

}  // namespace quire::QUIRE_ISA
