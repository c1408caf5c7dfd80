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

// A block of one panel, and the block that comes after it.
struct BlockPlace {
  const char* panel;
  int64_t index;
  const char* next;
  int64_t next_index;
};

// n lines of direct scales or offsets as float, times `factor`; n * 32 numbers.
template <class T>
inline void read_lines(const T* from, int64_t n, F32 factor, float* out) {
  for (int64_t i = 0; i < n * QuantizedWeights::panel_width; i += F32::lanes)
    store(out + i, load(from + i) * factor);
}

inline void read_direct(const QuantizedWeights& weights, const char* lines, int64_t first,
                        int64_t n, F32 factor, float* out) {
  const char* at = lines + first * weights.scale_line_bytes();
  if (weights.scale_dtype == DType::float32)
    read_lines(reinterpret_cast<const float*>(at), n, factor, out);
  else
    read_lines(reinterpret_cast<const F16*>(at), n, factor, out);
}

// A line of two levels: int8 of the group, or a half byte from bit `shift` on, times the super
// scale.
inline void read_two_levels(const QuantizedWeights& weights, const int8_t* group,
                            const float* supers, int shift, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  int8_t halves[panel];
  if (weights.scale_form == ScaleForm::nibbles) {
    for (int i = 0; i < panel; ++i)
      halves[i] = static_cast<int8_t>(static_cast<uint8_t>(group[i]) >> shift & 15);
    group = halves;
  }
  for (int64_t i = 0; i < panel; i += F32::lanes)
    store(out + i, load(group + i) * load(supers + i));
}

// Scales (or offsets, which `begin` tells) of a span, [record][half][32 outputs]; one half where
// groups are whole records.
inline void read_scales(const QuantizedWeights& weights, const RecordSpan& span, int64_t begin,
                        float factor, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  const int halves = weights.group_size < QuantizedWeights::record_inputs ? 2 : 1;
  const int64_t inputs = QuantizedWeights::record_inputs / halves;
  const int64_t lines = weights.num_groups(), groups_per_line = weights.group_size / inputs;
  const F32 factors = set1(factor);
  int64_t line = span.first * halves / groups_per_line;
  if (weights.scale_form == ScaleForm::direct && groups_per_line == 1) {
    // A record's second half may lie past the last group; its activations are zero.
    const int64_t n = smaller(span.records * halves, lines - line);
    read_direct(weights, span.panel + begin, line, n, factors, out);
    if (n < span.records * halves)
      read_direct(weights, span.panel + begin, lines - 1, 1, factors, out + n * panel);
    return;
  }
  const bool high = weights.scale_form == ScaleForm::nibbles && begin != weights.scales_begin();
  const auto* groups =
      reinterpret_cast<const int8_t*>(span.panel + (high ? weights.scales_begin() : begin));
  const auto* supers =
      reinterpret_cast<const F16*>(span.panel + begin + (high ? 0 : weights.group_lines_bytes()));
  int64_t left = groups_per_line - span.first * halves % groups_per_line;  // before the next line
  alignas(64) float super_line[panel];
  int64_t super = -1;  // the one in super_line
  for (int64_t i = 0; i < span.records * halves; ++i, out += panel) {
    if (left-- == 0) {
      line = smaller(line + 1, lines - 1);
      left = groups_per_line - 1;
    }
    const int64_t input = span.first * QuantizedWeights::record_inputs + i * inputs;
    if (weights.scale_form == ScaleForm::direct) {
      read_direct(weights, span.panel + begin, line, 1, factors, out);
      continue;
    }
    if (input / QuantizedWeights::super_inputs != super) {
      super = input / QuantizedWeights::super_inputs;
      read_lines(supers + super * panel, 1, factors, super_line);
    }
    read_two_levels(weights, groups + line * panel, super_line, high ? 4 : 0, out);
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
  const F32 zero = set1(static_cast<float>(weights.zero));
  for (int64_t word = 0; word < span.records * 8; ++word) {
    const uint8_t* bytes = codes + word * word_bytes;
    const int64_t line = word * halves / 8 * panel;
    for (int n = 0; n < panel; n += F32::lanes) {
      const Bytes vector = load_bytes(bytes + 4 * n);
      const F32 scale = load(scales + line + n);
      for (int i = 0; i < 4; ++i) {
        F32 value;
        if (weights.has_book) {
          alignas(64) float looked_up[F32::lanes];
          for (int lane = 0; lane < F32::lanes; ++lane)
            looked_up[lane] = weights.book[bytes[4 * (n + lane) + i]];
          value = load(looked_up) * scale;
        } else {
          value = (to_float(byte_of(vector, i)) - zero) * scale;
        }
        if (weights.has_offsets) value = value + load(offsets + line + n);
        store(out + (4 * word + i) * panel + n, value);
      }
    }
  }
}

// The values of one output of one record, as dequantize() has them: 32 inputs.
inline void dequantize_row(const QuantizedWeights& weights, const RecordSpan& span, int64_t output,
                           uint8_t* codes, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  alignas(64) float scales[2 * panel], offsets[2 * panel];
  const int halves = weights.group_size < QuantizedWeights::record_inputs ? 2 : 1;
  read_codes(weights, span, codes);
  read_scales(weights, span, weights.scales_begin(), 1.0f, scales);
  if (weights.has_offsets) read_scales(weights, span, weights.offsets_begin(), 1.0f, offsets);
  for (int64_t k = 0; k < QuantizedWeights::record_inputs; ++k) {
    const int code = codes[k / 4 * 4 * panel + 4 * output + k % 4];
    const int64_t at = k * halves / QuantizedWeights::record_inputs * panel + output;
    const float value =
        weights.has_book ? weights.book[code] : static_cast<float>(code - weights.zero);
    out[k] = value * scales[at] + (weights.has_offsets ? offsets[at] : -0.0f);
  }
}

}  // namespace quire::QUIRE_ISA
