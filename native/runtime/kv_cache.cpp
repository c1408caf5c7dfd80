#include "runtime/kv_cache.h"

#include <cstring>
#include <vector>

#include "runtime/checksum.h"
#include "runtime/thread_pool.h"

namespace quire {

KVCache::KVCache(int64_t num_layers, int64_t num_blocks, int64_t num_kv_heads, int64_t head_dim,
                 int64_t block_size, DType dtype)
    : num_layers_(num_layers),
      num_blocks_(num_blocks),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      block_size_(block_size),
      dtype_(dtype),
      block_bytes_(static_cast<size_t>(2 * num_kv_heads * head_dim * block_size) *
                   (dtype == DType::float32 ? 4 : 2)),
      memory_(static_cast<size_t>(num_layers * num_blocks) * block_bytes_) {}

KVBlocks KVCache::layer(int64_t index) const {
  char* data = static_cast<char*>(memory_.data());
  return {data + static_cast<size_t>(index * num_blocks_) * block_bytes_, dtype_, block_size_};
}

void KVCache::copy_blocks(const int64_t* pairs, int64_t num_pairs) {
  parallel_for(num_layers_, [=](int64_t index) {
    char* blocks = static_cast<char*>(layer(index).data);
    for (int64_t i = 0; i < num_pairs; ++i)
      std::memmove(blocks + static_cast<size_t>(pairs[2 * i + 1]) * block_bytes_,
                   blocks + static_cast<size_t>(pairs[2 * i]) * block_bytes_, block_bytes_);
  });
}

void KVCache::checksums(const int64_t* ids, int64_t num_ids, uint64_t* out) const {
  std::vector<uint64_t> parts(static_cast<size_t>(num_ids * num_layers_));
  parallel_for(num_ids * num_layers_, [&](int64_t part) {
    const char* blocks = static_cast<const char*>(layer(part % num_layers_).data);
    const int64_t id = ids[part / num_layers_];
    parts[static_cast<size_t>(part)] =
        xxh64(blocks + static_cast<size_t>(id) * block_bytes_, block_bytes_, 0);
  });
  const size_t bytes = static_cast<size_t>(num_layers_) * sizeof(uint64_t);
  for (int64_t i = 0; i < num_ids; ++i) out[i] = xxh64(&parts[i * num_layers_], bytes, 0);
}

}  // namespace quire
