// Where a nucleus of many tokens ends, without a pass over the row for every fivefold.
//
// A sixteenth of the row tells roughly where. The pass that weighs the row also weighs what is
// above that place and takes out the logits around it. Narrowing over those few goes the way that
// narrowing over the row would: where rounding could decide about a bound, the row is measured at
// it. So the guess costs time where it is wrong, and never changes a token.
#pragma once

#include "cpu/sampling_interval.h"

namespace quire::QUIRE_ISA {

// How many lanes are looked at for a short prefix.
inline int64_t few_wanted(const Row& row) {
  return smaller<int64_t>(128, row.num_blocks() * F32::lanes / 4);
}

struct Guess {
  float low, high;  // the prefix ends at a logit between them
  double over;      // weight above `high`
  Row inside;       // the logits of low < logit <= high
  Above all;        // of those inside
};

// Relative error of a sum of weights: the longest chain of additions in a lane, then of lanes.
constexpr double rounding = (block_tokens / F32::lanes + F32::lanes) * 0x1p-24;

// Bounds around the end of the nucleus; false when it may be short or no such place is seen.
inline bool guess_bounds(const Row& row, float top_p, Guess& guess) {
  constexpr int64_t run = 16, step = 256;
  if (row.vocab < 32 * block_tokens) return false;
  Row part = row;
  part.logits = reinterpret_cast<float*>(row.items);
  part.vocab = row.vocab / step * run;
  part.weights = part.logits + part.vocab;
  for (int64_t i = 0; i < part.vocab; i += F32::lanes)
    store(part.logits + i, load(row.logits + i / run * step + i % run));
  double total = 0.0, squares = 0.0, bests = 0.0;
  for (int64_t block = 0; block < part.num_blocks(); ++block) {
    F32 sums = zero();
    total += weigh_block(part, block, part.weights + block * block_tokens,
                         [&](int64_t, F32, F32 weight, int64_t) {
                           sums = fma(weight, weight, sums);
                           return weight;
                         });
    squares += sum(sums);
  }
  for (int64_t block = 0; block < row.num_blocks(); ++block)
    bests += ::exp((max(load(row.lane_bests + block * F32::lanes)) - row.highest) * row.inverse);
  // A few heavy tokens decide, in the sample or beside it.
  const double share = step / run;
  if (top_p * share * total < bests || share * squares > total * total) return false;

  // Everything measured, and the narrowest known interval around a weight.
  constexpr int passes = 5;
  float bounds[passes * num_bounds];
  double weights[passes * num_bounds];
  int measured = 0;
  const auto around = [&](double weight) {
    Interval interval = all_of(part);
    for (int i = 0; i < measured; ++i) {
      if (weights[i] < weight) interval.high = smaller(interval.high, bounds[i]);
      if (weights[i] >= weight) interval.low = larger(interval.low, bounds[i]);
    }
    if (measured > 0) interval.split();
    return interval;
  };
  const auto measure = [&](const Interval& interval) {
    Above found[num_bounds];
    measure_above(part, interval.bounds, found);
    for (int b = 0; b < num_bounds; ++b, ++measured) {
      bounds[measured] = interval.bounds[b];
      weights[measured] = found[b].weight;
    }
  };
  for (int pass = 0; pass < passes - 2; ++pass) measure(around(top_p * total));
  // Of sampled weights w the share above a bound has the variance sum (w / total)^2 (1 - p)^2 over
  // those above it, and with p^2 over the others, none of which is above the weight at the bound.
  const double rest = 1.0 - top_p;
  const double heaviest = ::exp((around(top_p * total).high - row.highest) * row.inverse);
  const double variance = squares * rest * rest + top_p * top_p * rest * total * heaviest;
  const double margin = smaller(2.5 * ::sqrt(variance), 0.5 * rest * total);
  const double less_weight = top_p * total - margin, more_weight = top_p * total + margin;
  measure(around(less_weight));
  measure(around(more_weight));
  guess.high = around(less_weight).high;
  guess.low = around(more_weight).low;
  int64_t lanes_over = 0;
  for (int64_t i = 0; i < row.num_blocks() * F32::lanes; i += F32::lanes)
    lanes_over += __builtin_popcount(bits(less(set1(guess.high), load(row.lane_bests + i))));
  return guess.low < guess.high && lanes_over >= few_wanted(row);
}

// Weigh every token, keep the weights, fill `guess`. Return the total.
inline double weigh_around(const Row& row, Guess& guess) {
  const F32 low = set1(guess.low), high = set1(guess.high);
  Row& inside = guess.inside;
  inside = row;
  inside.logits = reinterpret_cast<float*>(row.items);  // room for two floats a token
  float* end = inside.logits;
  guess.over = 0.0;
  double total = 0.0;
  for (int64_t block = 0; block < row.num_blocks(); ++block) {
    F32 overs = zero();
    float* out = row.weights + block * block_tokens;
    total += weigh_block(row, block, out, [&](int64_t i, F32 x, F32 weight, int64_t n) {
      const Mask over = less(high, x);
      overs = overs + select(over, weight, zero());
      const F32 bounded = select(over, set1(-INFINITY), x);
      if (n == F32::lanes) {
        end += store_where(end, less(low, bounded), x);
      } else {
        for (; i < row.vocab; ++i)
          if (guess.low < row.logits[i] && row.logits[i] <= guess.high) *end++ = row.logits[i];
      }
      return weight;
    });
    guess.over += sum(overs);
  }
  inside.vocab = end - inside.logits;
  return total;
}

// Whether the prefix that reaches `weight` certainly ends where guessed, and is long.
inline bool confirm(Guess& guess, double weight) {
  if (guess.over * (1.0 + 2.0 * rounding) >= weight) return false;
  guess.inside.weights = guess.inside.logits + guess.inside.vocab;
  for (int64_t block = 0; block < guess.inside.num_blocks(); ++block)
    weigh_block(guess.inside, block, guess.inside.weights + block * block_tokens, at_least(0.0f));
  const float low[1] = {guess.low};
  Above all[1];
  measure_above(guess.inside, low, all);
  guess.all = all[0];
  return guess.over + guess.all.weight >= weight * (1.0 + 3.0 * rounding);
}

// Narrow the interval as narrowing over the row does, until that is done: true; or until `guess`
// knows too little: false.
inline bool follow(const Row& row, const Guess& guess, double weight, Interval& interval) {
  // Both the row's sum and the one here may be off by its rounding.
  const double slack = 2.0 * rounding * (1.0 + 2.0 * rounding) * weight;
  double over = 0.0, upto = guess.all.count;
  while (upto - over > few_inside && !interval.stuck) {
    Above found[num_bounds];
    bool inside = false;
    for (int b = 0; b < num_bounds; ++b) {
      found[b] = interval.bounds[b] < guess.high ? guess.all : Above{0.0, 0.0};
      inside = inside || (interval.bounds[b] < guess.high && interval.bounds[b] > guess.low);
    }
    if (inside) measure_above(guess.inside, interval.bounds, found);
    int b = 0;
    for (; b < num_bounds; ++b) {
      if (interval.bounds[b] >= guess.high) continue;
      if (interval.bounds[b] <= guess.low) break;
      const double above = guess.over + found[b].weight;
      if (above < weight - slack) continue;
      if (above > weight + slack) break;
      const float bound[1] = {interval.bounds[b]};
      Above exact[1];
      measure_above(row, bound, exact);
      if (exact[0].weight >= weight) break;
    }
    if (b < num_bounds) upto = found[b].count;
    if (b > 0) over = found[b - 1].count;
    interval.narrow(b);
  }
  return interval.stuck || (interval.low >= guess.low && interval.high <= guess.high);
}

}  // namespace quire::QUIRE_ISA
