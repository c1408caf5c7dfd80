// RMSNorm and LayerNorm of rows, with the residual added first where there is one.
#include <math.h>

#include "include/kernels.h"
#include "runtime/thread_pool.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t chunk_elements = 16384;

// Sum of f(i) over the row's vectors: four running sums, by index, folded in one order.
template <class Function>
float sum_row(int64_t columns, Function f) {
  F32 sums[4] = {zero(), zero(), zero(), zero()};
  int64_t vector = 0;
  for (int64_t i = 0; i < columns; i += F32::lanes, ++vector)
    sums[vector & 3] = sums[vector & 3] + f(i, columns - i);
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// x - mean; lanes past the end stay 0.
F32 centre(const float* x, int64_t n, float mean) {
  if (n >= F32::lanes) return load(x) - set1(mean);
  float means[F32::lanes];
  store(means, set1(mean));
  return load_tail(x, n) - load_tail(means, n);
}

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
    const float squares = sum_row(columns, [=](int64_t i, int64_t n) {
      const F32 v = load_tail(row + i, n);
      return v * v;
    });
    const F32 factor = set1(1.0f / sqrtf(squares / static_cast<float>(columns) + eps));
    for (int64_t i = 0; i < columns; i += F32::lanes) {
      const int64_t n = columns - i;
      store_tail(result + i, load_tail(row + i, n) * factor * load_tail(weight + i, n), n);
    }
  });
}

void layer_norm(const float* x, float* residual, const float* weight, const float* bias, float eps,
                int64_t rows, int64_t columns, float* out) {
  each_row(x, residual, rows, columns, out, [=](const float* row, float* result) {
    const float count = static_cast<float>(columns);
    // The rounded mean of a row far from 0 is improved by the mean of what is left.
    float mean = sum_row(columns, [=](int64_t i, int64_t n) { return load_tail(row + i, n); });
    mean /= count;
    mean +=
        sum_row(columns, [=](int64_t i, int64_t n) { return centre(row + i, n, mean); }) / count;
    const float squares = sum_row(columns, [=](int64_t i, int64_t n) {
      const F32 v = centre(row + i, n, mean);
      return v * v;
    });
    const F32 factor = set1(1.0f / sqrtf(squares / count + eps));
    for (int64_t i = 0; i < columns; i += F32::lanes) {
      const int64_t n = columns - i;
      const F32 scaled = centre(row + i, n, mean) * factor;
      store_tail(result + i, scaled * load_tail(weight + i, n) + load_tail(bias + i, n), n);
    }
  });
}

}  // namespace quire::QUIRE_ISA
