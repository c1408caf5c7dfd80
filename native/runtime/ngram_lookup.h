// Tokens that will probably follow a text: what followed its last tokens before, in the text itself
// or in earlier outputs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/output_store.h"
#include "runtime/suffix_automaton.h"

namespace quire {

struct NgramOptions {
  int32_t shortest, longest;  // tokens that must, and that can at most, be the same: 1 <= shortest
  int64_t store_tokens;       // of earlier outputs, of all tenants
  int64_t operations;         // of automata, in one call of propose(); see propose()
};

// Rows of a token table, (number of rows, width) and how many tokens each of a batch has and may
// get.
struct NgramBatch {
  int32_t* token_ids;
  int64_t width;
  const int32_t* rows;        // (B,), each once
  const int32_t* num_tokens;  // (B,), the known ones
  const int32_t* most;        // (B,), num_tokens + most <= width
  int64_t size;               // B
};

class NgramLookup {
 public:
  explicit NgramLookup(const NgramOptions& options);

  // Whether a row was begun and not forgotten.
  bool has(int64_t row) const { return row >= 0 && row < num_rows() && rows_[row]; }
  // How many tokens of a row propose() has seen.
  int64_t num_seen(int64_t row) const { return rows_[row]->own.num_tokens(); }

  // Know a row. tenant: whose outputs it may see. num_tokens: its tokens that are not its output,
  // or that were when it was forgotten before.
  void begin(int64_t row, const std::string& tenant, int64_t num_tokens);

  // Forget a row, and keep what its tenant may see from now on: its tokens from num_tokens on.
  void forget(int64_t row, const int32_t* token_ids, int64_t count);

  // Write proposals after the known tokens, and their numbers to counts (B,). What cannot be looked
  // at within `operations`, as a long prompt, waits for the next calls: its row gets nothing.
  void propose(const NgramBatch& batch, int32_t* counts);

  size_t bytes() const;
  int64_t num_operations() const { return num_operations_; }
  const OutputStore& store() const { return store_; }

 private:
  // A row's match in a segment, by the segment's id.
  struct Cursor {
    int64_t segment;
    int64_t num_tokens;   // of the row that it has come to
    int32_t num_outputs;  // tokens of the segment that it was found in
    SuffixAutomaton::Match match;
  };
  struct Row {
    Row(Tenant* tenant, int64_t num_stored, int32_t longest)
        : tenant(tenant), num_stored(num_stored), own(longest) {}
    Tenant* tenant;
    int64_t num_stored;
    SuffixAutomaton own;
    std::vector<Cursor> cursors;
  };
  // Where a suffix occurred before, and the tokens that followed up to `stop`.
  struct Source {
    int32_t length = 0;
    const int32_t* next = nullptr;
    const int32_t* stop = nullptr;
  };

  int64_t num_rows() const { return static_cast<int64_t>(rows_.size()); }
  void extend(const NgramBatch& batch);
  void extend(Row& row, const int32_t* tokens, int64_t count, int64_t budget);
  int32_t propose(Row& row, int32_t* tokens, int64_t count, int64_t most);
  Source find_in_store(Row& row, const int32_t* tokens, int64_t count);
  void follow_segments(Row& row);
  void advance(Cursor& cursor, OutputSegment& segment, const int32_t* tokens, int64_t count);

  NgramOptions options_;
  OutputStore store_;
  std::vector<std::unique_ptr<Row>> rows_;
  int64_t num_operations_ = 0;
};

}  // namespace quire
