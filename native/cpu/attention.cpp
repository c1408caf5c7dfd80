// Paged attention with an online softmax over pieces of 256 absolute positions.
//
//               piece 0        piece 1        piece 2
//   context  |..............|..............|.......          a row: (query, head)
//   row      | highest,     | highest,     | highest,        a unit: queries of one request and the
//            | total, sums  | total, sums  | total, sums     heads of some KV heads
//            +----- merge -->--- merge ---->--- merge --> out
//
// A unit of a prefill is up to 128 rows of one KV head, whose K and V are unpacked once for all
// (attention_panel.h); a unit of a decode is one query and some KV heads, which lie side by side in
// memory and are read in place (attention_decode.h). Where units are few, pieces run side by side;
// their parts are kept and merged in the same order with the same arithmetic, so the result is the
// same, bit for bit.
#include "cpu/attention_units.h"
#include "include/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t few_units = 32;
constexpr int64_t max_partial_bytes = 16 << 20;
constexpr int64_t inline_work = 1 << 18;  // multiplications below which no thread is woken

// What a loaded element is multiplied by; queries and sums are multiplied instead.
template <class T>
constexpr float unit_of = 1.0f;
template <>
constexpr float unit_of<E4M3> = e4m3_unit;

int64_t aligned(int64_t floats) { return ceil_div(floats, 16) * 16; }

// One thread's memory for a unit.
struct Workspace {
  float *q, *scores, *part, *state, *k_scales, *v_scales;
  Panel panel;

  explicit Workspace(const Step& step) {
    const int64_t dim = step.layer.head_dim;
    const int64_t part_floats = aligned(step.part_floats(step.max_rows));
    const int64_t scale_floats = step.max_heads * step.blocks.scales_per_head * scale_stride;
    const int64_t panel_floats = step.unpacks ? Panel::floats(dim, step.layer.value_dim) : 0;
    const int64_t rows = stored_rows(step.max_rows);
    const int64_t sizes[] = {aligned(rows * larger<int64_t>(dim, lanes)),
                             rows * piece_positions,
                             part_floats,
                             part_floats,
                             scale_floats,
                             scale_floats,
                             panel_floats};
    int64_t floats = 0;
    for (const int64_t size : sizes) floats += size;
    auto* at = static_cast<float*>(
        scratch(Slot::activations, static_cast<size_t>(floats) * sizeof(float)));
    float** const members[] = {&q, &scores, &part, &state, &k_scales, &v_scales, &panel.k};
    for (int i = 0; i < 7; ++i) {
      *members[i] = at;
      at += sizes[i];
    }
    panel.v = panel.k + piece_positions * Panel::columns(dim);
    panel.head_dim = dim;
    panel.value_dim = step.layer.value_dim;
  }
};

// f(row of the unit, token, first head of the group) for each query's group of each KV head.
template <class Function>
void each_group(const Step& step, const Unit& unit, Function f) {
  const int64_t token = step.batch.query_start_loc[unit.request] + unit.first_query;
  int64_t row = 0;
  for (int64_t head = 0; head < unit.num_kv_heads; ++head)
    for (int64_t query = 0; query < unit.num_queries; ++query, row += step.group)
      f(row, token + query, (unit.kv_head + head) * step.group);
}

template <class T>
void load_queries(const Step& step, const Unit& unit, float* q) {
  const int64_t dim = step.layer.head_dim, floats = step.group * dim;
  const int64_t width = step.query_stride();
  const F32 scale = set1(step.layer.scale * step.unit);
  each_group(step, unit, [=, &step](int64_t row, int64_t token, int64_t head) {
    const float* from = step.qkv + token * width + head * dim;
    float* to = q + row * dim;
    for (int64_t i = 0; i < floats; i += lanes)
      store_tail(to + i, load_tail(from + i, floats - i) * scale, floats - i);
  });
  Products<T>::prepare_queries(q, step.rows(unit), dim, unit.in_place);
}

void write_rows(const Step& step, const Unit& unit, Part state) {
  const int64_t dim = step.layer.value_dim;
  each_group(step, unit, [=, &step](int64_t row, int64_t token, int64_t head) {
    for (int64_t r = 0; r < step.group; ++r) {
      const float* from = state.sums + (row + r) * state.stride;
      float* to = step.out_of(token, head + r);
      const F32 factor = set1(step.unit / state.total[row + r]);
      for (int64_t i = 0; i < dim; i += lanes)
        store_tail(to + i, load_tail(from + i, dim - i) * factor, dim - i);
    }
  });
}

// A block's K or V of one head, and its place among all blocks' heads; latents are both.
int64_t head_of_block(const Step& step, int64_t block, int64_t head, bool value) {
  const bool after_keys = value && !step.blocks.is_latent;
  return block * step.blocks.stride + (after_keys ? step.layer.num_kv_heads : 0) + head;
}

// How many T one token has of it.
template <class T>
int64_t head_units(const Step& step) {
  return step.layer.head_dim / elements_per<T>;
}

template <class T>
const T* elements_of(const Step& step, int64_t block, int64_t head, bool value) {
  return static_cast<const T*>(step.blocks.data) +
         head_of_block(step, block, head, value) * head_units<T>(step) * step.blocks.block_size;
}

// f(position in the piece, block, offset in the block, positions) over the runs of positions of a
// span that lie side by side in a block.
template <class Function>
void each_run(const Step& step, const Unit& unit, int64_t start, Span span, const Function& f) {
  const int64_t size = step.blocks.block_size;
  const int32_t* table = step.batch.block_tables + unit.request * step.batch.max_blocks;
  for (int64_t j = span.begin; j < span.end;) {
    const int64_t block = (start + j) / size, offset = (start + j) % size;
    const int64_t count = smaller(size - offset, span.end - j);
    f(j, table[block], offset, count);
    j += count;
  }
}

// The piece's scales of each of the unit's heads, as floats; nothing where there are none.
Scales load_scales(const Step& step, const Unit& unit, int64_t start, Span span,
                   const Workspace& work) {
  const float cap = step.layer.score_cap;
  if (!step.blocks.scales) return {nullptr, nullptr, 0, cap};
  const int64_t size = step.blocks.block_size, per_head = step.blocks.scales_per_head;
  each_run(step, unit, start, span, [&](int64_t j, int64_t block, int64_t offset, int64_t count) {
    for (int value = 0; value < 2; ++value) {
      const int64_t first = head_of_block(step, block, unit.kv_head, value == 1) * per_head;
      const BF16* from = step.blocks.scales + first * size + offset;
      float* to = (value ? work.v_scales : work.k_scales) + j;
      for (int64_t row = 0; row < unit.num_kv_heads * per_head; ++row)
        for (int64_t i = 0; i < count; i += lanes)
          store_tail(to + row * scale_stride + i, load_tail(from + row * size + i, count - i),
                     count - i);
    }
  });
  return {work.k_scales, work.v_scales, per_head, cap};
}

// The same of one position, wherever its slot is.
void load_scales_of(const Step& step, const Unit& unit, int64_t j, int64_t block, int64_t offset,
                    const Workspace& work) {
  const int64_t size = step.blocks.block_size, per_head = step.blocks.scales_per_head;
  for (int value = 0; value < 2; ++value)
    for (int64_t row = 0; row < per_head; ++row) {
      const int64_t at = head_of_block(step, block, unit.kv_head, value == 1) * per_head + row;
      float widened[lanes];
      store(widened, load_tail(step.blocks.scales + at * size + offset, 1));
      (value ? work.v_scales : work.k_scales)[row * scale_stride + j] = widened[0];
    }
}

// Point at positions [begin, end) of the piece that starts at `start`.
template <class T>
Piece<T> locate(const Step& step, const Unit& unit, int64_t start, Span span, Scales scales) {
  const int64_t size = step.blocks.block_size, units = head_units<T>(step);
  const int32_t* table = step.batch.block_tables + unit.request * step.batch.max_blocks;
  Piece<T> piece;
  piece.head_dim = step.layer.head_dim;
  piece.k_stride = size;
  piece.v_stride = units;
  piece.heads = unit.num_kv_heads;
  piece.head_size = units * size;
  piece.scales = scales;
  for (int64_t i = 0; i < piece_positions / lanes; ++i) {
    // Vectors outside the span are fetched at most; they need an address.
    const int64_t seen = smaller(larger(i, span.begin / lanes), (span.end - 1) / lanes);
    const int64_t position = start + seen * lanes, offset = position % size;
    const int64_t block = table[position / size];
    piece.k[i] = elements_of<T>(step, block, unit.kv_head, false) + offset;
    piece.v[i] = elements_of<T>(step, block, unit.kv_head, true) + offset * units;
  }
  return piece;
}

// Unpack latents: the `count` positions from j on of a block, whose rows begin at `rows`.
template <class T, class Panel>
void unpack_latents(const Step& step, const T* rows, int64_t j, int64_t count, Panel panel) {
  const int64_t units = head_units<T>(step);
  const bool whole_vectors = step.blocks.block_size % lanes == 0;
  for (int64_t i = 0; i < count; i += whole_vectors ? lanes : 1) {
    if (whole_vectors)
      turn_rows(rows + i * units, units, j + i, panel);
    else
      unpack_position(rows + i * units, 1, j + i, panel);
  }
  unpack_value_rows(rows, units, j, count, panel);
}

// Unpack positions [begin, end) of the piece that starts at `start`.
template <class T, class Panel>
void unpack(const Step& step, const Unit& unit, int64_t start, Span span, Panel panel) {
  const int64_t size = step.blocks.block_size, units = head_units<T>(step);
  const bool whole_vectors = size % lanes == 0;
  if (whole_vectors) span = {span.begin / lanes * lanes, ceil_div(span.end, lanes) * lanes};
  each_run(step, unit, start, span, [&](int64_t j, int64_t block, int64_t offset, int64_t count) {
    if constexpr (elements_per<T> == 1)
      if (step.blocks.is_latent) {
        const T* rows = elements_of<T>(step, block, 0, false) + offset * units;
        return unpack_latents(step, rows, j, count, panel);
      }
    const T* k = elements_of<T>(step, block, unit.kv_head, false) + offset;
    const T* v = elements_of<T>(step, block, unit.kv_head, true) + offset * units;
    for (int64_t i = 0; whole_vectors && i < count; i += lanes)
      unpack_vector(k + i, size, j + i, panel);
    for (int64_t i = 0; i < count; ++i) {
      if (!whole_vectors) unpack_position(k + i, size, j + i, panel);
      unpack_values(v + i * units, j + i, panel);
    }
  });
}

// f(position in the piece, block, offset in the block) over the positions of a span on a path.
template <class Function>
void each_on_path(const Step& step, const Path& path, int64_t start, Span span, const Function& f) {
  const int64_t size = step.blocks.block_size;
  for (int64_t j = larger(span.begin, path.start - start); j < span.end; ++j) {
    const int64_t slot = path.slots[start + j - path.start];
    f(j, slot / size, slot % size);
  }
}

// Unpack one position, wherever its slot is.
template <class T, class Panel>
void unpack_slot(const Step& step, const Unit& unit, int64_t j, int64_t block, int64_t offset,
                 Panel panel) {
  const int64_t size = step.blocks.block_size, units = head_units<T>(step);
  const T* v = elements_of<T>(step, block, unit.kv_head, true) + offset * units;
  if (step.blocks.is_latent)
    unpack_position(v, 1, j, panel);
  else
    unpack_position(elements_of<T>(step, block, unit.kv_head, false) + offset, size, j, panel);
  unpack_values(v, j, panel);
}

#if defined(QUIRE_DOTS)

// Latents stay where they are.
template <class T>
void unpack(const Step& step, const Unit& unit, int64_t start, Span span, LatentRows panel) {
  const int64_t dim = step.layer.head_dim;
  each_run(step, unit, start, span, [&](int64_t j, int64_t block, int64_t offset, int64_t count) {
    const T* rows = elements_of<T>(step, block, 0, false) + offset * dim;
    for (int64_t i = 0; i < count; ++i) panel.rows[j + i] = rows + i * dim;
  });
}

template <class T>
void unpack_slot(const Step& step, const Unit&, int64_t j, int64_t block, int64_t offset,
                 LatentRows panel) {
  panel.rows[j] = elements_of<T>(step, block, 0, false) + offset * step.layer.head_dim;
}

#endif

// Each query by itself, with the positions on its own path. What all see is unpacked once, but for
// positions that may be written over: from the lowest query's on, or all where a window begins.
template <class T, class Panel>
void attend_paths(const Step& step, const Unit& unit, int64_t start, const Span* spans,
                  const Workspace& work, Panel panel, Part part) {
  const bool windowed = step.layer.first_seen(unit.last_position) > start;
  const int64_t kept = windowed ? 0 : larger<int64_t>(0, unit.position - start);
  int64_t fresh = 0;
  for (int64_t query = 0; query < unit.num_queries; ++query) {
    const int64_t row = query * step.group;
    const Span span = spans[row];
    const PanelRows rows{work.q + row * panel.words(), spans + row,
                         work.scores + row * piece_positions, part.from(row)};
    if (span.empty()) {
      for (int64_t r = 0; r < step.group; ++r) rows.part.total[r] = 0.0f;
      continue;
    }
    const Path path = path_of(step.batch, unit.request, unit.first_query + query);
    const Span shared = span.within({fresh, path.length ? path.start - start : span.end});
    const Scales scales = load_scales(step, unit, start, span.within({0, shared.end}), work);
    if (!shared.empty()) unpack<T>(step, unit, start, shared, panel);
    if (path.length)
      each_on_path(step, path, start, span, [&](int64_t j, int64_t block, int64_t offset) {
        load_scales_of(step, unit, j, block, offset, work);
        unpack_slot<T>(step, unit, j, block, offset, panel);
      });
    attend_panel(rows, step.group, span, panel, scales);
    fresh = kept / (4 * lanes) * (4 * lanes);
  }
}

template <class T>
void attend_piece(const Step& step, const Unit& unit, int64_t index, const Workspace& work,
                  Part part) {
  const int64_t start = index * piece_positions;
  const auto span_at = [&](int64_t position) {
    return Span{larger<int64_t>(step.layer.first_seen(position) - start, 0),
                smaller(step.last_seen(unit.request, position) + 1 - start, piece_positions)};
  };
  const Span whole{span_at(unit.position).begin, span_at(unit.last_position).end};
  const Scales scales = load_scales(step, unit, start, whole, work);
  if (unit.in_place)
    return attend_query<typename Products<T>::DecodeTiles>(
        step.group, work.q, whole, locate<T>(step, unit, start, whole, scales), work.scores, part);
  const int64_t rows = step.rows(unit);
  auto* spans =
      static_cast<Span*>(scratch(Slot::weights, static_cast<size_t>(rows) * sizeof(Span)));
  for (int64_t row = 0; row < rows; ++row)
    spans[row] =
        span_at(position_of(step.batch, unit.request, unit.first_query + row / step.group));
  const bool has_window = span_at(unit.last_position).begin > 0;
  const bool in_paths =
      has_tree(step.batch, unit.request) &&
      (has_window || start + piece_positions > step.batch.tree_starts[unit.request]);
  Products<T>::with_panel(work.panel, scales, step.blocks.is_latent, [&](auto panel) {
    if (in_paths) return attend_paths<T>(step, unit, start, spans, work, panel, part);
    unpack<T>(step, unit, start, whole, panel);
    attend_panel({work.q, spans, work.scores, part}, rows, whole, panel, scales);
  });
}

// What rows have before their first piece: nothing, or a sink, which is a score without a value.
Part fresh_state(const Step& step, const Unit& unit, float* memory) {
  const int64_t rows = step.rows(unit);
  const Part state = step.part_at(memory, rows);
  for (int64_t row = 0; row < rows; ++row) state.total[row] = 0.0f;
  if (!step.layer.sinks) return state;
  each_group(step, unit, [&step, state](int64_t row, int64_t, int64_t head) {
    const float* sinks = step.layer.sinks + head;
    for (int64_t r = 0; r < step.group; ++r) {
      state.clear(row + r);
      state.highest[row + r] = sinks[r];
      state.total[row + r] = 1.0f;
    }
  });
  return state;
}

// A unit from its first piece to its last, on one thread.
template <class T>
void attend_unit(const Step& step, const Unit& unit) {
  const Workspace work(step);
  const int64_t rows = step.rows(unit);
  load_queries<T>(step, unit, work.q);
  const Part part = step.part_at(work.part, rows), state = fresh_state(step, unit, work.state);
  for (int64_t index = unit.first_piece; index < unit.end_piece; ++index) {
    attend_piece<T>(step, unit, index, work, part);
    merge_rows(rows, step.layer.value_dim, part, state);
  }
  write_rows(step, unit, state);
}

// Bytes of a piece's parts of all units.
int64_t partial_bytes(const Step& step) {
  return step.num_units * aligned(step.part_floats(step.max_rows)) * 4;
}

// Pieces side by side, as many as there is room for, then each unit's parts in order; and so on.
template <class T>
void attend_split(const Step& step, const Unit* units) {
  const int64_t pieces = smaller(step.max_pieces, max_partial_bytes / partial_bytes(step));
  const int64_t stride = aligned(step.part_floats(step.max_rows));
  // Of each unit its state, then parts.
  const size_t bytes = static_cast<size_t>((pieces + 1) * partial_bytes(step));
  auto* floats = static_cast<float*>(scratch(Slot::partial, bytes));
  const auto memory_of = [=](int64_t unit) { return floats + unit * (pieces + 1) * stride; };
  const auto part_of = [=, &step](int64_t unit, int64_t piece) {
    return step.part_at(memory_of(unit) + (piece + 1) * stride, step.rows(units[unit]));
  };
  for (int64_t first = 0; first < step.max_pieces; first += pieces) {
    parallel_for(step.num_units * pieces, [=, &step](int64_t chunk) {
      const Unit& unit = units[chunk % step.num_units];
      const int64_t piece = chunk / step.num_units, index = unit.first_piece + first + piece;
      if (index >= unit.end_piece) return;
      const Workspace work(step);
      load_queries<T>(step, unit, work.q);
      attend_piece<T>(step, unit, index, work, part_of(chunk % step.num_units, piece));
    });
    parallel_for(step.num_units, [=, &step](int64_t at) {
      const Unit& unit = units[at];
      const int64_t left = unit.end_piece - unit.first_piece - first;
      if (left <= 0) return;
      const Part state = first ? step.part_at(memory_of(at), step.rows(unit))
                               : fresh_state(step, unit, memory_of(at));
      for (int64_t piece = 0; piece < smaller(pieces, left); ++piece)
        merge_rows(step.rows(unit), step.layer.value_dim, part_of(at, piece), state);
      if (left <= pieces) write_rows(step, unit, state);
    });
  }
}

// Units would leave threads idle, or are few and their parts fit in the cache that threads share.
bool goes_in_pieces(const Step& step) {
  if (step.num_units > few_units || step.max_pieces <= 1) return false;
  const int64_t room = max_partial_bytes / partial_bytes(step);
  return room >= (step.num_units < num_threads() ? 2 : step.max_pieces);
}

template <class T>
void attend(Step& step) {
  step.unit = unit_of<T>;
  const size_t most = static_cast<size_t>(step.batch.num_tokens * step.layer.num_kv_heads);
  auto* units = static_cast<Unit*>(scratch(Slot::packing, (most + 1) * sizeof(Unit)));
  for (int64_t request = 0; request < step.batch.num_requests; ++request)
    step.num_units = add_units(step, request, step.num_units, units);
  for (const Unit* unit = units; unit < units + step.num_units; ++unit) {
    const int64_t pieces = unit->end_piece - unit->first_piece;
    step.max_pieces = larger(step.max_pieces, pieces);
    step.max_rows = larger(step.max_rows, step.rows(*unit));
    step.max_heads = larger(step.max_heads, unit->num_kv_heads);
    step.unpacks |= !unit->in_place;
    const int64_t seen = step.last_seen(unit->request, unit->last_position) + 1;
    const int64_t positions = smaller(pieces * piece_positions, seen);
    step.work += step.rows(*unit) * positions * step.layer.head_dim;
  }
  if (step.work < inline_work) {
    for (int64_t i = 0; i < step.num_units; ++i) attend_unit<T>(step, units[i]);
  } else if (goes_in_pieces(step)) {
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
  Step step{layer, blocks, batch, qkv, out, 1.0f, layer.num_heads / layer.num_kv_heads,
            0,     1,      1,     1,   0,   false};
  switch (blocks.type) {
    case KVType::bfloat16:
      return attend<BF16>(step);
#if defined(QUIRE_EXTENDS)
    default:  // this file is compiled anew for products of bfloat16
      return QUIRE_BASE_ISA::paged_attention(layer, blocks, batch, qkv, out);
#else
    case KVType::float32:
      return attend<float>(step);
    case KVType::float16:
      return attend<F16>(step);
    case KVType::e4m3:
      return attend<E4M3>(step);
    case KVType::int8:
      return attend<int8_t>(step);
    case KVType::int4:
      return attend<Int4Pair>(step);
#endif
  }
}

}  // namespace quire::QUIRE_ISA
