// One row of logits while its token is chosen: the best of each block, and weights.
//
// Blocks are of a fixed size and summed in order, so every figure depends on the row alone.
#pragma once

#include <float.h>
#include <math.h>

#include "include/kernels.h"
#include "runtime/memory.h"
#include "runtime/ranking.h"
#include "simd/math.h"

namespace quire::QUIRE_ISA {

constexpr int64_t block_tokens = 1024;

struct Row {
  float* logits;
  int64_t vocab;
  float highest, inverse;  // of the temperature
  float* lane_bests;       // (num_blocks, lanes): the best logit of each block at each lane
  float* weights;          // (V,): where they are kept, exp((logit - highest) / temperature)
  Scored* items;           // (V,)

  int64_t num_blocks() const { return ceil_div(vocab, block_tokens); }
  int64_t end_of(int64_t block) const { return smaller(vocab, (block + 1) * block_tokens); }
};

inline F32 weight_of(const Row& row, F32 logits) {
  return exp((logits - set1(row.highest)) * set1(row.inverse));
}

inline float weight_at(const Row& row, float logit) { return max(weight_of(row, set1(logit))); }

// f(first id, logits, how many of them count) for each vector of a block.
template <class Function>
inline void each_vector(const Row& row, int64_t block, Function f) {
  const int64_t end = row.end_of(block);
  int64_t i = block * block_tokens;
  for (; end - i >= F32::lanes; i += F32::lanes) f(i, load(row.logits + i), F32::lanes);
  if (i < end) f(i, load_partial(row.logits + i, static_cast<int>(end - i)), end - i);
}

// The logits from i to the end, fewer than a register has; the lanes past the end are no tokens.
inline F32 load_end(const Row& row, int64_t i) {
  float lanes[F32::lanes];
  store(lanes, set1(-INFINITY));
  for (int64_t lane = 0; lane < row.vocab - i; ++lane) lanes[lane] = row.logits[i + lane];
  return load(lanes);
}

// Fill lane_bests and return the largest logit; NaN when a logit is NaN or +inf, or all are -inf.
inline float find_bests(const Row& row) {
  constexpr int64_t tokens_ahead = 2048, line = 16;
  constexpr int abreast = 4;
  const int64_t last = row.vocab - 1;
  F32 all = set1(-INFINITY), bad = zero();
  for (int64_t block = 0; block < row.num_blocks(); ++block) {
    F32 best = set1(-INFINITY);
    const auto see = [&](F32 x) {
      bad = select(less(x, set1(INFINITY)), bad, set1(1.0f));
      best = max(x, best);
    };
    const int64_t end = row.end_of(block);
    int64_t i = block * block_tokens;
    for (; end - i >= abreast * F32::lanes; i += abreast * F32::lanes) {
      // The processor's own reading ahead stops at the end of every page.
      for (int64_t ahead = 0; ahead < abreast * F32::lanes; ahead += line)
        __builtin_prefetch(row.logits + smaller(i + ahead + tokens_ahead, last), 0, 2);
#pragma GCC unroll 4
      for (int a = 0; a < abreast; ++a) see(load(row.logits + i + a * F32::lanes));
    }
    for (; end - i >= F32::lanes; i += F32::lanes) see(load(row.logits + i));
    if (i < end) see(load_end(row, i));
    store(row.lane_bests + block * F32::lanes, best);
    all = max(best, all);
  }
  const float highest = max(all);
  return max(bad) > 0.0f || highest == -INFINITY ? NAN : highest;
}

// The first id, from a block's beginning on, whose logit is at least `bound`; there is one.
inline int64_t first_at_least(const Row& row, float bound) {
  int64_t block = 0;
  while (max(load(row.lane_bests + block * F32::lanes)) < bound) ++block;
  int64_t i = block * block_tokens;
  while (row.logits[i] < bound) ++i;
  return i;
}

// kept(first id, logits, their weights, how many of them count) to `out` for each vector of a
// block; the sum of that. Beyond those that count, weights are 0.
template <class Kept>
inline double weigh_block(const Row& row, int64_t block, float* out, Kept kept) {
  constexpr int abreast = 4;
  F32 sums = zero();
  const int64_t end = row.end_of(block);
  int64_t i = block * block_tokens;
  while (end - i >= abreast * F32::lanes) {
    F32 weights[abreast];
#pragma GCC unroll 4
    for (int a = 0; a < abreast; ++a)
      weights[a] = (load(row.logits + i + a * F32::lanes) - set1(row.highest)) * set1(row.inverse);
    exp(weights);
#pragma GCC unroll 4
    for (int a = 0; a < abreast; ++a, i += F32::lanes, out += F32::lanes) {
      const F32 weight = kept(i, load(row.logits + i), weights[a], int64_t{F32::lanes});
      store(out, weight);
      sums = sums + weight;
    }
  }
  for (; i < end; i += F32::lanes, out += F32::lanes) {
    const int64_t n = smaller<int64_t>(end - i, F32::lanes);
    const F32 x = load_tail(row.logits + i, n);
    store_tail(out, weight_of(row, x), n);
    const F32 weight = kept(i, x, load_tail(out, n), n);
    store_tail(out, weight, n);
    sums = sums + weight;
  }
  return sum(sums);
}

// What weigh_block keeps of weights that are at least `least`.
inline auto at_least(float least) {
  return [bound = set1(least)](int64_t, F32, F32 weight, int64_t) {
    return select(less(weight, bound), zero(), weight);
  };
}

// Weigh every token; keep the weights where wanted. Return the total.
inline double weigh(const Row& row, float least, bool keep) {
  float unkept[block_tokens];
  double total = 0.0;
  for (int64_t block = 0; block < row.num_blocks(); ++block) {
    float* out = keep ? row.weights + block * block_tokens : unkept;
    total += weigh_block(row, block, out, at_least(least));
  }
  return total;
}

}  // namespace quire::QUIRE_ISA
