// Everything that decides the tokens of a batch of rows; see quire/kernels/sampling.py.
#pragma once

#include <cstdint>

namespace quire {

struct SamplingRows {
  int64_t rows, vocab;
  const float *temperature, *top_p, *min_p;  // (rows,)
  const float *repetition_penalty, *presence_penalty, *frequency_penalty;
  const int32_t* top_k;
  const uint64_t* seed;
  const int64_t* position;
  const int32_t* history_ids;
  const int64_t* history_offsets;  // (rows + 1,)
  const int32_t* num_prompt_tokens;
  const int32_t* bias_ids;
  const float* bias_values;
  const int64_t* bias_offsets;
  const int32_t* allowed_ids;
  const int64_t* allowed_offsets;
  const uint32_t* mask_words;  // (M, ceil(vocab / 32))
  const int32_t* mask_rows;    // (rows,), -1 allows all
};

}  // namespace quire
