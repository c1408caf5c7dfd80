// One step as attention of any kind is given it, and what of it lies in Python.
#pragma once

#include <algorithm>
#include <utility>

#include "bindings/binding.h"
#include "runtime/kv_cache.h"

namespace quire {

// A window that no position reaches the end of, small enough to compute with.
inline constexpr int64_t everything = int64_t{1} << 40;

// An array or None, kept alive as long as the object that points into it.
template <class T>
class Optional {
 public:
  Optional(nb::object array, int64_t count) : array_(std::move(array)) {
    if (!array_.is_none()) data_ = Input<T>(array_, count);
  }
  operator const T*() const { return data_; }

 private:
  nb::object array_;
  const T* data_ = nullptr;
};

// One step's arrays and cache, checked once for all layers. Holds the arrays; they must not change.
class AttentionPlan {
 public:
  AttentionPlan(int64_t num_tokens, int64_t num_sections, nb::handle positions,
                nb::handle slot_mapping, nb::handle block_tables, int64_t num_requests,
                int64_t max_blocks, nb::handle query_start_loc, nb::handle seq_lens,
                nb::object tree_starts, nb::object tree_slots, int64_t tree_depth,
                nb::object last_seen, nb::object cache)
      : num_sections_(num_sections),
        positions_(positions, num_sections * num_tokens),
        slots_(slot_mapping, num_tokens),
        tables_(block_tables, num_requests * max_blocks),
        starts_(query_start_loc, num_requests + 1),
        lens_(seq_lens, num_requests),
        tree_starts_(std::move(tree_starts), num_requests),
        tree_slots_(std::move(tree_slots), num_tokens * tree_depth),
        last_seen_(std::move(last_seen), num_tokens),
        owner_(std::move(cache)),
        cache_(nb::cast<const KVCache&>(owner_)),
        batch_{num_tokens, num_requests, max_blocks,   positions_,  slots_,     tables_,
               starts_,    lens_,        tree_starts_, tree_slots_, tree_depth, last_seen_},
        inside_(check()) {}

  const AttentionBatch& batch() const { return batch_; }
  const KVCache& cache() const { return cache_; }
  int64_t num_tokens() const { return batch_.num_tokens; }
  int64_t num_sections() const { return num_sections_; }
  // All positions are below.
  int64_t num_positions() const { return num_positions_; }
  // Whether everything points into the cache.
  bool inside() const { return inside_; }
  // The same of what the arrays hold now.
  bool check_again() {
    num_positions_ = 0;
    return inside_ = check();
  }

 private:
  bool check() {
    const int64_t num_slots = cache_.num_blocks() * cache_.block_size();
    for (int64_t i = 0; i < num_sections_ * batch_.num_tokens; ++i) {
      if (batch_.positions[i] < 0) return false;
      num_positions_ = std::max<int64_t>(num_positions_, batch_.positions[i] + int64_t{1});
    }
    for (int64_t i = 0; i < batch_.num_tokens; ++i) {
      if (batch_.slot_mapping[i] < -1 || batch_.slot_mapping[i] >= num_slots) return false;
    }
    const int32_t* starts = batch_.query_start_loc;
    if (starts[0] != 0 || starts[batch_.num_requests] != batch_.num_tokens) return false;
    for (int64_t i = 0; i < batch_.num_requests; ++i) {
      const int64_t queries = starts[i + 1] - starts[i], length = batch_.seq_lens[i];
      const int64_t blocks = (length + cache_.block_size() - 1) / cache_.block_size();
      if (queries < 0 || queries > length || blocks > batch_.max_blocks) return false;
      const int32_t* table = batch_.block_tables + i * batch_.max_blocks;
      if (!std::all_of(table, table + blocks,
                       [&](int32_t id) { return id >= 0 && id < cache_.num_blocks(); }))
        return false;
      if (batch_.last_seen &&
          !std::is_sorted(batch_.last_seen + starts[i], batch_.last_seen + starts[i + 1]))
        return false;
    }
    return !batch_.tree_starts || check_trees();
  }

  // Known tokens come first; each other one has a path that ends within the request.
  bool check_trees() const {
    const int64_t num_slots = cache_.num_blocks() * cache_.block_size(), depth = batch_.tree_depth;
    for (int64_t i = 0; i < batch_.num_requests; ++i) {
      const int64_t first = batch_.query_start_loc[i], end = batch_.query_start_loc[i + 1];
      const int64_t start = batch_.tree_starts[i], length = batch_.seq_lens[i];
      for (int64_t token = first; token < end; ++token) {
        const int64_t* path = batch_.tree_slots + token * depth;
        const int64_t* stop = std::find_if(path, path + depth, [](int64_t at) { return at < 0; });
        const bool is_known = length - end + token < start;
        if (is_known != (stop == path) || start + (stop - path) > length) return false;
        if (!std::all_of(path, stop, [=](int64_t at) { return at < num_slots; })) return false;
      }
    }
    return true;
  }

  int64_t num_sections_;
  Input<int32_t> positions_;
  Input<int64_t> slots_;
  Input<int32_t> tables_, starts_, lens_;
  Optional<int32_t> tree_starts_;
  Optional<int64_t> tree_slots_;
  Optional<int32_t> last_seen_;
  nb::object owner_;
  const KVCache& cache_;
  AttentionBatch batch_;
  int64_t num_positions_ = 0;
  bool inside_;
};

}  // namespace quire
