// Weights that are looked up in a table of their row, and values of single weights on top of them.
//
// A record's 1024 codes are in the order [16 inputs of 32][32 outputs][16 inputs], so that a
// register takes 16 of its values from one table. Of 16 outputs, 4 l + r is at place 4 r + l: words
// of four registers, turned round, are then those of neighbouring outputs.
#pragma once

#include <cstdint>

namespace quire {

// What is added to some weights: of output n, values[i] to that of input columns[i] for i from
// starts[n] up to starts[n + 1]. Columns may come more than once.
struct Outliers {
  const int32_t* starts;  // (outputs + 1,); null without outliers
  const int32_t* columns;
  const float* values;
};

// Where an output of 32 is among them.
constexpr int64_t place_of_output(int64_t output) {
  return output / 16 * 16 + output % 4 * 4 + output % 16 / 4;
}

}  // namespace quire
