// Mixture of experts: routing, and adding up what the experts returned.
#include "include/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "simd/math.h"

namespace quire::QUIRE_ISA {
namespace {

// The largest probability that is not taken yet, the first of equal ones; taken ones are negative.
int64_t best_left(const float* p, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i)
    if (p[i] > p[best]) best = i;
  return best;
}

}  // namespace

void route(const float* logits, int64_t rows, int64_t num_experts, int64_t top_k, bool renormalize,
           int32_t* ids, float* weights) {
  const size_t bytes = static_cast<size_t>(num_experts) * sizeof(float);
  auto* p = static_cast<float*>(scratch(Slot::partial, bytes));
  for (int64_t row = 0; row < rows; ++row) {
    const float* x = logits + row * num_experts;
    float highest = x[0];
    for (int64_t i = 1; i < num_experts; ++i) highest = larger(highest, x[i]);
    for (int64_t i = 0; i < num_experts; i += F32::lanes) {
      const int64_t n = num_experts - i;
      store_tail(p + i, exp(load_tail(x + i, n) - set1(highest)), n);
    }
    float total = 0.0f, kept = 0.0f;
    for (int64_t i = 0; i < num_experts; ++i) total += p[i];
    for (int64_t j = 0; j < top_k; ++j) {
      const int64_t best = best_left(p, num_experts);
      ids[row * top_k + j] = static_cast<int32_t>(best);
      weights[row * top_k + j] = p[best];
      kept += p[best];
      p[best] = -1.0f;
    }
    const float sum = renormalize ? kept : total;
    for (int64_t j = 0; j < top_k; ++j) weights[row * top_k + j] /= sum;
  }
}

void combine_experts(const float* y, const int32_t* index, const float* weights, int64_t rows,
                     int64_t top_k, int64_t columns, float* out) {
  parallel_for(rows, [=](int64_t row) {
    const int32_t* at = index + row * top_k;
    const float* weight = weights + row * top_k;
    for (int64_t i = 0; i < columns; i += F32::lanes) {
      const int64_t n = columns - i;
      F32 sum = set1(weight[0]) * load_tail(y + at[0] * columns + i, n);
      for (int64_t j = 1; j < top_k; ++j)
        sum = fma(set1(weight[j]), load_tail(y + at[j] * columns + i, n), sum);
      store_tail(out + row * columns + i, sum, n);
    }
  });
}

}  // namespace quire::QUIRE_ISA
