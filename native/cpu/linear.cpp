// y = x W^T + bias for one row to thousands, weights packed once. See linear_tile.h for the order
// of the sums and include/linear.h for the layout.
#include "cpu/linear_tile.h"
#include "include/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t panel_width = LinearWeights::panel_width;

// Rows multiplied together: their activations of one block stay in L2 (504 x 256 words).
constexpr int64_t max_rows_at_once = 42 * max_tile_rows;
// Groups of a block: its weights, one panel wide, stay in L1 (16 or 32 KiB).
constexpr int64_t block_groups = 16;

// The rows of a call, cut into tiles of nearly equal height.
struct Tiles {
  int64_t num_rows, count;

  explicit Tiles(int64_t rows) : num_rows(rows), count(ceil_div(rows, max_tile_rows)) {}
  int64_t start(int64_t tile) const { return tile * num_rows / count; }
};

template <class Format>
constexpr int64_t group_inputs = group_words * Format::word_inputs;

// Activations packed for the tiles: [block][tile][group][row][16 words].
template <class Format>
class Activations {
 public:
  using Word = typename Format::Word;

  Activations(const LinearWeights& weights, const float* x, int64_t num_rows)
      : tiles_(num_rows),
        in_features_(weights.in_features),
        num_groups_(weights.padded_inputs() / group_inputs<Format>) {
    words_ = static_cast<Word*>(
        scratch(Slot::activations,
                static_cast<size_t>(num_rows * num_groups_ * group_words) * sizeof(Word)));
    // A thread is worth waking for some thousand lines.
    const int64_t tiles_per_chunk = ceil_div(4096, max_tile_rows * num_groups_);
    parallel_for(ceil_div(tiles_.count, tiles_per_chunk), [&](int64_t chunk) {
      const int64_t end = smaller((chunk + 1) * tiles_per_chunk, tiles_.count);
      for (int64_t tile = chunk * tiles_per_chunk; tile < end; ++tile) pack(x, tile);
    });
  }

  const Tiles& tiles() const { return tiles_; }
  int64_t num_blocks() const { return ceil_div(num_groups_, block_groups); }
  int64_t groups_of(int64_t block) const {
    return smaller(block_groups, num_groups_ - block * block_groups);
  }
  const Word* at(int64_t block, int64_t tile) const { return words_ + offset(block, tile); }

 private:
  int64_t offset(int64_t block, int64_t tile) const {
    return (block * block_groups * tiles_.num_rows + tiles_.start(tile) * groups_of(block)) *
           group_words;
  }

  void pack(const float* x, int64_t tile) {
    const int64_t begin = tiles_.start(tile), rows = tiles_.start(tile + 1) - begin;
    for (int64_t block = 0; block < num_blocks(); ++block) {
      for (int64_t row = 0; row < rows; ++row) {
        Word* line = words_ + offset(block, tile) + row * group_words;
        for (int64_t group = 0; group < groups_of(block); ++group, line += rows * group_words) {
          const int64_t input = (block * block_groups + group) * group_inputs<Format>;
          Format::fill(x + (begin + row) * in_features_ + input, in_features_ - input, line);
        }
      }
    }
  }

  Tiles tiles_;
  int64_t in_features_, num_groups_;
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

// Ask memory for weights while others are multiplied: the next block, a share by each tile of this
// one; a single tile has no time for that and runs a fixed distance ahead of itself.
template <class Format>
void prefetch_ahead(Tile<Format>& tile, const char* block, int64_t block_bytes, const Tiles& tiles,
                    int64_t i) {
  constexpr int64_t step_bytes = step_weights<Format> * sizeof(typename Format::Weight);
  if (tiles.count == 1) {
    tile.prefetch = block + (tiles.num_rows > 8 ? 16 << 10 : 8 << 10);
    tile.prefetch_stride = step_bytes;
  } else {
    const int64_t shares = tiles.count >= 4 ? 4 : 2;
    tile.prefetch = i < shares ? block + block_bytes + i * (block_bytes / shares) : block;
    tile.prefetch_stride = i < shares ? step_bytes / shares : 0;
  }
}

// All rows times panels begin .. end - 1, written to out.
template <class Format>
void multiply_panels(const LinearWeights& weights, const Activations<Format>& activations,
                     int64_t begin, int64_t end, float* out) {
  const Tiles& tiles = activations.tiles();
  const int64_t sums_size = tiles.num_rows * panel_width;
  auto* sums = static_cast<float*>(
      scratch(Slot::partial, static_cast<size_t>((end - begin) * sums_size) * sizeof(float)));
  const int64_t group_weights = group_inputs<Format> * panel_width;
  for (int64_t block = 0; block < activations.num_blocks(); ++block) {
    const int64_t groups = activations.groups_of(block);
    const int64_t block_bytes =
        groups * group_weights * static_cast<int64_t>(sizeof(typename Format::Weight));
    for (int64_t panel = begin; panel < end; ++panel) {
      const char* data = weights.data + panel * weights.panel_bytes() +
                         block * block_groups * group_weights *
                             static_cast<int64_t>(sizeof(typename Format::Weight));
      for (int64_t i = 0; i < tiles.count; ++i) {
        Tile<Format> tile;
        tile.activations = activations.at(block, i);
        tile.weights = reinterpret_cast<const typename Format::Weight*>(data);
        tile.groups = groups;
        tile.first = block == 0;
        tile.out = sums + (panel - begin) * sums_size + tiles.start(i) * panel_width;
        prefetch_ahead(tile, data, block_bytes, tiles, i);
        tile_of<Format>(tiles.start(i + 1) - tiles.start(i))(tile);
      }
    }
  }
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t output = panel * panel_width, width = weights.out_features - output;
    const float* panel_sums = sums + (panel - begin) * sums_size;
    for (int64_t row = 0; row < tiles.num_rows; ++row) {
      for (int64_t i = 0; i < smaller(panel_width, width); i += F32::lanes) {
        F32 y = load(panel_sums + row * panel_width + i);
        if (weights.bias) y = y + load_tail(weights.bias + output + i, width - i);
        store_tail(out + row * weights.out_features + output + i, y, width - i);
      }
    }
  }
}

// How many panels make a chunk: about 128 KiB of weights; more when the activations come from the
// last cache, so that each visit of a block of them serves several panels; all of them when the
// work is small, because waking another thread costs some microseconds.
template <class Format>
int64_t panels_of_chunk(const LinearWeights& weights, int64_t rows) {
  if (weights.bytes() * (1 + rows / 4) < (1 << 20)) return weights.num_panels();
  const int64_t panels = larger<int64_t>(1, (128 << 10) / weights.panel_bytes());
  const int64_t activation_bytes = rows * weights.padded_inputs() * 4 / Format::word_inputs;
  return activation_bytes > (2 << 20) ? larger<int64_t>(panels, 8) : panels;
}

template <class Format>
void multiply(const LinearWeights& weights, const float* x, int64_t num_rows, float* out) {
  const int64_t passes = ceil_div(num_rows, max_rows_at_once);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t row = pass * num_rows / passes;
    const int64_t rows = (pass + 1) * num_rows / passes - row;
    const Activations<Format> activations(weights, x + row * weights.in_features, rows);
    const int64_t panels = panels_of_chunk<Format>(weights, rows);
    float* out_rows = out + row * weights.out_features;
    parallel_for(ceil_div(weights.num_panels(), panels), [&](int64_t chunk) {
      multiply_panels(weights, activations, chunk * panels,
                      smaller((chunk + 1) * panels, weights.num_panels()), out_rows);
    });
  }
}

}  // namespace

void linear(const LinearWeights& weights, const float* x, int64_t num_rows, float* out) {
  if (weights.dtype == DType::bfloat16) return multiply<BrainFormat>(weights, x, num_rows, out);
  if (weights.dtype == DType::float16) return multiply<FloatFormat<F16>>(weights, x, num_rows, out);
  multiply<FloatFormat<float>>(weights, x, num_rows, out);
}

}  // namespace quire::QUIRE_ISA
