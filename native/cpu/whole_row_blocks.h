// Bytes of weights with a scale for each output times rows of bytes with one factor each: integer
// sums over all inputs, which RoundedRows::finish turns into floats.
#pragma once

#include "cpu/matrix_activations.h"
#include "cpu/quantized_rows.h"

namespace quire::QUIRE_ISA {

// Integer sums in a tile's place for floats.
inline I32 load_integers(const float* p) {
  I32 x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}
inline void store_integers(float* p, I32 x) { std::memcpy(p, &x, sizeof(x)); }

template <class Codes, int rows>
void run_whole_row_tile(const QuantizedTile& tile) {
  constexpr int vectors = dot_vectors<rows>, width = vectors * F32::lanes;
  constexpr int panel = QuantizedWeights::panel_width;
  alignas(64)
      int8_t wide[widens<Codes::range> ? max_tile_groups * rows * sizeof(ActivationGroup) : 1];
  int32_t starts[rows] = {};
  for (int64_t i = 0; i < tile.groups * rows; i += rows)
    for (int m = 0; m < rows; ++m) {
      starts[m] += tile.activations[i + m].start[0];
      if constexpr (widens<Codes::range>)
        widen(tile.activations[i + m].codes,
              wide + (i + m) * static_cast<int64_t>(sizeof(ActivationGroup)));
    }
  for (int part = 0; part < panel; part += width) {
    I32 dots[rows][vectors];
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        int32_t begin[F32::lanes];
        if (!tile.first)
          std::memcpy(begin, tile.out + m * panel + part + v * F32::lanes, sizeof(begin));
        for (int32_t& each : begin) each = (tile.first ? 0 : each) + starts[m];
        std::memcpy(&dots[m][v], begin, sizeof(begin));
      }
    const int8_t* inputs = widens<Codes::range> ? wide : tile.activations->codes;
    const uint8_t* codes = tile.codes;
    CodeReader<Codes> reader(tile, part == 0);
    for (int64_t i = 0; i < tile.groups; ++i) {
      reader.begin_group(tile, codes);
      dot_words<Codes, rows, vectors, 8>(reader.codes, codes, 0, part / F32::lanes, inputs,
                                         sizeof(ActivationGroup), dots);
      reader.end_group(tile);
      inputs += rows * sizeof(ActivationGroup);
      codes += record_codes;
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v)
        store_integers(tile.out + m * panel + part + v * F32::lanes, dots[m][v]);
  }
}

template <int rows = 1>
RunQuantizedTile whole_row_tile_of(int64_t wanted) {
  if constexpr (rows < QuantizedFormat::tile_rows)
    if (wanted != rows) return whole_row_tile_of<rows + 1>(wanted);
#if defined(QUIRE_VECTORS)
  return run_whole_row_tile<AskingCodes<ByteCodes<Range::full_byte>>, rows>;
#else
  return run_whole_row_tile<ByteCodes<Range::full_byte>, rows>;
#endif
}

// Multiplies a block of one panel at a time. See linear_quantized.cpp.
class WholeRowBlocks {
 public:
  using Format = QuantizedFormat;
  static constexpr bool takes_row_scales = true;  // there are none
  static constexpr bool takes_group_factors = false;

  WholeRowBlocks(const QuantizedWeights& weights, const Activations<Format>& activations)
      : activations_(activations), map_(weights) {
    const Tiles& tiles = activations.tiles();
    least_rows_ = tiles.num_rows / tiles.count;
    for (int more = 0; more < 2; ++more) run_[more] = whole_row_tile_of(least_rows_ + more);
  }

  static Format format(const QuantizedWeights& weights) {
    return {weights, weights.zero - byte_zero};
  }

  void multiply(const BlockPlace& place, float* sums) {
    const RecordSpan span = span_of(place, activations_);
    QuantizedTile tile{};
    tile.codes = reinterpret_cast<const uint8_t*>(span.panel + map_.codes_of(span.first));
    tile.groups = span.records;
    tile.first = place.index == 0;
    run_tiles(tile, activations_, place, map_, single_tile_distance(false), sums,
              [&](int64_t rows) { return run_[rows - least_rows_]; });
  }

 private:
  const Activations<Format>& activations_;
  const PanelMap map_;
  int64_t least_rows_;
  RunQuantizedTile run_[2];  // tiles of that many rows, and of one more
};

#if defined(QUIRE_MATRIX_TILES)

// The same sums by tiles, of signed codes.
template <int strips>
void run_whole_row_matrix_tile(const QuantizedTile& tile, int64_t rows) {
  constexpr int64_t panel = QuantizedWeights::panel_width, line = panel * 4;
  alignas(64) int32_t dots[strips * tile_rows][panel];
  const MatrixActivations activations(tile.activations, rows, tile.groups);
  zero_tile<0>(), zero_tile<1>();
  if constexpr (strips == 2) zero_tile<2>(), zero_tile<3>();
  for (int64_t i = 0; i < tile.groups; ++i) {
    const uint8_t* codes = tile.codes + i * record_codes;
    load_tile<4>(activations.codes_of(i, 0), activations.inputs);
    load_tile<6>(codes, line);
    multiply_bytes<0, 4, 6>();
    load_tile<7>(codes + tile_row_bytes, line);
    multiply_bytes<1, 4, 7>();
    if constexpr (strips == 2) {
      load_tile<5>(activations.codes_of(i, tile_rows), activations.inputs);
      multiply_bytes<2, 5, 6>();
      multiply_bytes<3, 5, 7>();
    }
  }
  store_tile<0>(dots[0], line);
  store_tile<1>(dots[0] + F32::lanes, line);
  if constexpr (strips == 2) {
    store_tile<2>(dots[tile_rows], line);
    store_tile<3>(dots[tile_rows] + F32::lanes, line);
  }
  for (int64_t m = 0; m < rows; ++m) {
    int32_t sums[panel] = {};
    if (!tile.first) std::memcpy(sums, tile.out + m * panel, sizeof(sums));
    for (int64_t i = 0; i < panel; ++i) sums[i] += dots[m][i];
    std::memcpy(tile.out + m * panel, sums, sizeof(sums));
  }
}

class WholeRowMatrixBlocks {
 public:
  static constexpr bool takes_row_scales = true;  // there are none
  static constexpr bool takes_group_factors = false;
  using Format = QuantizedMatrixFormat;

  WholeRowMatrixBlocks(const QuantizedWeights& weights, const Activations<Format>& activations)
      : added_(static_cast<uint8_t>(-weights.zero)),
        activations_(activations),
        map_(weights),
        strips_(activations.tiles()),
        state_(32, strips_.rows),
        unpacked_(weights) {}

  static Format format(const QuantizedWeights& weights) { return {weights, 0}; }

  void multiply(const BlockPlace& place, float* sums) {
    const RecordSpan span = span_of(place, activations_);
    add_to_codes(reinterpret_cast<const uint8_t*>(span.panel + map_.codes_of(span.first)),
                 span.records * record_codes, added_, unpacked_.codes);
    QuantizedTile tile{};
    tile.codes = unpacked_.codes;
    tile.groups = span.records;
    tile.first = place.index == 0;
    run_tiles(tile, activations_, place, map_, single_tile_distance(false), sums,
              [&](int64_t rows) {
                return [this, rows](const QuantizedTile& each) {
                  strips_.count == 2 ? run_whole_row_matrix_tile<2>(each, rows)
                                     : run_whole_row_matrix_tile<1>(each, rows);
                };
              });
  }

 private:
  const uint8_t added_;  // to codes, which makes signed bytes of them
  const Activations<Format>& activations_;
  const PanelMap map_;
  const Strips strips_;
  const TileConfiguration state_;
  UnpackedBlock unpacked_;
};

#endif

}  // namespace quire::QUIRE_ISA
