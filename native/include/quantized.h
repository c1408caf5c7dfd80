// The packed layout of a quantized linear layer's weights, the same for every instruction set.
#pragma once

#include <cstdint>

#include "include/types.h"

namespace quire {

// weight[n][k] = scale[n][k / group_size] * (code[n][k] - zero) + offset[n][k / group_size], or
// scale * book[code] with a code book of 16 values.
//
// Panels of 32 outputs, each contiguous, padded to whole panels and to a multiple of 32 inputs:
//
//   codes    [input / 32] records of 128 * bits bytes: 1024 codes in the order
//            [input % 32 / 4][32 outputs][input % 4], in bit planes (cpu/quantized_codes.h)
//   scales   [group][32 outputs] of scale_dtype
//   offsets  the same, where there are any
struct QuantizedWeights {
  static constexpr int64_t panel_width = 32;
  static constexpr int64_t record_inputs = 32;
  static constexpr int64_t record_codes = panel_width * record_inputs;

  int64_t in_features;
  int64_t out_features;
  int64_t group_size;  // 16 or a multiple of 32
  int32_t bits;        // 2, 3, 4, 5, 6 or 8
  int32_t zero;
  DType scale_dtype;  // float32 or float16
  bool has_offsets;
  bool has_book;
  bool exact_activations;  // multiply float32 activations with dequantized weights
  float book[16];
  int8_t book_codes[16];  // the book in steps of book_step, for quantized activations
  float book_step;
  char* data;
  const float* bias;  // (out_features,) or null

  int64_t num_records() const { return (in_features + record_inputs - 1) / record_inputs; }
  int64_t padded_inputs() const { return num_records() * record_inputs; }
  int64_t num_groups() const { return (in_features + group_size - 1) / group_size; }
  int64_t num_panels() const { return (out_features + panel_width - 1) / panel_width; }
  int64_t record_bytes() const { return record_codes / 8 * bits; }
  int64_t scale_line_bytes() const { return panel_width * (scale_dtype == DType::float32 ? 4 : 2); }
  int64_t scales_begin() const { return num_records() * record_bytes(); }
  int64_t offsets_begin() const { return scales_begin() + num_groups() * scale_line_bytes(); }
  int64_t panel_bytes() const {
    return offsets_begin() + (has_offsets ? num_groups() * scale_line_bytes() : 0);
  }
  int64_t bytes() const { return num_panels() * panel_bytes(); }
};

// Rows of a matrix as they are stored, unpacked: codes (num_rows, in_features), scales and offsets
// (num_rows, num_groups) of scale_dtype; offsets may be null where there are none.
struct QuantizedRows {
  const uint8_t* codes;
  const void* scales;
  const void* offsets;
  int64_t first_row;  // the output that is the first of them
  int64_t num_rows;
};

}  // namespace quire
