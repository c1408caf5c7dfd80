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
  NestedLines nested;

  explicit UnpackedBlock(const QuantizedWeights& weights) : nested(weights) {
    constexpr int64_t records = block_groups<QuantizedFormat>;
    constexpr int64_t lines = 2 * records * QuantizedWeights::panel_width;
    scales = static_cast<float*>(
        scratch(Slot::weights, records * record_codes + 2 * lines * sizeof(float)));
    offsets = scales + lines;
    codes = reinterpret_cast<uint8_t*>(offsets + lines);
  }

  // Give the tile the span's scales, and its offsets where there are any.
  void read_all_scales(const QuantizedWeights& weights, const PanelMap& map, const RecordSpan& span,
                       QuantizedTile& tile) {
    const float step = weights.has_book ? weights.book_step : 1.0f;
    const LineSpan lines(span, tile.joined);
    if (weights.scale_form == ScaleForm::nested)
      read_nested(weights, map, lines, set1(step), nested, scales);
    else
      read_scales(weights, map, lines, ScaleKind::scale, step, scales);
    tile.lines = reinterpret_cast<const char*>(scales);
    if (!weights.has_corrections()) return;
    read_corrections(weights, map, lines, scales, offsets);
    tile.offsets_begin = reinterpret_cast<const char*>(offsets) - tile.lines;
  }

  // Give the tile the scales and offsets of groups that lie there as half bytes, a byte each.
  void read_half_bytes(const PanelMap& map, const RecordSpan& span, QuantizedTile& tile) const {
    constexpr int64_t unit = 2 * QuantizedWeights::super_records * QuantizedWeights::panel_width;
    uint8_t* __restrict low = codes;
    uint8_t* __restrict high = codes + block_groups<QuantizedFormat> / 8 * unit;
    tile.lines = reinterpret_cast<const char*>(low);
    tile.offsets_begin = high - low;
    const char* lines = span.panel + map.unit_begin(span.first);
    for (int64_t i = 0; i < span.records; i += QuantizedWeights::super_records) {
      for (int64_t j = 0; j < unit; ++j) {
        const auto both = static_cast<uint8_t>(lines[j]);
        low[j] = both & 15;
        high[j] = both >> 4;
      }
      low += unit, high += unit, lines += map.unit_bytes;
    }
  }

  // Give the tile what stands for 256 inputs each of a span that begins with such.
  void read_super_scales(const QuantizedWeights& weights, const PanelMap& map,
                         const RecordSpan& span, QuantizedTile& tile) const {
    constexpr int64_t panel = QuantizedWeights::panel_width;
    const auto read = [&](int64_t begin, float factor, float* out) {
      const char* line = span.panel + map.unit_begin(span.first) + begin;
      const int64_t count = ceil_div(span.records, QuantizedWeights::super_records);
      for (int64_t i = 0; i < count; ++i, line += map.unit_bytes)
        read_line(reinterpret_cast<const F16*>(line), set1(factor), out + i * panel);
      return out;
    };
    tile.super_scales = read(map.supers_begin, weights.has_book ? weights.book_step : 1.0f, scales);
    if (weights.has_offsets) tile.super_offsets = read(map.super_offsets_begin, 1.0f, offsets);
  }
};

template <class Format>
RecordSpan span_of(const BlockPlace& place, const Activations<Format>& activations) {
  return {place.panel, place.index * block_groups<Format>, activations.groups_of(place.index)};
}

// How far a single tile asks ahead of itself, which takes a panel's blocks in the order of memory:
// further where scales of a block are read before its codes.
inline int64_t single_tile_distance(bool reads_scales_first) {
  return reads_scales_first ? 16 << 10 : 8 << 10;
}

// Run a block's tiles: all rows times one panel, added to sums [row][32 outputs]. Each of several
// asks for a share of the block that comes next: memory is then busy all the time. `tile` has what
// they have in common; run_of(rows) is the one for that many rows. A single one asks `distance`
// bytes ahead.
template <class Format, class RunOf>
void run_tiles(QuantizedTile& tile, const Activations<Format>& activations, const BlockPlace& place,
               const PanelMap& map, int64_t distance, float* sums, const RunOf& run_of) {
  constexpr int64_t records = block_groups<Format>;
  const Tiles& tiles = activations.tiles();
  // A record's bytes with its share of scales.
  const int64_t bytes = map.record_bytes + map.codes_begin / map.unit_records;
  const bool single = tiles.count == 1;
  const char* ahead = single ? place.panel + map.begin_of(place.index * records) + distance
                             : place.next + map.begin_of(place.next_index * records);
  const char* const end = ahead + tile.groups * bytes;
  tile.ahead_bytes = single ? bytes : ceil_div(bytes, 64 * tiles.count) * 64;
  for (int64_t i = 0; i < tiles.count; ++i) {
    const int64_t begin = tiles.start(i), rows = tiles.start(i + 1) - begin;
    tile.activations = reinterpret_cast<const ActivationGroup*>(activations.at(place.index, i));
    tile.out = sums + begin * QuantizedWeights::panel_width;
    tile.ahead = ahead < end ? ahead : nullptr;
    run_of(rows)(tile);
    ahead += tile.groups * tile.ahead_bytes;
  }
}

}  // namespace quire::QUIRE_ISA
