// What attention works on: one layer's constants, its part of the KV cache, and the step.
//
// T tokens, B requests, N query heads, K KV heads, H head dim.
//
// A block of one layer holds K as (K, H, block_size), then V as (K, block_size, H): scores read a
// row of positions for each element of the head, sums read a row of elements for each position.
//
// Of latents a block is (block_size, H): a row is the key of all query heads, and its first
// elements are the value. A token's qkv are its queries alone then, and what comes out is (N, T,
// value_dim), for the products of each head that follow.
//
// In 4 bits it is K as (K, H / 2, block_size) and V as (K, block_size, H / 2) of Int4Pair: a pair
// are elements 2 i and 2 i + 1 of K, and of V i and i + 16 of a group of 32. Both are of one token,
// so that a slot's bytes are its own.
#pragma once

#include <cstdint>

#include "include/types.h"

namespace quire {

// What queries and keys are divided by before RoPE: by each head by itself, or by all of a token's
// together.
enum class QKNorm : int32_t {
  rms_of_heads,    // weights (H,)
  rms_of_rows,     // (N H,) of queries and (K H,) of keys
  layer_of_heads,  // LayerNorm without a bias: (N, H) and (K, H)
};

struct AttentionLayer {
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t value_dim;  // of a value: H but of latents
  float scale;
  int64_t window;                // latest positions seen, the own one included
  int64_t chunk;                 // stretches of positions that do not see each other
  int64_t ahead;                 // later positions of the request that are seen, too
  float score_cap;               // scores become cap * tanh(score / cap); 0 for none
  const float *cosines, *sines;  // (max_positions, half) or null
  int64_t half, max_positions;
  const int64_t* sections;  // (num_sections,): how many pairs turn by each position; sum half
  int64_t num_sections;
  QKNorm qk_norm;
  const float *q_norm, *k_norm;  // or null
  float norm_eps;
  const float* sinks;         // (N,): a score more in each head's softmax, without a value; or null
  const float* query_scales;  // (max_positions,): what queries are multiplied by; or null

  // The first position that a query at `position` sees; below 0 where a window is longer.
  int64_t first_seen(int64_t position) const {
    const int64_t of_window = position - window + 1, of_chunk = position / chunk * chunk;
    return of_window > of_chunk ? of_window : of_chunk;
  }
};

// Latent attention. `attention` is what its heads do with the cache, or some of them: its value_dim
// are the elements of a latent, and all sections of its angles turn the elements after those.
struct LatentLayer {
  AttentionLayer attention;
  int64_t num_heads;  // of all
  int64_t key_dim;    // elements of a query that are multiplied into a latent's terms
  const float* norm;  // (value_dim,)
  float eps;
};

struct KVBlocks {
  void* data;  // K of block 0, head 0
  // Per block (2, K, scales_per_head, block_size), first those of keys, then those of values; null
  // for floats. int8: what the codes of a token's head are multiplied by. int4: of each group of
  // elements that, and what is added then.
  BF16* scales;
  KVType type;
  int64_t block_size;
  int64_t stride;  // heads of K and of V from one block to the next: 2 K of each layer, or a latent
  int64_t scales_per_head;  // 0, 1, or two for each group
  bool is_latent;           // num_kv_heads is 1 then
};

// The step. Queries of a request may belong to a tree of tokens: from one position on each of them
// sees the tokens on its own path alone, the last of which is the query itself.
struct AttentionBatch {
  int64_t num_tokens, num_requests, max_blocks;
  const int32_t* positions;        // (sections, T)
  const int64_t* slot_mapping;     // (T,)
  const int32_t* block_tables;     // (B, max_blocks)
  const int32_t* query_start_loc;  // (B + 1,)
  const int32_t* seq_lens;         // (B,)
  // Null and 0 when no request has a tree.
  const int32_t* tree_starts;  // (B,): the first position with a choice of tokens
  const int64_t* tree_slots;   // (T, tree_depth): where its tokens lie, then -1; -1 for all others
  int64_t tree_depth;
  // Null or (T,): the last position that a row sees at least, not falling within a request; of no
  // effect on one with a tree.
  const int32_t* last_seen;
};

}  // namespace quire
