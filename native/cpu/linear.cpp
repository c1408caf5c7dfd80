// y = x W^T + bias for one row to thousands, weights packed once. See linear_tile.h for the order
// of the sums and include/linear.h for the layout.
#include "cpu/linear_matrix_tile.h"
#include "cpu/linear_rows.h"
#include "cpu/linear_tile.h"
#include "include/kernels.h"
#include "runtime/matrix_rows.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t panel_width = LinearWeights::panel_width;

// Rows multiplied together: their activations of one block stay in L2 (504 x 256 words).
constexpr int64_t max_rows_at_once = 42 * max_tile_rows;

// How far a single tile asks ahead of itself: further where weights are widened to be multiplied,
// or rows are many.
template <class Format>
int64_t single_tile_distance(int64_t rows) {
  constexpr bool widened = Format::word_inputs * sizeof(typename Format::Weight) < 4;
  return widened || rows > 8 ? 8 << 10 : 4 << 10;
}

// Ask memory for weights while others are multiplied: the next block, a share by each tile of this
// one; a single tile has no time for that and runs a fixed distance ahead of itself.
template <class Format>
void prefetch_ahead(Tile<Format>& tile, const char* block, int64_t block_bytes, const Tiles& tiles,
                    int64_t i) {
  constexpr int64_t step_bytes = step_weights<Format> * sizeof(typename Format::Weight);
  if (tiles.count == 1) {
    tile.prefetch = block + single_tile_distance<Format>(tiles.num_rows);
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
                     int64_t begin, int64_t end, float* out, int64_t out_stride) {
  [[maybe_unused]] const TileState<Format> state;
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
                         block * block_groups<Format> * group_weights *
                             static_cast<int64_t>(sizeof(typename Format::Weight));
      for (int64_t i = 0; i < tiles.count; ++i) {
        Tile<Format> tile;
        tile.activations = activations.at(block, i);
        tile.weights = reinterpret_cast<const typename Format::Weight*>(data);
        tile.rows = tiles.start(i + 1) - tiles.start(i);
        tile.groups = groups;
        tile.first = block == 0;
        tile.out = sums + (panel - begin) * sums_size + tiles.start(i) * panel_width;
        prefetch_ahead(tile, data, block_bytes, tiles, i);
        tile_of<Format>(tile.rows)(tile);
      }
    }
  }
  write_panels({sums, begin, end, tiles.num_rows, weights.out_features, weights.bias}, out,
               out_stride);
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
void multiply(const LinearWeights& weights, const float* x, int64_t num_rows, float* out,
              int64_t out_stride) {
  const int64_t passes = ceil_div(num_rows, max_rows_at_once);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t row = pass * num_rows / passes;
    const int64_t rows = (pass + 1) * num_rows / passes - row;
    const Activations<Format> activations({weights.in_features, weights.padded_inputs()},
                                          x + row * weights.in_features, rows);
    const int64_t panels = panels_of_chunk<Format>(weights, rows);
    float* out_rows = out + row * out_stride;
    parallel_for(
        ceil_div(weights.num_panels(), panels),
        [&](int64_t chunk) {
          multiply_panels(weights, activations, chunk * panels,
                          smaller((chunk + 1) * panels, weights.num_panels()), out_rows,
                          out_stride);
        },
        activations.tiles().count == 1 ? Claim::run : Claim::one);
  }
}

}  // namespace

void linear(const LinearWeights& weights, const float* x, int64_t num_rows, float* out,
            int64_t out_stride) {
  if (weights.dtype == DType::bfloat16 && num_rows < matrix_rows().bfloat16)
    return multiply<FewRowsFormat>(weights, x, num_rows, out, out_stride);
  if (weights.dtype == DType::bfloat16)
    return multiply<ManyRowsFormat>(weights, x, num_rows, out, out_stride);
  if (weights.dtype == DType::float16)
    return multiply<FloatFormat<F16>>(weights, x, num_rows, out, out_stride);
  multiply<FloatFormat<float>>(weights, x, num_rows, out, out_stride);
}

}  // namespace quire::QUIRE_ISA
