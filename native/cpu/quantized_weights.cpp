// Packing quantized weights, and reading rows of them back.
#include "cpu/quantized_row_tables.h"
#include "include/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t record_inputs = QuantizedWeights::record_inputs;

// 32 codes of an output among a record's, as include/row_tables.h has them.
void put_row(uint8_t* codes, int64_t output, const uint8_t* from) {
  constexpr int64_t half = record_inputs / 2;
  uint8_t* to = codes + place_of_output(output) * half;
  std::memcpy(to, from, half);
  std::memcpy(to + panel_width * half, from + half, half);
}

// Rows begin .. end - 1 of a panel; other outputs keep what they had.
void pack_codes(const QuantizedWeights& weights, const QuantizedRows& rows, char* panel,
                int64_t begin, int64_t end) {
  const PanelMap map(weights);
  uint8_t codes[record_codes];
  for (int64_t record = 0; record < weights.num_records(); ++record) {
    auto* packed = reinterpret_cast<uint8_t*>(panel + map.codes_of(record));
    const int64_t first = record * record_inputs;
    const int64_t n = smaller(record_inputs, weights.in_features - first);
    unpack_record(weights.bits, packed, codes);
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* from = rows.codes + (row - rows.first_row) * weights.in_features + first;
      if (weights.has_tables()) {
        put_row(codes, row % panel_width, from);
        continue;
      }
      uint8_t* to = codes + row % panel_width * 4;
      for (int64_t i = 0; i < n; ++i) to[i / 4 * 4 * panel_width + i % 4] = from[i];
    }
    pack_record(weights.bits, codes, packed);
  }
}

// Where the lines of a panel's groups are, the first at `begin` of a unit; and which rows of the
// panel are packed.
struct PanelLines {
  const QuantizedWeights& weights;
  char* panel;
  int64_t begin, first_row, end_row;

  // Of (rows, lines) number i of a row goes to line i of [lines][32 outputs].
  template <class T>
  void copy(const void* rows) const {
    const auto* from = static_cast<const T*>(rows);
    const int64_t count = weights.num_groups();
    const int64_t per_unit = weights.unit_inputs() / weights.group_size;
    for (int64_t unit = 0; unit * per_unit < count; ++unit) {
      auto* line = reinterpret_cast<T*>(panel + weights.header_bytes() +
                                        unit * weights.unit_bytes() + begin);
      const int64_t end = smaller((unit + 1) * per_unit, count);
      for (int64_t i = unit * per_unit; i < end; ++i, line += panel_width)
        for (int64_t row = first_row; row < end_row; ++row)
          line[row % panel_width] = from[(row - first_row) * count + i];
    }
  }
};

// The scales, and the offsets or zeros, of rows begin .. end - 1 of a panel.
void pack_scales(const QuantizedWeights& weights, const QuantizedRows& rows, char* panel,
                 int64_t begin, int64_t end) {
  const int64_t groups = weights.num_groups();
  const PanelLines of_groups{weights, panel, 0, begin, end};
  const PanelLines offsets_of_groups{weights, panel, weights.offsets_begin(), begin, end};
  const auto at = [&](const void* from, int64_t row_bytes) {
    return static_cast<const char*>(from) + (begin - rows.first_row) * row_bytes;
  };
  if (weights.has_tables()) {
    const int64_t bytes = weights.tables_bytes() / panel_width;
    std::memcpy(panel + weights.tables_begin() + begin % panel_width * bytes,
                at(rows.scales, bytes), static_cast<size_t>((end - begin) * bytes));
    return;
  }
  if (weights.has_header())
    std::memcpy(panel + begin % panel_width * 4, at(rows.headers, 4),
                static_cast<size_t>(end - begin) * 4);
  if (weights.zeros == ZeroForm::bytes) offsets_of_groups.copy<char>(at(rows.zeros, groups));
  if (weights.zeros == ZeroForm::halves) offsets_of_groups.copy<F16>(at(rows.zeros, groups * 2));
  const auto copy = [&](const PanelLines& to, const void* from) {
    if (weights.scale_form != ScaleForm::direct) return to.copy<char>(at(from, groups));
    weights.scale_dtype == DType::float32 ? to.copy<float>(at(from, groups * 4))
                                          : to.copy<F16>(at(from, groups * 2));
  };
  copy(of_groups, rows.scales);
  if (weights.has_offsets) copy(offsets_of_groups, rows.offsets);
}

}  // namespace

void pack_quantized(const QuantizedWeights& weights, const QuantizedRows& rows) {
  const int64_t first_panel = rows.first_row / panel_width;
  const int64_t panels = ceil_div(rows.first_row + rows.num_rows, panel_width) - first_panel;
  parallel_for(panels, [&](int64_t i) {
    const int64_t number = first_panel + i;
    char* panel = weights.data + number * weights.panel_bytes();
    const int64_t begin = larger(number * panel_width, rows.first_row);
    const int64_t end = smaller((number + 1) * panel_width, rows.first_row + rows.num_rows);
    pack_codes(weights, rows, panel, begin, end);
    pack_scales(weights, rows, panel, begin, end);
  });
}

namespace {

// The values of one output whose codes are looked up in its table, (in_features,).
void read_table_row(const QuantizedWeights& weights, int64_t output, uint8_t* codes, float* out) {
  constexpr int64_t half = record_inputs / 2;
  const int64_t place = output % panel_width;
  const char* panel = weights.data + output / panel_width * weights.panel_bytes();
  for (int64_t k = 0; k < weights.in_features; ++k) {
    const int64_t i = k % record_inputs;
    if (i == 0)
      unpack_record(
          weights.bits,
          reinterpret_cast<const uint8_t*>(panel) + k / record_inputs * weights.record_bytes(),
          codes);
    const int code = codes[(i / half * panel_width + place_of_output(place)) * half + i % half];
    out[k] = table_value(weights, panel, place, code);
  }
  const Outliers& outliers = weights.outliers;
  if (!outliers.starts) return;
  for (int32_t i = outliers.starts[output]; i < outliers.starts[output + 1]; ++i)
    out[outliers.columns[i]] += outliers.values[i];
}

}  // namespace

void lookup_quantized(const QuantizedWeights& weights, const int32_t* ids, int64_t num_ids,
                      float* out) {
  constexpr int64_t rows_per_chunk = 4;
  parallel_for(ceil_div(num_ids, rows_per_chunk), [&](int64_t chunk) {
    alignas(64) uint8_t codes[record_codes];
    const int64_t end = smaller((chunk + 1) * rows_per_chunk, num_ids);
    for (int64_t i = chunk * rows_per_chunk; i < end; ++i) {
      if (weights.has_tables()) {
        read_table_row(weights, ids[i], codes, out + i * weights.in_features);
        continue;
      }
      const char* panel = weights.data + ids[i] / panel_width * weights.panel_bytes();
      for (int64_t record = 0; record < weights.num_records(); ++record) {
        float values[record_inputs];
        dequantize_row(weights, {panel, record, 1}, ids[i] % panel_width, codes, values);
        const int64_t first = record * record_inputs;
        const int64_t n = smaller(record_inputs, weights.in_features - first);
        float* const row = out + i * weights.in_features;
        if (!weights.input_order)
          std::memcpy(row + first, values, static_cast<size_t>(n) * sizeof(float));
        else
          for (int64_t k = 0; k < n; ++k) row[weights.input_order[first + k]] = values[k];
      }
    }
  });
}

}  // namespace quire::QUIRE_ISA
