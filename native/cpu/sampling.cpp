// Choosing a token for each row of logits, and with which probability each one would be. See
// sampling_cut.h for how top-k and its like cut, sampling_race.h for the draw.
#include "cpu/sampling_race.h"
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
    // Both are computed: the sign of the next one cannot be predicted.
    const float logit = logits[id], over = logit / repetition, under = logit * repetition;
    float x = logit > 0.0f ? over : under;
    x -= frequency * static_cast<float>(count);
    if (count > 0) x -= presence;
    logits[id] = x;
  }
}

// f(index, row, temperature, filter) for each row of logits, changed to what its settings make of
// them.
template <class Function>
void each_row(const SamplingRows& all, float* logits, Function f) {
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
    f(index, row, temperature, filter);
  });
}

bool has_choice(const Row& row) { return row.highest == row.highest; }

// Weights of what is kept, 0 elsewhere, to out (V,); their sum.
double write_weights(const Row& row, const Kept& kept, float* out) {
  double total = 0.0;
  if (kept.few != undecided) {
    for (int64_t id = 0; id < row.vocab; ++id) out[id] = 0.0f;
    for (int64_t i = 0; i < kept.few; ++i) total += out[row.items[i].id] = row.weights[i];
    return total;
  }
  const auto heavy = at_least(kept.least);
  const F32 bound = set1(kept.cut.logit);
  const int64_t last = kept.cut.id;  // of those with the logit of the cut
  for (int64_t block = 0; block < row.num_blocks(); ++block)
    total += weigh_block(row, block, out + block * block_tokens,
                         [&](int64_t i, F32 x, F32 weight, int64_t n) {
                           weight = heavy(i, x, weight, n);
                           const F32 over = select(less(bound, x), weight, zero());
                           if (i > last) return over;
                           const F32 upto = select(less(x, bound), zero(), weight);
                           if (i + n - 1 <= last) return upto;
                           float lanes[F32::lanes], first[F32::lanes];
                           store(lanes, over);
                           store(first, upto);
                           for (int64_t lane = 0; i + lane <= last; ++lane)
                             lanes[lane] = first[lane];
                           return load(lanes);
                         });
  return total;
}

}  // namespace

void sample(const SamplingRows& all, float* logits, int32_t* out) {
  each_row(all, logits,
           [&](int64_t index, const Row& row, float temperature, const Filter& filter) {
             if (!has_choice(row))
               out[index] = -1;
             else if (temperature == 0.0f)
               out[index] = static_cast<int32_t>(first_at_least(row, row.highest));
             else
               out[index] = race(row, Numbers(all.seed[index], all.position[index]), temperature,
                                 find_kept(row, filter));
           });
}

void sampling_probabilities(const SamplingRows& all, float* logits, float* out) {
  each_row(all, logits,
           [&](int64_t index, const Row& row, float temperature, const Filter& filter) {
             float* probabilities = out + index * all.vocab;
             if (has_choice(row) && temperature > 0.0f) {
               const double total = write_weights(row, find_kept(row, filter), probabilities);
               const auto scale = static_cast<float>(1.0 / total);
               for (int64_t id = 0; id < all.vocab; ++id) probabilities[id] *= scale;
               return;
             }
             for (int64_t id = 0; id < all.vocab; ++id) probabilities[id] = 0.0f;
             if (has_choice(row)) probabilities[first_at_least(row, row.highest)] = 1.0f;
           });
}

}  // namespace quire::QUIRE_ISA
