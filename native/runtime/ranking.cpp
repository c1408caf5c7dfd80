#include "runtime/ranking.h"

#include <algorithm>

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

void best_to_front(Scored* items, int64_t n, int64_t k) {
  if (k < n) std::nth_element(items, items + k, items + n, before);
  sort_best_first(items, k < n ? k : n);
}

}  // namespace quire
