// What quantized linears by vectors and by matrix tiles share: a block made ready, and its tiles.
#pragma once

#include "cpu/linear_rows.h"
#include "cpu/quantized_block.h"
#include "cpu/quantized_tile.h"

namespace quire::QUIRE_ISA {

// This thread's memory for a block made ready: codes as bytes, scales and offsets as floats.
struct UnpackedBlock {
  float *scales, *offsets;
  uint8_t* codes;

  UnpackedBlock() {
    constexpr int64_t records = block_groups<QuantizedFormat>;
    constexpr int64_t lines = 2 * records * QuantizedWeights::panel_width;
    scales = static_cast<float*>(
        scratch(Slot::weights, records * record_codes + 2 * lines * sizeof(float)));
    offsets = scales + lines;
    codes = reinterpret_cast<uint8_t*>(offsets + lines);
  }

  // Give the tile the span's scales, and its offsets where there are any.
  void read_all_scales(const QuantizedWeights& weights, const RecordSpan& span,
                       QuantizedTile& tile) const {
    const float step = weights.has_book ? weights.book_step : 1.0f;
    read_scales(weights, span, weights.scales_begin(), step, scales);
    tile.scales = scales;
    if (!weights.has_offsets) return;
    read_scales(weights, span, weights.offsets_begin(), 1.0f, offsets);
    tile.offsets = offsets;
  }

  // Give the tile what stands for 256 inputs each of a span that begins with such.
  void read_super_scales(const QuantizedWeights& weights, const RecordSpan& span,
                         QuantizedTile& tile) const {
    const int64_t super = span.first / QuantizedWeights::super_records;
    const int64_t count = ceil_div(span.records, QuantizedWeights::super_records);
    const auto read = [&](int64_t begin, float factor, float* out) {
      const char* at = span.panel + begin + weights.group_lines_bytes();
      read_lines(reinterpret_cast<const F16*>(at) + super * QuantizedWeights::panel_width, count,
                 set1(factor), out);
      return out;
    };
    tile.scales = read(weights.scales_begin(), weights.has_book ? weights.book_step : 1.0f, scales);
    if (weights.has_offsets) tile.offsets = read(weights.offsets_begin(), 1.0f, offsets);
  }
};

template <class Format>
RecordSpan span_of(const BlockPlace& place, const Activations<Format>& activations) {
  return {place.panel, place.index * block_groups<Format>, activations.groups_of(place.index)};
}

// Run a block's tiles: all rows times one panel, added to sums [row][32 outputs]. Each asks for a
// share of the block that comes next: memory is then busy all the time. `tile` has what they have
// in common; run_of(rows) is the one for that many rows. Only the first asks for lines of scales.
template <class Format, class RunOf>
void run_tiles(QuantizedTile& tile, const Activations<Format>& activations, const BlockPlace& place,
               int64_t record_bytes, float* sums, const RunOf& run_of) {
  const Tiles& tiles = activations.tiles();
  const char* next = place.next + place.next_index * block_groups<Format> * record_bytes;
  const char* const next_end = next + tile.groups * record_bytes;
  tile.ahead_bytes = ceil_div(record_bytes / 64, tiles.count) * 64;
  for (int64_t i = 0; i < tiles.count; ++i) {
    const int64_t begin = tiles.start(i), rows = tiles.start(i + 1) - begin;
    tile.activations = reinterpret_cast<const ActivationGroup*>(activations.at(place.index, i));
    tile.out = sums + begin * QuantizedWeights::panel_width;
    tile.ahead = next < next_end ? next : nullptr;
    run_of(rows)(tile);
    next += tile.groups * tile.ahead_bytes;
    tile.lines_per_group = 0;
  }
}

}  // namespace quire::QUIRE_ISA
