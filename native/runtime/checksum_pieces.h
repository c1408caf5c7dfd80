// Checksums of large memory, by all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace quire {

// Where a part begins, and its bytes.
using Part = std::pair<size_t, size_t>;

// Of each part of data, xxh64 of the xxh64 of each MiB; it depends on the part's bytes alone.
std::vector<uint64_t> checksum_parts(const void* data, const std::vector<Part>& parts);

}  // namespace quire
