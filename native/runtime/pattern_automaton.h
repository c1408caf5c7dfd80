// Which of some patterns a text ends with: an automaton, made as far as texts have come in it.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace quire {

// The automaton of Aho and Corasick (1975, "Efficient string matching") over 32-bit symbols.
//
// Patterns are sorted at first, and nothing else is done with them: a state, which is a beginning
// of some pattern, is made when a text first ends with it. So long patterns cost what is read of
// them. A state is the run of the sorted patterns that begin with it.
//
// A symbol costs a lookup where its state was made before, else a binary search; and the same again
// for each shorter suffix that has to be tried, of which there are no more than symbols.
class PatternAutomaton {
 public:
  // The text's longest suffix that is a beginning of a pattern; the empty one at first.
  static constexpr int32_t kStart = 0;

  struct Pattern {
    int64_t start, length;  // in symbols; at least one
  };

  PatternAutomaton(std::vector<int32_t> symbols, std::vector<Pattern> patterns);

  // The state after one more symbol.
  int32_t advance(int32_t state, int32_t symbol);

  // Whether a text that has come to this state ends with a pattern.
  bool ends(int32_t state) const { return states_[state].ended >= 0; }

  // Call `visit` with each pattern that such a text ends with, by its number.
  template <class Visit>
  void each_ended(int32_t state, Visit visit) const {
    for (int32_t i = states_[state].ended; i >= 0; i = states_[states_[i].link].ended) {
      const State& ended = states_[i];
      for (int32_t at = ended.first; at < ended.last && length(at) == ended.depth; ++at)
        visit(order_[at]);
    }
  }

  // Symbols of the longest suffix that may yet become a pattern by further symbols.
  int64_t num_open(int32_t state) const;

  int32_t num_states() const { return static_cast<int32_t>(states_.size()); }
  const Pattern& pattern(int32_t number) const { return patterns_[number]; }
  const std::vector<int32_t>& symbols() const { return symbols_; }

 private:
  struct State {
    int32_t first, last;  // of order_: the patterns that begin with it
    int64_t depth;        // its symbols
    int32_t link;         // the state of its longest proper suffix that is one
    int32_t ended;        // of it and its suffixes, the longest that is a pattern; -1: none
  };

  int64_t length(int32_t at) const { return patterns_[order_[at]].length; }
  int32_t find_child(int32_t state, int32_t symbol) const;
  int32_t make_child(int32_t state, int32_t symbol);

  std::vector<int32_t> symbols_;
  std::vector<Pattern> patterns_;
  std::vector<int32_t> order_;  // numbers of patterns, sorted by their symbols
  std::vector<State> states_;
  std::unordered_map<int64_t, int32_t> children_;  // by state and symbol
};

}  // namespace quire
