// From how many rows on linears take matrix tiles where there are any. Below that their vectors add
// in the same order: the numbers decide about speed, never about bits.
#pragma once

#include <cstdint>

namespace quire {

struct MatrixRows {
  int64_t quantized, bfloat16;
};

// In use; as measured on a Sapphire Rapids until set_matrix_rows() changes it.
const MatrixRows& matrix_rows();

// Not while a linear runs.
void set_matrix_rows(const MatrixRows& rows);

}  // namespace quire
