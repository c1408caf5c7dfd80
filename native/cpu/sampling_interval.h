// Narrowing an interval of logits down to where a prefix of the order ends.
#pragma once

#include "cpu/sampling_row.h"

namespace quire::QUIRE_ISA {

constexpr int num_bounds = 4;
constexpr double few_inside = 512;  // tokens that are cheaper to sort than to narrow further

// The prefix ends at a logit in (low, high].
struct Interval {
  float low, high;
  float bounds[num_bounds];  // falling
  bool stuck;                // no float lies between them

  // `over` of the bounds lie over the end of the prefix.
  void narrow(int over) {
    if (over < num_bounds) low = bounds[over];
    if (over > 0) high = bounds[over - 1];
    split();
  }
  void split() {
    for (int b = 0; b < num_bounds; ++b)
      bounds[b] = high - (high - low) * static_cast<float>(b + 1) / (num_bounds + 1);
    stuck = !(bounds[0] < high) || !(bounds[num_bounds - 1] > low);
  }
};

// All logits of some weight.
inline Interval all_of(const Row& row) {
  const float reach = smaller(104.0f / row.inverse, FLT_MAX / 2);
  // Below `low` all weights are 0.
  Interval all{nextafterf(row.highest - reach, -INFINITY), row.highest, {}, false};
  for (int b = 0; b < num_bounds; ++b) all.bounds[b] = all.high - reach / 104.0f * (2 << b);
  return all;
}

// Tokens of some weight above a logit.
struct Above {
  double count, weight;
};

template <int num_bounds>
inline void measure_above(const Row& row, const float (&bounds)[num_bounds],
                          Above (&found)[num_bounds]) {
  for (int b = 0; b < num_bounds; ++b) found[b] = {0.0, 0.0};
  for (int64_t block = 0; block < row.num_blocks(); ++block) {
    F32 counts[num_bounds], weights[num_bounds];
    for (int b = 0; b < num_bounds; ++b) counts[b] = weights[b] = zero();
    each_vector(row, block, [&](int64_t i, F32 x, int64_t n) {
      const F32 weight = load_tail(row.weights + i, n);
      const F32 one = select(less(zero(), weight), set1(1.0f), zero());
#pragma GCC unroll 4
      for (int b = 0; b < num_bounds; ++b) {
        const Mask inside = less(set1(bounds[b]), x);
        counts[b] = counts[b] + select(inside, one, zero());
        weights[b] = weights[b] + select(inside, weight, zero());
      }
    });
    for (int b = 0; b < num_bounds; ++b) {
      found[b].count += sum(counts[b]);
      found[b].weight += sum(weights[b]);
    }
  }
}

// The n-th largest of the blocks' lane bests.
inline float nth_lane_best(const Row& row, int64_t n) {
  constexpr int64_t few = 64;
  const int64_t num_lanes = row.num_blocks() * F32::lanes;
  const auto each_lanes = [&](auto f) {
    for (int64_t i = 0; i < num_lanes; i += F32::lanes) f(load(row.lane_bests + i));
  };
  F32 least = set1(row.highest), finite = zero();
  each_lanes([&](F32 x) {
    const Mask possible = less(set1(-INFINITY), x);
    least = min(least, select(possible, x, least));
    finite = finite + select(possible, set1(1.0f), zero());
  });
  int64_t over = 0, upto = static_cast<int64_t>(sum(finite));
  if (upto < n) return -INFINITY;
  Interval interval{nextafterf(-max(zero() - least), -INFINITY), row.highest, {}, false};
  interval.split();
  while (upto - over > few && !interval.stuck) {
    F32 counts[num_bounds];
    for (F32& count : counts) count = zero();
    each_lanes([&](F32 x) {
#pragma GCC unroll 4
      for (int b = 0; b < num_bounds; ++b)
        counts[b] = counts[b] + select(less(set1(interval.bounds[b]), x), set1(1.0f), zero());
    });
    int b = 0;
    for (; b < num_bounds; ++b) {
      const int64_t found = static_cast<int64_t>(sum(counts[b]));
      if (found >= n) {
        upto = found;
        break;
      }
      over = found;
    }
    interval.narrow(b);
  }
  int64_t inside = 0;
  each_lanes([&](F32 x) {
    const F32 bounded = select(less(set1(interval.high), x), set1(-INFINITY), x);
    inside += store_where(row.weights + inside, less(set1(interval.low), bounded), bounded);
  });
  return nth_best(row.weights, inside, n - over, row.weights + num_lanes);
}

}  // namespace quire::QUIRE_ISA
