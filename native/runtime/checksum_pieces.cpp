#include "runtime/checksum_pieces.h"

#include "runtime/checksum.h"
#include "runtime/thread_pool.h"

namespace quire {

std::vector<uint64_t> checksum_parts(const void* data, const std::vector<Part>& parts) {
  constexpr size_t piece = size_t{1} << 20;
  std::vector<Part> pieces;
  for (const auto& [begin, bytes] : parts)
    for (size_t at = 0; at < bytes; at += piece)
      pieces.emplace_back(begin + at, bytes - at < piece ? bytes - at : piece);
  std::vector<uint64_t> sums(pieces.size());
  // One job for all: a barrier after each part would wait for other processes that compute.
  parallel_for(static_cast<int64_t>(sums.size()), [&](int64_t i) {
    const auto& [begin, bytes] = pieces[static_cast<size_t>(i)];
    sums[static_cast<size_t>(i)] = xxh64(static_cast<const char*>(data) + begin, bytes, 0);
  });
  std::vector<uint64_t> found;
  const uint64_t* first = sums.data();
  for (const auto& [begin, bytes] : parts) {
    const size_t count = (bytes + piece - 1) / piece;
    found.push_back(xxh64(first, count * sizeof(uint64_t), bytes));
    first += count;
  }
  return found;
}

}  // namespace quire
