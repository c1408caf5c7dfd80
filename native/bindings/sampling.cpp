// Python: sampling and log-probabilities.
#include <algorithm>
#include <stdexcept>

#include "bindings/sampling_settings.h"

namespace quire {
namespace {

bool sample(nb::handle logits, int64_t rows, int64_t vocab, nb::handle batch, int64_t num_history,
            int64_t num_bias, int64_t num_allowed, int64_t num_masks, nb::handle out) {
  const Output<float> scores(logits, rows * vocab);
  const Output<int32_t> tokens(out, rows);
  return with_settings(batch, rows, vocab, {num_history, num_bias, num_allowed, num_masks},
                       [&](const SamplingRows& all) {
                         const GilRelease release(rows * vocab * 4);
                         kernels().sample(all, scores, tokens);
                       });
}

bool sampling_probabilities(nb::handle logits, int64_t rows, int64_t vocab, nb::handle batch,
                            int64_t num_history, int64_t num_bias, int64_t num_allowed,
                            int64_t num_masks, nb::handle out) {
  const Output<float> scores(logits, rows * vocab), probabilities(out, rows * vocab);
  return with_settings(batch, rows, vocab, {num_history, num_bias, num_allowed, num_masks},
                       [&](const SamplingRows& all) {
                         const GilRelease release(rows * vocab * 4);
                         kernels().sampling_probabilities(all, scores, probabilities);
                       });
}

void token_logprobs(nb::handle logits, int64_t rows, int64_t vocab, nb::handle token_ids,
                    int64_t num_top, nb::handle logprobs, nb::handle ranks, nb::handle top_ids,
                    nb::handle top_logprobs) {
  const Input<float> scores(logits, rows * vocab);
  const Input<int32_t> ids(token_ids, rows);
  const Output<float> chosen(logprobs, rows), best(top_logprobs, rows * num_top);
  const Output<int32_t> places(ranks, rows), best_ids(top_ids, rows * num_top);
  const int32_t* id = ids;
  if (num_top < 0 || num_top > vocab ||
      !std::all_of(id, id + rows, [=](int32_t token) { return token >= 0 && token < vocab; }))
    throw std::invalid_argument("[token_logprobs] token_ids must lie inside the vocabulary.");
  const GilRelease release(rows * vocab * 4);
  kernels().token_logprobs(scores, rows, vocab, ids, num_top, chosen, places, best_ids, best);
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("sample", sample);
  m.def("sampling_probabilities", sampling_probabilities);
  m.def("token_logprobs", token_logprobs);
}

}  // namespace quire
