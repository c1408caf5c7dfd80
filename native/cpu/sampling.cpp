// Choosing a token for each row of logits; see sampling_cut.h for how top-k and its like cut.
#include "cpu/sampling_cut.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {
namespace {

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
  const float repetition = all.repetition_penalty[row], presence = all.presence_penalty[row],
              frequency = all.frequency_penalty[row];
  for (int64_t i = 0; i < n; ++i) {
    counts[ids[i]] = 0;
    __builtin_prefetch(logits + ids[i], 1);  // scattered, and no longer in a near cache
  }
  for (int64_t i = all.num_prompt_tokens[row]; i < n; ++i) counts[ids[i]] += 1;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t id = ids[i], count = counts[id];
    if (count < 0) continue;  // done at its first occurrence
    counts[id] = -1;
    // Both are computed: nobody can tell the sign of the next one in advance.
    const float logit = logits[id], over = logit / repetition, under = logit * repetition;
    float x = logit > 0.0f ? over : under;
    x -= frequency * static_cast<float>(count);
    if (count > 0) x -= presence;
    logits[id] = x;
  }
}

int32_t choose(const Row& row, float temperature, const Filter& filter, const Numbers& numbers) {
  if (!(row.highest == row.highest)) return -1;
  if (temperature == 0.0f) return static_cast<int32_t>(first_at_least(row, row.highest));
  const bool ranked = filter.top_k < row.vocab, open = filter.top_p == 1.0f;
  if (!ranked && open && filter.min_p == 0.0f)
    return race_all(row, numbers, temperature, [](int64_t) { return true; });
  const int64_t few = find_few(row, filter);
  if (few != undecided) return race_items(row, numbers, temperature, few);
  if (!ranked && open)
    return race_all(row, numbers, temperature,
                    [&](int64_t id) { return !(weight_at(row, row.logits[id]) < filter.min_p); });
  const double total = weigh(row, filter.min_p, true);
  Cut cut{-INFINITY, 0, total};
  const auto top_k = static_cast<double>(filter.top_k);
  if (ranked) cut = cut_prefix(row, top_k, INFINITY, total);
  if (!open) cut = cut_prefix(row, top_k, filter.top_p * cut.weight, total);
  return race_all(row, numbers, temperature, [&](int64_t id) {
    const float logit = row.logits[id];
    return row.weights[id] > 0.0f && (logit > cut.logit || (logit == cut.logit && id <= cut.id));
  });
}

}  // namespace

void sample(const SamplingRows& all, float* logits, int32_t* out) {
  parallel_for(all.rows, [&](int64_t index) {
    Row row{};
    row.logits = logits + index * all.vocab;
    row.vocab = all.vocab;
    const auto vocab = static_cast<size_t>(all.vocab);
    const auto blocks = static_cast<size_t>(row.num_blocks());
    const int64_t* allowed = all.allowed_offsets + index;
    const int64_t num_allowed = allowed[1] - allowed[0];
    const size_t floats = blocks * larger<size_t>(block_tokens, F32::lanes) +
                          static_cast<size_t>(larger<int64_t>(num_allowed, 0));
    const size_t bytes = vocab * sizeof(Scored) + (blocks * F32::lanes + floats) * sizeof(float);
    row.items = static_cast<Scored*>(scratch(Slot::partial, bytes));
    row.lane_bests = reinterpret_cast<float*>(row.items + vocab);
    row.weights = row.lane_bests + blocks * F32::lanes;
    mask(all, index, row.logits);
    if (num_allowed > 0)
      allow_only(all.allowed_ids + allowed[0], num_allowed, all.vocab, row.logits, row.weights);
    for (int64_t i = all.bias_offsets[index]; i < all.bias_offsets[index + 1]; ++i)
      row.logits[all.bias_ids[i]] += all.bias_values[i];
    penalize(all, index, row.logits, reinterpret_cast<int32_t*>(row.weights));
    row.highest = find_bests(row);
    const float temperature = all.temperature[index];
    row.inverse = smaller(1.0f / temperature, FLT_MAX);
    const int64_t top_k = all.top_k[index];
    const Filter filter{top_k > 0 ? smaller(top_k, all.vocab) : all.vocab, all.top_p[index],
                        all.min_p[index]};
    out[index] = choose(row, temperature, filter, Numbers(all.seed[index], all.position[index]));
  });
}

}  // namespace quire::QUIRE_ISA
