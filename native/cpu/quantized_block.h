// Records of quantized weights made ready for a kernel: bytes with float scales, or floats.
#pragma once

#include "cpu/quantized_codes.h"

namespace quire::QUIRE_ISA {

// Where `records` records of a panel begin, from record `first` on.
struct RecordSpan {
  const char* panel;
  int64_t first;
  int64_t records;
};

// Line `line` of scales or offsets (they begin at `lines`) as float, times `factor`.
inline void read_scale_line(const QuantizedWeights& weights, const char* lines, int64_t line,
                            float factor, float* out) {
  const char* at = lines + line * weights.scale_line_bytes();
  for (int i = 0; i < QuantizedWeights::panel_width; i += F32::lanes) {
    const F32 scales = weights.scale_dtype == DType::float32
                           ? load(reinterpret_cast<const float*>(at) + i)
                           : load(reinterpret_cast<const F16*>(at) + i);
    store(out + i, scales * set1(factor));
  }
}

// Scales (or offsets) of a span, [record][half][32 outputs]; one half where groups are whole
// records.
inline void read_scales(const QuantizedWeights& weights, const RecordSpan& span, int64_t begin,
                        float factor, float* out) {
  const int halves = weights.group_size < QuantizedWeights::record_inputs ? 2 : 1;
  const int64_t inputs = QuantizedWeights::record_inputs / halves;
  for (int64_t i = 0; i < span.records * halves; ++i) {
    const int64_t input = span.first * QuantizedWeights::record_inputs + i * inputs;
    // A record's second half may lie past the last group; its activations are zero.
    const int64_t line = smaller(input / weights.group_size, weights.num_groups() - 1);
    read_scale_line(weights, span.panel + begin, line, factor,
                    out + i * QuantizedWeights::panel_width);
  }
}

// Codes of a span, a byte each, as stored (before `zero` and the book).
inline void read_codes(const QuantizedWeights& weights, const RecordSpan& span, uint8_t* out) {
  const char* record = span.panel + span.first * weights.record_bytes();
  for (int64_t i = 0; i < span.records; ++i, record += weights.record_bytes())
    unpack_record(weights.bits, reinterpret_cast<const uint8_t*>(record), out + i * record_codes);
}

// The values of a span in float: [record][32 inputs][32 outputs].
inline void dequantize(const QuantizedWeights& weights, const RecordSpan& span, uint8_t* codes,
                       float* scales, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  const int halves = weights.group_size < QuantizedWeights::record_inputs ? 2 : 1;
  float* offsets = scales + span.records * halves * panel;
  read_codes(weights, span, codes);
  read_scales(weights, span, weights.scales_begin(), 1.0f, scales);
  if (weights.has_offsets) read_scales(weights, span, weights.offsets_begin(), 1.0f, offsets);
  float values[256];
  for (int code = 0; code < 1 << weights.bits; ++code)
    values[code] = weights.has_book ? weights.book[code] : static_cast<float>(code - weights.zero);
  for (int64_t input = 0; input < span.records * QuantizedWeights::record_inputs; ++input) {
    const uint8_t* word = codes + input / 4 * 4 * panel + input % 4;
    const int64_t line = input * halves / QuantizedWeights::record_inputs * panel;
    for (int64_t n = 0; n < panel; ++n) {
      const float value = values[word[4 * n]] * scales[line + n];
      out[input * panel + n] = weights.has_offsets ? value + offsets[line + n] : value;
    }
  }
}

}  // namespace quire::QUIRE_ISA
