// Mixture of experts: routing, and adding up what the experts returned.
#include "include/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "simd/math.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr float taken = -3.4028235e38f;
// Below any sum of weights that matter: what is divided by is never 0.
constexpr float least_sum = 1e-20f;

// The largest score that is not taken yet, the first of equal ones.
int64_t best_left(const float* scores, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i)
    if (scores[i] > scores[best]) best = i;
  return best;
}

// p (n,) = the scores of logits x, all times a number, which is returned.
float scores(const float* x, int64_t n, RouteScores kind, float* p) {
  if (kind == RouteScores::sigmoid) {
    for (int64_t i = 0; i < n; i += F32::lanes) {
      const F32 one = set1(1.0f);
      store_tail(p + i, one / (one + exp(zero() - load_tail(x + i, n - i))), n - i);
    }
    return 1.0f;
  }
  float highest = x[0], total = 0.0f;
  for (int64_t i = 1; i < n; ++i) highest = larger(highest, x[i]);
  for (int64_t i = 0; i < n; i += F32::lanes)
    store_tail(p + i, exp(load_tail(x + i, n - i) - set1(highest)), n - i);
  for (int64_t i = 0; i < n; ++i) total += p[i];
  return total;
}

// The sum of the best of a group's scores.
float group_score(const float* choice, int64_t size, int64_t best) {
  float first = taken, second = taken;
  for (int64_t i = 0; i < size; ++i) {
    if (choice[i] > first) {
      second = first;
      first = choice[i];
    } else if (choice[i] > second) {
      second = choice[i];
    }
  }
  return best == 1 ? first : first + second;
}

// Take all groups but the best, so that none of their experts is chosen.
void keep_groups(const ExpertRouting& routing, float* choice, float* groups) {
  const int64_t num_groups = routing.num_groups, size = routing.num_experts / num_groups;
  for (int64_t i = 0; i < num_groups; ++i)
    groups[i] = group_score(choice + i * size, size, routing.group_best);
  constexpr float kept = 2.0f, dropped = 1.0f;
  float* marks = groups + num_groups;
  for (int64_t i = 0; i < num_groups; ++i) marks[i] = dropped;
  for (int64_t j = 0; j < routing.top_groups; ++j) {
    const int64_t best = best_left(groups, num_groups);
    groups[best] = taken;
    marks[best] = kept;
  }
  for (int64_t i = 0; i < routing.num_experts; ++i)
    if (marks[i / size] == dropped) choice[i] = taken;
}

}  // namespace

void route(const float* logits, int64_t rows, const ExpertRouting& routing, int32_t* ids,
           float* weights) {
  const int64_t num_experts = routing.num_experts, top_k = routing.top_k;
  const int64_t elements = 2 * num_experts + 2 * routing.num_groups;
  auto* p =
      static_cast<float*>(scratch(Slot::partial, static_cast<size_t>(elements) * sizeof(float)));
  float* choice = p + num_experts;
  for (int64_t row = 0; row < rows; ++row) {
    const float* x = logits + row * num_experts;
    const float total = scores(x, num_experts, routing.scores, p);
    for (int64_t i = 0; i < num_experts; ++i)
      choice[i] = routing.bias ? p[i] / total + routing.bias[i] : p[i];
    if (routing.top_groups < routing.num_groups) keep_groups(routing, choice, choice + num_experts);
    float kept = 0.0f;
    for (int64_t j = 0; j < top_k; ++j) {
      const int64_t best = best_left(choice, num_experts);
      ids[row * top_k + j] = static_cast<int32_t>(best);
      weights[row * top_k + j] = p[best];
      kept += p[best];
      choice[best] = taken;
    }
    const float sum = routing.renormalize ? larger(kept, least_sum) : total;
    for (int64_t j = 0; j < top_k; ++j)
      weights[row * top_k + j] = weights[row * top_k + j] / sum * routing.scale;
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

void add_gated_rows(const float* x, const float* gate, int64_t rows, int64_t columns, float* out) {
  parallel_for(rows, [=](int64_t row) {
    const F32 share = set1(1.0f) / (set1(1.0f) + exp(set1(-gate[row])));
    const float* from = x + row * columns;
    float* to = out + row * columns;
    for (int64_t i = 0; i < columns; i += F32::lanes) {
      const int64_t n = columns - i;
      store_tail(to + i, fma(share, load_tail(from + i, n), load_tail(to + i, n)), n);
    }
  });
}

void scale_rows(const float* x, const float* scales, int64_t rows, int64_t columns, float* out) {
  parallel_for(rows, [=](int64_t row) {
    const F32 scale = set1(scales[row]);
    for (int64_t i = 0; i < columns; i += F32::lanes) {
      const int64_t n = columns - i, at = row * columns + i;
      store_tail(out + at, load_tail(x + at, n) * scale, n);
    }
  });
}

}  // namespace quire::QUIRE_ISA
