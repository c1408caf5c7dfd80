// Blocks of vector codes as GGUF files store them, and which layout takes each type.
#pragma once

#include "include/quantized.h"

namespace quire {

// Blocks of 256 inputs; `number` is the type's in the files.
struct GgufVectors {
  int32_t number;
  int64_t block_bytes;
  VectorForm form;
};

constexpr GgufVectors gguf_vectors[] = {
    {16, 66, VectorForm::iq2_xxs}, {17, 74, VectorForm::iq2_xs}, {18, 98, VectorForm::iq3_xxs},
    {19, 50, VectorForm::iq1_s},   {21, 110, VectorForm::iq3_s}, {22, 82, VectorForm::iq2_s},
    {29, 56, VectorForm::iq1_m},
};

// The layout of a type's number; null when it is none of them.
inline const GgufVectors* find_gguf_vectors(int32_t number) {
  for (const GgufVectors& vectors : gguf_vectors)
    if (vectors.number == number) return &vectors;
  return nullptr;
}

// Rows of a matrix as they lie in the file: whole blocks, one row after the other.
struct GgufVectorRows {
  const GgufVectors* vectors;
  const uint8_t* blocks;
  int64_t first_row;  // the output that is the first of them
  int64_t num_rows;
};

}  // namespace quire
