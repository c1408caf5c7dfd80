// Where top-k, top-p and min-p cut a row, without sorting the vocabulary.
//
// All three keep a prefix of the order (logit falling, id rising). Nearly always it is short: the
// n-th largest of the blocks' lane bests is a bound that at least n tokens reach, few lanes have to
// be looked at for them, and only they are sorted (choose_few). Long prefixes are found by
// narrowing an interval of logits, a pass over the row for every fivefold (cut_prefix).
#pragma once

#include "cpu/sampling_row.h"

namespace quire::QUIRE_ISA {

constexpr int64_t few_tokens = 128;
constexpr int64_t undecided = -1;

struct Filter {
  int64_t top_k;  // V where there is none
  float top_p, min_p;
};

// All tokens with low < logit <= high, ids rising, to items; their number.
inline int64_t collect(const Row& row, float low, float high) {
  int64_t count = 0;
  for (int64_t block = 0; block < row.num_blocks(); ++block) {
    if (!any(less(set1(low), load(row.lane_bests + block * F32::lanes)))) continue;
    each_vector(row, block, [&](int64_t i, F32 x, int64_t n) {
      const F32 inside = select(less(set1(high), x), set1(-INFINITY), x);
      if (!any(less(set1(low), inside))) return;
      for (int64_t lane = 0; lane < n; ++lane) {
        const float logit = row.logits[i + lane];
        if (low < logit && logit <= high)
          row.items[count++] = {logit, static_cast<int32_t>(i + lane)};
      }
    });
  }
  return count;
}

// Draw from the items, which are in order and all kept, with their weights.
inline int32_t draw_item(const Row& row, int64_t count, double number) {
  // Ids rising, weights with them.
  for (int64_t i = 0; i < count; ++i) row.items[i].score = row.weights[i];
  sort_by_id(row.items, count);
  double total = 0.0, running = 0.0;
  for (int64_t i = 0; i < count; ++i) total += row.items[i].score;
  int32_t last = row.items[0].id;
  for (int64_t i = 0; i < count; ++i) {
    if (row.items[i].score == 0.0f) continue;
    last = row.items[i].id;
    running += row.items[i].score;
    if (running > number * total) break;
  }
  return last;
}

// The token, when few are kept; else undecided. `number` is in [0, 1).
inline int64_t choose_few(const Row& row, const Filter& filter, double number) {
  const int64_t num_lanes = row.num_blocks() * F32::lanes;
  const bool ranked = filter.top_k < row.vocab;
  const int64_t wanted = ranked ? filter.top_k : smaller(few_tokens, num_lanes / 4);
  if (wanted < 1 || wanted > num_lanes / 4) return undecided;
  const float bound = nth_best(row.lane_bests, num_lanes, wanted, row.weights);
  // Without a bound all tokens that are possible are found.
  bool closed = ranked || bound == -INFINITY;
  const float below = bound == -INFINITY ? bound : nextafterf(bound, -INFINITY);
  int64_t count = collect(row, below, row.highest);
  sort_best_first(row.items, count);
  count = smaller(count, filter.top_k);
  for (int64_t i = 0; i < count; ++i) row.weights[i] = row.items[i].score;
  for (int64_t i = 0; i < count; i += F32::lanes)
    store_tail(row.weights + i, weight_of(row, load_tail(row.weights + i, count - i)), count - i);
  int64_t kept = 0;
  double sum = 0.0;
  while (kept < count && row.weights[kept] >= filter.min_p) sum += row.weights[kept++];
  closed = closed || kept < count;
  if (filter.top_p < 1.0f) {
    const double wanted_weight = filter.top_p * (closed ? sum : weigh(row, filter.min_p, false));
    if (!closed && sum < wanted_weight) return undecided;
    count = kept;
    kept = 0;
    sum = 0.0;
    do {
      sum += row.weights[kept++];
    } while (kept < count && sum < wanted_weight);
    closed = true;
  }
  return closed ? draw_item(row, kept, number) : undecided;
}

// A prefix of the order: tokens with a larger logit, and with an equal one up to `id`.
struct Cut {
  float logit;
  int64_t id;
  double weight;
};

// Tokens of some weight above a logit.
struct Above {
  double count, weight;
};

constexpr int num_bounds = 4;

inline void measure_above(const Row& row, const float* bounds, Above* found) {
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

// The tokens of some weight with low < logit <= high that end the prefix.
inline Cut cut_interval(const Row& row, float low, float high, Above above, double count,
                        double weight) {
  const int64_t found = collect(row, low, high);
  int64_t n = 0;
  for (int64_t i = 0; i < found; ++i)
    if (row.weights[row.items[i].id] > 0.0f) row.items[n++] = row.items[i];
  if (n == 0) return {-INFINITY, row.vocab, above.weight};  // all of them are the prefix
  sort_best_first(row.items, n);
  int64_t taken = 0;
  do {
    above.weight += row.weights[row.items[taken++].id];
    above.count += 1.0;
  } while (taken < n && above.count < count && above.weight < weight);
  return {row.items[taken - 1].score, row.items[taken - 1].id, above.weight};
}

// The shortest prefix of the tokens of some weight that has `count` of them or reaches `weight`.
// `total` is the weight of all.
inline Cut cut_prefix(const Row& row, double count, double weight, double total) {
  constexpr double few = 512;
  const float reach = smaller(104.0f / row.inverse, FLT_MAX / 2);
  // Below `low` all weights are 0.
  float high = row.highest, low = nextafterf(row.highest - reach, -INFINITY);
  Above over{0.0, 0.0}, upto{static_cast<double>(row.vocab), total};
  float bounds[num_bounds];
  for (int b = 0; b < num_bounds; ++b) bounds[b] = high - reach / 104.0f * (2 << b);
  while (upto.count - over.count > few) {
    Above found[num_bounds];
    measure_above(row, bounds, found);
    for (int b = 0; b < num_bounds; ++b) {
      if (found[b].count >= count || found[b].weight >= weight) {
        low = bounds[b];
        upto = found[b];
        break;
      }
      high = bounds[b];
      over = found[b];
    }
    for (int b = 0; b < num_bounds; ++b)
      bounds[b] = high - (high - low) * static_cast<float>(b + 1) / (num_bounds + 1);
    if (!(bounds[0] < high) || !(bounds[num_bounds - 1] > low)) break;
  }
  return cut_interval(row, low, high, over, count, weight);
}

// Give the tokens behind the cut no weight. Return the weight of the others.
inline double drop_behind(const Row& row, const Cut& cut) {
  const F32 bound = set1(cut.logit);
  double total = 0.0;
  for (int64_t block = 0; block < row.num_blocks(); ++block) {
    F32 sums = zero();
    // Equal logits stay up to the cut's id, which lies inside one vector at most.
    each_vector(row, block, [&](int64_t i, F32 x, int64_t n) {
      float* weights = row.weights + i;
      if (i > cut.id) {
        store_tail(weights, select(less(bound, x), load_tail(weights, n), zero()), n);
      } else if (i + n <= cut.id + 1) {
        store_tail(weights, select(less(x, bound), zero(), load_tail(weights, n)), n);
      } else {
        for (int64_t lane = 0; lane < n; ++lane) {
          const float logit = row.logits[i + lane];
          if (i + lane > cut.id ? logit <= cut.logit : logit < cut.logit) weights[lane] = 0.0f;
        }
      }
      sums = sums + load_tail(weights, n);
    });
    total += row.sums[block] = sum(sums);
  }
  return total;
}

}  // namespace quire::QUIRE_ISA
