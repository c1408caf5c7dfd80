// How quantized weights are cut into chunks for threads.
#pragma once

#include "include/quantized.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {

// How many panels make a chunk: a 64th of the weights, so that threads end together, but not so few
// bytes that the wait for the first of them counts. All panels when the work is small, because
// waking another thread costs some microseconds.
inline int64_t panels_of_chunk(const QuantizedWeights& weights, int64_t rows) {
  if (weights.bytes() * (1 + rows / 4) < (1 << 19)) return weights.num_panels();
  const int64_t bytes =
      larger<int64_t>(64 << 10, smaller<int64_t>(256 << 10, weights.bytes() / 64));
  return larger<int64_t>(rows > 32 ? 4 : 1, bytes / weights.panel_bytes());
}

}  // namespace quire::QUIRE_ISA
