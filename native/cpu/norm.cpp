// RMSNorm and LayerNorm of rows, with the residual added first where there is one.
#include "cpu/norm_rows.h"
#include "include/kernels.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {
namespace {

void add_row(const float* x, int64_t columns, float* residual) {
  for (int64_t i = 0; i < columns; i += F32::lanes)
    store_tail(residual + i, load_tail(residual + i, columns - i) + load_tail(x + i, columns - i),
               columns - i);
}

// normalize(row, out) for every row of x, or of residual += x.
template <class Normalize>
void each_row(const float* x, float* residual, int64_t rows, int64_t columns, float* out,
              const Normalize& normalize) {
  const int64_t step = larger<int64_t>(1, chunk_elements / larger<int64_t>(columns, 1));
  parallel_for(ceil_div(rows, step), [&](int64_t chunk) {
    const int64_t end = smaller(rows, (chunk + 1) * step);
    for (int64_t row = chunk * step; row < end; ++row) {
      const int64_t at = row * columns;
      if (residual) add_row(x + at, columns, residual + at);
      normalize(residual ? residual + at : x + at, out + at);
    }
  });
}

}  // namespace

void rms_norm(const float* x, float* residual, const float* weight, float eps, int64_t rows,
              int64_t columns, float* out) {
  each_row(x, residual, rows, columns, out, [=](const float* row, float* result) {
    rms_norm_row(row, weight, eps, columns, result);
  });
}

void layer_norm(const float* x, float* residual, const float* weight, const float* bias, float eps,
                int64_t rows, int64_t columns, float* out) {
  each_row(x, residual, rows, columns, out, [=](const float* row, float* result) {
    layer_norm_row(row, weight, bias, eps, columns, result);
  });
}

}  // namespace quire::QUIRE_ISA
