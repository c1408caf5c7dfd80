#include "runtime/ngram_lookup.h"

#include <algorithm>

namespace quire {
namespace {

// A row with fewer new tokens goes before those that have a long prompt to be looked at.
constexpr int64_t kShortBacklog = 64;

}  // namespace

NgramLookup::NgramLookup(const NgramOptions& options)
    : options_(options), store_(options.store_tokens, options.longest) {}

void NgramLookup::begin(int64_t row, const std::string& tenant, int64_t num_tokens) {
  if (row >= num_rows()) rows_.resize(row + 1);
  rows_[row] = std::make_unique<Row>(store_.enter(tenant), num_tokens, options_.longest);
}

void NgramLookup::forget(int64_t row, const int32_t* token_ids, int64_t count) {
  const Row& known = *rows_[row];
  if (count > known.num_stored)
    store_.add(known.tenant, token_ids + known.num_stored, count - known.num_stored);
  store_.leave(known.tenant);
  rows_[row].reset();
}

void NgramLookup::propose(const NgramBatch& batch, int32_t* counts) {
  extend(batch);
  for (int64_t b = 0; b < batch.size; ++b) {
    int32_t* tokens = batch.token_ids + batch.rows[b] * batch.width;
    counts[b] = propose(*rows_[batch.rows[b]], tokens, batch.num_tokens[b], batch.most[b]);
  }
}

// Rows with few new tokens first, then long prompts, then outputs that have come to the store.
void NgramLookup::extend(const NgramBatch& batch) {
  const int64_t end = num_operations_ + options_.operations;
  for (const bool is_short : {true, false})
    for (int64_t b = 0; b < batch.size; ++b) {
      Row& row = *rows_[batch.rows[b]];
      const int64_t backlog = batch.num_tokens[b] - row.own.num_tokens();
      if ((backlog <= kShortBacklog) == is_short)
        extend(row, batch.token_ids + batch.rows[b] * batch.width, batch.num_tokens[b],
               end - num_operations_);
    }
  for (int64_t b = 0; b < batch.size; ++b)
    num_operations_ += store_.extend(rows_[batch.rows[b]]->tenant, end - num_operations_);
}

void NgramLookup::extend(Row& row, const int32_t* tokens, int64_t count, int64_t budget) {
  const int64_t before = row.own.num_operations();
  while (row.own.num_tokens() < count && row.own.num_operations() - before < budget)
    row.own.extend(tokens[row.own.num_tokens()]);
  num_operations_ += row.own.num_operations() - before;
}

int32_t NgramLookup::propose(Row& row, int32_t* tokens, int64_t count, int64_t most) {
  if (row.own.num_tokens() < count) return 0;
  const SuffixAutomaton::Repeat repeat = row.own.repeat();
  Source source = {repeat.length, tokens + repeat.end + 1, tokens + count + most};
  const Source stored = find_in_store(row, tokens, count);
  if (stored.length > source.length) source = stored;
  if (source.length < options_.shortest) return 0;
  most = std::min<int64_t>(most, source.length + source.length / 2);
  // The row's own tokens may run into the proposals themselves: a period goes on.
  int32_t proposed = 0;
  while (proposed < most && source.next < source.stop && *source.next != kOutputEnd)
    tokens[count + proposed++] = *source.next++;
  return proposed;
}

NgramLookup::Source NgramLookup::find_in_store(Row& row, const int32_t* tokens, int64_t count) {
  follow_segments(row);
  Source found;
  for (size_t i = row.cursors.size(); i-- > 0;) {
    OutputSegment& segment = *row.tenant->segments[i];
    const int64_t before = segment.automaton.num_operations();
    Cursor& cursor = row.cursors[i];
    advance(cursor, segment, tokens, count);
    num_operations_ += segment.automaton.num_operations() - before;
    if (cursor.match.length <= found.length) continue;
    // Each segment ends with the end of an output.
    const int32_t* first = segment.tokens.data();
    const int32_t* next = first + segment.automaton.last_end(cursor.match) + 1;
    if (*next != kOutputEnd) found = {cursor.match.length, next, first + segment.tokens.size()};
  }
  return found;
}

// Have a cursor for each segment of the tenant, in the same order.
void NgramLookup::follow_segments(Row& row) {
  const auto& segments = row.tenant->segments;
  size_t kept = 0;
  for (const Cursor& cursor : row.cursors) {
    const bool lives = std::any_of(segments.begin(), segments.end(),
                                   [&](const auto& s) { return s->id == cursor.segment; });
    if (lives) row.cursors[kept++] = cursor;
  }
  row.cursors.resize(kept);
  // Segments are only added at the end.
  while (row.cursors.size() < segments.size())
    row.cursors.push_back({segments[row.cursors.size()]->id, 0, 0, {}});
}

// Only the last `longest` tokens count, so a cursor that has been left far before begins there; and
// one whose segment has grown, for a longer match may be in what is new.
void NgramLookup::advance(Cursor& cursor, OutputSegment& segment, const int32_t* tokens,
                          int64_t count) {
  const int32_t num_outputs = segment.automaton.num_tokens();
  if (cursor.num_outputs != num_outputs || count - cursor.num_tokens > options_.longest) {
    cursor.num_outputs = num_outputs;
    cursor.match = {};
    cursor.num_tokens = std::max<int64_t>(0, count - options_.longest);
  }
  while (cursor.num_tokens < count)
    cursor.match = segment.automaton.advance(cursor.match, tokens[cursor.num_tokens++]);
}

size_t NgramLookup::bytes() const {
  size_t bytes = store_.bytes();
  for (const auto& row : rows_)
    if (row) bytes += row->own.bytes();
  return bytes;
}

}  // namespace quire
