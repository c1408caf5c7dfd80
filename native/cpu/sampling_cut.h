// Where top-k, top-p and min-p cut a row, without sorting the vocabulary.
//
// All three keep a prefix of the order (logit falling, id rising). Nearly always it is short: the
// n-th largest of the blocks' lane bests is a bound that at least n tokens reach, few lanes have to
// be looked at for them, and only they are sorted (find_few). Long prefixes are found by
// narrowing an interval of logits, a pass over the row for every fivefold (cut_prefix).
#pragma once

#include "cpu/sampling_interval.h"

namespace quire::QUIRE_ISA {

constexpr int64_t undecided = -1;

struct Filter {
  int64_t top_k;  // V where there is none
  float top_p, min_p;
};

// The tokens of a vector's lanes that are set in `inside`, ids rising, to items; their number.
inline int64_t take_items(const Row& row, int64_t first, int64_t n, uint32_t inside,
                          Scored* items) {
  if (n < F32::lanes) inside &= (1u << n) - 1;
  int64_t count = 0;
  for (; inside != 0; inside &= inside - 1) {
    const int64_t id = first + __builtin_ctz(inside);
    items[count++] = {row.logits[id], static_cast<int32_t>(id)};
  }
  return count;
}

// All tokens with low < logit <= high, ids rising, to items; their number.
inline int64_t collect(const Row& row, float low, float high) {
  int64_t count = 0;
  for (int64_t block = 0; block < row.num_blocks(); ++block) {
    if (!any(less(set1(low), load(row.lane_bests + block * F32::lanes)))) continue;
    each_vector(row, block, [&](int64_t i, F32 x, int64_t n) {
      const uint32_t inside = bits(less(set1(low), x)) & ~bits(less(set1(high), x));
      if (inside != 0) count += take_items(row, i, n, inside, row.items + count);
    });
  }
  return count;
}

// The same for all tokens with a logit above `low`, and `total`, the weight of the row, in one
// pass.
inline int64_t collect_and_weigh(const Row& row, float low, double& total) {
  float unkept[block_tokens];
  int64_t count = 0;
  total = 0.0;
  for (int64_t block = 0; block < row.num_blocks(); ++block)
    total += weigh_block(row, block, unkept, [&](int64_t i, F32 x, F32 weight, int64_t n) {
      const uint32_t inside = bits(less(set1(low), x));
      if (inside != 0) count += take_items(row, i, n, inside, row.items + count);
      return weight;
    });
  return count;
}

// How many lanes are looked at for a short prefix.
inline int64_t few_wanted(const Row& row) {
  return smaller<int64_t>(128, row.num_blocks() * F32::lanes / 4);
}

// How many are kept, when they are few: the first of row.items, in order, with row.weights. Else
// undecided.
inline int64_t find_few(const Row& row, const Filter& filter) {
  const int64_t num_lanes = row.num_blocks() * F32::lanes;
  const bool ranked = filter.top_k < row.vocab;
  const int64_t wanted = ranked ? filter.top_k : few_wanted(row);
  if (wanted < 1 || wanted > num_lanes / 4) return undecided;
  const float bound = nth_lane_best(row, wanted);
  // Without a bound all tokens that are possible are found.
  bool closed = ranked || bound == -INFINITY;
  const float below = bound == -INFINITY ? bound : nextafterf(bound, -INFINITY);
  // Only min_p could still make the weight of the row unnecessary.
  const bool sure = !closed && filter.top_p < 1.0f && filter.min_p == 0.0f;
  double total = 0.0;
  int64_t count = sure ? collect_and_weigh(row, below, total) : collect(row, below, row.highest);
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
    if (!closed && !sure) total = weigh(row, filter.min_p, false);
    const double wanted_weight = filter.top_p * (closed ? sum : total);
    if (!closed && sum < wanted_weight) return undecided;
    count = kept;
    kept = 0;
    sum = 0.0;
    do {
      sum += row.weights[kept++];
    } while (kept < count && sum < wanted_weight);
    closed = true;
  }
  return closed ? kept : undecided;
}

// A prefix of the order: tokens with a larger logit, and with an equal one up to `id`.
struct Cut {
  float logit;
  int64_t id;
  double weight;
};

// take(items, n) of n items with low < score <= high, piece by piece in their order, until it says
// false. `spare` has room for n, or is null.
template <class Take>
inline void take_in_order(Scored* items, int64_t n, const Interval& interval, Scored* spare,
                          Take take) {
  constexpr int parts = 16;
  const float scale = parts / (interval.high - interval.low);
  if (n <= 2 * parts || !(scale > 0.0f && scale < FLT_MAX) || !spare) {
    sort_best_first(items, n);
    take(items, n);
    return;
  }
  const auto part_of = [&](const Scored& item) {
    return smaller(static_cast<int>((interval.high - item.score) * scale), parts - 1);
  };
  int64_t ends[parts + 1] = {}, next[parts];
  for (int64_t i = 0; i < n; ++i) ++ends[part_of(items[i]) + 1];
  for (int part = 0; part < parts; ++part) {
    next[part] = ends[part];
    ends[part + 1] += ends[part];
  }
  for (int64_t i = 0; i < n; ++i) spare[next[part_of(items[i])]++] = items[i];
  for (int part = 0; part < parts; ++part) {
    const int64_t size = ends[part + 1] - ends[part];
    sort_best_first(spare + ends[part], size);
    if (!take(spare + ends[part], size)) return;
  }
}

// The prefix that ends among the n items, which have low < logit <= high, ids rising.
inline Cut cut_items(const Row& row, int64_t n, const Interval& interval, Above above, double count,
                     double weight) {
  Cut cut{-INFINITY, row.vocab, above.weight};  // when none of them has weight
  const auto take = [&](const Scored* items, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
      const float more = row.weights[items[i].id];
      if (more == 0.0f) continue;
      above.weight += more;
      above.count += 1.0;
      cut = {items[i].score, items[i].id, above.weight};
      if (above.count >= count || above.weight >= weight) return false;
    }
    return true;
  };
  take_in_order(row.items, n, interval, 2 * n <= row.vocab ? row.items + n : nullptr, take);
  return cut;
}

// The shortest prefix of the tokens of some weight that has `count` of them or reaches `weight`;
// `total` is the weight of all.
inline Cut cut_prefix(const Row& row, double count, double weight, double total) {
  Interval interval = all_of(row);
  Above over{0.0, 0.0}, upto{static_cast<double>(row.vocab), total};
  while (upto.count - over.count > few_inside && !interval.stuck) {
    Above found[num_bounds];
    measure_above(row, interval.bounds, found);
    int b = 0;
    for (; b < num_bounds; ++b) {
      if (found[b].count >= count || found[b].weight >= weight) {
        upto = found[b];
        break;
      }
      over = found[b];
    }
    interval.narrow(b);
  }
  const int64_t found = collect(row, interval.low, interval.high);
  return cut_items(row, found, interval, over, count, weight);
}

// What the settings keep: items, where they are few, else all of a weight up to a cut.
struct Kept {
  int64_t few;  // the first of row.items, best first, with row.weights; or undecided
  float least;
  Cut cut;

  bool has(const Row& row, int64_t id) const {
    const float logit = row.logits[id];
    return !(weight_at(row, logit) < least) &&
           (logit > cut.logit || (logit == cut.logit && id <= cut.id));
  }
};

inline Kept find_kept(const Row& row, const Filter& filter) {
  const bool ranked = filter.top_k < row.vocab, open = filter.top_p == 1.0f;
  Kept kept{undecided, filter.min_p, {-INFINITY, row.vocab, 0.0}};
  if (!ranked && open && filter.min_p == 0.0f) return kept;
  kept.few = find_few(row, filter);
  if (kept.few != undecided || (!ranked && open)) return kept;
  const double total = weigh(row, filter.min_p, true);
  kept.cut.weight = total;
  const auto top_k = static_cast<double>(filter.top_k);
  if (ranked) kept.cut = cut_prefix(row, top_k, INFINITY, total);
  if (!open) kept.cut = cut_prefix(row, top_k, filter.top_p * kept.cut.weight, total);
  return kept;
}

}  // namespace quire::QUIRE_ISA
