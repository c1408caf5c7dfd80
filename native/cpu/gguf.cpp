// Packing quantized weights straight from the blocks of a GGUF file, nothing between.
#include "cpu/gguf_blocks.h"
#include "cpu/quantized_block.h"
#include "include/kernels.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t record_inputs = QuantizedWeights::record_inputs;
// Inputs that are taken apart at a time: a large block, or eight small ones.
constexpr int64_t span_inputs = QuantizedWeights::super_inputs;
constexpr int64_t span_words = span_inputs / 4;

// One panel: outputs begin .. end - 1 of it come from rows, others keep what they had.
template <GgufType type>
class PanelPacker {
 public:
  PanelPacker(const QuantizedWeights& weights, const GgufRows& rows, int64_t number)
      : weights_(weights),
        map_(weights),
        panel_(weights.data + number * weights.panel_bytes()),
        begin_(larger(number * panel_width, rows.first_row)),
        end_(smaller((number + 1) * panel_width, rows.first_row + rows.num_rows)),
        row_bytes_(weights.in_features / layout.block_inputs * layout.block_bytes),
        blocks_(rows.blocks + (begin_ - rows.first_row) * row_bytes_) {}

  void pack() {
    for (int64_t input = 0; input < weights_.in_features; input += span_inputs) pack_span(input);
  }

 private:
  void pack_span(int64_t input) {
    alignas(64) uint32_t rows[panel_width][span_words], words[span_words * panel_width];
    const int64_t inputs = smaller(span_inputs, weights_.in_features - input);
    const int64_t records = inputs / record_inputs;
    const auto packed = [&](int64_t i) {
      return reinterpret_cast<uint8_t*>(panel_ + map_.codes_of(input / record_inputs + i));
    };
    if (end_ - begin_ < panel_width)
      for (int64_t i = 0; i < records; ++i) unpack_record(layout.bits, packed(i), record(words, i));
    const uint8_t* block = blocks_ + input / layout.block_inputs * layout.block_bytes;
    for (int64_t row = begin_; row < end_; ++row, block += row_bytes_)
      read_row(block, input, inputs, row % panel_width,
               reinterpret_cast<uint8_t*>(rows[row % panel_width]));
    place_words(rows, inputs / 4, words);
    for (int64_t i = 0; i < records; ++i) pack_record(layout.bits, record(words, i), packed(i));
  }

  // words[word][output] = rows[output][word], by squares where all outputs are there.
  void place_words(const uint32_t (&rows)[panel_width][span_words], int64_t count,
                   uint32_t* words) const {
    if (end_ - begin_ == panel_width && count % F32::lanes == 0) {
      for (int64_t word = 0; word < count; word += F32::lanes)
        for (int64_t row = 0; row < panel_width; row += F32::lanes)
          transpose(&rows[row][word], span_words, words + word * panel_width + row, panel_width);
      return;
    }
    for (int64_t row = begin_; row < end_; ++row)
      for (int64_t word = 0; word < count; ++word)
        words[word * panel_width + row % panel_width] = rows[row % panel_width][word];
  }

  static constexpr GgufLayout layout = gguf_layout(type);
  static constexpr int64_t span_bytes = span_inputs / layout.block_inputs * layout.block_bytes;

  static uint8_t* record(uint32_t* words, int64_t i) {
    return reinterpret_cast<uint8_t*>(words) + i * record_codes;
  }

  // The codes of `inputs` inputs of one row; its scales go to their lines.
  void read_row(const uint8_t* block, int64_t input, int64_t inputs, int64_t output,
                uint8_t* codes) {
    // The next span: of 32 rows in turn no processor sees by itself where they go on.
    for (int64_t i = 0; i < span_bytes; i += 64) __builtin_prefetch(block + span_bytes + i);
    BlockScales scales;
    for (int64_t i = 0; i < inputs; i += layout.block_inputs, block += layout.block_bytes) {
      read_block(type, block, codes + i, scales);
      write_scales(scales, input + i, output);
    }
  }

  // Scales of a block that begins at `input`: those of a unit.
  void write_scales(const BlockScales& scales, int64_t input, int64_t output) {
    char* const unit = panel_ + map_.unit_begin(input / record_inputs);
    const auto write_half = [&](int64_t begin, uint16_t bits) {
      reinterpret_cast<uint16_t*>(unit + begin)[output] = bits;
    };
    if (layout.scale_form == ScaleForm::e8m0) {
      unit[output] = static_cast<char>(scales.scale);
      return;
    }
    if (layout.scale_form == ScaleForm::direct) {
      write_half(0, scales.scale);
      if (layout.has_offsets) write_half(map_.offsets_begin, scales.offset);
      return;
    }
    constexpr bool nibbles = layout.scale_form == ScaleForm::nibbles;
    constexpr int64_t groups = layout.block_inputs / layout.group_size;
    for (int64_t i = 0; i < groups; ++i) {
      char* const at = unit + i * panel_width + output;
      *at = static_cast<char>(nibbles ? scales.groups[i] | scales.group_offsets[i] << 4
                                      : scales.groups[i]);
      if (layout.has_offsets && !nibbles)
        at[map_.offsets_begin] = static_cast<char>(scales.group_offsets[i]);
    }
    write_half(map_.supers_begin, scales.scale);
    if (layout.has_offsets) write_half(map_.super_offsets_begin, scales.offset);
  }

  const QuantizedWeights& weights_;
  const PanelMap map_;
  char* panel_;
  int64_t begin_, end_, row_bytes_;
  const uint8_t* blocks_;
};

template <GgufType type>
void pack_panels(const QuantizedWeights& weights, const GgufRows& rows) {
  const int64_t first_panel = rows.first_row / panel_width;
  const int64_t panels = ceil_div(rows.first_row + rows.num_rows, panel_width) - first_panel;
  parallel_for(panels,
               [&](int64_t i) { PanelPacker<type>(weights, rows, first_panel + i).pack(); });
}

}  // namespace

void pack_gguf(const QuantizedWeights& weights, const GgufRows& rows) {
  switch (rows.layout->type) {
    case GgufType::q4_0:
      return pack_panels<GgufType::q4_0>(weights, rows);
    case GgufType::q4_1:
      return pack_panels<GgufType::q4_1>(weights, rows);
    case GgufType::q5_0:
      return pack_panels<GgufType::q5_0>(weights, rows);
    case GgufType::q5_1:
      return pack_panels<GgufType::q5_1>(weights, rows);
    case GgufType::q8_0:
      return pack_panels<GgufType::q8_0>(weights, rows);
    case GgufType::q2_k:
      return pack_panels<GgufType::q2_k>(weights, rows);
    case GgufType::q3_k:
      return pack_panels<GgufType::q3_k>(weights, rows);
    case GgufType::q4_k:
      return pack_panels<GgufType::q4_k>(weights, rows);
    case GgufType::q5_k:
      return pack_panels<GgufType::q5_k>(weights, rows);
    case GgufType::q6_k:
      return pack_panels<GgufType::q6_k>(weights, rows);
    case GgufType::iq4_nl:
      return pack_panels<GgufType::iq4_nl>(weights, rows);
    case GgufType::iq4_xs:
      return pack_panels<GgufType::iq4_xs>(weights, rows);
    case GgufType::tq1_0:
      return pack_panels<GgufType::tq1_0>(weights, rows);
    case GgufType::tq2_0:
      return pack_panels<GgufType::tq2_0>(weights, rows);
    case GgufType::mxfp4:
      return pack_panels<GgufType::mxfp4>(weights, rows);
  }
}

}  // namespace quire::QUIRE_ISA
