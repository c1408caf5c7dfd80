// What the bindings of draws share: the arrays of a SamplingBatch, checked.
#pragma once
#include <algorithm>

#include "bindings/binding.h"

namespace quire {

// Offsets rise from 0 to the length of an array of ids that lie inside the vocabulary.
inline bool ragged(const int64_t* offsets, int64_t rows, const int32_t* ids, int64_t length,
                   int64_t vocab) {
  if (offsets[0] != 0 || offsets[rows] != length) return false;
  for (int64_t i = 0; i < rows; ++i)
    if (offsets[i + 1] < offsets[i]) return false;
  return std::all_of(ids, ids + length, [=](int32_t id) { return id >= 0 && id < vocab; });
}

// A SamplingBatch; its arrays are held for the length of a call.
struct Settings {
  nb::handle batch;

  template <class T>
  Input<T> get(const char* name, int64_t count) const {
    return Input<T>(nb::getattr(batch, name), count);
  }
};

// The lengths of a batch's arrays that are not one per row.
struct Lengths {
  int64_t history, bias, allowed, masks;
};

// call(rows) with the settings of a batch. False, and nothing done, when ids or offsets are out of
// range.
template <class Call>
bool with_settings(nb::handle batch, int64_t rows, int64_t vocab, const Lengths& lengths,
                   Call call) {
  const Settings given{batch};
  const auto temperature = given.get<float>("temperature", rows);
  const auto top_p = given.get<float>("top_p", rows), min_p = given.get<float>("min_p", rows);
  const auto repetition = given.get<float>("repetition_penalty", rows);
  const auto presence = given.get<float>("presence_penalty", rows);
  const auto frequency = given.get<float>("frequency_penalty", rows);
  const auto top_k = given.get<int32_t>("top_k", rows);
  const auto seed = given.get<uint64_t>("seed", rows);
  const auto position = given.get<int64_t>("position", rows);
  const auto history_ids = given.get<int32_t>("history_ids", lengths.history);
  const auto history_offsets = given.get<int64_t>("history_offsets", rows + 1);
  const auto num_prompt_tokens = given.get<int32_t>("num_prompt_tokens", rows);
  const auto bias_ids = given.get<int32_t>("bias_ids", lengths.bias);
  const auto bias_values = given.get<float>("bias_values", lengths.bias);
  const auto bias_offsets = given.get<int64_t>("bias_offsets", rows + 1);
  const auto allowed_ids = given.get<int32_t>("allowed_ids", lengths.allowed);
  const auto allowed_offsets = given.get<int64_t>("allowed_offsets", rows + 1);
  const auto mask_words = given.get<uint32_t>("mask_words", lengths.masks * ((vocab + 31) / 32));
  const auto mask_rows = given.get<int32_t>("mask_rows", rows);
  const int32_t *prompt = num_prompt_tokens, *mask = mask_rows;
  if (vocab < 1 || !ragged(history_offsets, rows, history_ids, lengths.history, vocab) ||
      !ragged(bias_offsets, rows, bias_ids, lengths.bias, vocab) ||
      !ragged(allowed_offsets, rows, allowed_ids, lengths.allowed, vocab) ||
      !std::all_of(
          prompt, prompt + rows, [](int32_t n) { return n >= 0; }) ||
      !std::all_of(mask, mask + rows, [=](int32_t i) { return i >= -1 && i < lengths.masks; }))
    return false;
  call(SamplingRows{rows,
                    vocab,
                    temperature,
                    top_p,
                    min_p,
                    repetition,
                    presence,
                    frequency,
                    top_k,
                    seed,
                    position,
                    history_ids,
                    history_offsets,
                    num_prompt_tokens,
                    bias_ids,
                    bias_values,
                    bias_offsets,
                    allowed_ids,
                    allowed_offsets,
                    mask_words,
                    mask_rows});
  return true;
}

}  // namespace quire
