// Python: which patterns a text ends with, and which tokens bad words forbid.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/binding.h"
#include "runtime/bad_words.h"

namespace quire {
namespace {

constexpr int64_t kMostPatterns = int64_t{1} << 24;

void make_automaton(PatternAutomaton* made, nb::handle symbols, int64_t num_symbols,
                    nb::handle starts, nb::handle lengths, int64_t count) {
  if (count < 1 || count > kMostPatterns)
    throw std::invalid_argument("[patterns] there must be 1 to 2^24 of them.");
  const Input<int32_t> all(symbols, num_symbols);
  const Input<int64_t> start(starts, count), length(lengths, count);
  std::vector<PatternAutomaton::Pattern> patterns;
  for (int64_t i = 0; i < count; ++i) {
    // A symbol comes after each: bad words end with it.
    if (start[i] < 0 || length[i] < 1 || length[i] >= num_symbols - start[i])
      throw std::invalid_argument("[patterns] each must be among the symbols, and not empty.");
    patterns.push_back({start[i], length[i]});
  }
  const int32_t* begin = all;
  const GilRelease release(num_symbols);
  new (made) PatternAutomaton({begin, begin + num_symbols}, std::move(patterns));
}

// The state, the symbols read and the pattern found (-1: none), and how many may be of a pattern
// yet.
std::tuple<int32_t, int64_t, int32_t, int64_t> search(PatternAutomaton& automaton, int32_t state,
                                                      nb::handle symbols, int64_t count,
                                                      bool stops) {
  if (state < 0 || state >= automaton.num_states())
    throw std::invalid_argument("[patterns] a state must be one that a search has returned.");
  const Input<int32_t> text(symbols, count);
  for (int64_t i = 0; i < count; ++i) {
    state = automaton.advance(state, text[i]);
    if (!stops || !automaton.ends(state)) continue;
    int32_t found = INT32_MAX;
    automaton.each_ended(state, [&](int32_t number) { found = std::min(found, number); });
    return {state, i + 1, found, 0};
  }
  return {state, count, -1, automaton.num_open(state)};
}

nb::bytes forbidden_tokens(nb::list followed, nb::handle token_ids, int64_t width, nb::handle rows,
                           nb::handle starts, nb::handle known, nb::handle lengths,
                           nb::handle counts) {
  const int64_t size = static_cast<int64_t>(followed.size());
  const Input<int32_t> row(rows, size), start(starts, size), num_known(known, size),
      length(lengths, size);
  const Output<int64_t> found(counts, size);
  int64_t end = 0;
  for (int64_t b = 0; b < size; ++b) {
    if (row[b] < 0 || start[b] < 0 || num_known[b] < start[b] || length[b] < start[b] ||
        length[b] > width)
      throw std::invalid_argument("[bad_words] rows must have an output, in the table.");
    end = std::max(end, (row[b] + int64_t{1}) * width);
  }
  const Input<int32_t> table(token_ids, end);
  std::vector<int32_t> forbidden;
  for (int64_t b = 0; b < size; ++b) {
    const size_t before = forbidden.size();
    const int32_t* output = table.get() + row[b] * width + start[b];
    nb::cast<BadWordsRow&>(followed[static_cast<size_t>(b)])
        .each_forbidden(output, num_known[b] - start[b], length[b] - start[b],
                        [&](int32_t token) { forbidden.push_back(token); });
    found[b] = static_cast<int64_t>(forbidden.size() - before);
  }
  return nb::bytes(reinterpret_cast<const char*>(forbidden.data()),
                   forbidden.size() * sizeof(int32_t));
}

}  // namespace

void bind_patterns(nb::module_& m) {
  nb::class_<PatternAutomaton>(m, "PatternAutomaton")
      .def("__init__", make_automaton, nb::arg("symbols"), nb::arg("num_symbols"),
           nb::arg("starts"), nb::arg("lengths"), nb::arg("count"),
           "Sort patterns of 32-bit symbols; a further symbol must be there after each.")
      .def("search", search, nb::arg("state"), nb::arg("symbols"), nb::arg("count"),
           nb::arg("stops"),
           "Read symbols on from a state, 0 at first; return the state, how many were read up to "
           "the first that completes a pattern, which one (of several the first; -1: none), and "
           "how many of the last may become one. Without `stops` all are read.")
      .def("num_states", &PatternAutomaton::num_states);
  nb::class_<BadWordsRow>(m, "BadWordsRow")
      .def(nb::init<PatternAutomaton&>(), nb::arg("beginnings"), nb::keep_alive<1, 2>());
  m.def("forbidden_tokens", forbidden_tokens, nb::arg("followed"), nb::arg("token_ids"),
        nb::arg("width"), nb::arg("rows"), nb::arg("starts"), nb::arg("known"), nb::arg("lengths"),
        nb::arg("counts"),
        "Return the tokens that may not come next, int32, row after row, and write how many each "
        "row has: after `lengths` tokens of a row of the table, whose output begins at `starts`.");
}

}  // namespace quire
