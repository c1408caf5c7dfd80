// Matrices of low rank that are added to a linear, for some of a batch's rows.
#pragma once

#include <cstdint>

#include "include/types.h"

namespace quire {

// Outputs that lie together in `LowRankPart::up`.
constexpr int64_t low_rank_panel = 64;
// `LowRankWeights::rank` is a multiple of it.
constexpr int64_t low_rank_step = 4;
// Inputs of one rank that lie together in `down`, so that a step's ranks are one stream: four that
// are a page apart each end the processor's prefetching at every page.
constexpr int64_t low_rank_line = 32;

// Elements of a rank in `down`.
constexpr int64_t low_rank_columns(int64_t in_features) {
  return (in_features + low_rank_line - 1) / low_rank_line * low_rank_line;
}

// What is added to `num_outputs` outputs from `first_output` on: of the products with `down` those
// from `first_rank` on, `rank` of them, times scale, are multiplied with up.
struct LowRankPart {
  int64_t first_output;
  int64_t num_outputs;
  int64_t first_rank;
  int64_t rank;
  float scale;
  const void* up;  // (ceil(num_outputs / panel), rank, panel), 0 past the end
};

// One adapter of one linear.
struct LowRankWeights {
  DType dtype;  // of down and up
  int64_t in_features;
  int64_t rank;      // of all parts together, rounded up
  const void* down;  // (rank / step, ceil(in_features / line), step, line), 0 past the end
  const LowRankPart* parts;
  int64_t num_parts;
};

// The rows of a batch that have an adapter.
struct LowRankRows {
  const LowRankWeights* weights;
  const int32_t* rows;
  int64_t num_rows;
};

}  // namespace quire
