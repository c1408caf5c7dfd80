// The memory of a KV cache: a block of all layers, layer after layer, then the next; scales apart.
//
// A sequence's blocks fill pages from the start, so memory is taken as it is needed. With a layer's
// blocks together, the first token of all took a huge page of each layer.
#pragma once

#include <cstdint>

#include "include/attention.h"
#include "runtime/memory.h"

namespace quire {

class KVCache {
 public:
  // Throws std::bad_alloc. `head_dim` is a multiple of int4_group in 4 bits. Of latents there is
  // one head, not in 4 bits.
  KVCache(int64_t num_layers, int64_t num_blocks, int64_t num_kv_heads, int64_t head_dim,
          int64_t block_size, KVType type, bool is_latent);

  int64_t num_layers() const { return num_layers_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t num_kv_heads() const { return num_kv_heads_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t block_size() const { return block_size_; }
  bool is_latent() const { return sides_ == 1; }
  // Of elements and scales.
  size_t bytes() const { return memory_.bytes() + scales_.bytes(); }
  const AlignedMemory& elements() const { return memory_; }
  const AlignedMemory& scales() const { return scales_; }
  KVBlocks layer(int64_t index) const;

  // Copy block pairs[2 i] to block pairs[2 i + 1] in every layer, in order. Ids are in range.
  void copy_blocks(const int64_t* pairs, int64_t num_pairs);

  // The same of slots: block * block_size + offset.
  void copy_slots(const int64_t* pairs, int64_t num_pairs);

  // One block over all layers: of each layer its elements, then its scales.
  size_t block_bytes() const {
    return static_cast<size_t>(num_layers_) * (block_bytes_ + block_scale_bytes_);
  }
  // Copy blocks out, one after another, or in, in order. Ids are in range.
  void read_blocks(const int64_t* ids, int64_t num_ids, char* out) const;
  void write_blocks(const int64_t* ids, int64_t num_ids, const char* data);

  // Write a checksum of each block, over all layers, to out. Ids are in range.
  void checksums(const int64_t* ids, int64_t num_ids, uint64_t* out) const;

 private:
  // Of one block of one layer.
  char* elements_at(int64_t layer, int64_t block) const;
  char* scales_at(int64_t layer, int64_t block) const;

  int64_t num_layers_, num_blocks_, num_kv_heads_, head_dim_, block_size_;
  int64_t sides_;                         // K and V, or 1
  int64_t head_units_, scales_per_head_;  // units: elements, or pairs in 4 bits
  KVType type_;
  size_t block_bytes_, block_scale_bytes_;  // of one layer
  AlignedMemory memory_, scales_;
};

}  // namespace quire
