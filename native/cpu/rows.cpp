// Picking rows of a table, and placing columns in a wider one.
#include <math.h>
#include <string.h>

#include "include/kernels.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {

void add_rows(float* x, const float* table, const int32_t* rows, int64_t count, int64_t columns) {
  for (int64_t row = 0; row < count; ++row) {
    float* result = x + row * columns;
    const float* added = table + rows[row] * columns;
    for (int64_t i = 0; i < columns; i += F32::lanes) {
      const int64_t n = columns - i;
      store_tail(result + i, load_tail(result + i, n) + load_tail(added + i, n), n);
    }
  }
}

void gather_rows(const float* x, const int32_t* rows, int64_t count, int64_t columns, float* out) {
  for (int64_t row = 0; row < count; ++row)
    memcpy(out + row * columns, x + rows[row] * columns, static_cast<size_t>(columns) * 4);
}

void spread_columns(const float* x, const int32_t* columns, int64_t rows, int64_t count,
                    int64_t width, float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    float* result = out + row * width;
    for (int64_t i = 0; i < width; ++i) result[i] = -INFINITY;
    for (int64_t i = 0; i < count; ++i) result[columns[i]] = x[row * count + i];
  }
}

}  // namespace quire::QUIRE_ISA
