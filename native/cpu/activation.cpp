// Elementwise activations, plain and gated.
#include "include/kernels.h"
#include "runtime/thread_pool.h"
#include "simd/math.h"

namespace quire::QUIRE_ISA {
namespace {

F32 sigmoid_times(F32 x, F32 factor) { return factor / (set1(1.0f) + exp(zero() - x)); }

F32 silu(F32 x) { return sigmoid_times(x, x); }

// (1 + tanh(u)) / 2 = sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3).
F32 gelu_tanh(F32 x) {
  const F32 cubic = fma(x * x * set1(0.044715f), x, x);
  return sigmoid_times(cubic * set1(1.59576912f), x);
}

// e^(z^2) erfc(z) / t as a polynomial of t = 1 / (1 + z / 2), Chebyshev fit over 0 <= z <= 10.2,
// relative error below 4e-8.
F32 gelu(F32 x) {
  const float coefficients[] = {0.0168865807f, -0.146865308f, 0.480932832f, -0.734347701f,
                                0.470328838f,  -0.122141302f, 0.232881308f, 0.23726666f,
                                0.282999784f,  0.282058299f};
  const F32 z = abs(x) * set1(0.707106781f);
  const F32 t = set1(1.0f) / fma(z, set1(0.5f), set1(1.0f));
  F32 p = zero();
  for (const float coefficient : coefficients) p = fma(p, t, set1(coefficient));
  const F32 tail = t * p * exp(zero() - z * z);
  return set1(0.5f) * x * select(less(x, zero()), tail, set1(2.0f) - tail);
}

F32 quick_gelu(F32 x) { return x / (set1(1.0f) + exp(x * set1(-1.702f))); }

// gate sigmoid(1.702 gate) (factor + 1), both of at most 7, the factor of at least -7.
F32 clamped_swiglu(F32 gate, F32 factor) {
  const F32 limit = set1(7.0f);
  // min and max return the second operand when it is NaN.
  gate = min(limit, gate);
  factor = max(zero() - limit, min(limit, factor));
  const F32 bent = quick_gelu(gate);
  return fma(bent, factor, bent);
}

// out[i] = f(x[i]), or f(x[i], y[i]) with y the right half of x when gated.
template <bool gated, class Function>
void each(const float* x, int64_t rows, int64_t columns, float* out, Function f) {
  const int64_t step = larger<int64_t>(1, chunk_elements / larger<int64_t>(columns, 1));
  parallel_for(ceil_div(rows, step), [=](int64_t chunk) {
    const int64_t end = smaller(rows, (chunk + 1) * step);
    for (int64_t row = chunk * step; row < end; ++row) {
      const float* in = x + row * columns * (gated ? 2 : 1);
      for (int64_t i = 0; i < columns; i += F32::lanes) {
        const F32 left = load_tail(in + i, columns - i);
        F32 y;
        if constexpr (gated)
          y = f(left, load_tail(in + columns + i, columns - i));
        else
          y = f(left);
        store_tail(out + row * columns + i, y, columns - i);
      }
    }
  });
}

template <bool gated>
void apply(const float* x, Activation which, int64_t rows, int64_t columns, float* out) {
  const auto run = [=](auto act) {
    if constexpr (gated)
      each<true>(x, rows, columns, out, [=](F32 gate, F32 up) { return act(gate) * up; });
    else
      each<false>(x, rows, columns, out, act);
  };
  switch (which) {
    case Activation::silu:
      return run([](F32 v) { return silu(v); });
    case Activation::gelu:
      return run([](F32 v) { return gelu(v); });
    case Activation::gelu_tanh:
      return run([](F32 v) { return gelu_tanh(v); });
    case Activation::quick_gelu:
      return run([](F32 v) { return quick_gelu(v); });
    case Activation::clamped_swiglu:
      if constexpr (gated)
        each<true>(x, rows, columns, out,
                   [](F32 gate, F32 up) { return clamped_swiglu(gate, up); });
      return;
  }
}

}  // namespace

void activation(const float* x, Activation which, int64_t rows, int64_t columns, float* out) {
  apply<false>(x, which, rows, columns, out);
}

void gated_activation(const float* x, Activation which, int64_t rows, int64_t columns, float* out) {
  apply<true>(x, which, rows, columns, out);
}

}  // namespace quire::QUIRE_ISA
