#include "runtime/pattern_automaton.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace quire {
namespace {

// Symbols are sorted as their bytes lie in memory: long common beginnings are compared quickly.
int compare(const int32_t* a, const int32_t* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(int32_t));
}

int64_t key_of(int32_t state, int32_t symbol) {
  return (static_cast<int64_t>(state) << 32) | static_cast<uint32_t>(symbol);
}

}  // namespace

PatternAutomaton::PatternAutomaton(std::vector<int32_t> symbols, std::vector<Pattern> patterns)
    : symbols_(std::move(symbols)), patterns_(std::move(patterns)), order_(patterns_.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [this](int32_t i, int32_t j) {
    const Pattern &a = patterns_[i], &b = patterns_[j];
    const int64_t shorter = std::min(a.length, b.length);
    const int order = compare(&symbols_[a.start], &symbols_[b.start], shorter);
    if (order) return order < 0;
    return a.length != b.length ? a.length < b.length : i < j;
  });
  states_.push_back({0, static_cast<int32_t>(order_.size()), 0, 0, -1});
}

int32_t PatternAutomaton::advance(int32_t state, int32_t symbol) {
  int32_t reached = kStart;
  std::vector<int32_t> made;  // each the longest suffix of the one before
  while (true) {
    int32_t child = find_child(state, symbol);
    const bool known = child >= 0;
    if (!known) child = make_child(state, symbol);
    if (child >= 0) {
      if (!made.empty()) states_[made.back()].link = child;
      if (reached == kStart) reached = child;
      if (known) break;
      made.push_back(child);
    }
    if (state == kStart) break;
    state = states_[state].link;
  }
  // A pattern's end was noted when its state was made; else the longest suffix has it.
  for (size_t i = made.size(); i-- > 0;) {
    State& one = states_[made[i]];
    if (one.ended < 0) one.ended = states_[one.link].ended;
  }
  return reached;
}

int64_t PatternAutomaton::num_open(int32_t state) const {
  // Those that go on are the last of a state's patterns.
  while (length(states_[state].last - 1) == states_[state].depth) state = states_[state].link;
  return states_[state].depth;
}

int32_t PatternAutomaton::find_child(int32_t state, int32_t symbol) const {
  const auto found = children_.find(key_of(state, symbol));
  return found == children_.end() ? -1 : found->second;
}

// The state of a state's symbols and one more; -1 where no pattern begins so.
int32_t PatternAutomaton::make_child(int32_t state, int32_t symbol) {
  const int64_t depth = states_[state].depth;
  const auto below = [&](int32_t number, int32_t wanted) {
    const Pattern& pattern = patterns_[number];
    return pattern.length <= depth || compare(&symbols_[pattern.start + depth], &wanted, 1) < 0;
  };
  const auto above = [&](int32_t wanted, int32_t number) {
    const Pattern& pattern = patterns_[number];
    return pattern.length > depth && compare(&wanted, &symbols_[pattern.start + depth], 1) < 0;
  };
  const auto begin = order_.begin() + states_[state].first;
  const auto end = order_.begin() + states_[state].last;
  const auto first = std::lower_bound(begin, end, symbol, below);
  const auto last = std::upper_bound(first, end, symbol, above);
  if (first == last) return -1;
  const int32_t child = num_states();
  const bool is_pattern = patterns_[*first].length == depth + 1;
  states_.push_back({static_cast<int32_t>(first - order_.begin()),
                     static_cast<int32_t>(last - order_.begin()), depth + 1, kStart,
                     is_pattern ? child : -1});
  children_.emplace(key_of(state, symbol), child);
  return child;
}

}  // namespace quire
