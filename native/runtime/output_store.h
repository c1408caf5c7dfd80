// Earlier outputs, kept to be repeated: within a bound, apart for each tenant.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/suffix_automaton.h"

namespace quire {

// Stands between outputs, where no copying goes on; token ids are not negative.
constexpr int32_t kOutputEnd = -1;

// Outputs one after another with their automaton, which may still lack some at the end.
struct OutputSegment {
  explicit OutputSegment(int64_t id, int32_t longest) : id(id), automaton(longest) {}

  int64_t id;  // rising
  std::vector<int32_t> tokens;
  SuffixAutomaton automaton;
  int64_t age = 0;  // of its newest output: rising
};

struct Tenant {
  std::string key;
  std::vector<std::unique_ptr<OutputSegment>> segments;  // oldest id first
  int64_t num_rows = 0;                                  // that look things up here
};

// Outputs of all tenants, in segments that are dropped whole: that whose newest output is the
// oldest goes first. A tenant is known while it has rows or segments.
class OutputStore {
 public:
  // max_tokens: of all outputs; 0 keeps none. A segment's own memory counts as kSegmentTokens, so
  // that many tenants with little each are bounded, too. longest: see SuffixAutomaton.
  OutputStore(int64_t max_tokens, int32_t longest);
  OutputStore(const OutputStore&) = delete;
  OutputStore& operator=(const OutputStore&) = delete;

  static constexpr int64_t kSegmentTokens = 64;

  // The tenant of a row, until it leaves.
  Tenant* enter(const std::string& key);
  void leave(Tenant* tenant);

  // Keep an output. Its tokens can be found once extend() has come to them.
  void add(Tenant* tenant, const int32_t* tokens, int64_t count);

  // Extend a tenant's automata until nothing is left to do or `operations` have been spent, which
  // is noticed after each token; returns how many were.
  int64_t extend(Tenant* tenant, int64_t operations);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_tenants() const { return static_cast<int64_t>(tenants_.size()); }
  size_t bytes() const;

 private:
  OutputSegment* segment_with_room(Tenant* tenant);
  void drop_oldest();
  void forget_if_empty(Tenant* tenant);

  int64_t max_tokens_, segment_tokens_;
  int32_t longest_;
  int64_t num_tokens_ = 0;  // with kSegmentTokens for each segment
  int64_t next_id_ = 0, next_age_ = 0;
  std::map<std::string, std::unique_ptr<Tenant>> tenants_;
  std::map<int64_t, Tenant*> by_age_;  // of segments
};

}  // namespace quire
