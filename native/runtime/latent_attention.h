// Multi-head latent attention: each head's queries multiplied into the latents' terms, attention to
// the rows of the cache, each head's sums multiplied into values.
#pragma once

#include <vector>

#include "include/kernels.h"

namespace quire {

struct LatentStack {
  LatentLayer layer;
  int64_t out_dim;                    // elements of a head's value
  std::vector<LinearWeights> keys;    // of each head, key_dim -> a latent
  std::vector<LinearWeights> values;  // of each head, a latent -> out_dim
};

// queries (T, N (key_dim + turned)), latents (T, H), overwritten; out (T, N out_dim). A row's bits
// depend on that row and the cached rows that it sees alone.
void run_latent_attention(const LatentStack& stack, const KVBlocks& blocks,
                          const AttentionBatch& batch, const float* queries, float* latents,
                          float* out);

}  // namespace quire
