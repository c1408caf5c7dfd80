// Packing E8P codes: a byte of a line for the vector and one for the signs of each.
#include "cpu/quantized_block.h"
#include "include/kernels.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {

void pack_lattice(const QuantizedWeights& weights, const uint16_t* codes, const float* scales) {
  constexpr int64_t panel_width = QuantizedWeights::panel_width;
  constexpr int64_t vectors = vector_layout(VectorForm::e8p).vectors();
  const PanelMap map(weights);
  const int64_t stages = weights.rotation.stages, rows = weights.out_features;
  const int64_t row_codes = weights.rotation.in_features / 8;
  parallel_for(weights.num_panels(), [&](int64_t number) {
    char* const panel = weights.data + number * weights.panel_bytes();
    const int64_t end = smaller((number + 1) * panel_width, rows);
    for (int64_t row = number * panel_width; row < end; ++row) {
      const int64_t output = row % panel_width;
      for (int64_t stage = 0; stage < stages; ++stage) {
        const int64_t first = stage * map.unit_records;
        reinterpret_cast<float*>(panel + map.unit_begin(first))[output] =
            scales[row * stages + stage];
        const uint16_t* from = codes + (stage * rows + row) * row_codes;
        for (int64_t i = 0; i < row_codes; ++i) {
          char* const lines = panel + map.codes_of(first + i / vectors) + output;
          lines[i % vectors * panel_width] = static_cast<char>(from[i] >> 8);
          lines[(vectors + i % vectors) * panel_width] = static_cast<char>(from[i] & 255);
        }
      }
    }
  });
}

}  // namespace quire::QUIRE_ISA
