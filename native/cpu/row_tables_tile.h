// The micro-kernel of codes looked up in tables of rows, for one or two rows: codes are looked up
// in registers and multiplied there. Sums are those of quantized_tile.h, bit for bit.
#pragma once

#include "cpu/quantized_row_tables.h"
#include "cpu/quantized_tile.h"
#include "simd/lane_dot.h"

namespace quire::QUIRE_ISA {

// More rows share codes that were looked up to memory.
constexpr int table_tile_rows = 2;

#if defined(QUIRE_VECTORS)

// A register of outputs, the first of which is `first`.
template <int bits, int rows, int first>
inline void run_row_tables_part(const QuantizedTile& tile) {
  constexpr int panel = QuantizedWeights::panel_width;
  constexpr int per_place = 4 * table_bytes / register_bytes;  // registers of four outputs
  constexpr int per_word = word_bytes / register_bytes;
  const auto* scales = reinterpret_cast<const float*>(tile.lines);
  constexpr int block = first / 16, i = first % 16 / F32::lanes;
  const auto number_of = [](int r) { return (block * 4 + r) * per_place + i; };
  Bytes tables[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    tables[r] = load_bytes(tile.book + number_of(r) * register_bytes);
    if constexpr (lane_zero == 0) tables[r] = tables[r] ^ set1_byte(table_zero);
  }
  F32 sums[rows];
#pragma GCC unroll 2
  for (int m = 0; m < rows; ++m) sums[m] = tile.first ? zero() : load(tile.out + m * panel + first);
  const F32 scale = load(scales + first);
  const ActivationGroup* a = tile.activations;
  const uint8_t* record = tile.codes;
  const char* ahead = first == 0 ? tile.ahead : nullptr;
  for (int64_t group = 0; group < tile.groups; group += tile.joined) {
    const ActivationGroup* own = a;
    I32 dots[rows][4];
#pragma GCC unroll 2
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) dots[m][r] = set1(0);
    const int64_t records = smaller(tile.joined, tile.groups - group);
    for (int64_t n = 0; n < records; ++n, a += rows, record += record_codes / 8 * bits) {
      if (ahead) {
        for (int64_t byte = 0; byte < tile.ahead_bytes; byte += 64)
          __builtin_prefetch(ahead + byte, 0, asked_cache);
        ahead += tile.ahead_bytes;
      }
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        Bytes weights[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
          const int number = half * 8 * per_place + number_of(r);
          weights[r] = look_up(
              tables[r], PackedCodes<bits>{}.load(record, number / per_word, number % per_word));
        }
#pragma GCC unroll 2
        for (int m = 0; m < rows; ++m) {
          const LaneInputs x(a[m].codes + 16 * half);
#pragma GCC unroll 4
          for (int r = 0; r < 4; ++r) dots[m][r] = add_lane_products(dots[m][r], weights[r], x);
        }
      }
    }
#pragma GCC unroll 2
    for (int m = 0; m < rows; ++m) {
      const I32 dot = add_lane_words(lane_zero ? own[m].start[0] : 0, dots[m]);
      sums[m] = fma(to_float(dot), scale * set1(own[m].scale[0]), sums[m]);
    }
  }
#pragma GCC unroll 2
  for (int m = 0; m < rows; ++m) store(tile.out + m * panel + first, sums[m]);
}

// tile.book are tables, as RowTables has their bytes; tile.lines one line of scales for all
// records.
template <int bits, int rows, int first = 0>
void run_row_tables_tile(const QuantizedTile& tile) {
  run_row_tables_part<bits, rows, first>(tile);
  constexpr int next = first + F32::lanes;
  if constexpr (next < QuantizedWeights::panel_width) run_row_tables_tile<bits, rows, next>(tile);
}

template <int bits>
RunQuantizedTile row_tables_tile_of_rows(int64_t rows) {
  return rows == 1 ? run_row_tables_tile<bits, 1> : run_row_tables_tile<bits, 2>;
}
inline RunQuantizedTile row_tables_tile_of(int32_t bits, int64_t rows) {
  return bits == 3 ? row_tables_tile_of_rows<3>(rows) : row_tables_tile_of_rows<4>(rows);
}

#endif

}  // namespace quire::QUIRE_ISA
