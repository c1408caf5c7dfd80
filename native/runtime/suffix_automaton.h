// Where a text repeats itself, and where another text repeats it: a suffix automaton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire {

// The suffix automaton of a text of tokens (Blumer et al. 1985, "The smallest automaton recognizing
// the subwords of a text"), which grows by a token at a time. A state is a class of substrings that
// end at the same places, and remembers the last of these places; only suffixes of at most
// `longest` tokens are told apart, so that remembering takes at most as many steps a token.
//
// n tokens have at most 2n states of 24 bytes, and n edges of 16 bytes with 8 to 16 bytes of table
// besides the first of each state, which is in it: at most 80 bytes a token, about 50 in ordinary
// text, and up to twice that while vectors have room to grow.
class SuffixAutomaton {
 public:
  // A suffix of some text that is a substring of this one; the empty one at first.
  struct Match {
    int32_t state = 0;
    int32_t length = 0;
  };

  // A suffix of the text, and the place of its last token where it occurred before.
  struct Repeat {
    int32_t length = 0;
    int32_t end = -1;
  };

  // longest: tokens, at least 1.
  explicit SuffixAutomaton(int32_t longest);

  // Add a token to the text. The text has less than 2^30 tokens.
  void extend(int32_t token);

  // The longest suffix, of at most `longest` tokens, that occurred before, and where it did last.
  Repeat repeat() const { return repeat_; }

  // The longest suffix, of at most `longest` tokens, of a match and one more token that is a
  // substring of the text. Matches stay valid while the text grows.
  Match advance(Match match, int32_t token);

  // The place of the last token where a match that is not empty occurs last.
  int32_t last_end(Match match) { return states_[shortened(match).state].last_end; }

  int32_t num_tokens() const { return num_tokens_; }
  size_t bytes() const;

  // Edges looked up and made, and links followed, so far: what the work is bounded in.
  int64_t num_operations() const { return num_operations_; }

 private:
  struct State {
    int32_t length;  // of its longest substring
    int32_t link;    // the state of the longest suffix that ends at more places; -1 of the root
    int32_t last_end = -1;
    int32_t token = 0;    // of the first edge
    int32_t target = -1;  // -1: no edge
    int32_t more = -1;    // the other edges, a list
  };
  struct Edge {
    int32_t state, token, target, next;
  };

  int32_t* find_target(int32_t state, int32_t token);
  void add_edge(int32_t state, int32_t token, int32_t target);
  void grow_slots();
  size_t slot_of(int32_t state, int32_t token) const;
  int32_t add_state(int32_t length, int32_t link);
  int32_t split(int32_t parent, int32_t state, int32_t token);
  Match shortened(Match match);
  void remember_end();

  int32_t longest_;
  int32_t num_tokens_ = 0;
  int32_t last_ = 0;  // the state of the whole text
  Match suffix_;      // the last `longest` tokens
  Repeat repeat_;
  int64_t num_operations_ = 0;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t>
      slots_;  // open addressing: an edge's index, -1 where free; at most half full
};

}  // namespace quire
