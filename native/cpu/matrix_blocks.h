// Blocks of quantized weights made ready for matrix tiles. Codes are signed bytes, zero subtracted:
// a tile then needs no sums of activations to correct its own.
#pragma once

#include "cpu/quantized_matrix_tile.h"
#include "cpu/quantized_row_tables.h"
#include "cpu/quantized_rows.h"

namespace quire::QUIRE_ISA {

#if defined(QUIRE_MATRIX_TILES)

// Multiplies a block of one panel at a time, in integers, by tiles. See linear_quantized.cpp.
class MatrixBlocks {
 public:
  using Format = QuantizedMatrixFormat;
  static constexpr bool takes_row_scales = false;
  static constexpr bool takes_group_factors = false;

  MatrixBlocks(const QuantizedWeights& weights, const Activations<Format>& activations)
      : weights_(weights),
        activations_(activations),
        map_(weights),
        grouping_(grouping_of(weights)),
        strips_(activations.tiles()),
        state_(grouping_ == Grouping::halves ? 16 : 32, strips_.rows),
        unpacked_(weights) {}

  static Format format(const QuantizedWeights& weights) { return {weights, 0}; }

  // Add block `index` of a panel to sums [row][32 outputs].
  void multiply(const BlockPlace& place, float* sums) {
    const RecordSpan span = span_of(place, activations_);
    read_signed_codes(span);
    QuantizedTile tile{};
    tile.codes = unpacked_.codes;
    tile.groups = span.records;
    tile.joined = activations_.format().groups_together;
    tile.scaled_halves = activations_.format().scales_halves();
    tile.first = place.index == 0;
    read_scales(span, tile);
    run_tiles(tile, activations_, place, map_, single_tile_distance(true), sums, [&](int64_t rows) {
      return [this, rows](const QuantizedTile& each) { run(each, rows); };
    });
  }

 private:
  void run(const QuantizedTile& tile, int64_t rows) const {
    switch (grouping_) {
      case Grouping::halves:
        return run_strips<Grouping::halves>(tile, rows);
      case Grouping::joined:
        return run_strips<Grouping::joined>(tile, rows);
      default:
        return run_strips<Grouping::records>(tile, rows);
    }
  }

  template <Grouping grouping>
  void run_strips(const QuantizedTile& tile, int64_t rows) const {
    strips_.count == 2 ? run_quantized_matrix_tile<grouping, 2>(tile, rows)
                       : run_quantized_matrix_tile<grouping, 1>(tile, rows);
  }

  void read_scales(const RecordSpan& span, QuantizedTile& tile) {
    if (!weights_.has_tables()) return unpacked_.read_all_scales(weights_, map_, span, tile);
    tables_.write_scales(span.records, unpacked_.scales);
    tile.lines = reinterpret_cast<const char*>(unpacked_.scales);
  }

  void read_signed_codes(const RecordSpan& span) {
    uint8_t* const codes = unpacked_.codes;
    const int64_t count = span.records * record_codes;
    if (weights_.has_tables()) {
      tables_.read(weights_, span.panel);
      look_up_rows(weights_, tables_, span, codes);
      return add_to_codes(codes, count, table_zero, codes);
    }
    const auto added = static_cast<uint8_t>(-weights_.zero);
    if (weights_.holds_bytes()) {
      for (int64_t i = 0; i < span.records; ++i)
        add_to_codes(reinterpret_cast<const uint8_t*>(span.panel + map_.codes_of(span.first + i)),
                     record_codes, added, codes + i * record_codes);
      return;
    }
    read_codes(weights_, map_, span, codes);
    if (weights_.has_book) {
      for (int64_t i = 0; i < span.records; ++i)
        look_up_codes(reinterpret_cast<const uint8_t*>(weights_.book_codes),
                      codes + i * record_codes);
    } else if (added != 0) {
      add_to_codes(codes, count, added, codes);
    }
  }

  const QuantizedWeights& weights_;
  const Activations<Format>& activations_;
  const PanelMap map_;
  const Grouping grouping_;
  const Strips strips_;
  const TileConfiguration state_;
  UnpackedBlock unpacked_;
  RowTables tables_;
};

#endif

}  // namespace quire::QUIRE_ISA
