// y = x W^T + bias for codes that are looked up in a table of their row: products of floats, and
// what outliers add.
#include "cpu/linear_rows.h"
#include "cpu/quantized_chunks.h"
#include "cpu/row_tables_tile.h"
#include "include/kernels.h"

namespace quire::QUIRE_ISA {
namespace {

// What outliers of an output add to the product with a row.
float outlier_product(const Outliers& outliers, int64_t output, const float* x) {
  constexpr int chains = 4;  // of sums, which wait for nothing but themselves
  float sums[chains] = {};
  const int32_t begin = outliers.starts[output], end = outliers.starts[output + 1];
  int32_t i = begin;
  for (; i + chains <= end; i += chains)
    for (int j = 0; j < chains; ++j) sums[j] += outliers.values[i + j] * x[outliers.columns[i + j]];
  for (int j = 0; i < end; ++i, ++j) sums[j] += outliers.values[i] * x[outliers.columns[i]];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Products with weights of row tables, as linear_quantized has them.
class RowTablesProduct {
 public:
  RowTablesProduct(const QuantizedWeights& weights, const float* x, int64_t num_rows)
      : weights_(weights), x_(x), tiles_(num_rows, table_rows) {}

  // Write the outputs of panels begin .. end - 1.
  void write(int64_t begin, int64_t end, float* out, int64_t out_stride) const {
    for (int64_t panel = begin; panel < end; ++panel)
      for (int64_t i = 0; i < QuantizedWeights::panel_width / part_outputs; ++i) {
        const PanelPart part(weights_, panel, i);
        const int64_t count = smaller(part_outputs, weights_.out_features - part.first_output);
        if (count <= 0) return;
        const float* sums = weights_.bits == 3 ? sums_of<3>(part) : sums_of<4>(part);
        for (int64_t row = 0; row < tiles_.num_rows; ++row)
          write_row(part, sums + row * part_outputs * F32::lanes, row, count,
                    out + row * out_stride);
      }
  }

 private:
  static constexpr int64_t block_records = 32;

  template <int bits>
  const float* sums_of(const PanelPart& part) const {
    constexpr int64_t width = part_outputs * F32::lanes;
    RowTablesTile tile{};
    tile.tables = part.tables;
    tile.x_stride = weights_.in_features;
    auto* sums = static_cast<float*>(
        scratch(Slot::partial, static_cast<size_t>(tiles_.num_rows * width) * sizeof(float)));
    const auto run = [&](int64_t begin, int64_t records) {
      tile.records = records;
      tile.first = begin == 0;
      for (int64_t i = 0; i < tiles_.count; ++i) {
        const int64_t row = tiles_.start(i);
        tile.x = x_ + row * tile.x_stride + begin * QuantizedWeights::record_inputs;
        tile.sums = sums + row * width;
        run_row_tables<bits>(tile, tiles_.start(i + 1) - row);
      }
    };
    const int64_t records = weights_.num_records();
    if (tiles_.count == 1) {
      tile.codes = part.codes;
      run(0, records);
      return sums;
    }
    auto* values = static_cast<float*>(
        scratch(Slot::weights, block_records * row_code_registers * width * sizeof(float)));
    tile.values = values;
    for (int64_t begin = 0; begin < records; begin += block_records) {
      const int64_t count = smaller(block_records, records - begin);
      unpack_row_values<bits>(part, begin, count, values);
      run(begin, count);
    }
    return sums;
  }

  void write_row(const PanelPart& part, const float* sums, int64_t row, int64_t count,
                 float* out) const {
    for (int64_t n = 0; n < count; ++n) {
      const int64_t output = part.first_output + n;
      float y = sum(load(sums + n * F32::lanes));
      if (weights_.outliers.starts)
        y += outlier_product(weights_.outliers, output, x_ + row * weights_.in_features);
      if (weights_.bias) y += weights_.bias[output];
      out[output] = y;
    }
  }

  const QuantizedWeights& weights_;
  const float* x_;
  Tiles tiles_;
};

// The values of one output, (in_features,).
void read_table_row(const QuantizedWeights& weights, int64_t output, float* out) {
  const int64_t panel = output / QuantizedWeights::panel_width;
  const int64_t place = output % QuantizedWeights::panel_width;
  const PanelPart part(weights, panel, place / part_outputs);
  const auto read = [&](const auto& values) {
    for (int64_t record = 0; record < weights.num_records(); ++record)
      values.each(record, [&](int i, const auto& weights_of) {
        store(out + record * QuantizedWeights::record_inputs + i * F32::lanes, weights_of(0));
      });
  };
  RowTablesTile tile{};
  tile.codes = part.codes;
  tile.tables = part.tables;
  const int n = static_cast<int>(place % part_outputs);
  if (weights.bits == 3)
    read(PackedRowValues<3, 1>(tile, n));
  else
    read(PackedRowValues<4, 1>(tile, n));
  const Outliers& outliers = weights.outliers;
  if (!outliers.starts) return;
  for (int32_t i = outliers.starts[output]; i < outliers.starts[output + 1]; ++i)
    out[outliers.columns[i]] += outliers.values[i];
}

}  // namespace

void linear_row_tables(const QuantizedWeights& weights, const float* x, int64_t num_rows,
                       float* out, int64_t out_stride) {
  const RowTablesProduct product(weights, x, num_rows);
  const int64_t panels = panels_of_chunk(weights, num_rows), all = weights.num_panels();
  const auto write_chunk = [&](int64_t chunk) {
    product.write(chunk * panels, smaller((chunk + 1) * panels, all), out, out_stride);
  };
  parallel_for(ceil_div(all, panels), write_chunk, num_rows <= 32 ? Claim::run : Claim::one);
}

void lookup_row_tables(const QuantizedWeights& weights, const int32_t* ids, int64_t num_ids,
                       float* out) {
  parallel_for(num_ids,
               [&](int64_t i) { read_table_row(weights, ids[i], out + i * weights.in_features); });
}

}  // namespace quire::QUIRE_ISA
