// Rounding columns of weights where the columns that are left make up for each error.
#pragma once

#include <cstdint>

namespace quire {

// In the order of the columns, of weights `left` (rows, columns) with a scale and a zero for each
// row:
//
//   code = clamp(nearest(left[c] / scale) + zero, 0, highest)
//   error[c] = (left[c] - (code - zero) scale) / reach[c][c]
//   left[c'] -= error[c] reach[c][c'],   c' > c
struct ColumnRounding {
  static constexpr int64_t max_columns = 128;

  const float* left;
  const float* reach;  // (columns, columns), upper triangle
  const float* scales;
  const float* zeros;
  float highest;  // <= 255
  int64_t rows;
  int64_t columns;
  uint8_t* codes;  // (rows, columns), as are errors
  float* errors;
};

}  // namespace quire
