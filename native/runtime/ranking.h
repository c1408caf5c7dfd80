// Order of tokens: score falling, equal scores by id rising.
#pragma once

#include <cstdint>

namespace quire {

struct Scored {
  float score;  // not NaN
  int32_t id;
};

// Sort all of n items.
void sort_best_first(Scored* items, int64_t n);

// The k-th largest of n values, 1 <= k <= n; `copy` has room for n.
float nth_best(const float* values, int64_t n, int64_t k, float* copy);

// Bring the best k of n items to the front, sorted; the rest is left in any order.
void best_to_front(Scored* items, int64_t n, int64_t k);

}  // namespace quire
