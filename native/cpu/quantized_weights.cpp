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

template <class T>
void pack_scales(const QuantizedWeights& weights, const T* from, T* lines, int64_t begin,
                 int64_t end) {
  const int64_t groups = weights.num_groups();
  for (int64_t row = begin; row < end; ++row, from += groups)
    for (int64_t group = 0; group < groups; ++group)
      lines[group * panel_width + row % panel_width] = from[group];
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
    const int64_t skipped = (begin - rows.first_row) * weights.num_groups();
    const auto pack = [&](const void* from, int64_t at) {
      if (weights.scale_dtype == DType::float32)
        pack_scales(weights, static_cast<const float*>(from) + skipped,
                    reinterpret_cast<float*>(panel + at), begin, end);
      else
        pack_scales(weights, static_cast<const F16*>(from) + skipped,
                    reinterpret_cast<F16*>(panel + at), begin, end);
    };
    pack_codes(weights, rows, panel, begin, end);
    pack(rows.scales, weights.scales_begin());
    if (weights.has_offsets) pack(rows.offsets, weights.offsets_begin());
  });
}

void lookup_quantized(const QuantizedWeights& weights, const int32_t* ids, int64_t num_ids,
                      float* out) {
  constexpr int64_t rows_per_chunk = 4;
  parallel_for(ceil_div(num_ids, rows_per_chunk), [&](int64_t chunk) {
    alignas(64) uint8_t codes[record_codes];
    alignas(64) float scales[4 * panel_width], values[record_codes];
    const int64_t end = smaller((chunk + 1) * rows_per_chunk, num_ids);
    for (int64_t i = chunk * rows_per_chunk; i < end; ++i) {
      const char* panel = weights.data + ids[i] / panel_width * weights.panel_bytes();
      for (int64_t record = 0; record < weights.num_records(); ++record) {
        dequantize(weights, {panel, record, 1}, codes, scales, values);
        const int64_t first = record * record_inputs;
        const int64_t n = smaller(record_inputs, weights.in_features - first);
        for (int64_t k = 0; k < n; ++k)
          out[i * weights.in_features + first + k] = values[k * panel_width + ids[i] % panel_width];
      }
    }
  });
}

}  // namespace quire::QUIRE_ISA
