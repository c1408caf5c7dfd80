// What linears of all weights share: rows cut into tiles, activations packed, sums written out.
#pragma once

#include "cpu/linear_tile.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {

// Groups of a block: its weights, one panel wide, stay in L1 (8 to 32 KiB), and a float sum of one
// block's inputs is short enough to lose little: 128 inputs of floats.
template <class Format>
constexpr int64_t block_groups = Format::word_inputs == 1 ? 8 : 16;

// The rows of a call, cut into tiles of nearly equal height.
struct Tiles {
  int64_t num_rows, count;

  Tiles(int64_t rows, int64_t tile_rows) : num_rows(rows), count(ceil_div(rows, tile_rows)) {}
  int64_t start(int64_t tile) const {
    if (tile == 0) return 0;  // few rows are one tile, which a division would hold up
    return tile == count ? num_rows : tile * num_rows / count;
  }
};

// Inputs that a format takes at once, at most.
constexpr int64_t max_filled_inputs = 128;

template <class Format>
constexpr int64_t group_inputs = group_words * Format::word_inputs;

// What a tile may read past the last row, whatever it does with it: zeros.
constexpr int64_t spare_lines = 16;

// The columns of activations.
struct InputColumns {
  int64_t in_features, padded;     // the latter a whole number of groups
  const int32_t* order = nullptr;  // (in_features,) which input each is, or null for all in turn
};

// Put a tile's lines of a block, [group][row], in the order that its kernel wants. A format whose
// kernel wants another one has a function of its own.
template <class Format>
inline void arrange_lines(const Format&, typename Format::Word*, int64_t, int64_t) {}

// Activations packed for the tiles: [block][tile][group][row][16 words], a group as Format fills
// it; in each block and tile in the order of arrange_lines().
template <class Format>
class Activations {
 public:
  using Word = typename Format::Word;

  // x (num_rows / format.parts, in_features), one row at least.
  Activations(const InputColumns& columns, const float* x, int64_t num_rows,
              const Format& format = {})
      : format_(format),
        tiles_(num_rows, Format::tile_rows),
        columns_(columns),
        num_groups_(columns.padded / group_inputs<Format>) {
    const int64_t lines = num_rows * num_groups_;
    words_ = static_cast<Word*>(
        scratch(Slot::activations,
                static_cast<size_t>((lines + spare_lines) * group_words) * sizeof(Word)));
    std::memset(words_ + lines * group_words, 0, spare_lines * group_words * sizeof(Word));
    const int64_t pieces = tiles_.count * num_blocks();
    const int64_t pieces_per_chunk = ceil_div(pieces * Format::lines_worth_a_thread, lines);
    parallel_for(ceil_div(pieces, pieces_per_chunk), [&](int64_t chunk) {
      const int64_t end = smaller((chunk + 1) * pieces_per_chunk, pieces);
      for (int64_t piece = chunk * pieces_per_chunk; piece < end; ++piece)
        pack(x, piece / num_blocks(), piece % num_blocks());
    });
  }

  const Format& format() const { return format_; }
  const Tiles& tiles() const { return tiles_; }
  int64_t num_blocks() const { return ceil_div(num_groups_, block_groups<Format>); }
  int64_t groups_of(int64_t block) const {
    return smaller(block_groups<Format>, num_groups_ - block * block_groups<Format>);
  }
  const Word* at(int64_t block, int64_t tile) const { return words_ + offset(block, tile); }

 private:
  int64_t offset(int64_t block, int64_t tile) const {
    return (block * block_groups<Format> * tiles_.num_rows +
            tiles_.start(tile) * groups_of(block)) *
           group_words;
  }

  void pack(const float* x, int64_t tile, int64_t block) {
    const int64_t begin = tiles_.start(tile), rows = tiles_.start(tile + 1) - begin;
    const int64_t stride = rows * group_words, together = format_.groups_together;
    Word* const first = words_ + offset(block, tile);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t source = (begin + row) / format_.parts, part = (begin + row) % format_.parts;
      const float* values = x + source * columns_.in_features;
      for (int64_t group = 0; group < groups_of(block); group += together) {
        const int64_t input = (block * block_groups<Format> + group) * group_inputs<Format>;
        const Lines<Word> lines{first + row * group_words + group * stride, stride,
                                smaller(together, groups_of(block) - group)};
        const int64_t left = columns_.in_features - input;
        columns_.order ? fill_ordered(values, input, left, lines, part)
                       : format_.fill(values + input, left, lines, part);
      }
    }
    arrange_lines(format_, first, rows, groups_of(block));
  }

  // Lines of the `left` columns from `first` on, fewer than a format takes at most.
  void fill_ordered(const float* values, int64_t first, int64_t left, const Lines<Word>& lines,
                    int64_t part) const {
    alignas(64) float ordered[max_filled_inputs];
    const int64_t count = smaller(left, lines.count * group_inputs<Format>);
    for (int64_t i = 0; i < count; ++i) ordered[i] = values[columns_.order[first + i]];
    format_.fill(ordered, count, lines, part);
  }

  Format format_;
  Tiles tiles_;
  InputColumns columns_;
  int64_t num_groups_;
  Word* words_;
};

template <class Format>
using RunTile = void (*)(const Tile<Format>&);

// The instance for a tile of 1 .. max_tile_rows rows.
template <class Format, int rows = 1>
RunTile<Format> tile_of(int64_t wanted) {
  if constexpr (rows < max_tile_rows)
    if (wanted != rows) return tile_of<Format, rows + 1>(wanted);
  return run_tile<Format, rows>;
}

// How the processor is set up while tiles of a format run.
template <class Format>
struct TileState {};

// Finished sums of some panels: [panel][row][32 outputs].
struct PanelSums {
  const float* sums;
  int64_t begin, end;  // panels
  int64_t num_rows;
  int64_t out_features;
  const float* bias;  // or null
};

// Add the bias and write rows of out_features, `out_stride` apart; all panels of a row together,
// for each row is in other pages.
inline void write_panels(const PanelSums& all, float* out, int64_t out_stride) {
  constexpr int64_t panel_width = LinearWeights::panel_width;
  for (int64_t row = 0; row < all.num_rows; ++row) {
    for (int64_t panel = all.begin; panel < all.end; ++panel) {
      const int64_t output = panel * panel_width, width = all.out_features - output;
      const float* sums = all.sums + ((panel - all.begin) * all.num_rows + row) * panel_width;
      for (int64_t i = 0; i < smaller(panel_width, width); i += F32::lanes) {
        F32 y = load(sums + i);
        if (all.bias) y = y + load_tail(all.bias + output + i, width - i);
        store_tail(out + row * out_stride + output + i, y, width - i);
      }
    }
  }
}

}  // namespace quire::QUIRE_ISA
