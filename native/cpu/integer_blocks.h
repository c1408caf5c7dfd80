// Integer products of quantized weights by vectors: which instance of the micro-kernel
// (quantized_tile.h) takes what weights, and the blocks that give it their codes and scales. Codes
// are taken as they are packed when rows are few, and as bytes unpacked to L1 when they are many.
#pragma once

#include "cpu/lattice_tile.h"
#include "cpu/linear_rows.h"
#include "cpu/quantized_block.h"
#include "cpu/quantized_rows.h"
#include "cpu/row_tables_tile.h"
#include "cpu/vector_tile.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t record_inputs = QuantizedWeights::record_inputs;

// The instance for a tile of 1 .. tile_rows rows.
template <class Codes, Grouping grouping, class Scales, int rows = 1>
RunQuantizedTile tile_of_rows(int64_t wanted) {
  if constexpr (rows < QuantizedFormat::tile_rows)
    if (wanted != rows) return tile_of_rows<Codes, grouping, Scales, rows + 1>(wanted);
  return run_quantized_tile<Codes, grouping, Scales, rows>;
}

// Tiles that unpack for themselves cost less than unpacking to memory when they are few.
constexpr bool has_packed_tiles = F32::lanes >= 8;
bool takes_packed_codes(const QuantizedWeights& weights, const Tiles& tiles) {
  if (weights.has_vectors()) return has_vector_tiles && tiles.count == 1;
  if (!has_packed_tiles) return false;
  if (weights.has_tables()) return tiles.num_rows <= table_tile_rows;
  const bool one_plane = 8 % weights.bits == 0;
  return tiles.count <= packed_tiles_of_planes[one_plane ? 0 : 1];
}

// What an instance is made for.
struct TileKind {
  int32_t bits;
  bool has_book, is_small_book;
  ScalePlace scales;
  bool packed;  // codes, as they lie in a panel
  VectorForm vectors;
  bool has_tables = false, half_bytes = false;
};

constexpr int32_t wide_book_zero = 128;

// What is added to the codes of a book, so that none is negative: 128, or less where they are so
// close together that products of theirs are those of 6 bits.
int32_t book_zero(const QuantizedWeights& weights) {
  if (weights.has_tables()) return table_zero;
  int32_t low = 0, high = 0;
  for (const int8_t code : weights.book_codes) {
    low = smaller<int32_t>(low, code);
    high = larger<int32_t>(high, code);
  }
  return high - low < 64 ? -low : wide_book_zero;
}

bool is_small_book(const QuantizedWeights& weights) {
  return weights.has_book && book_zero(weights) != wide_book_zero;
}

// Whether codes number values of a book, or of their row's table.
bool looks_up(const QuantizedWeights& weights) { return weights.has_book || weights.has_tables(); }

bool uses_bytes(const QuantizedWeights& weights) {
  return weights.bits == 8 || (looks_up(weights) && !is_small_book(weights));
}

// Tiles of codes that were unpacked to bytes. Codes of more than four bits are never joined.
template <Grouping grouping>
RunQuantizedTile tile_of_bytes(const TileKind& kind, int64_t rows) {
  using Scales = DirectScales<float>;
  if (kind.bits == 8 || (kind.has_book && !kind.is_small_book))
    return tile_of_rows<ByteCodes<Range::byte>, grouping, Scales>(rows);
  if (kind.is_small_book) return tile_of_rows<ByteCodes<Range::below_64>, grouping, Scales>(rows);
  if constexpr (grouping != Grouping::joined)
    if (kind.bits > 4) return tile_of_rows<ByteCodes<Range::below_64>, grouping, Scales>(rows);
  return tile_of_rows<ByteCodes<Range::below_16>, grouping, Scales>(rows);
}

// Tiles that unpack codes themselves.
template <Grouping grouping>
RunQuantizedTile tile_of_packed(const TileKind& kind, int64_t rows) {
#if defined(QUIRE_VECTORS)
  using Scales = DirectScales<float>;
  using SmallBook = AskingCodes<BookCodes<Range::below_64>>;
  if (kind.is_small_book) return tile_of_rows<SmallBook, grouping, Scales>(rows);
  if (kind.has_book)
    return tile_of_rows<AskingCodes<BookCodes<Range::byte>>, grouping, Scales>(rows);
  if (kind.bits == 2) return tile_of_rows<AskingCodes<PackedCodes<2>>, grouping, Scales>(rows);
  if (kind.bits == 3) return tile_of_rows<AskingCodes<PackedCodes<3>>, grouping, Scales>(rows);
  if constexpr (grouping != Grouping::joined) {
    using Whole = AskingCodes<ByteCodes<Range::byte>>;
    if (kind.bits == 5) return tile_of_rows<AskingCodes<PackedCodes<5>>, grouping, Scales>(rows);
    if (kind.bits == 6) return tile_of_rows<AskingCodes<PackedCodes<6>>, grouping, Scales>(rows);
    if (kind.bits == 8) return tile_of_rows<Whole, grouping, Scales>(rows);
  }
  return tile_of_rows<AskingCodes<PackedCodes<4>>, grouping, Scales>(rows);
#else
  return tile_of_bytes<grouping>(kind, rows);
#endif
}

// So few tiles that each makes floats of E4M3 scales for itself.
constexpr int64_t max_e4m3_tiles = 1;

// Where tiles that unpack codes find scales. They take them as they lie, or half bytes as bytes,
// of the types of GGUF and of what is like them, and of floats of 4 bits.
ScalePlace scale_place(const QuantizedWeights& weights, int64_t tiles) {
  const int32_t bits = weights.bits;
  const bool halves = weights.group_size < record_inputs;
  if (takes_half_bytes(weights)) return ScalePlace::floats;
  if (!has_packed_tiles || weights.in_features % record_inputs != 0) return ScalePlace::unpacked;
  if (weights.zeros != ZeroForm::common || weights.group_size > record_inputs)
    return ScalePlace::unpacked;
  const bool two_levels =
      halves ? weights.scale_form == ScaleForm::nibbles
                   ? bits == 2
                   : weights.scale_form == ScaleForm::bytes && (bits == 3 || bits == 6)
             : weights.scale_form == ScaleForm::bytes && (bits == 4 || bits == 5);
  if (two_levels) return ScalePlace::two_levels;
  if (is_small_book(weights) && halves && tiles <= max_e4m3_tiles)
    if (weights.scale_form == ScaleForm::e4m3) return ScalePlace::e4m3;
  if (is_small_book(weights) && !halves)
    if (weights.scale_form == ScaleForm::e8m0) return ScalePlace::powers;
  const bool half_floats =
      weights.scale_form == ScaleForm::direct && weights.scale_dtype == DType::float16;
  return half_floats && !halves && !weights.has_book && (bits == 4 || bits == 5 || bits == 8)
             ? ScalePlace::halves
             : ScalePlace::unpacked;
}

RunQuantizedTile tile_of_scales_in_place(const TileKind& kind, int64_t rows) {
#if defined(QUIRE_VECTORS)
  constexpr Grouping halves = Grouping::halves, records = Grouping::records;
  using Halves = DirectScales<F16>;
  using Levels = ScalesOfTwoLevels;
  using SmallBook = AskingCodes<BookCodes<Range::below_64>>;
  if (kind.scales == ScalePlace::e4m3) return tile_of_rows<SmallBook, halves, E4m3Scales>(rows);
  if (kind.scales == ScalePlace::powers) return tile_of_rows<SmallBook, records, PowerScales>(rows);
  if (kind.scales == ScalePlace::halves) {
    if (kind.bits == 4) return tile_of_rows<AskingCodes<PackedCodes<4>>, records, Halves>(rows);
    if (kind.bits == 5) return tile_of_rows<AskingCodes<PackedCodes<5>>, records, Halves>(rows);
    return tile_of_rows<AskingCodes<ByteCodes<Range::byte>>, records, Halves>(rows);
  }
  if (kind.has_book)
    return tile_of_rows<AskingCodes<BookCodes<Range::byte>>, records, Levels>(rows);
  if (kind.bits == 2) return tile_of_rows<AskingCodes<PackedCodes<2>>, halves, Levels>(rows);
  if (kind.bits == 3) return tile_of_rows<AskingCodes<PackedCodes<3>>, halves, Levels>(rows);
  if (kind.bits == 4) return tile_of_rows<AskingCodes<PackedCodes<4>>, records, Levels>(rows);
  if (kind.bits == 5) return tile_of_rows<AskingCodes<PackedCodes<5>>, records, Levels>(rows);
  return tile_of_rows<AskingCodes<PackedCodes<6>>, halves, Levels>(rows);
#else
  return tile_of_bytes<Grouping::records>(kind, rows);
#endif
}

RunQuantizedTile tile_of_vectors(const TileKind& kind, int64_t rows) {
  RunQuantizedTile run = nullptr;
  if constexpr (has_vector_tiles)
    with_form(kind.vectors, [&](auto constant) {
      constexpr VectorForm form = decltype(constant)::form;
      constexpr bool halves = vector_layout(form).group_size < record_inputs;
      constexpr Grouping grouping = halves ? Grouping::halves : Grouping::records;
      run = tile_of_rows<VectorCodes<form>, grouping, DirectScales<float>>(rows);
    });
  return run;
}

RunQuantizedTile tile_of_lattice(const TileKind& kind, int64_t rows) {
#if defined(__AVX512VBMI__)
  using Halves = AskingCodes<LatticeHalves>;
  if (!kind.packed) return tile_of_rows<Halves, Grouping::records, DirectScales<float>>(rows);
  if (rows <= lattice_tile_rows) return lattice_tile_of(rows);
#endif
  return tile_of_vectors(kind, rows);
}

template <Grouping grouping>
RunQuantizedTile tile_of_kind(const TileKind& kind, int64_t rows) {
  return kind.packed ? tile_of_packed<grouping>(kind, rows) : tile_of_bytes<grouping>(kind, rows);
}

RunQuantizedTile quantized_tile_of(Grouping grouping, const TileKind& kind, int64_t rows) {
  if (kind.half_bytes) return tile_of_lattice(kind, rows);
  if (kind.packed && kind.vectors != VectorForm::none) return tile_of_vectors(kind, rows);
#if defined(QUIRE_VECTORS)
  if (kind.has_tables && kind.packed) return row_tables_tile_of(kind.bits, rows);
#endif
  if (kind.scales != ScalePlace::unpacked) return tile_of_scales_in_place(kind, rows);
  switch (grouping) {
    case Grouping::halves:
      return tile_of_kind<Grouping::halves>(kind, rows);
    case Grouping::joined:
      return tile_of_kind<Grouping::joined>(kind, rows);
    default:
      return tile_of_kind<Grouping::records>(kind, rows);
  }
}

static_assert(block_groups<QuantizedFormat> <= max_tile_groups, "a tile takes a block");

// Multiplies a block of one panel at a time, in integers.
class IntegerBlocks {
 public:
  using Format = QuantizedFormat;
  static constexpr bool takes_row_scales = false;
  static constexpr bool takes_group_factors = false;

  IntegerBlocks(const QuantizedWeights& weights, const Activations<Format>& activations)
      : weights_(weights),
        activations_(activations),
        unpacked_(weights),
        map_(weights),
        packed_(takes_packed_codes(weights, activations.tiles())),
        half_bytes_(takes_half_bytes(weights)),
        scales_(packed_ || half_bytes_ ? scale_place(weights, activations.tiles().count)
                                       : ScalePlace::unpacked),
        steps_(steps_of(weights)) {
    const int32_t zero = book_zero(weights);
    for (int i = 0; i < 16; ++i) book_[i] = static_cast<uint8_t>(weights.book_codes[i] + zero);
    const Tiles& tiles = activations.tiles();
    least_rows_ = tiles.num_rows / tiles.count;
    for (int more = 0; more < 2; ++more)
      run_[more] =
          quantized_tile_of(grouping_of(weights),
                            {weights.bits, looks_up(weights), is_small_book(weights), scales_,
                             packed_, weights.vectors, weights.has_tables(), half_bytes_},
                            least_rows_ + more);
  }

  static Format format(const QuantizedWeights& weights) {
    int32_t zero = looks_up(weights) ? book_zero(weights) : weights.zero;
    if (takes_half_bytes(weights)) zero = lattice_zero;
    return {weights, zero - (uses_bytes(weights) ? byte_zero : 0)};
  }

  // Add block `index` of a panel to sums [row][32 outputs]; `next` is the panel of the next call.
  void multiply(const BlockPlace& place, float* sums) {
    const RecordSpan span = span_of(place, activations_);
    QuantizedTile tile{};
    if (weights_.has_tables()) tables_.read(weights_, span.panel);
    tile.codes = packed_ ? packed_codes(span) : unpacked_codes(span);
    tile.book = weights_.has_tables() ? tables_.bytes : book_;
    tile.vectors = weights_.vector_table;
    tile.zero = weights_.zero;
    tile.groups = span.records;
    tile.joined = activations_.format().groups_together;
    tile.scaled_halves = activations_.format().scales_halves();
    tile.first = place.index == 0;
    tile.steps = steps_;
    tile.records_left = steps_.unit_records - map_.number(span.first);
    take_scales(span, tile);
    const int64_t distance = single_tile_distance(scales_ == ScalePlace::unpacked);
    run_tiles(tile, activations_, place, map_, distance, sums,
              [&](int64_t rows) { return run_[rows - least_rows_]; });
  }

 private:
  // From record to record of what the tiles are given.
  RecordSteps steps_of(const QuantizedWeights& weights) const {
    const int64_t halves = weights.group_size < record_inputs ? 2 : 1;
    RecordSteps steps{};
    steps.unit_records = map_.unit_records;
    const bool in_place = packed_ || weights.holds_bytes();  // bytes are never unpacked
    steps.codes = in_place ? map_.record_bytes : half_bytes_ ? record_codes / 2 : record_codes;
    steps.lines = halves * panel_width * static_cast<int64_t>(sizeof(float));
    if (in_place) steps.unit_codes = map_.codes_begin;
    if (scales_ == ScalePlace::unpacked) return steps;
    // Of two levels a line for each group, else one unit is one group.
    steps.lines = scales_ == ScalePlace::two_levels ? halves * panel_width : 0;
    if (weights.scale_form != ScaleForm::nibbles)
      steps.unit_lines = map_.unit_bytes - map_.unit_records * steps.lines;
    return steps;
  }

  void take_scales(const RecordSpan& span, QuantizedTile& tile) {
    if (weights_.has_tables()) {
      tables_.write_scales(span.records, unpacked_.scales);
      tile.lines = reinterpret_cast<const char*>(unpacked_.scales);
      return;
    }
    if (scales_ == ScalePlace::unpacked) {
      unpacked_.read_all_scales(weights_, map_, span, tile);
      return;
    }
    if (scales_ == ScalePlace::two_levels) unpacked_.read_super_scales(weights_, map_, span, tile);
    if (weights_.scale_form == ScaleForm::nibbles) {
      unpacked_.read_half_bytes(map_, span, tile);
      return;
    }
    tile.lines = span.panel + map_.unit_begin(span.first);
    tile.offsets_begin = map_.offsets_begin;
    tile.scale_step = weights_.book_step;
  }

  const uint8_t* packed_codes(const RecordSpan& span) const {
    return reinterpret_cast<const uint8_t*>(span.panel + map_.codes_of(span.first));
  }

  const uint8_t* unpacked_codes(const RecordSpan& span) {
    if (weights_.holds_bytes()) return packed_codes(span);
    uint8_t* const codes = unpacked_.codes;
    if (weights_.has_tables()) {
      look_up_rows(weights_, tables_, span, codes);
      return codes;
    }
    if (half_bytes_) {
      unpack_half_bytes(weights_, map_, span, codes);
      return codes;
    }
    read_codes(weights_, map_, span, codes);
    if (weights_.has_book)
      for (int64_t i = 0; i < span.records; ++i) look_up_codes(book_, codes + i * record_codes);
    return codes;
  }

  const QuantizedWeights& weights_;
  const Activations<Format>& activations_;
  UnpackedBlock unpacked_;
  RowTables tables_;
  const PanelMap map_;
  const bool packed_, half_bytes_;
  const ScalePlace scales_;
  const RecordSteps steps_;
  int64_t least_rows_;
  RunQuantizedTile run_[2];  // tiles of that many rows, and of one more
  uint8_t book_[16];
};

}  // namespace
}  // namespace quire::QUIRE_ISA
