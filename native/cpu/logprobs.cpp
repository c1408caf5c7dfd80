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

// What one pass over a row finds.
struct Pass {
  double log_sum;  // log(sum(exp(logit - highest))), summed in one order
  int64_t rank;    // of the token
};

int64_t count_before(const float* logits, int64_t begin, int64_t end, int64_t id) {
  const float logit = logits[id];
  int64_t before = 0;
  for (int64_t i = begin; i < smaller(end, id); ++i) before += logits[i] >= logit;
  for (int64_t i = larger(begin, id + 1); i < end; ++i) before += logits[i] > logit;
  return before;
}

Pass sum_and_rank(const float* logits, int64_t vocab, float highest, int64_t id) {
  double total = 0.0;
  int64_t before = 0;
  const F32 logit = set1(logits[id]), one = set1(1.0f);
  for (int64_t start = 0; start < vocab; start += chunk_tokens) {
    const int64_t end = smaller(vocab, start + chunk_tokens);
    const bool around = start <= id && id < end, in_front = end <= id;
    F32 sums = zero(), counts = zero();
    int64_t i = start;
    for (; end - i >= F32::lanes; i += F32::lanes) {
      const F32 x = load(logits + i);
      sums = sums + exp(x - set1(highest));
      // Equal logits are before the token where their ids are lower.
      counts = counts + (in_front ? select(less(x, logit), zero(), one)
                                  : select(less(logit, x), one, zero()));
    }
    total += sum(sums);
    before += around ? count_before(logits, start, i, id) : static_cast<int64_t>(sum(counts));
    before += count_before(logits, i, end, id);
    for (; i < end; ++i) total += ::exp(static_cast<double>(logits[i]) - highest);
  }
  return {::log(total), before + 1};
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
    const Pass pass = sum_and_rank(x, vocab, highest, token_ids[row]);
    const double shift = pass.log_sum;
    const auto logprob = [=](float logit) {
      return static_cast<float>(static_cast<double>(logit) - highest - shift);
    };
    logprobs[row] = logprob(x[token_ids[row]]);
    ranks[row] = static_cast<int32_t>(pass.rank);
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
