// From how many rows on linears take matrix tiles where there are any. Below that their vectors add
// in the same order: the numbers decide about speed, never about bits.
#pragma once

#include <cstdint>

#include "include/quantized.h"

namespace quire {

// Forms of quantized weights, by what tiles and vectors take their time for: how codes become
// bytes, how many inputs of theirs are one product, and whether sums of activations are added.
constexpr int32_t num_matrix_forms = 136;
constexpr int32_t no_matrix_form = -1;  // of weights that never go in tiles of bytes or bfloat16
int32_t matrix_form(const QuantizedWeights& weights);

struct MatrixRows {
  int64_t quantized[num_matrix_forms];
  int64_t bfloat16;  // of weights of floats

  // Rows from which on weights take tiles; more than there are where they never do.
  int64_t of(const QuantizedWeights& weights) const;
};

// In use; as measured on a Sapphire Rapids until set_matrix_rows() changes it.
const MatrixRows& matrix_rows();

// Not while a linear runs.
void set_matrix_rows(const MatrixRows& rows);

}  // namespace quire
