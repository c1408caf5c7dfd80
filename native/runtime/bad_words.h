// Where a row's output is among the words that must not be in it.
#pragma once

#include <cstdint>

#include "runtime/pattern_automaton.h"

namespace quire {

// One row's output, followed through the beginnings of its bad words: each but for its last token,
// which is the symbol after the pattern, and is forbidden where the output ends with the pattern.
class BadWordsRow {
 public:
  // The automaton outlives this.
  explicit BadWordsRow(PatternAutomaton& beginnings) : beginnings_(beginnings) {}

  // Call `visit` with each token that may not come after `count` tokens of output. The first
  // `known` of them stay as they are: they are read once, others every time.
  template <class Visit>
  void each_forbidden(const int32_t* output, int64_t known, int64_t count, Visit visit) {
    known = known < count ? known : count;
    if (known < num_read_) state_ = PatternAutomaton::kStart, num_read_ = 0;
    for (; num_read_ < known; ++num_read_) state_ = beginnings_.advance(state_, output[num_read_]);
    int32_t state = state_;
    for (int64_t i = known; i < count; ++i) state = beginnings_.advance(state, output[i]);
    beginnings_.each_ended(state, [&](int32_t number) {
      const PatternAutomaton::Pattern& beginning = beginnings_.pattern(number);
      visit(beginnings_.symbols()[static_cast<size_t>(beginning.start + beginning.length)]);
    });
  }

 private:
  PatternAutomaton& beginnings_;
  int32_t state_ = PatternAutomaton::kStart;  // of the tokens that were read
  int64_t num_read_ = 0;
};

}  // namespace quire
