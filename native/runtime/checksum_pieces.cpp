#include "runtime/checksum_pieces.h"

#include <vector>

#include "runtime/checksum.h"
#include "runtime/thread_pool.h"

namespace quire {

uint64_t checksum_pieces(const void* data, size_t bytes) {
  constexpr size_t piece = size_t{1} << 20;
  std::vector<uint64_t> sums((bytes + piece - 1) / piece);
  parallel_for(static_cast<int64_t>(sums.size()), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * piece;
    const size_t n = bytes - begin < piece ? bytes - begin : piece;
    sums[static_cast<size_t>(i)] = xxh64(static_cast<const char*>(data) + begin, n, 0);
  });
  return xxh64(sums.data(), sums.size() * sizeof(uint64_t), bytes);
}

}  // namespace quire
