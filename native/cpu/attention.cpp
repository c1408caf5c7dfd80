// Paged attention with an online softmax over pieces of 256 absolute positions.
//
//               piece 0        piece 1        piece 2
//   context  |..............|..............|.......          a row: (query, head)
//   row      | highest,     | highest,     | highest,        a tile: queries of one request that
//            | total, sums  | total, sums  | total, sums     share a KV head
//            +----- merge -->--- merge ---->--- merge --> out
//
// Long contexts of few tiles are cut into groups of pieces that run side by side; their parts are
// kept and merged in the same order with the same arithmetic, so the result is the same, bit for
// bit.
#include "cpu/attention_rows.h"
#include "include/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t rows_per_tile = 64;
constexpr int64_t pieces_per_chunk = 4;
constexpr int64_t few_tiles = 32;
constexpr int64_t max_partial_bytes = 16 << 20;
constexpr int64_t inline_work = 1 << 18;  // multiplications below which no thread is woken

struct Tile {
  int64_t request, first_query, num_queries;
  int64_t position;                // of the first query
  int64_t first_piece, end_piece;  // that its queries see
};

struct Step {
  const AttentionLayer& layer;
  const KVBlocks& blocks;
  const AttentionBatch& batch;
  const float* qkv;
  float* out;
  int64_t group;  // query heads per KV head
  int64_t max_rows_of_tile;

  int64_t rows(const Tile& tile) const { return tile.num_queries * group; }
  // Floats that the parts of `count` rows take: sums, highest, total.
  int64_t part_floats(int64_t count) const { return count * (layer.head_dim + 2); }
  Part part_at(float* floats, int64_t count) const {
    return {floats, floats + count * layer.head_dim, floats + count * (layer.head_dim + 1)};
  }
};

int64_t aligned(int64_t floats) { return ceil_div(floats, 16) * 16; }

// One thread's memory for a tile.
struct Workspace {
  float *q, *scores, *part, *state;
  void* panel;

  Workspace(const Step& step, size_t panel_bytes) {
    const int64_t rows = step.max_rows_of_tile;
    const int64_t q_floats = aligned(rows * step.layer.head_dim);
    const int64_t part_floats = aligned(step.part_floats(rows));
    const int64_t floats = q_floats + max_rows * piece_positions + 2 * part_floats;
    q = static_cast<float*>(
        scratch(Slot::activations, static_cast<size_t>(floats) * sizeof(float) + panel_bytes));
    scores = q + q_floats;
    part = scores + max_rows * piece_positions;
    state = part + part_floats;
    panel = state + part_floats;
  }
};

// Scaled queries of the tile's rows, one query's group after another.
void load_queries(const Step& step, const Tile& tile, int64_t kv_head, float* q) {
  const int64_t dim = step.layer.head_dim, row_floats = step.group * dim;
  const int64_t width = (step.layer.num_heads + 2 * step.layer.num_kv_heads) * dim;
  const int64_t token = step.batch.query_start_loc[tile.request] + tile.first_query;
  for (int64_t query = 0; query < tile.num_queries; ++query) {
    const float* from = step.qkv + (token + query) * width + kv_head * row_floats;
    float* to = q + query * row_floats;
    for (int64_t i = 0; i < row_floats; i += lanes)
      store_tail(to + i, load_tail(from + i, row_floats - i) * set1(step.layer.scale),
                 row_floats - i);
  }
}

template <class T>
const T* head_of_block(const Step& step, int64_t block, int64_t head, bool value) {
  const int64_t head_size = step.layer.head_dim * step.blocks.block_size;
  const int64_t kv_heads = step.layer.num_kv_heads;
  return static_cast<const T*>(step.blocks.data) +
         ((2 * block + (value ? 1 : 0)) * kv_heads + head) * head_size;
}

// Point at positions [begin, end) of the piece that starts at `start`; blocks that do not hold
// whole vectors are copied to `panel`, (H, 256) of K and (256, H) of V, first.
template <class T>
Piece<T> locate(const Step& step, const Tile& tile, int64_t kv_head, int64_t start, Span span,
                T* panel) {
  const int64_t size = step.blocks.block_size, dim = step.layer.head_dim;
  const int32_t* table = step.batch.block_tables + tile.request * step.batch.max_blocks;
  Piece<T> piece;
  piece.head_dim = dim;
  const bool direct = size % lanes == 0;
  piece.k_stride = direct ? size : piece_positions;
  for (int64_t i = span.begin / lanes; i < ceil_div(span.end, lanes); ++i) {
    const int64_t position = start + i * lanes, offset = position % size;
    piece.k[i] = panel + i * lanes;
    piece.v[i] = panel + (piece_positions + i * lanes) * dim;
    if (!direct) continue;
    const int64_t block = table[position / size];
    piece.k[i] = head_of_block<T>(step, block, kv_head, false) + offset;
    piece.v[i] = head_of_block<T>(step, block, kv_head, true) + offset * dim;
  }
  for (int64_t j = span.begin; !direct && j < span.end; ++j) {
    const int64_t block = table[(start + j) / size], offset = (start + j) % size;
    const T* k = head_of_block<T>(step, block, kv_head, false) + offset;
    const T* v = head_of_block<T>(step, block, kv_head, true) + offset * dim;
    for (int64_t i = 0; i < dim; ++i) panel[i * piece_positions + j] = k[i * size];
    memcpy(panel + (piece_positions + j) * dim, v, static_cast<size_t>(dim) * sizeof(T));
  }
  return piece;
}

template <class T>
void attend_piece(const Step& step, const Tile& tile, int64_t kv_head, int64_t index,
                  const Workspace& work, Part part) {
  const int64_t start = index * piece_positions, dim = step.layer.head_dim;
  const auto span_of = [&](int64_t query) {
    const int64_t position = tile.position + query;
    return Span{larger<int64_t>(position - step.layer.window + 1 - start, 0),
                smaller(position + 1 - start, piece_positions)};
  };
  const Span whole{span_of(0).begin, span_of(tile.num_queries - 1).end};
  const Piece<T> piece = locate<T>(step, tile, kv_head, start, whole, static_cast<T*>(work.panel));
  for (int64_t row = 0; row < step.rows(tile); row += max_rows) {
    const int64_t count = smaller<int64_t>(max_rows, step.rows(tile) - row);
    Span spans[max_rows];
    for (int64_t r = 0; r < count; ++r) spans[r] = span_of((row + r) / step.group);
    attend_some(count, work.q + row * dim, spans, piece, work.scores,
                Part{part.sums + row * dim, part.highest + row, part.total + row});
  }
}

void merge_rows(const Step& step, int64_t rows, Part part, Part state) {
  const int64_t dim = step.layer.head_dim;
  for (int64_t row = 0; row < rows; ++row)
    merge(part.sums + row * dim, part.highest[row], part.total[row], dim, state.sums + row * dim,
          state.highest + row, state.total + row);
}

void write_rows(const Step& step, const Tile& tile, int64_t kv_head, Part state) {
  const int64_t dim = step.layer.head_dim, token_floats = step.layer.num_heads * dim;
  const int64_t token = step.batch.query_start_loc[tile.request] + tile.first_query;
  for (int64_t row = 0; row < step.rows(tile); ++row) {
    const F32 factor = set1(1.0f / state.total[row]);
    float* to = step.out + (token + row / step.group) * token_floats +
                (kv_head * step.group + row % step.group) * dim;
    for (int64_t i = 0; i < dim; i += lanes)
      store_tail(to + i, load_tail(state.sums + row * dim + i, dim - i) * factor, dim - i);
  }
}

size_t panel_bytes(const Step& step, size_t element) {
  if (step.blocks.block_size % lanes == 0) return 0;
  return static_cast<size_t>(2 * piece_positions * step.layer.head_dim) * element;
}

Part fresh_state(const Step& step, const Workspace& work, int64_t rows) {
  const Part state = step.part_at(work.state, rows);
  for (int64_t row = 0; row < rows; ++row) state.total[row] = 0.0f;
  return state;
}

// A tile from its first piece to its last, on one thread.
template <class T>
void attend_tile(const Step& step, const Tile& tile, int64_t kv_head) {
  const Workspace work(step, panel_bytes(step, sizeof(T)));
  const int64_t rows = step.rows(tile);
  load_queries(step, tile, kv_head, work.q);
  const Part part = step.part_at(work.part, rows), state = fresh_state(step, work, rows);
  for (int64_t index = tile.first_piece; index < tile.end_piece; ++index) {
    attend_piece<T>(step, tile, kv_head, index, work, part);
    merge_rows(step, rows, part, state);
  }
  write_rows(step, tile, kv_head, state);
}

// Few tiles: groups of pieces side by side, then their parts in order. `floats` holds the parts of
// (tile, KV head, piece), `stride` of them for each piece.
template <class T>
void attend_split(const Step& step, const Tile* tiles, int64_t num_tiles, int64_t max_pieces,
                  float* floats) {
  const int64_t kv_heads = step.layer.num_kv_heads;
  const int64_t stride = aligned(step.part_floats(step.max_rows_of_tile));
  const int64_t groups = ceil_div(max_pieces, pieces_per_chunk);
  const auto part_of = [=, &step](int64_t unit, int64_t piece) {
    float* at = floats + (unit * max_pieces + piece) * stride;
    return step.part_at(at, step.rows(tiles[unit / kv_heads]));
  };
  parallel_for(num_tiles * kv_heads * groups, [&](int64_t chunk) {
    const int64_t unit = chunk / groups, first = chunk % groups * pieces_per_chunk;
    const Tile& tile = tiles[unit / kv_heads];
    const int64_t count = tile.end_piece - tile.first_piece;
    if (first >= count) return;
    const Workspace work(step, panel_bytes(step, sizeof(T)));
    load_queries(step, tile, unit % kv_heads, work.q);
    for (int64_t i = first; i < smaller(count, first + pieces_per_chunk); ++i)
      attend_piece<T>(step, tile, unit % kv_heads, tile.first_piece + i, work, part_of(unit, i));
  });
  const Workspace work(step, 0);
  for (int64_t unit = 0; unit < num_tiles * kv_heads; ++unit) {
    const Tile& tile = tiles[unit / kv_heads];
    const Part state = fresh_state(step, work, step.rows(tile));
    for (int64_t i = 0; i < tile.end_piece - tile.first_piece; ++i)
      merge_rows(step, step.rows(tile), part_of(unit, i), state);
    write_rows(step, tile, unit % kv_heads, state);
  }
}

// Cut the step into tiles; `tiles` has room for one per token.
int64_t make_tiles(const Step& step, int64_t queries_per_tile, Tile* tiles) {
  int64_t count = 0;
  for (int64_t request = 0; request < step.batch.num_requests; ++request) {
    const int32_t* starts = step.batch.query_start_loc + request;
    const int64_t queries = starts[1] - starts[0];
    const int64_t computed = step.batch.seq_lens[request] - queries;
    for (int64_t first = 0; first < queries; first += queries_per_tile) {
      Tile& tile = tiles[count++];
      tile = {request, first, smaller(queries_per_tile, queries - first), computed + first, 0, 0};
      const int64_t seen = larger<int64_t>(0, tile.position - step.layer.window + 1);
      tile.first_piece = seen / piece_positions;
      tile.end_piece = (tile.position + tile.num_queries - 1) / piece_positions + 1;
    }
  }
  return count;
}

template <class T>
void attend(Step& step) {
  const int64_t kv_heads = step.layer.num_kv_heads;
  const int64_t queries_per_tile = larger<int64_t>(1, rows_per_tile / step.group);
  const size_t tokens = static_cast<size_t>(step.batch.num_tokens);
  auto* tiles = static_cast<Tile*>(scratch(Slot::packing, (tokens + 1) * sizeof(Tile)));
  const int64_t num_tiles = make_tiles(step, queries_per_tile, tiles);
  int64_t max_pieces = 0, work = 0;
  for (int64_t i = 0; i < num_tiles; ++i) {
    const int64_t pieces = tiles[i].end_piece - tiles[i].first_piece;
    max_pieces = larger(max_pieces, pieces);
    step.max_rows_of_tile = larger(step.max_rows_of_tile, step.rows(tiles[i]));
    const int64_t positions = smaller(pieces * piece_positions, tiles[i].position + 1);
    work += step.rows(tiles[i]) * positions * kv_heads * step.layer.head_dim;
  }
  const int64_t units = num_tiles * kv_heads;
  const int64_t bytes = units * max_pieces * aligned(step.part_floats(step.max_rows_of_tile)) * 4;
  if (work < inline_work) {
    for (int64_t i = 0; i < units; ++i) attend_tile<T>(step, tiles[i / kv_heads], i % kv_heads);
  } else if (units <= few_tiles && max_pieces > pieces_per_chunk && bytes <= max_partial_bytes) {
    auto* floats = static_cast<float*>(scratch(Slot::partial, static_cast<size_t>(bytes)));
    attend_split<T>(step, tiles, num_tiles, max_pieces, floats);
  } else {
    // Later tiles of a prompt see more: they go first, so that no long one is left over at the end.
    parallel_for(units, [&](int64_t i) {
      attend_tile<T>(step, tiles[num_tiles - 1 - i / kv_heads], i % kv_heads);
    });
  }
}

}  // namespace

void paged_attention(const AttentionLayer& layer, const KVBlocks& blocks,
                     const AttentionBatch& batch, const float* qkv, float* out) {
  Step step{layer, blocks, batch, qkv, out, layer.num_heads / layer.num_kv_heads, 1};
  switch (blocks.dtype) {
    case DType::float32:
      return attend<float>(step);
    case DType::float16:
      return attend<F16>(step);
    case DType::bfloat16:
      return attend<BF16>(step);
  }
}

}  // namespace quire::QUIRE_ISA
