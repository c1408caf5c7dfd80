// RMSNorm and LayerNorm of one row; out may be x.
#pragma once

#include <math.h>

#include "simd/vec.h"

namespace quire::QUIRE_ISA {
namespace {

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

void rms_norm_row(const float* x, const float* weight, float eps, int64_t columns, float* out) {
  const float squares = sum_row(columns, [=](int64_t i, int64_t n) {
    const F32 v = load_tail(x + i, n);
    return v * v;
  });
  const F32 factor = set1(1.0f / sqrtf(squares / static_cast<float>(columns) + eps));
  for (int64_t i = 0; i < columns; i += F32::lanes) {
    const int64_t n = columns - i;
    store_tail(out + i, load_tail(x + i, n) * factor * load_tail(weight + i, n), n);
  }
}

// Without a bias where that is null.
void layer_norm_row(const float* x, const float* weight, const float* bias, float eps,
                    int64_t columns, float* out) {
  const float count = static_cast<float>(columns);
  // The rounded mean of a row far from 0 is improved by the mean of what is left.
  float mean = sum_row(columns, [=](int64_t i, int64_t n) { return load_tail(x + i, n); });
  mean /= count;
  mean += sum_row(columns, [=](int64_t i, int64_t n) { return centre(x + i, n, mean); }) / count;
  const float squares = sum_row(columns, [=](int64_t i, int64_t n) {
    const F32 v = centre(x + i, n, mean);
    return v * v;
  });
  const F32 factor = set1(1.0f / sqrtf(squares / count + eps));
  for (int64_t i = 0; i < columns; i += F32::lanes) {
    const int64_t n = columns - i;
    const F32 scaled = centre(x + i, n, mean) * factor * load_tail(weight + i, n);
    store_tail(out + i, bias ? scaled + load_tail(bias + i, n) : scaled, n);
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
