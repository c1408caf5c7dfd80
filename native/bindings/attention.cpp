// Python: the KV cache and one layer's attention as objects.
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/attention_plan.h"
#include "runtime/kv_cache.h"

namespace quire {
namespace {

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

class PagedAttention {
 public:
  PagedAttention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, float scale,
                 int64_t window, int64_t chunk, int64_t ahead, float score_cap,
                 int64_t max_positions, int64_t half, nb::object cosines, nb::object sines,
                 std::vector<int64_t> sections, int qk_norm, nb::object q_norm, nb::object k_norm,
                 float norm_eps, nb::object sinks, nb::object query_scales)
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
        cache.num_kv_heads() != layer_.num_kv_heads || cache.is_latent() || !has_angles(plan))
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
              int64_t block_size, int type, bool is_latent) {
             const auto kv_type = static_cast<KVType>(type);
             if (kv_type == KVType::int4 && head_dim % int4_group != 0)
               throw std::invalid_argument("[kv_cache] int4 needs a head dim of whole groups.");
             if (is_latent && (kv_heads != 1 || kv_type == KVType::int4))
               throw std::invalid_argument("[kv_cache] latents are one head, not in 4 bits.");
             new (self) KVCache(layers, blocks, kv_heads, head_dim, block_size, kv_type, is_latent);
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
