#include "runtime/kv_cache.h"

#include <cstring>
#include <vector>

#include "runtime/checksum.h"
#include "runtime/thread_pool.h"

namespace quire {
namespace {

size_t element_bytes(KVType type) {
  if (type == KVType::float32) return 4;
  return type == KVType::e4m3 || type == KVType::int8 ? 1 : 2;
}

}  // namespace

KVCache::KVCache(int64_t num_layers, int64_t num_blocks, int64_t num_kv_heads, int64_t head_dim,
                 int64_t block_size, KVType type)
    : num_layers_(num_layers),
      num_blocks_(num_blocks),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      block_size_(block_size),
      type_(type),
      block_bytes_(static_cast<size_t>(2 * num_kv_heads * head_dim * block_size) *
                   element_bytes(type)),
      block_scale_bytes_(type == KVType::int8
                             ? static_cast<size_t>(2 * num_kv_heads * block_size) * sizeof(BF16)
                             : 0),
      memory_(static_cast<size_t>(num_layers * num_blocks) * block_bytes_),
      scales_(static_cast<size_t>(num_layers * num_blocks) * block_scale_bytes_) {}

KVBlocks KVCache::layer(int64_t index) const {
  const size_t first = static_cast<size_t>(index * num_blocks_);
  char* scales = static_cast<char*>(scales_.data()) + first * block_scale_bytes_;
  return {static_cast<char*>(memory_.data()) + first * block_bytes_,
          type_ == KVType::int8 ? reinterpret_cast<BF16*>(scales) : nullptr, type_, block_size_};
}

void KVCache::copy_blocks(const int64_t* pairs, int64_t num_pairs) {
  const auto copy = [=](void* blocks, size_t bytes) {
    for (int64_t i = 0; i < num_pairs; ++i)
      std::memmove(static_cast<char*>(blocks) + static_cast<size_t>(pairs[2 * i + 1]) * bytes,
                   static_cast<char*>(blocks) + static_cast<size_t>(pairs[2 * i]) * bytes, bytes);
  };
  parallel_for(num_layers_, [=](int64_t index) {
    const KVBlocks blocks = layer(index);
    copy(blocks.data, block_bytes_);
    if (blocks.scales) copy(blocks.scales, block_scale_bytes_);
  });
}

void KVCache::read_blocks(const int64_t* ids, int64_t num_ids, char* out) const {
  parallel_for(num_layers_, [=, this](int64_t index) {
    const KVBlocks blocks = layer(index);
    char* at = out + static_cast<size_t>(index) * (block_bytes_ + block_scale_bytes_);
    for (int64_t i = 0; i < num_ids; ++i, at += block_bytes()) {
      const auto id = static_cast<size_t>(ids[i]);
      std::memcpy(at, static_cast<const char*>(blocks.data) + id * block_bytes_, block_bytes_);
      if (blocks.scales)
        std::memcpy(at + block_bytes_,
                    reinterpret_cast<const char*>(blocks.scales) + id * block_scale_bytes_,
                    block_scale_bytes_);
    }
  });
}

void KVCache::write_blocks(const int64_t* ids, int64_t num_ids, const char* data) {
  parallel_for(num_layers_, [=, this](int64_t index) {
    const KVBlocks blocks = layer(index);
    const char* at = data + static_cast<size_t>(index) * (block_bytes_ + block_scale_bytes_);
    for (int64_t i = 0; i < num_ids; ++i, at += block_bytes()) {
      const auto id = static_cast<size_t>(ids[i]);
      std::memcpy(static_cast<char*>(blocks.data) + id * block_bytes_, at, block_bytes_);
      if (blocks.scales)
        std::memcpy(reinterpret_cast<char*>(blocks.scales) + id * block_scale_bytes_,
                    at + block_bytes_, block_scale_bytes_);
    }
  });
}

void KVCache::checksums(const int64_t* ids, int64_t num_ids, uint64_t* out) const {
  std::vector<uint64_t> parts(static_cast<size_t>(num_ids * num_layers_));
  parallel_for(num_ids * num_layers_, [&](int64_t part) {
    const KVBlocks blocks = layer(part % num_layers_);
    const auto id = static_cast<size_t>(ids[part / num_layers_]);
    const char* elements = static_cast<const char*>(blocks.data) + id * block_bytes_;
    uint64_t& sum = parts[static_cast<size_t>(part)];
    sum = xxh64(elements, block_bytes_, 0);
    if (!blocks.scales) return;
    const char* scales = reinterpret_cast<const char*>(blocks.scales) + id * block_scale_bytes_;
    sum = xxh64(scales, block_scale_bytes_, sum);
  });
  const size_t bytes = static_cast<size_t>(num_layers_) * sizeof(uint64_t);
  for (int64_t i = 0; i < num_ids; ++i) out[i] = xxh64(&parts[i * num_layers_], bytes, 0);
}

}  // namespace quire
