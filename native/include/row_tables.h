// Weights that are looked up in a table of their row, and values of single weights on top of them.
#pragma once

#include <cstdint>

namespace quire {

// What is added to some weights: of output n, value[i] to that of input column[i] for i from
// start[n] on, up to start[n + 1]. Columns may come more than once.
struct Outliers {
  const int32_t* starts;  // (outputs + 1,); null without outliers
  const int32_t* columns;
  const float* values;
};

// The codes of 32 inputs of one output are 4 * bits bytes: four words of `bits` bytes each, of
// which word w has the codes of inputs w, w + 4, w + 8 ... from its lowest bits up.
struct RowCodeLayout {
  int32_t bits;  // 3 or 4

  static constexpr int64_t part_outputs = 8;  // whose codes lie side by side
  int64_t values() const { return int64_t{1} << bits; }
  int64_t output_bytes() const { return 4 * bits; }
  int64_t step_bytes() const { return part_outputs * output_bytes(); }
};

}  // namespace quire
