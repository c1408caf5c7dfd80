// Paged attention with an online softmax over pieces of 256 absolute positions.
//
//               piece 0        piece 1        piece 2
//   context  |..............|..............|.......          a row: (query, head)
//   row      | highest,     | highest,     | highest,        a unit: queries of one request and the
//            | total, sums  | total, sums  | total, sums     heads of some KV heads
//            +----- merge -->--- merge ---->--- merge --> out
//
// A unit of a prefill is up to 64 rows of one KV head, so that K and V are read once for all; a
// unit of a decode is one query and all KV heads, which lie side by side in memory. Where units are
// few, pieces run side by side; their parts are kept and merged in the same order with the same
// arithmetic, so the result is the same, bit for bit.
#include "cpu/attention_rows.h"
#include "include/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t rows_per_unit = 64;
constexpr int64_t few_units = 32;
constexpr int64_t max_partial_bytes = 16 << 20;
constexpr int64_t inline_work = 1 << 18;  // multiplications below which no thread is woken

struct Unit {
  int64_t request, first_query, num_queries;
  int64_t kv_head, num_kv_heads;
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
  // Of all units:
  int64_t num_units, max_rows, max_pieces, work;

  bool direct() const { return blocks.block_size % lanes == 0; }
  int64_t rows(const Unit& unit) const { return unit.num_queries * unit.num_kv_heads * group; }
  // Floats that the parts of `count` rows take: sums, highest, total.
  int64_t part_floats(int64_t count) const { return count * (layer.head_dim + 2); }
  Part part_at(float* floats, int64_t count) const {
    return {floats, floats + count * layer.head_dim, floats + count * (layer.head_dim + 1)};
  }
};

int64_t aligned(int64_t floats) { return ceil_div(floats, 16) * 16; }

// One thread's memory for a unit.
struct Workspace {
  float *q, *scores, *part, *state;
  void* panel;

  Workspace(const Step& step, size_t element) {
    const int64_t q_floats = aligned(step.max_rows * step.layer.head_dim);
    const int64_t score_floats = larger<int64_t>(step.max_rows, max_rows) * piece_positions;
    const int64_t part_floats = aligned(step.part_floats(step.max_rows));
    const int64_t floats = q_floats + score_floats + 2 * part_floats;
    const int64_t panel_elements = step.direct() ? 0 : 2 * piece_positions * step.layer.head_dim;
    q = static_cast<float*>(
        scratch(Slot::activations, static_cast<size_t>(floats) * sizeof(float) +
                                       static_cast<size_t>(panel_elements) * element));
    scores = q + q_floats;
    part = scores + score_floats;
    state = part + part_floats;
    panel = state + part_floats;
  }
};

// f(row of the unit, its float in q or out of the token) for each query's group of each KV head.
template <class Function>
void each_group(const Step& step, const Unit& unit, Function f) {
  const int64_t token = step.batch.query_start_loc[unit.request] + unit.first_query;
  int64_t row = 0;
  for (int64_t head = 0; head < unit.num_kv_heads; ++head)
    for (int64_t query = 0; query < unit.num_queries; ++query, row += step.group)
      f(row, token + query, (unit.kv_head + head) * step.group * step.layer.head_dim);
}

void load_queries(const Step& step, const Unit& unit, float* q) {
  const int64_t dim = step.layer.head_dim, floats = step.group * dim;
  const int64_t width = (step.layer.num_heads + 2 * step.layer.num_kv_heads) * dim;
  each_group(step, unit, [=, &step](int64_t row, int64_t token, int64_t column) {
    const float* from = step.qkv + token * width + column;
    float* to = q + row * dim;
    for (int64_t i = 0; i < floats; i += lanes)
      store_tail(to + i, load_tail(from + i, floats - i) * set1(step.layer.scale), floats - i);
  });
}

void write_rows(const Step& step, const Unit& unit, Part state) {
  const int64_t dim = step.layer.head_dim, width = step.layer.num_heads * dim;
  each_group(step, unit, [=, &step](int64_t row, int64_t token, int64_t column) {
    for (int64_t r = 0; r < step.group; ++r) {
      const float* from = state.sums + (row + r) * dim;
      float* to = step.out + token * width + column + r * dim;
      const F32 factor = set1(1.0f / state.total[row + r]);
      for (int64_t i = 0; i < dim; i += lanes)
        store_tail(to + i, load_tail(from + i, dim - i) * factor, dim - i);
    }
  });
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
Piece<T> locate(const Step& step, const Unit& unit, int64_t start, Span span, T* panel) {
  const int64_t size = step.blocks.block_size, dim = step.layer.head_dim;
  const int32_t* table = step.batch.block_tables + unit.request * step.batch.max_blocks;
  Piece<T> piece;
  piece.head_dim = dim;
  piece.k_stride = step.direct() ? size : piece_positions;
  piece.heads = unit.num_queries == 1 ? unit.num_kv_heads : 1;
  piece.head_size = dim * size;
  piece.run = piece.heads > 1 ? size : piece_positions;
  for (int64_t i = span.begin / lanes; i < ceil_div(span.end, lanes); ++i) {
    const int64_t position = start + i * lanes, offset = position % size;
    piece.k[i] = panel + i * lanes;
    piece.v[i] = panel + (piece_positions + i * lanes) * dim;
    if (!step.direct()) continue;
    const int64_t block = table[position / size];
    piece.k[i] = head_of_block<T>(step, block, unit.kv_head, false) + offset;
    piece.v[i] = head_of_block<T>(step, block, unit.kv_head, true) + offset * dim;
  }
  for (int64_t j = span.begin; !step.direct() && j < span.end; ++j) {
    const int64_t block = table[(start + j) / size], offset = (start + j) % size;
    const T* k = head_of_block<T>(step, block, unit.kv_head, false) + offset;
    const T* v = head_of_block<T>(step, block, unit.kv_head, true) + offset * dim;
    for (int64_t i = 0; i < dim; ++i) panel[i * piece_positions + j] = k[i * size];
    memcpy(panel + (piece_positions + j) * dim, v, static_cast<size_t>(dim) * sizeof(T));
  }
  return piece;
}

template <class T>
void attend_piece(const Step& step, const Unit& unit, int64_t index, const Workspace& work,
                  Part part) {
  const int64_t start = index * piece_positions, dim = step.layer.head_dim;
  const auto span_of = [&](int64_t query) {
    const int64_t position = unit.position + query;
    return Span{larger<int64_t>(position - step.layer.window + 1 - start, 0),
                smaller(position + 1 - start, piece_positions)};
  };
  const Span whole{span_of(0).begin, span_of(unit.num_queries - 1).end};
  const Piece<T> piece = locate<T>(step, unit, start, whole, static_cast<T*>(work.panel));
  const int64_t rows_per_head = step.rows(unit) / unit.num_kv_heads;
  for (int64_t row = 0; row < rows_per_head; row += max_rows) {
    const int64_t count = smaller<int64_t>(max_rows, rows_per_head - row);
    Span spans[max_rows];
    for (int64_t r = 0; r < count; ++r) spans[r] = span_of((row + r) / step.group);
    attend_some(count, work.q + row * dim, spans, piece, work.scores,
                Part{part.sums + row * dim, part.highest + row, part.total + row});
  }
}

Part fresh_state(const Step& step, const Workspace& work, int64_t rows) {
  const Part state = step.part_at(work.state, rows);
  for (int64_t row = 0; row < rows; ++row) state.total[row] = 0.0f;
  return state;
}

void merge_rows(const Step& step, int64_t rows, Part part, Part state) {
  const int64_t dim = step.layer.head_dim;
  for (int64_t row = 0; row < rows; ++row)
    merge(part.sums + row * dim, part.highest[row], part.total[row], dim, state.sums + row * dim,
          state.highest + row, state.total + row);
}

// A unit from its first piece to its last, on one thread.
template <class T>
void attend_unit(const Step& step, const Unit& unit) {
  const Workspace work(step, sizeof(T));
  const int64_t rows = step.rows(unit);
  load_queries(step, unit, work.q);
  const Part part = step.part_at(work.part, rows), state = fresh_state(step, work, rows);
  for (int64_t index = unit.first_piece; index < unit.end_piece; ++index) {
    attend_piece<T>(step, unit, index, work, part);
    merge_rows(step, rows, part, state);
  }
  write_rows(step, unit, state);
}

// Bytes that the parts of all pieces of all units take.
int64_t partial_bytes(const Step& step) {
  return step.num_units * step.max_pieces * aligned(step.part_floats(step.max_rows)) * 4;
}

// Pieces side by side, then each unit's parts in order.
template <class T>
void attend_split(const Step& step, const Unit* units) {
  auto* floats =
      static_cast<float*>(scratch(Slot::partial, static_cast<size_t>(partial_bytes(step))));
  const int64_t pieces = step.max_pieces, stride = aligned(step.part_floats(step.max_rows));
  const auto part_of = [=, &step](int64_t unit, int64_t piece) {
    return step.part_at(floats + (unit * pieces + piece) * stride, step.rows(units[unit]));
  };
  parallel_for(step.num_units * pieces, [=, &step](int64_t chunk) {
    const Unit& unit = units[chunk / pieces];
    const int64_t index = unit.first_piece + chunk % pieces;
    if (index >= unit.end_piece) return;
    const Workspace work(step, sizeof(T));
    load_queries(step, unit, work.q);
    attend_piece<T>(step, unit, index, work, part_of(chunk / pieces, chunk % pieces));
  });
  const Workspace work(step, sizeof(T));
  for (int64_t i = 0; i < step.num_units; ++i) {
    const Unit& unit = units[i];
    const Part state = fresh_state(step, work, step.rows(unit));
    for (int64_t piece = 0; piece < unit.end_piece - unit.first_piece; ++piece)
      merge_rows(step, step.rows(unit), part_of(i, piece), state);
    write_rows(step, unit, state);
  }
}

// Cut a request's queries into units behind units[num_units]; returns how many there are now.
int64_t add_units(const Step& step, int64_t request, int64_t num_units, Unit* units) {
  const int32_t* starts = step.batch.query_start_loc + request;
  const int64_t queries = starts[1] - starts[0];
  const int64_t computed = step.batch.seq_lens[request] - queries;
  const int64_t queries_per_unit = larger<int64_t>(1, rows_per_unit / step.group);
  const bool decode = queries == 1 && step.direct() && step.group <= max_rows;
  for (int64_t first = 0; first < queries; first += queries_per_unit) {
    Unit unit{request, first, smaller(queries_per_unit, queries - first), 0, 1, 0, 0, 0};
    unit.position = computed + first;
    const int64_t seen = larger<int64_t>(0, unit.position - step.layer.window + 1);
    unit.first_piece = seen / piece_positions;
    unit.end_piece = (unit.position + unit.num_queries - 1) / piece_positions + 1;
    // All KV heads together, unless that leaves too little for several threads.
    const int64_t pieces = unit.end_piece - unit.first_piece, kv_heads = step.layer.num_kv_heads;
    if (decode) unit.num_kv_heads = pieces >= 4 ? kv_heads : ceil_div(kv_heads * pieces, 4);
    const int64_t heads = unit.num_kv_heads;
    for (; unit.kv_head < kv_heads; unit.kv_head += heads) {
      unit.num_kv_heads = smaller(heads, kv_heads - unit.kv_head);
      units[num_units++] = unit;
    }
  }
  return num_units;
}

template <class T>
void attend(Step& step) {
  const size_t most = static_cast<size_t>(step.batch.num_tokens * step.layer.num_kv_heads);
  auto* units = static_cast<Unit*>(scratch(Slot::packing, (most + 1) * sizeof(Unit)));
  for (int64_t request = 0; request < step.batch.num_requests; ++request)
    step.num_units = add_units(step, request, step.num_units, units);
  for (const Unit* unit = units; unit < units + step.num_units; ++unit) {
    const int64_t pieces = unit->end_piece - unit->first_piece;
    step.max_pieces = larger(step.max_pieces, pieces);
    step.max_rows = larger(step.max_rows, step.rows(*unit));
    const int64_t positions = smaller(pieces * piece_positions, unit->position + 1);
    step.work += step.rows(*unit) * positions * step.layer.head_dim;
  }
  if (step.work < inline_work) {
    for (int64_t i = 0; i < step.num_units; ++i) attend_unit<T>(step, units[i]);
  } else if (step.num_units <= few_units && step.max_pieces > 1 &&
             partial_bytes(step) <= max_partial_bytes) {
    attend_split<T>(step, units);
  } else {
    // Later queries of a prompt see more: they go first, so that no long unit is left at the end.
    parallel_for(step.num_units,
                 [&](int64_t i) { attend_unit<T>(step, units[step.num_units - 1 - i]); });
  }
}

}  // namespace

void paged_attention(const AttentionLayer& layer, const KVBlocks& blocks,
                     const AttentionBatch& batch, const float* qkv, float* out) {
  Step step{layer, blocks, batch, qkv, out, layer.num_heads / layer.num_kv_heads, 0, 1, 1, 0};
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
