// Blocks of quantized weights made floats: where activations are to stay exact, or codes are no
// integers.
#pragma once

#include "cpu/linear_rows.h"
#include "cpu/quantized_block.h"
#include "cpu/quantized_row_tables.h"

namespace quire::QUIRE_ISA {

// Dequantizes a block of one panel and multiplies it in float, with activations as they are. See
// linear_quantized.cpp.
class FloatBlocks {
 public:
  using Format = FloatFormat<float>;
  static constexpr bool takes_row_scales = true;
  static constexpr bool takes_group_factors = false;

  FloatBlocks(const QuantizedWeights& weights, const Activations<Format>& activations)
      : weights_(weights), activations_(activations) {
    constexpr int64_t lines = 4 * block_records * panel_width;
    values_ = static_cast<float*>(scratch(
        Slot::weights, block_records * record_codes * (1 + sizeof(float)) + lines * sizeof(float)));
    scales_ = values_ + block_records * record_codes;
    codes_ = reinterpret_cast<uint8_t*>(scales_ + lines);
  }

  static Format format(const QuantizedWeights&) { return {}; }

  void multiply(const BlockPlace& place, float* sums) {
    const auto [panel, index, next, next_index] = place;
    const Tiles& tiles = activations_.tiles();
    const int64_t groups = activations_.groups_of(index);
    const RecordSpan span{panel, index * block_records, groups * group_words / record_inputs};
    if (weights_.has_tables())
      dequantize_tables(weights_, span, codes_, values_);
    else
      dequantize(weights_, span, codes_, scales_, values_);
    for (int64_t i = 0; i < tiles.count; ++i) {
      Tile<Format> tile{};
      tile.activations = activations_.at(index, i);
      tile.weights = values_;
      tile.groups = groups;
      tile.first = index == 0;
      tile.out = sums + tiles.start(i) * panel_width;
      tile.prefetch = next;
      tile_of<Format>(tiles.start(i + 1) - tiles.start(i))(tile);
    }
  }

 private:
  static constexpr int64_t panel_width = QuantizedWeights::panel_width;
  static constexpr int64_t record_inputs = QuantizedWeights::record_inputs;
  static constexpr int64_t block_records = block_groups<Format> * group_words / record_inputs;

  const QuantizedWeights& weights_;
  const Activations<Format>& activations_;
  float *values_, *scales_;
  uint8_t* codes_;
};

}  // namespace quire::QUIRE_ISA
