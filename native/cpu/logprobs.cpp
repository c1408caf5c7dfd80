// Log-probabilities and ranks of tokens under raw logits.
#include <math.h>

#include "include/kernels.h"
#include "runtime/memory.h"
#include "runtime/ranking.h"
#include "runtime/thread_pool.h"
#include "simd/math.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t few_tops = 64;
constexpr int64_t chunk_tokens = 1024;

float highest_of(const float* logits, int64_t vocab) {
  float highest = -INFINITY;
  F32 best = set1(-INFINITY);
  int64_t i = 0;
  for (; vocab - i >= F32::lanes; i += F32::lanes) best = max(load(logits + i), best);
  for (; i < vocab; ++i) highest = larger(highest, logits[i]);
  return larger(highest, max(best));
}

// log(sum(exp(logit - highest))), summed in one order.
double log_sum(const float* logits, int64_t vocab, float highest) {
  double total = 0.0;
  for (int64_t start = 0; start < vocab; start += chunk_tokens) {
    const int64_t end = smaller(vocab, start + chunk_tokens);
    F32 sums = zero();
    int64_t i = start;
    for (; end - i >= F32::lanes; i += F32::lanes)
      sums = sums + exp(load(logits + i) - set1(highest));
    total += sum(sums);
    for (; i < end; ++i) total += ::exp(static_cast<double>(logits[i]) - highest);
  }
  return ::log(total);
}

int64_t rank_of(const float* logits, int64_t vocab, int64_t id) {
  const float logit = logits[id];
  int64_t before = 0;
  for (int64_t i = 0; i < id; ++i) before += logits[i] >= logit;
  for (int64_t i = id + 1; i < vocab; ++i) before += logits[i] > logit;
  return before + 1;
}

// The best n, by insertion: nearly all tokens are below the worst of them and cost a comparison.
void best_few(const float* logits, int64_t vocab, int64_t n, Scored* best) {
  int64_t count = 0;
  for (int64_t i = 0; i < vocab; i += F32::lanes) {
    const int64_t width = smaller<int64_t>(F32::lanes, vocab - i);
    if (count == n && width == F32::lanes && !any(less(set1(best[n - 1].score), load(logits + i))))
      continue;
    for (int64_t lane = 0; lane < width; ++lane) {
      const float logit = logits[i + lane];
      const float score = logit == logit ? logit : -INFINITY;
      if (count == n && !(score > best[n - 1].score)) continue;
      int64_t at = count < n ? count++ : n - 1;
      for (; at > 0 && score > best[at - 1].score; --at) best[at] = best[at - 1];
      best[at] = {score, static_cast<int32_t>(i + lane)};
    }
  }
}

void best_many(const float* logits, int64_t vocab, int64_t n, Scored* items) {
  for (int64_t i = 0; i < vocab; ++i)
    items[i] = {logits[i] == logits[i] ? logits[i] : -INFINITY, static_cast<int32_t>(i)};
  best_to_front(items, vocab, n);
}

}  // namespace

void token_logprobs(const float* logits, int64_t rows, int64_t vocab, const int32_t* token_ids,
                    int64_t num_top, float* logprobs, int32_t* ranks, int32_t* top_ids,
                    float* top_logprobs) {
  parallel_for(rows, [=](int64_t row) {
    const float* x = logits + row * vocab;
    const float highest = highest_of(x, vocab);
    const double shift = log_sum(x, vocab, highest);
    const auto logprob = [=](float logit) {
      return static_cast<float>(static_cast<double>(logit) - highest - shift);
    };
    logprobs[row] = logprob(x[token_ids[row]]);
    ranks[row] = static_cast<int32_t>(rank_of(x, vocab, token_ids[row]));
    if (num_top == 0) return;
    const bool few = num_top <= few_tops;
    const int64_t room = few ? num_top : vocab;
    auto* items =
        static_cast<Scored*>(scratch(Slot::partial, static_cast<size_t>(room) * sizeof(Scored)));
    few ? best_few(x, vocab, num_top, items) : best_many(x, vocab, num_top, items);
    for (int64_t i = 0; i < num_top; ++i) {
      top_ids[row * num_top + i] = items[i].id;
      top_logprobs[row * num_top + i] = logprob(x[items[i].id]);
    }
  });
}

}  // namespace quire::QUIRE_ISA
