// Packing quantized weights, and reading rows of them back.
#include "cpu/quantized_block.h"
#include "include/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t panel_width = QuantizedWeights::panel_width;
constexpr int64_t record_inputs = QuantizedWeights::record_inputs;

// Rows begin .. end - 1 of a panel; other outputs keep what they had.
void pack_codes(const QuantizedWeights& weights, const QuantizedRows& rows, char* panel,
                int64_t begin, int64_t end) {
  uint8_t codes[record_codes];
  for (int64_t record = 0; record < weights.num_records(); ++record) {
    auto* packed = reinterpret_cast<uint8_t*>(panel + record * weights.record_bytes());
    const int64_t first = record * record_inputs;
    const int64_t n = smaller(record_inputs, weights.in_features - first);
    unpack_record(weights.bits, packed, codes);
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* from = rows.codes + (row - rows.first_row) * weights.in_features + first;
      uint8_t* to = codes + row % panel_width * 4;
      for (int64_t i = 0; i < n; ++i) to[i / 4 * 4 * panel_width + i % 4] = from[i];
    }
    pack_record(weights.bits, codes, packed);
  }
}

// Rows begin .. end - 1 of scales (rows, count), which `from` begins with, to [count][32 outputs].
template <class T>
void pack_lines(const void* from, int64_t count, char* lines, int64_t begin, int64_t end) {
  const T* row_scales = static_cast<const T*>(from);
  for (int64_t row = begin; row < end; ++row, row_scales += count)
    for (int64_t i = 0; i < count; ++i)
      reinterpret_cast<T*>(lines)[i * panel_width + row % panel_width] = row_scales[i];
}

// Half bytes: scales low, offsets high.
void pack_nibbles(const int8_t* scales, const int8_t* offsets, int64_t count, char* lines,
                  int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row, scales += count, offsets += count)
    for (int64_t i = 0; i < count; ++i)
      lines[i * panel_width + row % panel_width] =
          static_cast<char>((scales[i] & 15) | (offsets[i] & 15) << 4);
}

// The scales and offsets of rows begin .. end - 1 of a panel.
void pack_scales(const QuantizedWeights& weights, const QuantizedRows& rows, char* panel,
                 int64_t begin, int64_t end) {
  const int64_t groups = weights.num_groups(), supers = weights.num_supers();
  const int64_t skipped = begin - rows.first_row;
  char* scales = panel + weights.scales_begin();
  char* offsets = panel + weights.offsets_begin();
  const auto at = [&](const void* from, int64_t row_bytes) {
    return static_cast<const char*>(from) + skipped * row_bytes;
  };
  if (weights.scale_form == ScaleForm::direct) {
    const bool wide = weights.scale_dtype == DType::float32;
    const auto pack = wide ? pack_lines<float> : pack_lines<F16>;
    pack(at(rows.scales, groups * (wide ? 4 : 2)), groups, scales, begin, end);
    if (weights.has_offsets)
      pack(at(rows.offsets, groups * (wide ? 4 : 2)), groups, offsets, begin, end);
    return;
  }
  const bool nibbles = weights.scale_form == ScaleForm::nibbles;
  if (nibbles)
    pack_nibbles(reinterpret_cast<const int8_t*>(at(rows.scales, groups)),
                 reinterpret_cast<const int8_t*>(at(rows.offsets, groups)), groups, scales, begin,
                 end);
  else
    pack_lines<int8_t>(at(rows.scales, groups), groups, scales, begin, end);
  pack_lines<F16>(at(rows.super_scales, supers * 2), supers, scales + weights.group_lines_bytes(),
                  begin, end);
  if (!weights.has_offsets) return;
  if (!nibbles) pack_lines<int8_t>(at(rows.offsets, groups), groups, offsets, begin, end);
  pack_lines<F16>(at(rows.super_offsets, supers * 2), supers,
                  offsets + (nibbles ? 0 : weights.group_lines_bytes()), begin, end);
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

void lookup_quantized(const QuantizedWeights& weights, const int32_t* ids, int64_t num_ids,
                      float* out) {
  constexpr int64_t rows_per_chunk = 4;
  parallel_for(ceil_div(num_ids, rows_per_chunk), [&](int64_t chunk) {
    alignas(64) uint8_t codes[record_codes];
    const int64_t end = smaller((chunk + 1) * rows_per_chunk, num_ids);
    for (int64_t i = chunk * rows_per_chunk; i < end; ++i) {
      const char* panel = weights.data + ids[i] / panel_width * weights.panel_bytes();
      for (int64_t record = 0; record < weights.num_records(); ++record) {
        float values[record_inputs];
        dequantize_row(weights, {panel, record, 1}, ids[i] % panel_width, codes, values);
        const int64_t first = record * record_inputs;
        const int64_t n = smaller(record_inputs, weights.in_features - first);
        std::memcpy(out + i * weights.in_features + first, values,
                    static_cast<size_t>(n) * sizeof(float));
      }
    }
  });
}

}  // namespace quire::QUIRE_ISA
