// Python: what a text repeats, of itself and of earlier outputs.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings/binding.h"
#include "runtime/ngram_lookup.h"

namespace quire {
namespace {

// Token ids are not negative, and so few that places fit in 32 bits.
constexpr int64_t kMaxTokens = int64_t{1} << 30;

std::pair<int32_t, int32_t> repeat_after(SuffixAutomaton& automaton, int32_t token) {
  if (automaton.num_tokens() >= kMaxTokens)
    throw std::invalid_argument("[ngram] a text has at most 2^30 tokens.");
  automaton.extend(token);
  return {automaton.repeat().length, automaton.repeat().end};
}

class CheckedLookup {
 public:
  CheckedLookup(int32_t shortest, int32_t longest, int64_t store_tokens, int64_t operations)
      : lookup_({shortest, longest, store_tokens, operations}) {
    if (shortest < 1 || longest < shortest || store_tokens >= kMaxTokens)
      throw std::invalid_argument("[ngram] there must be 1 <= shortest <= longest.");
  }

  void begin(int64_t row, const std::string& tenant, int64_t num_tokens) {
    if (row < 0 || row >= kMaxTokens || lookup_.has(row))
      throw std::invalid_argument("[ngram] a row is begun once, until it is forgotten.");
    lookup_.begin(row, tenant, num_tokens);
  }

  void forget(int64_t row, nb::handle token_ids, int64_t count) {
    if (!lookup_.has(row)) throw std::invalid_argument("[ngram] only rows begun are forgotten.");
    lookup_.forget(row, Input<int32_t>(token_ids, count), count);
  }

  void propose(nb::handle token_ids, int64_t width, nb::handle rows, nb::handle num_tokens,
               nb::handle most, nb::handle counts, int64_t size) {
    const Input<int32_t> row(rows, size), count(num_tokens, size), room(most, size);
    const Output<int32_t> out(counts, size);
    int64_t end = 0;
    for (int64_t b = 0; b < size; ++b) {
      const int64_t known = count[b];
      if (!lookup_.has(row[b]) || known < lookup_.num_seen(row[b]) || known >= kMaxTokens)
        throw std::invalid_argument("[ngram] rows must be begun, and their tokens only grow.");
      if (room[b] < 0 || known + room[b] > width)
        throw std::invalid_argument("[ngram] proposals must have room in the table.");
      end = std::max(end, (row[b] + int64_t{1}) * width);
    }
    const Output<int32_t> table(token_ids, end);
    lookup_.propose({table, width, row, count, room, size}, out);
  }

  const NgramLookup& lookup() const { return lookup_; }

 private:
  NgramLookup lookup_;
};

}  // namespace

void bind_ngram(nb::module_& m) {
  nb::class_<SuffixAutomaton>(m, "SuffixAutomaton")
      .def(nb::init<int32_t>(), nb::arg("longest"))
      .def("extend", repeat_after,
           "Add a token; return the length of the longest suffix that occurred before, and the "
           "place of its last token where it did last: -1 for length 0.")
      .def("num_operations", &SuffixAutomaton::num_operations)
      .def("bytes", &SuffixAutomaton::bytes);
  nb::class_<CheckedLookup>(m, "NgramLookup")
      .def(nb::init<int32_t, int32_t, int64_t, int64_t>(), nb::arg("shortest"), nb::arg("longest"),
           nb::arg("store_tokens"), nb::arg("operations"))
      .def("begin", &CheckedLookup::begin)
      .def("forget", &CheckedLookup::forget)
      .def("propose", &CheckedLookup::propose)
      .def("bytes", [](const CheckedLookup& self) { return self.lookup().bytes(); })
      .def("num_operations",
           [](const CheckedLookup& self) { return self.lookup().num_operations(); })
      .def("num_stored",
           [](const CheckedLookup& self) { return self.lookup().store().num_tokens(); })
      .def("num_tenants",
           [](const CheckedLookup& self) { return self.lookup().store().num_tenants(); });
}

}  // namespace quire
