// The packed layout of a linear layer's weights, the same for every instruction set.
#pragma once

#include <cstdint>

#include "include/types.h"

namespace quire {

// Panels of 32 outputs, each contiguous, inputs outermost, padded with zeros to whole panels and
// to a multiple of 32 inputs:
//
//   float32, float16   [panel][input][32 outputs]
//   bfloat16           [panel][input / 2][32 outputs][2 inputs]   what vdpbf16ps multiplies
struct LinearWeights {
  static constexpr int64_t panel_width = 32;
  static constexpr int64_t input_padding = 32;

  int64_t in_features;
  int64_t out_features;
  DType dtype;
  char* data;
  const float* bias;  // (out_features,) or null

  int64_t padded_inputs() const {
    return (in_features + input_padding - 1) / input_padding * input_padding;
  }
  int64_t num_panels() const { return (out_features + panel_width - 1) / panel_width; }
  int64_t panel_bytes() const {
    return padded_inputs() * panel_width * (dtype == DType::float32 ? 4 : 2);
  }
  int64_t bytes() const { return num_panels() * panel_bytes(); }
};

}  // namespace quire
