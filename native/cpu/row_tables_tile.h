// The micro-kernel of codes that are looked up in a table of their row: a few rows times eight
// outputs.
//
// Lanes are inputs, not outputs: a register then takes all of its values from one table. Each
// output has a register of sums, whose lane i takes inputs i, i + lanes, i + 2 lanes ... of all
// there are; then come the sum of lanes, the outliers' products, and the bias. So an output's bits
// depend on its own row alone.
#pragma once

#include "include/quantized.h"
#include "simd/row_tables.h"

namespace quire::QUIRE_ISA {

constexpr int64_t part_outputs = RowCodeLayout::part_outputs;
constexpr int most_values = 16;  // of a table

// Rows and outputs whose sums are in registers together; of a single row all outputs of a part.
constexpr int table_rows = F32::lanes == 16 ? 6 : F32::lanes == 8 ? 3 : 2;
template <int rows>
constexpr int table_outputs = rows == 1 && F32::lanes == 16 ? part_outputs : 4;

// Eight outputs whose codes lie side by side, over a run of records.
struct RowTablesTile {
  const uint8_t* codes;  // of the first record; null where values are unpacked
  const float* tables;   // [output][16]
  const float* values;   // [record][register][output][lane]
  const float* x;        // the inputs of the first record
  int64_t x_stride;      // of rows
  int64_t records;
  bool first;   // whether these are the first inputs: `sums` is written, else added to
  float* sums;  // [row][output][lane]
};

// Where a tile takes its weights from, a register at a time: from codes, or from unpacked values.
template <int bits, int outputs>
class PackedRowValues {
 public:
  PackedRowValues(const RowTablesTile& tile, int first) : codes_(tile.codes), first_(first) {
    for (int n = 0; n < outputs; ++n)
      tables_[n] = RowTable<bits>(tile.tables + (first + n) * most_values);
  }

  template <class Use>
  void each(int64_t record, const Use& use) const {
    constexpr RowCodeLayout layout{bits};
    const uint8_t* bytes = codes_ + record * layout.step_bytes() + first_ * layout.output_bytes();
    RowCodes<bits> codes[outputs];
#pragma GCC unroll 8
    for (int n = 0; n < outputs; ++n) codes[n] = RowCodes<bits>(bytes + n * layout.output_bytes());
#pragma GCC unroll 8
    for (int i = 0; i < row_code_registers; ++i)
      use(i, [&](int n) { return codes[n].look_up(tables_[n], i); });
  }

 private:
  const uint8_t* codes_;
  int first_;
  RowTable<bits> tables_[outputs];
};

class UnpackedRowValues {
 public:
  UnpackedRowValues(const RowTablesTile& tile, int first)
      : values_(tile.values + first * F32::lanes) {}

  template <class Use>
  void each(int64_t record, const Use& use) const {
    constexpr int64_t step = part_outputs * F32::lanes;
#pragma GCC unroll 8
    for (int i = 0; i < row_code_registers; ++i) {
      const float* values = values_ + (record * row_code_registers + i) * step;
      use(i, [&](int n) { return load(values + n * F32::lanes); });
    }
  }

 private:
  const float* values_;
};

template <class Values, int rows, int outputs>
void run_row_tables_tile(const RowTablesTile& tile, int first_output) {
  constexpr int64_t row_sums = part_outputs * F32::lanes;
  const Values values(tile, first_output);
  float* const to = tile.sums + first_output * F32::lanes;
  F32 sums[rows][outputs];
#pragma GCC unroll 8
  for (int m = 0; m < rows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < outputs; ++n)
      sums[m][n] = tile.first ? zero() : load(to + m * row_sums + n * F32::lanes);
  for (int64_t record = 0; record < tile.records; ++record) {
    const float* x = tile.x + record * QuantizedWeights::record_inputs;
    values.each(record, [&](int i, const auto& weights_of) __attribute__((always_inline)) {
      if constexpr (rows == 1) {
        const F32 inputs = load(x + i * F32::lanes);
#pragma GCC unroll 8
        for (int n = 0; n < outputs; ++n) sums[0][n] = fma(weights_of(n), inputs, sums[0][n]);
      } else {
        F32 weights[outputs];
#pragma GCC unroll 8
        for (int n = 0; n < outputs; ++n) weights[n] = weights_of(n);
#pragma GCC unroll 8
        for (int m = 0; m < rows; ++m) {
          const F32 inputs = load(x + m * tile.x_stride + i * F32::lanes);
#pragma GCC unroll 8
          for (int n = 0; n < outputs; ++n) sums[m][n] = fma(weights[n], inputs, sums[m][n]);
        }
      }
    });
  }
#pragma GCC unroll 8
  for (int m = 0; m < rows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < outputs; ++n) store(to + m * row_sums + n * F32::lanes, sums[m][n]);
}

// All outputs of the tile, 1 .. table_rows rows of them.
template <int bits, int rows = 1>
void run_row_tables(const RowTablesTile& tile, int64_t wanted) {
  if constexpr (rows < table_rows)
    if (wanted != rows) return run_row_tables<bits, rows + 1>(tile, wanted);
  constexpr int outputs = table_outputs<rows>;
  for (int n = 0; n < part_outputs; n += outputs) {
    if (tile.codes)
      run_row_tables_tile<PackedRowValues<bits, outputs>, rows, outputs>(tile, n);
    else
      run_row_tables_tile<UnpackedRowValues, rows, outputs>(tile, n);
  }
}

// Eight outputs of a panel.
struct PanelPart {
  const uint8_t* codes;  // [record][output] of RowCodeLayout
  int64_t first_output;
  alignas(64) float tables[part_outputs * most_values];

  PanelPart(const QuantizedWeights& weights, int64_t panel, int64_t part)
      : first_output(panel * QuantizedWeights::panel_width + part * part_outputs) {
    const RowCodeLayout layout{weights.bits};
    const char* data = weights.data + panel * weights.panel_bytes();
    codes =
        reinterpret_cast<const uint8_t*>(data) + part * weights.num_records() * layout.step_bytes();
    for (int64_t n = 0; n < part_outputs; ++n)
      for (int64_t i = 0; i < layout.values(); i += 8) {
        const int64_t place = (part * part_outputs + n) * layout.values() + i;
        read_eight(weights, data + weights.tables_begin(), place, tables + n * most_values + i);
      }
  }

 private:
  static void read_eight(const QuantizedWeights& weights, const char* from, int64_t place,
                         float* to) {
    for (int i = 0; i < 8; i += F32::lanes) {
      const int count = smaller(8 - i, F32::lanes);
      const F32 values = weights.scale_dtype == DType::float32
                             ? load_tail(reinterpret_cast<const float*>(from) + place + i, count)
                             : load_tail(reinterpret_cast<const F16*>(from) + place + i, count);
      store_tail(to + i, values, count);
    }
  }
};

// Values of some records of a part, as a tile takes them.
template <int bits>
void unpack_row_values(const PanelPart& part, int64_t first, int64_t records, float* to) {
  RowTablesTile tile{};
  tile.tables = part.tables;
  tile.codes = part.codes;
  for (int n = 0; n < part_outputs; ++n) {
    const PackedRowValues<bits, 1> values(tile, n);
    for (int64_t record = 0; record < records; ++record)
      values.each(first + record, [&](int i, const auto& weights_of) {
        const int64_t line = record * row_code_registers + i;
        store(to + (line * part_outputs + n) * F32::lanes, weights_of(0));
      });
  }
}

}  // namespace quire::QUIRE_ISA
