// Python: calls that are kept, and a head's draft of several tokens as one call.
#include <stdexcept>
#include <vector>

#include "bindings/sampling_settings.h"

namespace quire {
namespace {

// One position of each row, which the recorded calls read.
struct Step {
  int64_t rows, max_blocks, block_size;
  int32_t *ids, *positions;
  int64_t* slots;
  const int32_t* tables;
  int32_t* seq_lens;

  // False when a block lies outside the table.
  bool place() const {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = seq_lens[row] - 1, block = at / block_size;
      if (at < 0 || block >= max_blocks) return false;
      slots[row] = tables[row * max_blocks + block] * block_size + at % block_size;
    }
    return true;
  }
  // Go on with `tokens`; false when a row has none.
  bool advance(const int32_t* tokens) const {
    if (!std::all_of(tokens, tokens + rows, [](int32_t token) { return token >= 0; })) return false;
    for (int64_t row = 0; row < rows; ++row) {
      ids[row] = tokens[row];
      ++positions[row];
      ++seq_lens[row];
    }
    return true;
  }
};

// Take a step, draw a token for each row and go on with it, up to `steps` times; a row without a
// token ends it. Returns the steps taken, each with its tokens in `out`; -1 when something is out
// of range.
int64_t draft_chain(const Recording& recording, int64_t steps, int64_t rows, int64_t max_blocks,
                    int64_t block_size, nb::handle ids, nb::handle positions, nb::handle slots,
                    nb::handle tables, nb::handle seq_lens, nb::handle logits, int64_t vocab,
                    nb::handle batch, nb::handle out) {
  if (steps < 1 || rows < 1 || max_blocks < 1 || block_size < 1)
    throw std::invalid_argument("[draft_chain] sizes must be at least 1.");
  const Output<int32_t> tokens(ids, rows), places(positions, rows), lengths(seq_lens, rows);
  const Output<int64_t> into(slots, rows);
  const Input<int32_t> blocks(tables, rows * max_blocks);
  const Output<float> scores(logits, rows * vocab);
  const Output<int32_t> drawn(out, steps * rows);
  const Step step{rows,         max_blocks, block_size,   tokens.get(),
                  places.get(), into.get(), blocks.get(), lengths.get()};
  int64_t taken = 0;
  bool inside = true;
  const auto draft = [&](const SamplingRows& given) {
    SamplingRows all = given;
    std::vector<int64_t> numbers(given.position, given.position + rows);
    all.position = numbers.data();
    const GilRelease release(std::max(recording.most_work(), rows * vocab * 4));
    while (taken < steps) {
      inside = step.place() && recording.replay();
      if (!inside) return;
      int32_t* next = drawn.get() + taken * rows;
      kernels().sample(all, scores, next);
      ++taken;
      if (!step.advance(next)) return;
      for (int64_t& number : numbers) ++number;
    }
  };
  if (!with_settings(batch, rows, vocab, {0, 0, 0, 0}, draft) || !inside) return -1;
  return taken;
}

void start(nb::handle_t<Recording> self) {
  if (Recording::open()) throw std::logic_error("[recording] one at a time.");
  Recording::open() = &nb::cast<Recording&>(self);
}

}  // namespace

void bind_draft_chain(nb::module_& m) {
  nb::class_<Recording>(m, "Recording")
      .def(nb::init<>())
      .def("start", start)
      .def("stop", [](Recording&) { Recording::open() = nullptr; })
      .def("replay", &Recording::replay);
  m.def("draft_chain", draft_chain);
}

}  // namespace quire
