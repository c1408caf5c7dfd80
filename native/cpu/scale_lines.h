// The lines of scales and offsets of a block, to ask memory for. What stands for more inputs than a
// block has comes too rarely to be asked for.
#pragma once

#include "cpu/linear_rows.h"
#include "cpu/quantized_tile.h"

namespace quire::QUIRE_ISA {

class ScaleLines {
 public:
  explicit ScaleLines(const QuantizedWeights& weights) {
    const bool direct = weights.scale_form == ScaleForm::direct;
    const auto add_both = [&](int64_t begin, bool of_groups) {
      if (of_groups) {
        add(begin, direct ? weights.scale_line_bytes() : QuantizedWeights::panel_width,
            weights.group_size);
        begin += weights.group_lines_bytes();
      }
      if (!direct) add(begin, weights.scale_line_bytes(), QuantizedWeights::super_inputs);
    };
    add_both(weights.scales_begin(), true);
    if (weights.has_offsets)
      add_both(weights.offsets_begin(), weights.scale_form != ScaleForm::nibbles);
  }

  // Those of block `index` of a panel.
  void find(const char* panel, int64_t index) {
    count_ = 0;
    for (int kind = 0; kind < num_kinds_; ++kind) {
      const char* lines = panel + begin_[kind] + index * block_bytes_[kind];
      for (int64_t i = 0; i < block_bytes_[kind]; i += 64) lines_[count_++] = lines + i;
    }
  }

  const char* const* begin() const { return lines_; }
  // How many each of a block's groups asks for; the last line is asked for again and again.
  int64_t per_group() {
    constexpr int64_t groups = block_groups<QuantizedFormat>;
    const int64_t each = ceil_div(count_, groups);
    for (; count_ < each * groups; ++count_) lines_[count_] = lines_[count_ - 1];
    return each;
  }

 private:
  // Lines that stand for `inputs` each.
  void add(int64_t begin, int64_t line_bytes, int64_t inputs) {
    constexpr int64_t block_inputs =
        block_groups<QuantizedFormat> * QuantizedWeights::record_inputs;
    if (inputs > block_inputs) return;
    begin_[num_kinds_] = begin;
    block_bytes_[num_kinds_++] = block_inputs / inputs * line_bytes;
  }

  // float32 scales of 16 inputs each, and as many offsets.
  static constexpr int64_t most =
      2 * block_groups<QuantizedFormat> * 2 * QuantizedWeights::panel_width * sizeof(float) / 64;
  const char* lines_[most + block_groups<QuantizedFormat>];
  int64_t begin_[4], block_bytes_[4], count_ = 0;
  int num_kinds_ = 0;
};

}  // namespace quire::QUIRE_ISA
