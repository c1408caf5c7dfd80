// How a step of paged attention is cut: which queries and heads are computed together, and which
// positions each query sees.
#pragma once

#include "cpu/attention_products.h"
#include "include/attention.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t rows_per_unit = 128;
constexpr int64_t wanted_chunks = 32;  // of a decode: enough to keep many threads busy to the end

int64_t stored_rows(int64_t rows) { return ceil_div(rows, row_step) * row_step; }

struct Unit {
  int64_t request, first_query, num_queries;
  int64_t kv_head, num_kv_heads;
  int64_t position, last_position;  // lowest and highest of the queries
  int64_t first_piece, end_piece;   // that its queries see
  bool in_place;                    // one query, read from the blocks
};

// The slots of the tokens that a query sees from a position on, its own the last; from everything
// on where it has none.
struct Path {
  const int64_t* slots;
  int64_t start, length;
};

bool has_tree(const AttentionBatch& batch, int64_t request) {
  return batch.tree_starts && batch.tree_starts[request] < batch.seq_lens[request];
}

Path path_of(const AttentionBatch& batch, int64_t request, int64_t query) {
  if (!has_tree(batch, request)) return {nullptr, INT64_MAX, 0};
  const int64_t token = batch.query_start_loc[request] + query;
  const Path path{batch.tree_slots + token * batch.tree_depth, batch.tree_starts[request], 0};
  int64_t length = 0;
  while (length < batch.tree_depth && path.slots[length] >= 0) ++length;
  return {path.slots, path.start, length};
}

int64_t position_of(const AttentionBatch& batch, int64_t request, int64_t query) {
  const Path path = path_of(batch, request, query);
  if (path.length) return path.start + path.length - 1;
  const int32_t* starts = batch.query_start_loc + request;
  return batch.seq_lens[request] - (starts[1] - starts[0]) + query;
}

struct Step {
  const AttentionLayer& layer;
  const KVBlocks& blocks;
  const AttentionBatch& batch;
  const float* qkv;
  float* out;
  float unit;
  int64_t group;  // query heads per KV head
  // Of all units:
  int64_t num_units, max_rows, max_heads, max_pieces, work;
  bool unpacks;

  // The last position that a query at `position` sees.
  int64_t last_seen(int64_t request, int64_t position) const {
    int64_t last = position + layer.ahead;
    if (batch.last_seen && !has_tree(batch, request)) {
      const int32_t* starts = batch.query_start_loc + request;
      const int64_t computed = batch.seq_lens[request] - (starts[1] - starts[0]);
      last = larger<int64_t>(last, batch.last_seen[starts[0] + position - computed]);
    }
    return smaller<int64_t>(last, batch.seq_lens[request] - 1);
  }
  int64_t rows(const Unit& unit) const { return unit.num_queries * unit.num_kv_heads * group; }
  int64_t stride() const { return Panel::columns(layer.value_dim); }
  // From one token's queries to the next's.
  int64_t query_stride() const {
    return (layer.num_heads + (blocks.is_latent ? 0 : 2 * layer.num_kv_heads)) * layer.head_dim;
  }
  // What a head of a token gets.
  float* out_of(int64_t token, int64_t head) const {
    const int64_t row =
        blocks.is_latent ? head * batch.num_tokens + token : token * layer.num_heads + head;
    return out + row * layer.value_dim;
  }
  // Floats that the parts of `count` rows take: sums, highest, total.
  int64_t part_floats(int64_t count) const { return stored_rows(count) * (stride() + 2); }
  Part part_at(float* floats, int64_t count) const {
    count = stored_rows(count);
    return {floats, floats + count * stride(), floats + count * (stride() + 1), stride()};
  }
};

// Cut a request's queries into units, stored from units[num_units] on; returns how many there are.
int64_t add_units(const Step& step, int64_t request, int64_t num_units, Unit* units) {
  const int32_t* starts = step.batch.query_start_loc + request;
  const int64_t queries = starts[1] - starts[0];
  const int64_t computed = step.batch.seq_lens[request] - queries;
  const bool tree = has_tree(step.batch, request);
  // Rows of whole tiles cannot begin at any query of a tree.
  const int64_t queries_per_unit =
      tree && row_step > 1 ? 1 : larger<int64_t>(1, rows_per_unit / step.group);
  const bool in_place = queries == 1 && step.blocks.block_size % lanes == 0 &&
                        step.group <= max_rows && !step.blocks.is_latent;
  const int64_t kv_heads = step.layer.num_kv_heads;
  const auto pieces_from = [&](int64_t position) {
    return step.layer.first_seen(position) / piece_positions;
  };
  int64_t heads = 1;
  if (in_place) {
    // All KV heads together, unless that leaves too little for several threads.
    const int64_t last = step.last_seen(request, computed);
    const int64_t pieces = last / piece_positions + 1 - pieces_from(computed);
    heads = smaller(kv_heads, ceil_div(kv_heads * pieces * step.batch.num_requests, wanted_chunks));
  }
  // Queries go inside, so that a head's K and V stay in the second cache from unit to unit.
  for (int64_t head = 0; head < kv_heads; head += heads)
    for (int64_t first = 0; first < queries; first += queries_per_unit) {
      const int64_t count = smaller(queries_per_unit, queries - first);
      int64_t position = computed + first, last = position + count - 1;
      if (tree) {
        position = last = position_of(step.batch, request, first);
        for (int64_t query = first + 1; query < first + count; ++query) {
          const int64_t other = position_of(step.batch, request, query);
          position = smaller(position, other), last = larger(last, other);
        }
      }
      units[num_units++] = {request,
                            first,
                            count,
                            head,
                            smaller(heads, kv_heads - head),
                            position,
                            last,
                            pieces_from(position),
                            step.last_seen(request, last) / piece_positions + 1,
                            in_place};
    }
  return num_units;
}

}  // namespace
}  // namespace quire::QUIRE_ISA
