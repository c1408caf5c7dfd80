#include "runtime/ranking.h"

#include <algorithm>
#include <functional>

namespace quire {
namespace {

bool before(const Scored& a, const Scored& b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

}  // namespace

void sort_best_first(Scored* items, int64_t n) {
  // Equal scores arrive in order of their ids.
  if (!std::is_sorted(items, items + n, before)) std::sort(items, items + n, before);
}

float nth_best(const float* values, int64_t n, int64_t k, float* copy) {
  std::copy(values, values + n, copy);
  std::nth_element(copy, copy + k - 1, copy + n, std::greater<float>());
  return copy[k - 1];
}

void best_to_front(Scored* items, int64_t n, int64_t k) {
  if (k < n) std::nth_element(items, items + k, items + n, before);
  sort_best_first(items, k < n ? k : n);
}

}  // namespace quire
