#include "runtime/latent_attention.h"

#include <algorithm>

#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire {
namespace {

// What heads of a step may take at once; with more they go in turn, and rows keep their bits.
constexpr int64_t most_bytes = 64 << 20;
constexpr int64_t head_step = 8;

int64_t heads_at_once(const LatentStack& stack, int64_t num_tokens) {
  const AttentionLayer& layer = stack.layer.attention;
  const int64_t floats = stack.layer.key_dim + layer.head_dim + layer.value_dim;
  const int64_t most = most_bytes / (4 * num_tokens * floats);
  if (most >= layer.num_heads) return layer.num_heads;
  return std::max<int64_t>(1, most > head_step ? most / head_step * head_step : most);
}

}  // namespace

void run_latent_attention(const LatentStack& stack, const KVBlocks& blocks,
                          const AttentionBatch& batch, const float* queries, float* latents,
                          float* out) {
  const int64_t num_tokens = batch.num_tokens, heads = stack.layer.num_heads;
  if (num_tokens == 0) return;
  kernels().store_latents(stack.layer, blocks, batch, latents);
  const int64_t most = heads_at_once(stack, num_tokens);
  LatentLayer layer = stack.layer;
  const int64_t dim = layer.attention.head_dim, rank = layer.attention.value_dim;
  const int64_t floats = most * num_tokens * (layer.key_dim + dim + rank);
  auto* keyed = static_cast<float*>(scratch(Slot::latents, static_cast<size_t>(floats) * 4));
  float* rows = keyed + most * num_tokens * layer.key_dim;
  float* sums = rows + most * num_tokens * dim;
  for (int64_t first = 0; first < heads; first += most) {
    const int64_t count = std::min(most, heads - first);
    layer.attention.num_heads = count;
    kernels().split_queries(layer, batch, queries, first, keyed, rows);
    parallel_for(count, [&](int64_t head) {
      kernels().linear(stack.keys[static_cast<size_t>(first + head)],
                       keyed + head * num_tokens * layer.key_dim, num_tokens, rows + head * dim,
                       count * dim);
    });
    kernels().paged_attention(layer.attention, blocks, batch, rows, sums);
    parallel_for(count, [&](int64_t head) {
      kernels().linear(stack.values[static_cast<size_t>(first + head)],
                       sums + head * num_tokens * rank, num_tokens,
                       out + (first + head) * stack.out_dim, heads * stack.out_dim);
    });
  }
}

}  // namespace quire
