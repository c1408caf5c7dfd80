#include "runtime/kv_cache.h"

#include <cstring>
#include <vector>

#include "runtime/checksum.h"
#include "runtime/nodes.h"
#include "runtime/thread_pool.h"

namespace quire {
namespace {

// Of what is stored as one: an element, or a pair in 4 bits.
size_t unit_bytes(KVType type) {
  switch (type) {
    case KVType::float32:
      return 4;
    case KVType::float16:
    case KVType::bfloat16:
      return 2;
    default:
      return 1;
  }
}

int64_t scales_of_head(KVType type, int64_t head_dim) {
  if (type == KVType::int4) return 2 * (head_dim / int4_group);
  return type == KVType::int8 ? 1 : 0;
}

}  // namespace

KVCache::KVCache(int64_t num_layers, int64_t num_blocks, int64_t num_kv_heads, int64_t head_dim,
                 int64_t block_size, KVType type, bool is_latent)
    : num_layers_(num_layers),
      num_blocks_(num_blocks),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      block_size_(block_size),
      sides_(is_latent ? 1 : 2),
      head_units_(type == KVType::int4 ? head_dim / 2 : head_dim),
      scales_per_head_(scales_of_head(type, head_dim)),
      type_(type),
      block_bytes_(static_cast<size_t>(sides_ * num_kv_heads * head_units_ * block_size) *
                   unit_bytes(type)),
      block_scale_bytes_(
          static_cast<size_t>(sides_ * num_kv_heads * scales_per_head_ * block_size) *
          sizeof(BF16)),
      memory_(static_cast<size_t>(num_layers * num_blocks) * block_bytes_),
      scales_(static_cast<size_t>(num_layers * num_blocks) * block_scale_bytes_) {
  interleave(memory_.data(), memory_.bytes());
}

KVBlocks KVCache::layer(int64_t index) const {
  const auto layer = static_cast<size_t>(index);
  char* scales = static_cast<char*>(scales_.data()) + layer * block_scale_bytes_;
  return {static_cast<char*>(memory_.data()) + layer * block_bytes_,
          scales_per_head_ ? reinterpret_cast<BF16*>(scales) : nullptr,
          type_,
          block_size_,
          sides_ * num_kv_heads_ * num_layers_,
          scales_per_head_,
          is_latent()};
}

char* KVCache::elements_at(int64_t layer, int64_t block) const {
  return static_cast<char*>(memory_.data()) +
         static_cast<size_t>(block * num_layers_ + layer) * block_bytes_;
}

char* KVCache::scales_at(int64_t layer, int64_t block) const {
  return static_cast<char*>(scales_.data()) +
         static_cast<size_t>(block * num_layers_ + layer) * block_scale_bytes_;
}

void KVCache::copy_blocks(const int64_t* pairs, int64_t num_pairs) {
  parallel_for(num_layers_, [=, this](int64_t layer) {
    for (int64_t i = 0; i < num_pairs; ++i) {
      const int64_t from = pairs[2 * i], to = pairs[2 * i + 1];
      std::memmove(elements_at(layer, to), elements_at(layer, from), block_bytes_);
      std::memmove(scales_at(layer, to), scales_at(layer, from), block_scale_bytes_);
    }
  });
}

void KVCache::copy_slots(const int64_t* pairs, int64_t num_pairs) {
  const size_t unit = unit_bytes(type_), row = static_cast<size_t>(head_units_) * unit;
  const auto size = static_cast<size_t>(block_size_);
  parallel_for(num_layers_, [=, this](int64_t layer) {
    for (int64_t i = 0; i < num_pairs; ++i) {
      const int64_t from = pairs[2 * i], to = pairs[2 * i + 1];
      const char* source = elements_at(layer, from / block_size_);
      char* target = elements_at(layer, to / block_size_);
      const char* source_scales = scales_at(layer, from / block_size_);
      char* target_scales = scales_at(layer, to / block_size_);
      const auto at = static_cast<size_t>(from % block_size_);
      const auto put = static_cast<size_t>(to % block_size_);
      const auto heads = static_cast<size_t>(num_kv_heads_);
      // Latents lie as values do, and there are no keys before them.
      const size_t keys = is_latent() ? 0 : heads * static_cast<size_t>(head_units_);
      for (size_t k = 0; k < keys; ++k)
        std::memmove(target + (k * size + put) * unit, source + (k * size + at) * unit, unit);
      const size_t values = keys * size * unit;
      for (size_t head = 0; head < heads; ++head)
        std::memmove(target + values + (head * size + put) * row,
                     source + values + (head * size + at) * row, row);
      const size_t scales = static_cast<size_t>(sides_ * scales_per_head_) * heads;
      for (size_t scale = 0; scale < scales; ++scale)
        std::memmove(target_scales + (scale * size + put) * sizeof(BF16),
                     source_scales + (scale * size + at) * sizeof(BF16), sizeof(BF16));
    }
  });
}

void KVCache::read_blocks(const int64_t* ids, int64_t num_ids, char* out) const {
  parallel_for(num_layers_, [=, this](int64_t layer) {
    char* at = out + static_cast<size_t>(layer) * (block_bytes_ + block_scale_bytes_);
    for (int64_t i = 0; i < num_ids; ++i, at += block_bytes()) {
      std::memcpy(at, elements_at(layer, ids[i]), block_bytes_);
      std::memcpy(at + block_bytes_, scales_at(layer, ids[i]), block_scale_bytes_);
    }
  });
}

void KVCache::write_blocks(const int64_t* ids, int64_t num_ids, const char* data) {
  parallel_for(num_layers_, [=, this](int64_t layer) {
    const char* at = data + static_cast<size_t>(layer) * (block_bytes_ + block_scale_bytes_);
    for (int64_t i = 0; i < num_ids; ++i, at += block_bytes()) {
      std::memcpy(elements_at(layer, ids[i]), at, block_bytes_);
      std::memcpy(scales_at(layer, ids[i]), at + block_bytes_, block_scale_bytes_);
    }
  });
}

void KVCache::checksums(const int64_t* ids, int64_t num_ids, uint64_t* out) const {
  std::vector<uint64_t> parts(static_cast<size_t>(num_ids * num_layers_));
  parallel_for(num_ids * num_layers_, [&](int64_t part) {
    const int64_t layer = part % num_layers_, id = ids[part / num_layers_];
    uint64_t& sum = parts[static_cast<size_t>(part)];
    sum = xxh64(elements_at(layer, id), block_bytes_, 0);
    if (block_scale_bytes_) sum = xxh64(scales_at(layer, id), block_scale_bytes_, sum);
  });
  const size_t bytes = static_cast<size_t>(num_layers_) * sizeof(uint64_t);
  for (int64_t i = 0; i < num_ids; ++i) out[i] = xxh64(&parts[i * num_layers_], bytes, 0);
}

}  // namespace quire
