// Rounding columns one after the other, each error handed on to the columns that are left.
// On the caller's thread alone: a program that quantizes has threads of its own. Nothing is
// fused, so each instruction set has the same bits.
#include "include/column_rounding.h"

#include "include/kernels.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t lanes = F32::lanes;
constexpr int64_t max_columns = ColumnRounding::max_columns;
// Columns whose errors reach all after them together, while these are in registers.
constexpr int64_t strip = 8;

// A row in each lane.
struct Tile {
  float left[max_columns][lanes];
  float codes[max_columns][lanes];
  float errors[max_columns][lanes];
  float scales[lanes];
  float zeros[lanes];
};

void read(const ColumnRounding& all, int64_t row, int64_t rows, Tile& tile) {
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const int64_t from = row + smaller(lane, rows - 1);  // lanes without a row repeat the last
    tile.scales[lane] = all.scales[from];
    tile.zeros[lane] = all.zeros[from];
    for (int64_t c = 0; c < all.columns; ++c) tile.left[c][lane] = all.left[from * all.columns + c];
  }
}

void write(const ColumnRounding& all, int64_t row, int64_t rows, const Tile& tile) {
  for (int64_t lane = 0; lane < rows; ++lane)
    for (int64_t c = 0; c < all.columns; ++c) {
      all.codes[(row + lane) * all.columns + c] = static_cast<uint8_t>(tile.codes[c][lane]);
      all.errors[(row + lane) * all.columns + c] = tile.errors[c][lane];
    }
}

// Columns first .. last - 1 give their errors to column c, in order.
void hand_on(const ColumnRounding& all, int64_t first, int64_t last, int64_t c, Tile& tile) {
  F32 left = load(tile.left[c]);
  for (int64_t from = first; from < last; ++from)
    left = left - set1(all.reach[from * all.columns + c]) * load(tile.errors[from]);
  store(tile.left[c], left);
}

void round_columns(const ColumnRounding& all, Tile& tile) {
  const F32 scale = load(tile.scales), zero_code = load(tile.zeros), highest = set1(all.highest);
  for (int64_t first = 0; first < all.columns; first += strip) {
    const int64_t last = smaller(first + strip, all.columns);
    for (int64_t c = first; c < last; ++c) {
      hand_on(all, first, c, c, tile);
      const F32 left = load(tile.left[c]);
      const F32 code = min(max(round(left / scale) + zero_code, zero()), highest);
      store(tile.codes[c], code);
      const F32 error = left - (code - zero_code) * scale;
      store(tile.errors[c], error / set1(all.reach[c * all.columns + c]));
    }
    for (int64_t c = last; c < all.columns; ++c) hand_on(all, first, last, c, tile);
  }
}

}  // namespace

void round_columns(const ColumnRounding& all) {
  Tile tile;
  for (int64_t row = 0; row < all.rows; row += lanes) {
    const int64_t rows = smaller(lanes, all.rows - row);
    read(all, row, rows, tile);
    round_columns(all, tile);
    write(all, row, rows, tile);
  }
}

}  // namespace quire::QUIRE_ISA
