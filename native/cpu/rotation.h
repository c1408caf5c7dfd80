// Rows of activations rotated before a product and after it; quire/kernels/rotation.py in numpy.
#pragma once

#include "include/quantized.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {

// Numbers that are rotated in one go by one thread: less is not worth waking another.
constexpr int64_t rotated_together = 1 << 14;

// Room for a row, until the next call.
inline float* row_memory(int64_t numbers) {
  return static_cast<float*>(scratch(Slot::rotation, static_cast<size_t>(numbers) * sizeof(float)));
}

inline void butterfly(float* x, float* y) {
  const F32 a = load(x), b = load(y);
  store(x, a + b);
  store(y, a - b);
}

// Two steps of butterflies, of registers `half` and 2 * half apart: each number is loaded once.
inline void double_butterfly(float* x, int64_t half) {
  const F32 a = load(x), b = load(x + half), c = load(x + 2 * half), d = load(x + 3 * half);
  const F32 sum = a + b, difference = a - b, other_sum = c + d, other_difference = c - d;
  store(x, sum + other_sum);
  store(x + half, difference + other_difference);
  store(x + 2 * half, sum - other_sum);
  store(x + 3 * half, difference - other_difference);
}

// Signs of the transform of a register: row j is what number j counts as in each.
struct RegisterSigns {
  alignas(64) float rows[F32::lanes][F32::lanes];

  constexpr RegisterSigns() : rows() {
    for (int j = 0; j < F32::lanes; ++j)
      for (int i = 0; i < F32::lanes; ++i) {
        int both = i & j;
        rows[j][i] = 1.0f;
        for (; both != 0; both &= both - 1) rows[j][i] = -rows[j][i];
      }
  }
};

// The transform of one register: fewer steps than its butterflies would take with their shuffles.
inline void transform_register(float* numbers) {
  static constexpr RegisterSigns signs;
  F32 sum = set1(numbers[0]);
  for (int j = 1; j < F32::lanes; ++j) sum = fma(set1(numbers[j]), load(signs.rows[j]), sum);
  store(numbers, sum);
}

// The Hadamard transform, not scaled, of each run of `power` numbers, a power of two.
inline void transform_runs(float* numbers, int64_t count, int64_t power) {
  constexpr int64_t lanes = F32::lanes;
  int64_t half = 1;
  if (power >= lanes) {
    for (int64_t i = 0; i < count; i += lanes) transform_register(numbers + i);
    half = lanes;
    for (; 4 * half <= power; half *= 4)
      for (int64_t run = 0; run < count; run += 4 * half)
        for (int64_t i = 0; i < half; i += lanes) double_butterfly(numbers + run + i, half);
  }
  for (; half < power; half *= 2)
    for (int64_t run = 0; run < count; run += 2 * half) {
      float *x = numbers + run, *y = x + half;
      if (half >= lanes) {
        for (int64_t i = 0; i < half; i += lanes) butterfly(x + i, y + i);
      } else {
        for (int64_t i = 0; i < half; ++i) {
          const float a = x[i], b = y[i];
          x[i] = a + b;
          y[i] = a - b;
        }
      }
    }
}

// out (base, power) = matrix (base, base) x (base, power).
inline void multiply_base(const float* matrix, int64_t base, const float* x, int64_t power,
                          float* out) {
  for (int64_t k = 0; k < base; ++k)
    for (int64_t i = 0; i < power; i += F32::lanes) {
      const int64_t n = power - i;
      F32 sum = zero();
      for (int64_t j = 0; j < base; ++j)
        sum = fma(set1(matrix[k * base + j]), load_tail(x + j * power + i, n), sum);
      store_tail(out + k * power + i, sum, n);
    }
}

// One row of inputs, to stages * padded numbers at `out`.
inline void rotate_inputs(const QuantizedWeights& weights, const float* x, float* out) {
  const Rotation& rotation = weights.rotation;
  const int64_t count = rotation.in_features, power = count / rotation.input_base;
  const int64_t padded = weights.in_features / rotation.stages;
  float* const numbers = rotation.input_base > 1 ? row_memory(count) : out;
  for (int64_t i = 0; i < count; i += F32::lanes)
    store_tail(numbers + i,
               load_tail(x + i, count - i) * load_tail(rotation.input_factors + i, count - i),
               count - i);
  transform_runs(numbers, count, power);
  if (rotation.input_base > 1)
    multiply_base(rotation.input_matrix, rotation.input_base, numbers, power, out);
  for (int64_t i = count; i < padded; ++i) out[i] = 0.0f;
  for (int64_t stage = 1; stage < rotation.stages; ++stage)
    std::memcpy(out + stage * padded, out, static_cast<size_t>(padded) * sizeof(float));
}

// One row of outputs in place, with the bias.
inline void rotate_outputs(const QuantizedWeights& weights, float* row) {
  const Rotation& rotation = weights.rotation;
  const int64_t count = weights.out_features, power = count / rotation.output_base;
  transform_runs(row, count, power);
  const float* numbers = row;
  if (rotation.output_base > 1) {
    float* const multiplied = row_memory(count);
    multiply_base(rotation.output_matrix, rotation.output_base, row, power, multiplied);
    numbers = multiplied;
  }
  for (int64_t i = 0; i < count; i += F32::lanes) {
    const int64_t n = count - i;
    F32 y = load_tail(numbers + i, n) * load_tail(rotation.output_factors + i, n);
    if (weights.bias) y = y + load_tail(weights.bias + i, n);
    store_tail(row + i, y, n);
  }
}

// rotate(row) of each row of that many numbers, on all threads where there are enough.
template <class Rotate>
inline void rotate_rows(int64_t num_rows, int64_t numbers, const Rotate& rotate) {
  const int64_t step = larger<int64_t>(1, rotated_together / numbers);
  parallel_for(ceil_div(num_rows, step), [&](int64_t chunk) {
    const int64_t end = smaller(num_rows, (chunk + 1) * step);
    for (int64_t row = chunk * step; row < end; ++row) rotate(row);
  });
}

}  // namespace quire::QUIRE_ISA
