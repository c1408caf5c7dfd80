// Rows of activations rotated before a product and after it; quire/kernels/matrices/rotation.py in
// numpy.
#pragma once

#include "include/quantized.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "simd/lane_swap.h"

namespace quire::QUIRE_ISA {

// Numbers that are rotated in one go by one thread: less is not worth waking another.
constexpr int64_t rotated_together = 1 << 14;

// Room for a row, until the next call.
inline float* row_memory(int64_t numbers) {
  return static_cast<float*>(scratch(Slot::rotation, static_cast<size_t>(numbers) * sizeof(float)));
}

// Signs of a step of butterflies inside a register: of lanes i + half of each 2 * half -1.
template <int half>
struct StepSigns {
  alignas(64) float lanes[F32::lanes];

  constexpr StepSigns() : lanes() {
    for (int i = 0; i < F32::lanes; ++i) lanes[i] = i & half ? -1.0f : 1.0f;
  }
};

// The transform of a register. Products with 1 are exact: the bits are those of sums.
template <int half = 1>
[[gnu::always_inline]] inline F32 transform_register(F32 x) {
  if constexpr (half == F32::lanes) {
    return x;
  } else {
    static constexpr StepSigns<half> signs;
    return transform_register<2 * half>(fma(x, load(signs.lanes), swap_lanes<half>(x)));
  }
}

inline void butterfly(F32& a, F32& b) {
  const F32 sum = a + b;
  b = a - b;
  a = sum;
}

// Two steps of butterflies, of registers 1 and 2 apart.
inline void double_butterfly(F32 (&x)[4]) {
  butterfly(x[0], x[1]);
  butterfly(x[2], x[3]);
  butterfly(x[0], x[2]);
  butterfly(x[1], x[3]);
}

// change(registers) of `count` registers `half` apart, as they are in memory again afterwards.
template <int count, class Change>
[[gnu::always_inline]] inline void change_registers(float* numbers, int64_t half,
                                                    const Change& change) {
  F32 x[count];
#pragma GCC unroll 4
  for (int i = 0; i < count; ++i) x[i] = load(numbers + i * half);
  change(x);
#pragma GCC unroll 4
  for (int i = 0; i < count; ++i) store(numbers + i * half, x[i]);
}

// The Hadamard transform, not scaled, of each run of `power` numbers, a power of two: butterflies
// of numbers 1 apart, then 2, 4, ..., two steps for each time that they are loaded.
inline void transform_runs(float* numbers, int64_t count, int64_t power) {
  constexpr int64_t lanes = F32::lanes;
  int64_t half = 1;
  if (power >= 4 * lanes) {
    half = 4 * lanes;
    for (int64_t i = 0; i < count; i += half)
      change_registers<4>(numbers + i, lanes, [](F32(&x)[4]) {
        for (F32& part : x) part = transform_register(part);
        double_butterfly(x);
      });
  } else if (power >= lanes) {
    half = lanes;
    for (int64_t i = 0; i < count; i += half)
      change_registers<1>(numbers + i, lanes, [](F32(&x)[1]) { x[0] = transform_register(x[0]); });
  }
  for (; 4 * half <= power && half >= lanes; half *= 4)
    for (int64_t run = 0; run < count; run += 4 * half)
      for (int64_t i = 0; i < half; i += lanes)
        change_registers<4>(numbers + run + i, half, double_butterfly);
  for (; half < power; half *= 2)
    for (int64_t run = 0; run < count; run += 2 * half) {
      if (half >= lanes) {
        for (int64_t i = 0; i < half; i += lanes)
          change_registers<2>(numbers + run + i, half, [](F32(&x)[2]) { butterfly(x[0], x[1]); });
      } else {
        float *x = numbers + run, *y = x + half;
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
