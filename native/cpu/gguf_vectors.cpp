// Packing vector codes straight from the blocks of a GGUF file: a byte of a line each.
// Source: the block structures of ggml (ggml-common.h); quire/checkpoints/gguf/gguf_vector_types.py
// in numpy.
#include "include/gguf_vectors.h"

#include "cpu/quantized_block.h"
#include "include/kernels.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {
namespace {

// One output's bytes of the lines of a unit.
struct UnitBytes {
  uint8_t scales[8];
  uint8_t records[8][16];
  uint16_t super_scale;
};

uint32_t number_at(const uint8_t* from, int bytes) {
  uint32_t number = 0;
  for (int i = 0; i < bytes; ++i) number |= static_cast<uint32_t>(from[i]) << 8 * i;
  return number;
}

// Four vectors' seven signs, and the bits of a scale on top of them.
void read_signs_and_scale(const uint8_t* from, uint8_t* signs) {
  const uint32_t word = number_at(from, 4);
  for (int i = 0; i < 4; ++i)
    signs[i] = static_cast<uint8_t>((word >> 7 * i & 127) | (word >> (28 + i) & 1) << 7);
}

// Two lines of the high bits of four vectors.
void write_high(const uint8_t (&high)[4], uint8_t* lines) {
  for (int i = 0; i < 2; ++i) lines[i] = static_cast<uint8_t>(high[i] | high[2 + i] << 4);
}

void read_iq2_xs(const uint8_t* block, UnitBytes& unit) {
  for (int i = 0; i < 32; ++i) {
    const uint32_t word = number_at(block + 2 + 2 * i, 2);
    unit.records[i / 4][i % 4] = static_cast<uint8_t>(word);
    unit.records[i / 4][4 + i % 4] = static_cast<uint8_t>(word >> 9 | (word >> 8 & 1) << 7);
  }
  std::memcpy(unit.scales, block + 66, 8);
}

void read_iq1_s(const uint8_t* block, UnitBytes& unit) {
  for (int r = 0; r < 8; ++r) {
    const uint32_t word = number_at(block + 34 + 2 * r, 2);
    std::memcpy(unit.records[r], block + 2 + 4 * r, 4);
    uint8_t high[4];
    for (int i = 0; i < 4; ++i)
      high[i] = static_cast<uint8_t>((word >> 3 * i & 7) | (word >> (12 + i) & 1) << 3);
    write_high(high, unit.records[r] + 4);
  }
}

void read_iq1_m(const uint8_t* block, UnitBytes& unit) {
  for (int r = 0; r < 8; ++r) {
    std::memcpy(unit.records[r], block + 4 * r, 4);
    uint8_t high[4];
    for (int i = 0; i < 4; ++i) high[i] = block[32 + 2 * r + i / 2] >> i % 2 * 4 & 15;
    write_high(high, unit.records[r] + 4);
  }
  std::memset(unit.scales, 0, sizeof(unit.scales));
  unit.super_scale = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = number_at(block + 48 + 2 * i, 2);
    unit.super_scale = static_cast<uint16_t>(unit.super_scale | word >> 12 << 4 * i);
    for (int j = 0; j < 4; ++j) {
      const uint32_t scale = word >> 3 * j & 7;
      unit.scales[i] = static_cast<uint8_t>(unit.scales[i] | (scale & 3) << 2 * j);
      uint8_t& third = unit.scales[4 + i / 2];
      third = static_cast<uint8_t>(third | scale >> 2 << (i % 2 * 4 + j));
    }
  }
}

void read_unit(VectorForm form, const uint8_t* block, UnitBytes& unit) {
  unit.super_scale = static_cast<uint16_t>(number_at(block, 2));
  switch (form) {
    case VectorForm::none:
    case VectorForm::e8p:  // no type of GGUF's
      return;
    case VectorForm::iq1_s:
      return read_iq1_s(block, unit);
    case VectorForm::iq1_m:
      return read_iq1_m(block, unit);
    case VectorForm::iq2_xxs:
      for (int r = 0; r < 8; ++r) {
        std::memcpy(unit.records[r], block + 2 + 8 * r, 4);
        read_signs_and_scale(block + 6 + 8 * r, unit.records[r] + 4);
      }
      return;
    case VectorForm::iq2_xs:
      return read_iq2_xs(block, unit);
    case VectorForm::iq2_s:
      for (int r = 0; r < 8; ++r) {
        std::memcpy(unit.records[r], block + 2 + 4 * r, 4);
        std::memcpy(unit.records[r] + 4, block + 34 + 4 * r, 4);
        unit.records[r][8] = block[66 + r];
      }
      std::memcpy(unit.scales, block + 74, 8);
      return;
    case VectorForm::iq3_xxs:
      for (int r = 0; r < 8; ++r) {
        std::memcpy(unit.records[r], block + 2 + 8 * r, 8);
        read_signs_and_scale(block + 66 + 4 * r, unit.records[r] + 8);
      }
      return;
    case VectorForm::iq3_s:
      for (int r = 0; r < 8; ++r) {
        std::memcpy(unit.records[r], block + 2 + 8 * r, 8);
        std::memcpy(unit.records[r] + 8, block + 74 + 4 * r, 4);
        unit.records[r][12] = block[66 + r];
      }
      std::memcpy(unit.scales, block + 106, 4);
      return;
  }
}

void pack_row(const QuantizedWeights& weights, const PanelMap& map, const uint8_t* blocks,
              int64_t block_bytes, int64_t row) {
  const VectorLayout& layout = vector_layout(weights.vectors);
  char* const panel = weights.data + row / panel_width * weights.panel_bytes();
  const int64_t output = row % panel_width;
  for (int64_t first = 0; first < weights.num_records(); first += map.unit_records) {
    UnitBytes unit;
    read_unit(weights.vectors, blocks, unit);
    blocks += block_bytes;
    char* const lines = panel + map.unit_begin(first);
    for (int64_t i = 0; i < layout.scale_lines(); ++i)
      lines[i * panel_width + output] = static_cast<char>(unit.scales[i]);
    std::memcpy(lines + map.supers_begin + 2 * output, &unit.super_scale, 2);
    for (int64_t r = 0; r < map.unit_records; ++r)
      for (int64_t i = 0; i < layout.record_lines(); ++i)
        panel[map.codes_of(first + r) + i * panel_width + output] =
            static_cast<char>(unit.records[r][i]);
  }
}

}  // namespace

void pack_gguf_vectors(const QuantizedWeights& weights, const GgufVectorRows& rows) {
  const PanelMap map(weights);
  const int64_t block_bytes = rows.vectors->block_bytes;
  const int64_t row_bytes = weights.in_features / QuantizedWeights::super_inputs * block_bytes;
  const int64_t first_panel = rows.first_row / panel_width;
  const int64_t end_row = rows.first_row + rows.num_rows;
  parallel_for(ceil_div(end_row, panel_width) - first_panel, [&](int64_t i) {
    const int64_t begin = (first_panel + i) * panel_width;
    for (int64_t row = larger(begin, rows.first_row); row < smaller(begin + panel_width, end_row);
         ++row)
      pack_row(weights, map, rows.blocks + (row - rows.first_row) * row_bytes, block_bytes, row);
  });
}

}  // namespace quire::QUIRE_ISA
