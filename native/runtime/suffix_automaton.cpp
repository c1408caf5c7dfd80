#include "runtime/suffix_automaton.h"

#include <algorithm>

namespace quire {

SuffixAutomaton::SuffixAutomaton(int32_t longest) : longest_(longest), slots_(8, -1) {
  add_state(0, -1);
}

void SuffixAutomaton::extend(int32_t token) {
  const int32_t whole = add_state(states_[last_].length + 1, 0);
  int32_t state = last_;
  const int32_t* target = nullptr;
  for (; state >= 0 && !(target = find_target(state, token)); state = states_[state].link)
    add_edge(state, token, whole);
  if (target) {
    const bool exact = states_[*target].length == states_[state].length + 1;
    const int32_t link = exact ? *target : split(state, *target, token);
    states_[whole].link = link;
  }
  last_ = whole;
  suffix_ = advance(suffix_, token);
  ++num_tokens_;
  remember_end();
}

// Give the substrings of `state` that come from `parent` and its suffixes a state of their own,
// since from now on they end at one place more.
int32_t SuffixAutomaton::split(int32_t parent, int32_t state, int32_t token) {
  const int32_t copy = add_state(states_[parent].length + 1, states_[state].link);
  states_[copy].last_end = states_[state].last_end;
  if (states_[state].target >= 0) add_edge(copy, states_[state].token, states_[state].target);
  for (int32_t i = states_[state].more; i >= 0; i = edges_[i].next)
    add_edge(copy, edges_[i].token, edges_[i].target);
  for (; parent >= 0; parent = states_[parent].link) {
    int32_t* target = find_target(parent, token);
    if (!target || *target != state) break;
    *target = copy;
  }
  states_[state].link = copy;
  return copy;
}

// Each longer suffix ends at fewer places, so the first state that ended before has the longest.
void SuffixAutomaton::remember_end() {
  repeat_ = {};
  for (int32_t i = suffix_.state; i > 0; i = states_[i].link) {
    State& state = states_[i];
    if (!repeat_.length && state.last_end >= 0)
      repeat_ = {std::min(state.length, longest_), state.last_end};
    state.last_end = num_tokens_ - 1;
    ++num_operations_;
  }
}

SuffixAutomaton::Match SuffixAutomaton::advance(Match match, int32_t token) {
  match = shortened(match);
  while (true) {
    if (const int32_t* target = find_target(match.state, token))
      return shortened({*target, std::min(match.length + 1, longest_)});
    if (!match.state) return {};
    match.state = states_[match.state].link;
    match.length = states_[match.state].length;
  }
}

// A state that was split, or whose match was cut, has that match in a state that it links to.
SuffixAutomaton::Match SuffixAutomaton::shortened(Match match) {
  while (match.state && states_[states_[match.state].link].length >= match.length) {
    match.state = states_[match.state].link;
    ++num_operations_;
  }
  return match;
}

int32_t* SuffixAutomaton::find_target(int32_t state, int32_t token) {
  ++num_operations_;
  State& from = states_[state];
  if (from.target < 0) return nullptr;
  if (from.token == token) return &from.target;
  if (from.more < 0) return nullptr;
  for (size_t slot = slot_of(state, token);; slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot] < 0) return nullptr;
    Edge& edge = edges_[slots_[slot]];
    if (edge.state == state && edge.token == token) return &edge.target;
    ++num_operations_;
  }
}

void SuffixAutomaton::add_edge(int32_t state, int32_t token, int32_t target) {
  ++num_operations_;
  State& from = states_[state];
  if (from.target < 0) {
    from.token = token;
    from.target = target;
    return;
  }
  if (2 * (edges_.size() + 1) > slots_.size()) grow_slots();
  size_t slot = slot_of(state, token);
  while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
  slots_[slot] = static_cast<int32_t>(edges_.size());
  edges_.push_back({state, token, target, from.more});
  from.more = slots_[slot];
}

void SuffixAutomaton::grow_slots() {
  slots_.assign(2 * slots_.size(), -1);
  for (size_t i = 0; i < edges_.size(); ++i) {
    size_t slot = slot_of(edges_[i].state, edges_[i].token);
    while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = static_cast<int32_t>(i);
  }
}

size_t SuffixAutomaton::slot_of(int32_t state, int32_t token) const {
  uint64_t mixed = static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32;
  mixed = (mixed | static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 32)) * 0xd6e8feb86659fd93;
  return static_cast<size_t>(mixed >> 32) & (slots_.size() - 1);
}

int32_t SuffixAutomaton::add_state(int32_t length, int32_t link) {
  states_.push_back({length, link});
  return static_cast<int32_t>(states_.size() - 1);
}

size_t SuffixAutomaton::bytes() const {
  return states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) +
         slots_.capacity() * sizeof(int32_t);
}

}  // namespace quire
