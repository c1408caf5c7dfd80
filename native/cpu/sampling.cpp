// Choosing a token for each row of logits, without sorting the vocabulary.
//
// Top-k and top-p need the first tokens in the order (logit falling, id rising) up to a count or a
// weight. A histogram over the distance from the best logit finds the bucket where that point lies,
// and only this bucket is sorted. The first histogram covers the near tokens, where the point
// nearly always is; the far ones are looked at only when it is not.
#include <math.h>

#include "include/kernels.h"
#include "runtime/memory.h"
#include "runtime/ranking.h"
#include "runtime/thread_pool.h"
#include "simd/math.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t chunk_tokens = 1024;
constexpr int num_buckets = 1024;
// In units of (max - logit) / temperature. exp(-104) is 0 in float, so nothing lies beyond.
constexpr float range_ends[] = {0.0f, 12.0f, 104.0f};

struct Histogram {
  int range;  // that was counted, or -1
  int32_t counts[num_buckets];
  double weights[num_buckets];
};

// A prefix of the order: tokens with a larger logit, and with an equal one up to `id`.
struct Cut {
  float logit;
  int32_t id;
  double weight;
};

struct Row {
  float* logits;
  int64_t vocab;
  float highest, temperature;
  float* weights;  // (V,): exp(-distance), 0 where not kept
  double* chunks;  // (V / chunk_tokens + 1,)
  Histogram* histogram;
  Scored* items;  // (V,)
};

F32 distance(const Row& row, F32 logits) {
  return (set1(row.highest) - logits) / set1(row.temperature);
}

int bucket_of(float x, int range) {
  const float width = (range_ends[range + 1] - range_ends[range]) / num_buckets;
  return smaller(num_buckets - 1, static_cast<int>((x - range_ends[range]) / width));
}

// f(id, distance) for every kept token with begin <= distance < end, ids rising.
template <class Function>
void each_between(const Row& row, float begin, float end, Function f) {
  for (int64_t i = 0; i < row.vocab; i += F32::lanes) {
    const int64_t n = smaller<int64_t>(F32::lanes, row.vocab - i);
    const F32 x = distance(row, load_tail(row.logits + i, n));
    const F32 inside = select(less(x, set1(begin)), set1(INFINITY), x);
    if (!any(less(inside, set1(end)))) continue;
    float distances[F32::lanes];
    store(distances, inside);
    for (int64_t lane = 0; lane < n; ++lane)
      if (distances[lane] < end && row.weights[i + lane] > 0.0f) f(i + lane, distances[lane]);
  }
}

void count_range(const Row& row, int range) {
  Histogram& h = *row.histogram;
  if (h.range == range) return;
  h.range = range;
  for (int b = 0; b < num_buckets; ++b) {
    h.counts[b] = 0;
    h.weights[b] = 0.0;
  }
  each_between(row, range_ends[range], range_ends[range + 1], [&](int64_t id, float x) {
    const int b = bucket_of(x, range);
    h.counts[b] += 1;
    h.weights[b] += row.weights[id];
  });
}

// Where in bucket `b` the prefix ends that has `count` tokens or reaches `weight` in it.
Cut cut_bucket(const Row& row, int range, int b, int64_t count, double weight) {
  const float width = (range_ends[range + 1] - range_ends[range]) / num_buckets;
  // One width more on either side: the bounds may round differently from the division.
  const float begin = range_ends[range] + static_cast<float>(b - 1) * width;
  int64_t n = 0;
  each_between(row, begin, begin + 3.0f * width, [&](int64_t id, float x) {
    if (x >= range_ends[range] && x < range_ends[range + 1] && bucket_of(x, range) == b)
      row.items[n++] = {row.logits[id], static_cast<int32_t>(id)};
  });
  sort_best_first(row.items, n);
  double sum = 0.0;
  int64_t taken = 0;
  do {
    sum += row.weights[row.items[taken++].id];
  } while (taken < n && taken < count && sum < weight);
  return {row.items[taken - 1].score, row.items[taken - 1].id, sum};
}

// The shortest prefix of the kept tokens that has `count` of them or reaches `weight`.
Cut cut_prefix(const Row& row, int64_t count, double weight) {
  double sum = 0.0;
  for (int range = 0; range < 2; ++range) {
    count_range(row, range);
    const Histogram& h = *row.histogram;
    for (int b = 0; b < num_buckets; ++b) {
      if (h.counts[b] == 0) continue;
      if (h.counts[b] >= count || sum + h.weights[b] >= weight) {
        Cut cut = cut_bucket(row, range, b, count, weight - sum);
        cut.weight += sum;
        return cut;
      }
      count -= h.counts[b];
      sum += h.weights[b];
    }
  }
  return {-INFINITY, static_cast<int32_t>(row.vocab), sum};
}

void drop_behind(const Row& row, const Cut& cut) {
  const F32 bound = set1(cut.logit);
  // Equal logits stay up to the cut's id, which lies inside one vector at most.
  for (int64_t i = 0; i < row.vocab; i += F32::lanes) {
    const int64_t n = smaller<int64_t>(F32::lanes, row.vocab - i);
    const F32 logits = load_tail(row.logits + i, n), weights = load_tail(row.weights + i, n);
    if (i > cut.id) {
      store_tail(row.weights + i, select(less(bound, logits), weights, zero()), n);
    } else if (i + n <= cut.id + 1) {
      store_tail(row.weights + i, select(less(logits, bound), zero(), weights), n);
    } else {
      for (int64_t id = i; id < i + n; ++id)
        if (id > cut.id ? row.logits[id] <= cut.logit : row.logits[id] < cut.logit)
          row.weights[id] = 0.0f;
    }
  }
}

// exp(-distance) of every token, 0 below the least weight.
void weigh(const Row& row, float least) {
  for (int64_t i = 0; i < row.vocab; i += F32::lanes) {
    const int64_t n = row.vocab - i;
    const F32 weight = exp(zero() - distance(row, load_tail(row.logits + i, n)));
    store_tail(row.weights + i, select(less(weight, set1(least)), zero(), weight), n);
  }
}

double add_chunks(const Row& row) {
  double total = 0.0;
  for (int64_t start = 0; start < row.vocab; start += chunk_tokens) {
    const int64_t end = smaller(row.vocab, start + chunk_tokens);
    F32 sums = zero();
    for (int64_t i = start; i < end; i += F32::lanes)
      sums = sums + load_tail(row.weights + i, end - i);
    total += row.chunks[start / chunk_tokens] = sum(sums);
  }
  return total;
}

int32_t draw(const Row& row, double target) {
  int64_t chunk = 0;
  const int64_t num_chunks = ceil_div(row.vocab, chunk_tokens);
  double running = 0.0;
  while (chunk + 1 < num_chunks && running + row.chunks[chunk] <= target)
    running += row.chunks[chunk++];
  int64_t last = -1;
  for (int64_t i = chunk * chunk_tokens; i < row.vocab; ++i) {
    if (row.weights[i] == 0.0f) continue;
    last = i;
    running += row.weights[i];
    if (running > target) break;
  }
  // Rounding may leave the target past the end: then the last kept token, here or in front.
  for (int64_t i = chunk * chunk_tokens; last < 0;)
    if (row.weights[--i] > 0.0f) last = i;
  return static_cast<int32_t>(last);
}

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double uniform(uint64_t seed, int64_t position) {
  const uint64_t g = 0x9e3779b97f4a7c15u;
  const uint64_t z = mix(mix(seed + g) + (static_cast<uint64_t>(position) + 1) * g);
  return static_cast<double>(z >> 11) * 0x1p-53;
}

void allow_only(const int32_t* ids, int64_t n, int64_t vocab, float* logits, float* saved) {
  for (int64_t i = 0; i < n; ++i) saved[i] = logits[ids[i]];
  for (int64_t i = 0; i < vocab; ++i) logits[i] = -INFINITY;
  for (int64_t i = 0; i < n; ++i) logits[ids[i]] = saved[i];
}

void mask(const SamplingRows& all, int64_t row, float* logits) {
  if (all.mask_rows[row] < 0) return;
  const uint32_t* words = all.mask_words + all.mask_rows[row] * ceil_div(all.vocab, 32);
  for (int64_t first = 0; first < all.vocab; first += 32) {
    const uint32_t word = words[first / 32];
    if (word == ~0u) continue;
    const int64_t end = smaller(all.vocab, first + 32);
    for (int64_t id = first; id < end; ++id)
      if (!(word >> (id - first) & 1u)) logits[id] = -INFINITY;
  }
}

void penalize(const SamplingRows& all, int64_t row, float* logits, int32_t* counts) {
  const int32_t* ids = all.history_ids + all.history_offsets[row];
  const int64_t n = all.history_offsets[row + 1] - all.history_offsets[row];
  for (int64_t i = 0; i < n; ++i) counts[ids[i]] = 0;
  for (int64_t i = all.num_prompt_tokens[row]; i < n; ++i) counts[ids[i]] += 1;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t id = ids[i], count = counts[id];
    if (count < 0) continue;  // done at its first occurrence
    counts[id] = -1;
    const float repetition = all.repetition_penalty[row];
    float x = logits[id] > 0.0f ? logits[id] / repetition : logits[id] * repetition;
    x -= all.frequency_penalty[row] * static_cast<float>(count);
    if (count > 0) x -= all.presence_penalty[row];
    logits[id] = x;
  }
}

// The largest logit; NaN when a logit is NaN or +inf, or all are -inf.
float highest_logit(const float* logits, int64_t vocab) {
  F32 best = set1(-INFINITY), bad = zero();
  for (int64_t i = 0; i < vocab; i += F32::lanes) {
    const int64_t n = vocab - i;
    // The last vector ends at the last token: reading some twice does no harm.
    const F32 x = n >= F32::lanes || vocab < F32::lanes ? load_tail(logits + i, n)
                                                        : load(logits + vocab - F32::lanes);
    bad = select(less(x, set1(INFINITY)), bad, set1(1.0f));
    best = max(x, best);
  }
  float highest = max(best);
  if (vocab < F32::lanes) {  // the padding of the only vector was a 0
    highest = -INFINITY;
    for (int64_t i = 0; i < vocab; ++i) highest = larger(highest, logits[i]);
  }
  return max(bad) > 0.0f || highest == -INFINITY ? NAN : highest;
}

int32_t first_at_least(const float* logits, int64_t vocab, float bound) {
  int64_t i = 0;
  for (; vocab - i >= F32::lanes; i += F32::lanes)
    if (any(less(zero(), select(less(load(logits + i), set1(bound)), zero(), set1(1.0f))))) break;
  while (logits[i] < bound) ++i;
  return static_cast<int32_t>(i);
}

int32_t choose(const SamplingRows& all, int64_t index, Row row) {
  if (!(row.highest == row.highest)) return -1;
  if (row.temperature == 0.0f) {
    return first_at_least(row.logits, row.vocab, row.highest);
  }
  weigh(row, all.min_p[index]);
  row.histogram->range = -1;
  double total = add_chunks(row);
  const int64_t top_k = all.top_k[index] > 0 ? all.top_k[index] : row.vocab;
  const float top_p = all.top_p[index];
  Cut cut{-INFINITY, 0, total};
  if (top_k < row.vocab) cut = cut_prefix(row, top_k, INFINITY);
  if (top_p < 1.0f) cut = cut_prefix(row, top_k, top_p * cut.weight);
  if (top_k < row.vocab || top_p < 1.0f) {
    drop_behind(row, cut);
    total = add_chunks(row);
  }
  return draw(row, uniform(all.seed[index], all.position[index]) * total);
}

}  // namespace

void sample(const SamplingRows& all, float* logits, int32_t* out) {
  parallel_for(all.rows, [&](int64_t index) {
    const size_t vocab = static_cast<size_t>(all.vocab);
    const size_t chunks = vocab / chunk_tokens + 1;
    const int64_t* allowed = all.allowed_offsets + index;
    const int64_t num_allowed = allowed[1] - allowed[0];
    const size_t floats = static_cast<size_t>(larger(all.vocab, num_allowed));
    const size_t bytes = sizeof(Histogram) + chunks * 8 + vocab * sizeof(Scored) + floats * 4;
    auto* memory = static_cast<char*>(scratch(Slot::partial, bytes));
    Row row{};
    row.logits = logits + index * all.vocab;
    row.vocab = all.vocab;
    row.histogram = reinterpret_cast<Histogram*>(memory);
    row.chunks = reinterpret_cast<double*>(memory + sizeof(Histogram));
    row.items = reinterpret_cast<Scored*>(row.chunks + chunks);
    row.weights = reinterpret_cast<float*>(row.items + vocab);
    mask(all, index, row.logits);
    if (num_allowed > 0)
      allow_only(all.allowed_ids + allowed[0], num_allowed, all.vocab, row.logits, row.weights);
    for (int64_t i = all.bias_offsets[index]; i < all.bias_offsets[index + 1]; ++i)
      row.logits[all.bias_ids[i]] += all.bias_values[i];
    penalize(all, index, row.logits, reinterpret_cast<int32_t*>(row.weights));
    row.highest = highest_logit(row.logits, row.vocab);
    row.temperature = all.temperature[index];
    out[index] = choose(all, index, row);
  });
}

}  // namespace quire::QUIRE_ISA
