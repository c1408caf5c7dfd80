// Where top-k, top-p and min-p cut a row, without sorting the vocabulary.
//
// All three keep a prefix of the order (logit falling, id rising). Nearly always it is short: the
// n-th largest of the blocks' lane bests is a bound that at least n tokens reach, few lanes have to
// be looked at for them, and only they are sorted (choose_few). Long prefixes are found by
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
  return closed ? draw_item(row, kept, number) : undecided;
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

// Weights of a block's tokens to `out`, 0 after the cut; their sum.
//
// Nearly everywhere the weights tell what is kept, which saves reading the logits.
inline double keep_block(const Row& row, int64_t block, const Cut& cut, float* out) {
  // Where a logit rises, rounding may let its weight fall, but by less than that.
  constexpr float apart = 0x1p-18f, tiny = 1e-42f;
  constexpr int64_t tokens_ahead = 512;
  const float at_cut = weight_at(row, cut.logit);
  const F32 light = set1(at_cut * (1.0f - apart) - tiny);
  const F32 heavy = set1(at_cut * (1.0f + apart) + tiny);
  const F32 bound = set1(cut.logit);
  F32 sums = zero();
  const auto keep = [&](int64_t i, int64_t n) {
    const F32 weight = load_tail(row.weights + i, n);
    const Mask surely = less(heavy, weight);
    F32 kept = select(surely, weight, zero());
    if (any(less(light, select(surely, set1(-1.0f), weight)))) {
      const F32 x = load_tail(row.logits + i, n);
      float lanes[F32::lanes], equal[F32::lanes];
      store(lanes, select(less(bound, x), weight, zero()));
      store(equal, select(less(x, bound), zero(), weight));
      // Equal logits stay up to the cut's id.
      for (int64_t lane = 0; lane < n && i + lane <= cut.id; ++lane) lanes[lane] = equal[lane];
      kept = load(lanes);
    }
    store_tail(out + i - block * block_tokens, kept, n);
    sums = sums + kept;
  };
  const int64_t end = row.end_of(block);
  int64_t i = block * block_tokens;
  for (; end - i >= F32::lanes; i += F32::lanes) {
    __builtin_prefetch(row.weights + i + tokens_ahead);
    keep(i, F32::lanes);
  }
  if (i < end) keep(i, end - i);
  return sum(sums);
}

// Sum what the cut keeps of each block to row.sums. Return the weight of all that.
inline double keep_all(const Row& row, const Cut& cut) {
  float unkept[block_tokens];
  double total = 0.0;
  for (int64_t block = 0; block < row.num_blocks(); ++block)
    total += row.sums[block] = keep_block(row, block, cut, unkept);
  return total;
}

}  // namespace quire::QUIRE_ISA
