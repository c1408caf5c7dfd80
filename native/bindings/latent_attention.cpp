// Python: one layer's latent attention as an object.
#include "runtime/latent_attention.h"

#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/attention_plan.h"
#include "bindings/packed_weights.h"

namespace quire {
namespace {

// Packed weights of each head.
using Heads = std::vector<nb::object>;

class LatentAttention {
 public:
  LatentAttention(int64_t rank, int64_t half, int64_t key_dim, int64_t value_dim, float scale,
                  int64_t max_positions, nb::object cosines, nb::object sines, nb::object norm,
                  float eps, const Heads& keys, const Heads& values)
      : cosines_(std::move(cosines), max_positions * half),
        sines_(std::move(sines), max_positions * half),
        norm_(std::move(norm), rank),
        half_(half) {
    LatentLayer& layer = stack_.layer;
    layer.num_heads = static_cast<int64_t>(keys.size());
    layer.key_dim = key_dim, layer.norm = norm_, layer.eps = eps;
    layer.attention = {};
    layer.attention.num_heads = layer.num_heads, layer.attention.num_kv_heads = 1;
    layer.attention.head_dim = rank + 2 * half, layer.attention.value_dim = rank;
    layer.attention.scale = scale;
    layer.attention.window = layer.attention.chunk = everything;
    layer.attention.cosines = cosines_, layer.attention.sines = sines_;
    layer.attention.half = half, layer.attention.max_positions = max_positions;
    layer.attention.sections = &half_, layer.attention.num_sections = 1;
    stack_.out_dim = value_dim;
    if (keys.empty() || keys.size() != values.size())
      throw std::invalid_argument("[latent_attention] there must be as many of either product.");
    stack_.keys = products(keys, key_dim, rank);
    stack_.values = products(values, rank, value_dim);
  }

  // False, and nothing done, when the step points outside the tables or the cache is another's.
  bool run(nb::handle queries, nb::handle latents, AttentionPlan& plan, int64_t layer,
           nb::handle out) const {
    const AttentionLayer& heads = stack_.layer.attention;
    const int64_t given = stack_.layer.num_heads * (stack_.layer.key_dim + 2 * half_);
    const int64_t tokens = plan.num_tokens();
    const Input<float> asked(queries, tokens * given);
    const Output<float> rows(latents, tokens * heads.head_dim);
    const Output<float> result(out, tokens * stack_.layer.num_heads * stack_.out_dim);
    const KVCache& cache = plan.cache();
    if (!plan.inside() || plan.num_sections() != 1 || layer < 0 || layer >= cache.num_layers() ||
        cache.head_dim() != heads.head_dim || !cache.is_latent() || !has_angles(plan))
      return false;
    const KVBlocks blocks = cache.layer(layer);
    const auto attend = [=, this, &plan, asked = asked.get(), rows = rows.get(),
                         result = result.get()] {
      run_latent_attention(stack_, blocks, plan.batch(), asked, rows, result);
      return true;
    };
    if (Recording* recording = Recording::open()) {
      recording->hold(nb::find(*this));
      recording->hold(nb::find(plan));
    }
    return make_call(tokens * given * 512, attend, [=, this, &plan] {
      return plan.check_again() && has_angles(plan) && attend();
    });
  }

 private:
  // Keeps the matrices alive.
  std::vector<LinearWeights> products(const Heads& heads, int64_t inputs, int64_t outputs) {
    std::vector<LinearWeights> found;
    for (const nb::object& head : heads) {
      const ExpertMatrix matrix = nb::cast<const PackedWeights&>(head).matrix();
      if (!matrix.floats || matrix.in_features() != inputs || matrix.out_features() != outputs)
        throw std::invalid_argument("[latent_attention] heads must have floats of their shapes.");
      found.push_back(*matrix.floats);
      kept_.push_back(head);
    }
    return found;
  }

  bool has_angles(const AttentionPlan& plan) const {
    return plan.num_positions() <= stack_.layer.attention.max_positions;
  }

  Optional<float> cosines_, sines_, norm_;
  int64_t half_;
  LatentStack stack_;
  std::vector<nb::object> kept_;
};

}  // namespace

void bind_latent_attention(nb::module_& m) {
  nb::class_<LatentAttention>(m, "LatentAttention")
      .def(nb::init<int64_t, int64_t, int64_t, int64_t, float, int64_t, nb::object, nb::object,
                    nb::object, float, const Heads&, const Heads&>())
      .def("run", &LatentAttention::run);
}

}  // namespace quire
