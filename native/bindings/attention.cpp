// Python: the KV cache and one layer's attention as objects.
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/binding.h"
#include "runtime/kv_cache.h"

namespace quire {
namespace {

// A window that no position reaches the end of, small enough to compute with.
constexpr int64_t everything = int64_t{1} << 40;

using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

Bytes view(const AlignedMemory& memory, nb::handle owner) {
  return Bytes(memory.data(), {memory.bytes()}, owner);
}

// Block ids that lie inside the cache.
class BlockIds : public Input<int64_t> {
 public:
  BlockIds(const KVCache& cache, nb::handle ids, int64_t count) : Input(ids, count) {
    const int64_t* id = *this;
    for (int64_t i = 0; i < count; ++i)
      if (id[i] < 0 || id[i] >= cache.num_blocks())
        throw std::invalid_argument("[kv_cache] block ids must lie inside the cache.");
  }
};

void copy_blocks(KVCache& cache, nb::handle pairs, int64_t num_pairs) {
  const BlockIds ids(cache, pairs, 2 * num_pairs);
  const nb::gil_scoped_release release;
  cache.copy_blocks(ids, num_pairs);
}

// Slots that lie inside the cache.
void copy_slots(KVCache& cache, nb::handle pairs, int64_t num_pairs) {
  const Input<int64_t> slots(pairs, 2 * num_pairs);
  const int64_t* slot = slots;
  for (int64_t i = 0; i < 2 * num_pairs; ++i)
    if (slot[i] < 0 || slot[i] >= cache.num_blocks() * cache.block_size())
      throw std::invalid_argument("[kv_cache] slots must lie inside the cache.");
  const nb::gil_scoped_release release;
  cache.copy_slots(slots, num_pairs);
}

void checksums(const KVCache& cache, nb::handle block_ids, int64_t num_ids, nb::handle out) {
  const BlockIds ids(cache, block_ids, num_ids);
  const Output<uint64_t> found(out, num_ids);
  const nb::gil_scoped_release release;
  cache.checksums(ids, num_ids, found);
}

void read_blocks(const KVCache& cache, nb::handle block_ids, int64_t num_ids, nb::handle out) {
  const BlockIds ids(cache, block_ids, num_ids);
  const Output<uint8_t> bytes(out, num_ids * static_cast<int64_t>(cache.block_bytes()));
  uint8_t* data = bytes;
  const nb::gil_scoped_release release;
  cache.read_blocks(ids, num_ids, reinterpret_cast<char*>(data));
}

void write_blocks(KVCache& cache, nb::handle block_ids, int64_t num_ids, nb::handle data) {
  const BlockIds ids(cache, block_ids, num_ids);
  const Input<uint8_t> bytes(data, num_ids * static_cast<int64_t>(cache.block_bytes()));
  const uint8_t* from = bytes;
  const nb::gil_scoped_release release;
  cache.write_blocks(ids, num_ids, reinterpret_cast<const char*>(from));
}

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

class PagedAttention {
 public:
  PagedAttention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, float scale,
                 int64_t window, int64_t chunk, int64_t ahead, float score_cap, int64_t max_positions,
                 int64_t half, nb::object cosines, nb::object sines, std::vector<int64_t> sections,
                 int qk_norm, nb::object q_norm, nb::object k_norm, float norm_eps,
                 nb::object sinks, nb::object query_scales)
      : cosines_(std::move(cosines), max_positions * half),
        sines_(std::move(sines), max_positions * half),
        sections_(std::move(sections)),
        q_norm_(std::move(q_norm), norm_weights(qk_norm, num_heads, head_dim)),
        k_norm_(std::move(k_norm), norm_weights(qk_norm, num_kv_heads, head_dim)),
        sinks_(std::move(sinks), num_heads),
        query_scales_(std::move(query_scales), max_positions),
        layer_{num_heads,
               num_kv_heads,
               head_dim,
               scale,
               window > 0 ? window : everything,
               chunk > 0 ? chunk : everything,
               ahead < 0 ? everything : ahead,
               score_cap,
               cosines_,
               sines_,
               half,
               max_positions,
               sections_.data(),
               static_cast<int64_t>(sections_.size()),
               static_cast<QKNorm>(qk_norm),
               q_norm_,
               k_norm_,
               norm_eps,
               sinks_,
               query_scales_} {
    if (std::accumulate(sections_.begin(), sections_.end(), int64_t{0}) != half ||
        std::any_of(sections_.begin(), sections_.end(), [](int64_t n) { return n < 0; }))
      throw std::invalid_argument("[attention] sections must sum to the rotary pairs.");
    if ((layer_.q_norm == nullptr) != (layer_.k_norm == nullptr))
      throw std::invalid_argument("[attention] q_norm and k_norm must be given together.");
  }

  // False, and nothing done, when the step points outside the tables or the cache is another's.
  bool run(nb::handle qkv, AttentionPlan& plan, int64_t layer, nb::handle out) const {
    const int64_t out_width = layer_.num_heads * layer_.head_dim;
    const int64_t width = out_width + 2 * layer_.num_kv_heads * layer_.head_dim;
    const Output<float> rows(qkv, plan.num_tokens() * width);
    const Output<float> result(out, plan.num_tokens() * out_width);
    const KVCache& cache = plan.cache();
    if (!plan.inside() || plan.num_sections() != layer_.num_sections || layer < 0 ||
        layer >= cache.num_layers() || cache.head_dim() != layer_.head_dim ||
        cache.num_kv_heads() != layer_.num_kv_heads || !has_angles(plan))
      return false;
    const KVBlocks blocks = cache.layer(layer);
    const auto attend = [=, this, &plan, rows = rows.get(), result = result.get()] {
      kernels().rope_and_cache(layer_, blocks, plan.batch(), rows);
      kernels().paged_attention(layer_, blocks, plan.batch(), rows, result);
      return true;
    };
    if (Recording* recording = Recording::open()) {
      recording->hold(nb::find(*this));
      recording->hold(nb::find(plan));
    }
    return make_call(plan.num_tokens() * width * 64, attend, [=, this, &plan] {
      return plan.check_again() && has_angles(plan) && attend();
    });
  }

 private:
  static int64_t norm_weights(int qk_norm, int64_t heads, int64_t head_dim) {
    return static_cast<QKNorm>(qk_norm) == QKNorm::rms_of_heads ? head_dim : heads * head_dim;
  }

  bool has_angles(const AttentionPlan& plan) const {
    const bool by_position = layer_.cosines || layer_.query_scales;
    return !by_position || plan.num_positions() <= layer_.max_positions;
  }

  Optional<float> cosines_, sines_;
  std::vector<int64_t> sections_;
  Optional<float> q_norm_, k_norm_, sinks_, query_scales_;
  AttentionLayer layer_;
};

}  // namespace

void bind_attention(nb::module_& m) {
  nb::class_<KVCache>(m, "KVCache")
      .def("__init__",
           [](KVCache* self, int64_t layers, int64_t blocks, int64_t kv_heads, int64_t head_dim,
              int64_t block_size, int type) {
             const auto kv_type = static_cast<KVType>(type);
             if (kv_type == KVType::int4 && head_dim % int4_group != 0)
               throw std::invalid_argument("[kv_cache] int4 needs a head dim of whole groups.");
             new (self) KVCache(layers, blocks, kv_heads, head_dim, block_size, kv_type);
           })
      .def("copy_blocks", copy_blocks)
      .def("copy_slots", copy_slots)
      .def("checksums", checksums)
      .def("read_blocks", read_blocks)
      .def("write_blocks", write_blocks)
      .def_prop_ro("nbytes", &KVCache::bytes)
      .def_prop_ro("memory",
                   [](nb::handle_t<KVCache> self) {
                     return view(nb::cast<const KVCache&>(self).elements(), self);
                   })
      .def_prop_ro("scales", [](nb::handle_t<KVCache> self) {
        return view(nb::cast<const KVCache&>(self).scales(), self);
      });
  nb::class_<AttentionPlan>(m, "AttentionPlan")
      .def(nb::init<int64_t, int64_t, nb::handle, nb::handle, nb::handle, int64_t, int64_t,
                    nb::handle, nb::handle, nb::object, nb::object, int64_t, nb::object,
                    nb::object>(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg())
      .def_prop_ro("inside", &AttentionPlan::inside)
      .def_prop_ro("num_tokens", &AttentionPlan::num_tokens);
  nb::class_<PagedAttention>(m, "PagedAttention")
      .def(nb::init<int64_t, int64_t, int64_t, float, int64_t, int64_t, int64_t, float, int64_t,
                    int64_t, nb::object, nb::object, std::vector<int64_t>, int, nb::object,
                    nb::object, float, nb::object, nb::object>(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
           nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg().none())
      .def("run", &PagedAttention::run);
}

}  // namespace quire
