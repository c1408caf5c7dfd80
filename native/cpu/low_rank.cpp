// Adapters of low rank: out[row] += scale * (x[row] down^T) up^T, rows grouped by adapter.
//
// A row's sums have one order, whatever its group: a product with `down` is two running sums
// over the registers of its inputs, by their number, folded in one order; one with `up` goes over
// the rank from 0 on, and is added to the output at last.
#include "include/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t row_block = 64;         // rows of a chunk
constexpr int64_t chunk_weights = 32768;  // that a chunk reads at least, if there are as many

// Ranks of a chunk of `down`, and panels of one of `up`.
int64_t rank_block(int64_t columns) {
  return low_rank_step * larger<int64_t>(1, chunk_weights / (low_rank_step * columns));
}
int64_t panel_block(int64_t rank) {
  return larger<int64_t>(1, chunk_weights / (low_rank_panel * rank));
}

// Rows that one pass over the matrices serves: as many as there are registers for their sums.
constexpr int64_t row_tile = F32::lanes == 16 ? 2 : 1;

// Products of rows of x with low_rank_step ranks of `down`.
template <int64_t rows, class T>
void multiply_down(const T* down, int64_t columns, const float* const* x, float* const* out) {
  constexpr int64_t lanes = F32::lanes;
  F32 sums[rows][low_rank_step][2];
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t r = 0; r < low_rank_step; ++r) sums[row][r][0] = sums[row][r][1] = zero();
  // read(row, from): registers of inputs from there on.
  const auto add_line = [&](int64_t i, const auto& read) {
    for (int64_t at = 0; at < low_rank_line; at += 2 * lanes) {
      F32 values[rows][2];
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t part = 0; part < 2; ++part)
          values[row][part] = read(x[row], i + at + part * lanes);
      for (int64_t r = 0; r < low_rank_step; ++r)
        for (int64_t part = 0; part < 2; ++part) {
          const F32 weights = load(down + r * low_rank_line + at + part * lanes);
          for (int64_t row = 0; row < rows; ++row)
            sums[row][r][part] = fma(values[row][part], weights, sums[row][r][part]);
        }
    }
    down += low_rank_step * low_rank_line;
  };
  int64_t i = 0;
  for (; i + low_rank_line <= columns; i += low_rank_line)
    add_line(i, [](const float* values, int64_t from) { return load(values + from); });
  if (i < columns)
    add_line(i, [&](const float* values, int64_t from) {
      return load_tail(values + from, larger<int64_t>(0, columns - from));
    });
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t r = 0; r < low_rank_step; ++r)
      out[row][r] = sum(sums[row][r][0] + sums[row][r][1]);
}

// Add the panel's share to rows: `num` outputs at out.
template <int64_t rows, class T>
void add_up(const T* panel, int64_t rank, const float* const* products, float scale,
            float* const* out, int64_t num) {
  constexpr int64_t vectors = low_rank_panel / F32::lanes;
  F32 sums[rows][vectors];
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t v = 0; v < vectors; ++v) sums[row][v] = zero();
  for (int64_t r = 0; r < rank; ++r, panel += low_rank_panel) {
    F32 factors[rows];
    for (int64_t row = 0; row < rows; ++row) factors[row] = set1(products[row][r] * scale);
    for (int64_t v = 0; v < vectors; ++v) {
      const F32 weights = load(panel + v * F32::lanes);
      for (int64_t row = 0; row < rows; ++row)
        sums[row][v] = fma(factors[row], weights, sums[row][v]);
    }
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t v = 0; v < vectors && v * F32::lanes < num; ++v) {
      float* at = out[row] + v * F32::lanes;
      const int64_t n = num - v * F32::lanes;
      store_tail(at, load_tail(at, n) + sums[row][v], n);
    }
}

template <int64_t count>
struct Tile {
  static constexpr int64_t rows = count;
};

// body(Tile, first row) for the rows, by tiles.
template <class Body>
void each_tile(int64_t first, int64_t last, const Body& body) {
  int64_t i = first;
  for (; i + row_tile <= last; i += row_tile) body(Tile<row_tile>{}, i);
  for (; i < last; ++i) body(Tile<1>{}, i);
}

// work(T{}) for the type of a matrix.
template <class Work>
void with_type(DType dtype, const Work& work) {
  if (dtype == DType::float32)
    work(float{});
  else if (dtype == DType::bfloat16)
    work(BF16{});
  else
    work(F16{});
}

int64_t rank_blocks(const LowRankRows& group) {
  return ceil_div(group.weights->rank, rank_block(group.weights->in_features));
}
int64_t blocks_of(const LowRankPart& part) {
  return ceil_div(ceil_div(part.num_outputs, low_rank_panel), panel_block(part.rank));
}
int64_t output_blocks(const LowRankRows& group) {
  int64_t blocks = 0;
  for (int64_t part = 0; part < group.weights->num_parts; ++part)
    blocks += blocks_of(group.weights->parts[part]);
  return blocks;
}

// body(group, first row, last row, block, place of the products) for every block of every group,
// its rows cut into blocks, too.
template <class Blocks, class Body>
void each_block(const LowRankRows* groups, int64_t num_groups, const Blocks& blocks,
                const Body& body) {
  int64_t num_chunks = 0;
  for (int64_t g = 0; g < num_groups; ++g)
    num_chunks += blocks(groups[g]) * ceil_div(groups[g].num_rows, row_block);
  parallel_for(num_chunks, [&](int64_t chunk) {
    int64_t g = 0, place = 0;
    for (;; ++g) {
      const int64_t own = blocks(groups[g]) * ceil_div(groups[g].num_rows, row_block);
      if (chunk < own) break;
      chunk -= own;
      place += groups[g].num_rows * groups[g].weights->rank;
    }
    const int64_t count = blocks(groups[g]), first = chunk / count * row_block;
    body(groups[g], first, smaller(first + row_block, groups[g].num_rows), chunk % count, place);
  });
}

template <class T>
void down_block(const LowRankRows& group, int64_t first, int64_t last, int64_t block,
                const float* x, float* products) {
  const LowRankWeights& weights = *group.weights;
  const int64_t columns = weights.in_features;
  const int64_t step = rank_block(columns), end = smaller((block + 1) * step, weights.rank);
  for (int64_t r = block * step; r < end; r += low_rank_step) {
    const T* down = static_cast<const T*>(weights.down) + r * low_rank_columns(columns);
    each_tile(first, last, [&](auto tile, int64_t i) {
      const float* from[tile.rows];
      float* to[tile.rows];
      for (int64_t row = 0; row < tile.rows; ++row) {
        from[row] = x + group.rows[i + row] * columns;
        to[row] = products + (i + row) * weights.rank + r;
      }
      multiply_down<tile.rows>(down, columns, from, to);
    });
  }
}

template <class T>
void up_block(const LowRankRows& group, int64_t first, int64_t last, int64_t block,
              const float* products, float* out, int64_t out_features) {
  const LowRankWeights& weights = *group.weights;
  const LowRankPart* part = weights.parts;
  for (;; ++part) {
    const int64_t own = blocks_of(*part);
    if (block < own) break;
    block -= own;
  }
  const int64_t panels = ceil_div(part->num_outputs, low_rank_panel);
  const int64_t step = panel_block(part->rank), end = smaller((block + 1) * step, panels);
  for (int64_t p = block * step; p < end; ++p) {
    const T* panel = static_cast<const T*>(part->up) + p * part->rank * low_rank_panel;
    const int64_t at = p * low_rank_panel;
    const int64_t num = smaller(low_rank_panel, part->num_outputs - at);
    each_tile(first, last, [&](auto tile, int64_t i) {
      const float* from[tile.rows];
      float* to[tile.rows];
      for (int64_t row = 0; row < tile.rows; ++row) {
        from[row] = products + (i + row) * weights.rank + part->first_rank;
        to[row] = out + group.rows[i + row] * out_features + part->first_output + at;
      }
      add_up<tile.rows>(panel, part->rank, from, part->scale, to, num);
    });
  }
}

}  // namespace

void add_low_rank(const LowRankRows* groups, int64_t num_groups, const float* x, float* out,
                  int64_t out_features) {
  int64_t count = 0;
  for (int64_t g = 0; g < num_groups; ++g) count += groups[g].num_rows * groups[g].weights->rank;
  float* products =
      static_cast<float*>(scratch(Slot::partial, static_cast<size_t>(count) * sizeof(float)));
  each_block(
      groups, num_groups, [](const LowRankRows& group) { return rank_blocks(group); },
      [=](const LowRankRows& group, int64_t first, int64_t last, int64_t block, int64_t place) {
        with_type(group.weights->dtype, [&](auto type) {
          down_block<decltype(type)>(group, first, last, block, x, products + place);
        });
      });
  each_block(
      groups, num_groups, [](const LowRankRows& group) { return output_blocks(group); },
      [=](const LowRankRows& group, int64_t first, int64_t last, int64_t block, int64_t place) {
        with_type(group.weights->dtype, [&](auto type) {
          up_block<decltype(type)>(group, first, last, block, products + place, out, out_features);
        });
      });
}

}  // namespace quire::QUIRE_ISA
