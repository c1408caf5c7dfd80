// Looking weights up in a table of vectors.
#pragma once

#include <cstdint>

namespace quire {

// Vectors x (num, width) whose errors count weights (num, width) >= 0, and a table of vectors g.
// What a vector costs with one of the table times a scale, but for what no choice changes:
//
//   scale^2 squares - 2 scale products,   squares = sum w g^2, products = sum w x g
//
// Where `flipped` says so, one input must have the other sign; the one that costs least is taken:
// products are then less by 2 min w x g, and x >= 0 as g is.
struct VectorSearch {
  static constexpr int64_t chunk = 256;  // vectors of the table at a time

  const float* table;  // (width, count): input by input; count a multiple of `chunk`
  int64_t width;
  int64_t count;
  const float* x;
  const float* weights;
  const uint8_t* flipped;  // (num,)
  int64_t num;
};

}  // namespace quire
