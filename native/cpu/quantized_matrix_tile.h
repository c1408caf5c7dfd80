// Quantized linears by matrix tiles: the sums of quantized_tile.h, bit for bit.
//
// The dot products of up to 16 rows with a panel over one group come from two tiles, and those of a
// few groups are a burst. There are registers and memory for two bursts: tiles multiply one while
// vectors turn the other's products into floats and add them up.
//
//   tiles    | burst 0 | burst 1 | burst 2 | burst 3 |
//   vectors            | burst 0 | burst 1 | burst 2 | burst 3 |
//
// More than 16 rows are two strips, whose bursts take turns. Codes are signed bytes, zero
// subtracted (cpu/matrix_blocks.h).
#pragma once

#include "cpu/matrix_activations.h"
#include "cpu/quantized_tile.h"

namespace quire::QUIRE_ISA {

#if defined(QUIRE_MATRIX_TILES)

// Parts of a burst at most, and rows that vectors take together. A part is a group of
// quantized_tile.h, or half a record.
constexpr int burst_parts = 4, burst_rows = 4;

// Where the sums of a burst begin: 1.5 * 2^23 as a float. While a burst adds less than 2^22 to the
// bits of that, they are a float whose value is the sum; a part's product is then the difference
// from the part before. In a core whose tiles are in use one port alone multiplies and converts
// registers of 512 bits; two still add.
constexpr float sums_begin = 12582912.0f;

// A burst is a block, or four records. Of weights that are joined no code is -128.
constexpr int64_t block_inputs =
    block_groups<QuantizedMatrixFormat> * QuantizedWeights::record_inputs;
static_assert(block_inputs * 128 * 127 < 1 << 22 && block_inputs / 2 * 128 * 128 < 1 << 22,
              "sums are floats");

template <Grouping grouping, bool has_offsets, int strips>
class MatrixTileRun {
 public:
  MatrixTileRun(const QuantizedTile& tile, int64_t rows)
      : tile_(tile),
        activations_(tile.activations, rows, tile.groups),
        joined_(grouping == Grouping::joined ? tile.joined : 1),
        parts_(ceil_div(tile.groups, joined_) * halves),
        ahead_(tile.ahead),
        ahead_step_(tile.ahead
                        ? ceil_div(joined_ * tile.ahead_bytes, 64 * asks * strips * halves) * 64
                        : 0) {
    for (auto& row : begin_) store(row, set1(sums_begin));
  }

  void run() {
    const int64_t bursts = ceil_div(parts_, burst_parts) * strips;
    Burst last{};
    for (int64_t index = 0; index <= bursts; ++index) {
      const Burst now = burst_at(index);
      index % 2 == 0 ? step<0>(now, last) : step<1>(now, last);
      last = now;
    }
  }

 private:
  static constexpr int halves = grouping == Grouping::halves ? 2 : 1;
  static constexpr int vectors = 2;  // a panel
  static constexpr int asks = 4;     // a part
  static constexpr int64_t panel = QuantizedWeights::panel_width, code_line = panel * 4;

  struct Burst {
    int64_t parts;             // 0 past the last burst
    int64_t group, first_row;  // the first of each
    int64_t rows;
    const float* scales;  // of the first part
    float* out;           // of the first row
    bool first;           // whether `out` is written, else added to
  };

  using PartSums = float[vectors][tile_rows][F32::lanes];

  Burst burst_at(int64_t index) const {
    const int64_t part = index / strips * burst_parts;
    Burst found{};
    found.parts = larger<int64_t>(0, smaller<int64_t>(burst_parts, parts_ - part));
    found.group = part / halves * joined_;
    found.first_row = index % strips * tile_rows;
    found.rows = smaller<int64_t>(tile_rows, activations_.rows - found.first_row);
    found.scales = reinterpret_cast<const float*>(tile_.lines) + part * joined_ * panel;
    found.out = tile_.out + found.first_row * panel;
    found.first = tile_.first && part == 0;
    return found;
  }

  // Multiply a burst by tiles and add up the one before it by vectors, in turns.
  template <int side>
  void step(const Burst& now, const Burst& last) {
    constexpr int turns = tile_rows / burst_rows;
    static_assert(turns == burst_parts, "in each turn of a whole burst tiles multiply a part");
    const bool whole = now.parts == burst_parts && last.parts == burst_parts;
    if (whole && last.rows == tile_rows) {
#pragma GCC unroll 4
      for (int turn = 0; turn < turns; ++turn) {
        multiply<side>(now, turn);
        if (turn == 0) store_last<1 - side>(last);
        add_rows<burst_rows, burst_parts>(last, sums_[1 - side], turn * burst_rows);
      }
      return;
    }
    for (int turn = 0; turn < turns; ++turn) {
      if (turn < now.parts) multiply<side>(now, turn);
      if (last.parts == 0) continue;
      if (turn == 0) store_last<1 - side>(last);
      add_some_rows(last, sums_[1 - side], turn * burst_rows);
    }
  }

  template <int side>
  void store_last(const Burst& burst) {
    store_sums<side, 0>(burst.parts - 1);
    store_sums<side, 1>(burst.parts - 1);
  }

  template <int side, int vector>
  void store_sums(int64_t part) {
    store_tile<2 * side + vector>(sums_[side][part][vector], tile_row_bytes);
  }

  // Begin the sums of a burst, or store what they are after the part before. A store waits for the
  // product before it, and tiles take their instructions in order: right after its own product it
  // would hold up the next one.
  template <int side, int vector>
  void begin_part(int64_t part) {
    if (part == 0)
      load_tile<2 * side + vector>(begin_, tile_row_bytes);
    else
      store_sums<side, vector>(part - 1);
  }

  // Multiply a part of a burst by a panel.
  template <int side>
  void multiply(const Burst& burst, int64_t part) {
    constexpr int sums = 2 * side, left = 4 + side, right = 6;
    const int64_t half = part % halves, begin = burst.group + part / halves * joined_;
    const int8_t* a = activations_.codes_of(begin, burst.first_row) + 16 * half;
    const uint8_t* codes = tile_.codes + begin * record_codes + half * 4 * code_line;
    Requests requests(*this);
    load_tile<left>(a, activations_.inputs);
    requests.ask();
    load_tile<right>(codes, code_line);
    requests.ask();
    begin_part<side, 0>(part);
    multiply_bytes<sums, left, right>();
    requests.ask();
    load_tile<right + 1>(codes + tile_row_bytes, code_line);
    requests.ask();
    begin_part<side, 1>(part);
    multiply_bytes<sums + 1, left, right + 1>();
    if constexpr (grouping != Grouping::joined) return;
    const int64_t groups = smaller(joined_, tile_.groups - begin);
    for (int64_t group = 1; group < groups; ++group) {
      a += activations_.rows * activations_.inputs, codes += record_codes;
      load_tile<left>(a, activations_.inputs);
      load_tile<right>(codes, code_line);
      multiply_bytes<sums, left, right>();
      load_tile<right + 1>(codes + tile_row_bytes, code_line);
      multiply_bytes<sums + 1, left, right + 1>();
    }
  }

  // Requests to memory for a share of what a later tile wants, a few lines at a time: of many at
  // once a processor drops some, and those that it takes keep a tile's loads waiting.
  struct Requests {
    const char* at;
    int64_t step;
    explicit Requests(MatrixTileRun& run) : at(run.ahead_), step(run.ahead_step_) {
      run.ahead_ += asks * step;
    }
    void ask() {
      for (int64_t i = 0; i < step; i += 64) __builtin_prefetch(at + i, 0, 2);
      at += step;
    }
  };

  // Up to burst_rows rows from `row` on. Out of line: instances for few rows would surround the
  // loop over whole bursts.
  [[gnu::noinline]] void add_some_rows(const Burst& burst, const PartSums* sums,
                                       int64_t row) const {
    const int64_t rows = burst.rows - row;
    if (rows >= burst_rows && burst.parts == burst_parts)
      return add_rows<burst_rows, burst_parts>(burst, sums, row);
    if (rows >= burst_rows) return add_rows<burst_rows>(burst, sums, row);
    if (rows == 3) return add_rows<3>(burst, sums, row);
    if (rows == 2) return add_rows<2>(burst, sums, row);
    if (rows == 1) add_rows<1>(burst, sums, row);
  }

  template <int rows>
  struct Results {
    F32 sums[rows][vectors], before[rows][vectors];
    F32 products[rows][vectors];  // of half a record, until those of the other are added
  };

  // Add the parts of a burst to the results of some rows; `known` says how many, or is 0.
  template <int rows, int known = 0>
  [[gnu::always_inline]] void add_rows(const Burst& burst, const PartSums* sums,
                                       int64_t row) const {
    float* const out = burst.out + row * panel;
    int64_t own = activations_.place_of(burst.group, 0, burst.first_row + row);
    const float* scales = burst.scales;
    Results<rows> results;
#pragma GCC unroll 4
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        results.sums[m][v] = burst.first ? zero() : load(out + m * panel + v * F32::lanes);
        results.before[m][v] = set1(sums_begin);
      }
    const int64_t parts = known ? known : burst.parts;
#pragma GCC unroll 4
    for (int64_t i = 0; i < parts; i += halves) {
      add_part<0>(own, scales, sums[i][0][row], results);
      scales += joined_ * panel;
      if constexpr (halves == 2) {
        add_part<1>(own + activations_.rows, scales, sums[i + 1][0][row], results);
        scales += panel;
      }
      own += 2 * joined_ * activations_.rows;
    }
#pragma GCC unroll 4
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) store(out + m * panel + v * F32::lanes, results.sums[m][v]);
  }

  // `own` is the place of the rows' scales, `part_sums` are what tiles had after the part.
  template <int half, int rows>
  [[gnu::always_inline]] void add_part(int64_t own, const float* scales, const float* part_sums,
                                       Results<rows>& results) const {
    const F32 scale[vectors] = {load(scales), load(scales + F32::lanes)};
#pragma GCC unroll 4
    for (int m = 0; m < rows; ++m) {
      const F32 row_scale = set1(activations_.scales[own + m]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        const F32 sum = load(part_sums + (v * tile_rows + m) * F32::lanes);
        const F32 dot = sum - results.before[m][v];
        results.before[m][v] = sum;
        F32& result = results.sums[m][v];
        if (halves == 1 || tile_.scaled_halves)
          result = fma(dot, scale[v] * row_scale, result);
        else if (half == 0)
          results.products[m][v] = dot * scale[v];
        else
          result = fma(fma(dot, scale[v], results.products[m][v]), row_scale, result);
      }
    }
    if constexpr (!has_offsets) return;
    scales += tile_.offsets_begin / static_cast<int64_t>(sizeof(float));
    const F32 offset[vectors] = {load(scales), load(scales + F32::lanes)};
#pragma GCC unroll 4
    for (int m = 0; m < rows; ++m) {
      const F32 sum = set1(activations_.sums[own + m]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v)
        results.sums[m][v] = fma(offset[v], sum, results.sums[m][v]);
    }
  }

  const QuantizedTile& tile_;
  const MatrixActivations activations_;
  const int64_t joined_, parts_;
  const char* ahead_;
  const int64_t ahead_step_;
  alignas(64) float begin_[tile_rows][F32::lanes];
  alignas(64) PartSums sums_[2][burst_parts];
};

template <Grouping grouping, int strips>
void run_quantized_matrix_tile(const QuantizedTile& tile, int64_t rows) {
  if (tile.offsets_begin) return MatrixTileRun<grouping, true, strips>(tile, rows).run();
  MatrixTileRun<grouping, false, strips>(tile, rows).run();
}

#endif

}  // namespace quire::QUIRE_ISA
