// Blocks of quantized values as GGUF files store them, and which packed layout takes each type.
#pragma once

#include <cstdint>

#include "include/quantized.h"

namespace quire {

// The numbers of the file format.
enum class GgufType : int32_t {
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  iq4_xs = 23,
  tq1_0 = 34,
  tq2_0 = 35,
  mxfp4 = 39,
};

struct GgufLayout {
  GgufType type;
  int64_t block_inputs;
  int64_t block_bytes;
  int32_t bits;
  int64_t group_size;
  ScaleForm scale_form;
  bool has_offsets;
};

constexpr GgufLayout gguf_layouts[] = {
    {GgufType::q4_0, 32, 18, 4, 32, ScaleForm::direct, false},
    {GgufType::q4_1, 32, 20, 4, 32, ScaleForm::direct, true},
    {GgufType::q5_0, 32, 22, 5, 32, ScaleForm::direct, false},
    {GgufType::q5_1, 32, 24, 5, 32, ScaleForm::direct, true},
    {GgufType::q8_0, 32, 34, 8, 32, ScaleForm::direct, false},
    {GgufType::q2_k, 256, 84, 2, 16, ScaleForm::nibbles, true},
    {GgufType::q3_k, 256, 110, 3, 16, ScaleForm::bytes, false},
    {GgufType::q4_k, 256, 144, 4, 32, ScaleForm::bytes, true},
    {GgufType::q5_k, 256, 176, 5, 32, ScaleForm::bytes, true},
    {GgufType::q6_k, 256, 210, 6, 16, ScaleForm::bytes, false},
    {GgufType::iq4_nl, 32, 18, 4, 32, ScaleForm::direct, false},
    {GgufType::iq4_xs, 256, 136, 4, 32, ScaleForm::bytes, false},
    {GgufType::tq1_0, 256, 54, 2, 256, ScaleForm::direct, false},
    {GgufType::tq2_0, 256, 66, 2, 256, ScaleForm::direct, false},
    {GgufType::mxfp4, 32, 17, 4, 32, ScaleForm::e8m0, false},
};

constexpr GgufLayout gguf_layout(GgufType type) {
  for (const GgufLayout& layout : gguf_layouts)
    if (layout.type == type) return layout;
  return {};
}

// The layout of a type's number; null when it is none of them.
inline const GgufLayout* find_gguf_layout(int32_t type) {
  for (const GgufLayout& layout : gguf_layouts)
    if (static_cast<int32_t>(layout.type) == type) return &layout;
  return nullptr;
}

// Rows of a matrix as they lie in the file: whole blocks, one row after the other.
struct GgufRows {
  const GgufLayout* layout;
  const uint8_t* blocks;
  int64_t first_row;  // the output that is the first of them
  int64_t num_rows;
};

}  // namespace quire
