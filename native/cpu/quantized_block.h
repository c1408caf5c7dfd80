// Records of quantized weights made ready for a kernel: bytes with float scales, or floats.
#pragma once

#include "cpu/quantized_scales.h"
#include "simd/e4m3.h"

namespace quire::QUIRE_ISA {

constexpr int64_t panel_width = QuantizedWeights::panel_width;

// A block of one panel, and the block that comes after it.
struct BlockPlace {
  const char* panel;
  int64_t index;
  const char* next;
  int64_t next_index;
};

// Codes of a span, a byte each, as stored (before `zero` and the book).
inline void read_codes(const QuantizedWeights& weights, const PanelMap& map, const RecordSpan& span,
                       uint8_t* out) {
  const auto record_at = [&](int64_t i) {
    return reinterpret_cast<const uint8_t*>(span.panel + map.codes_of(span.first + i));
  };
  if (weights.has_vectors()) return unpack_vectors(weights, span.records, record_at, out);
  for (int64_t i = 0; i < span.records; ++i)
    unpack_record(weights.bits, record_at(i), out + i * record_codes);
}

// Scales of a span, and the lines that go with them: offsets or zeros.
struct SpanLines {
  float *scales, *offsets;
  SpanLines(const QuantizedWeights& weights, const RecordSpan& span, float* scales, float* offsets)
      : scales(scales), offsets(offsets) {
    const PanelMap map(weights);
    read_scales(weights, map, span, ScaleKind::scale, 1.0f, scales);
    if (weights.has_offsets) read_scales(weights, map, span, ScaleKind::offset, 1.0f, offsets);
    if (weights.zeros != ZeroForm::common) read_zeros(weights, map, span, offsets);
    const int64_t lines =
        weights.group_size < QuantizedWeights::record_inputs ? 2 * span.records : span.records;
    if (weights.row_scales != RowForm::none)
      apply_row_scales(weights.row_scales, span.panel, lines, scales);
  }
};

// The values of a span in float, [record][32 inputs][32 outputs]. values_of(place in the lines)
// returns what makes values of a register of codes: those of input i of its 4.
template <class ValuesOf>
inline void write_values(const RecordSpan& span, int halves, const uint8_t* __restrict codes,
                         const ValuesOf& values_of, float* __restrict out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  const int64_t words = 8 / halves;
  for (int64_t line = 0; line < span.records * halves; ++line) {
    for (int64_t n = 0; n < panel; n += F32::lanes) {
      const auto value = values_of(line * panel + n);
      for (int64_t word = line * words; word < (line + 1) * words; ++word) {
        const uint8_t* bytes = codes + word * word_bytes + 4 * n;
        const Bytes vector = load_bytes(bytes);
        for (int i = 0; i < 4; ++i)
          store(out + (4 * word + i) * panel + n, value(vector, bytes, i));
      }
    }
  }
}

inline void dequantize(const QuantizedWeights& weights, const RecordSpan& span, uint8_t* codes,
                       float* scales, float* out) {
  const int halves = weights.group_size < QuantizedWeights::record_inputs ? 2 : 1;
  float* offsets = scales + span.records * halves * QuantizedWeights::panel_width;
  read_codes(weights, PanelMap(weights), span, codes);
  const SpanLines lines(weights, span, scales, offsets);
  const auto write = [&](const auto& values_of) {
    write_values(span, halves, codes, values_of, out);
  };
  if (weights.has_book) {
    write([&](int64_t at) {
      return [scale = load(scales + at), book = weights.book](Bytes, const uint8_t* bytes, int i) {
        alignas(64) float looked_up[F32::lanes];
        for (int lane = 0; lane < F32::lanes; ++lane) looked_up[lane] = book[bytes[4 * lane + i]];
        return load(looked_up) * scale;
      };
    });
  } else if (weights.float_codes) {
    write([&](int64_t at) {
      return [scale = load(scales + at)](Bytes vector, const uint8_t*, int i) {
        return E4m3Numbers(vector)[i] * scale;
      };
    });
  } else if (weights.has_offsets) {
    write([&, zero = set1(static_cast<float>(weights.zero))](int64_t at) {
      return [zero, scale = load(scales + at), offset = load(offsets + at)](Bytes vector,
                                                                            const uint8_t*, int i) {
        return (to_float(byte_of(vector, i)) - zero) * scale + offset;
      };
    });
  } else {
    const bool common = weights.zeros == ZeroForm::common;
    write([&, shared = set1(static_cast<float>(weights.zero))](int64_t at) {
      return [zero = common ? shared : load(offsets + at), scale = load(scales + at)](
                 Bytes vector, const uint8_t*, int i) {
        return (to_float(byte_of(vector, i)) - zero) * scale;
      };
    });
  }
}

// The values of one output of one record, as dequantize() has them: 32 inputs.
inline void dequantize_row(const QuantizedWeights& weights, const RecordSpan& span, int64_t output,
                           uint8_t* codes, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  alignas(64) float scales[2 * panel], offsets[2 * panel];
  const int halves = weights.group_size < QuantizedWeights::record_inputs ? 2 : 1;
  read_codes(weights, PanelMap(weights), span, codes);
  const SpanLines lines(weights, span, scales, offsets);
  for (int64_t k = 0; k < QuantizedWeights::record_inputs; ++k) {
    const int code = codes[k / 4 * 4 * panel + 4 * output + k % 4];
    const int64_t at = k * halves / QuantizedWeights::record_inputs * panel + output;
    float value = static_cast<float>(code - weights.zero);
    if (weights.has_book) value = weights.book[code];
    if (weights.float_codes) value = e4m3_number(code);
    if (weights.zeros != ZeroForm::common) value = static_cast<float>(code) - lines.offsets[at];
    out[k] = value * lines.scales[at] + (weights.has_offsets ? lines.offsets[at] : -0.0f);
  }
}

}  // namespace quire::QUIRE_ISA
