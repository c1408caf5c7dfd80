// The checksum of large memory, by all threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

// xxh64 of the xxh64 of each MiB; the result depends on the bytes alone.
uint64_t checksum_pieces(const void* data, size_t bytes);

}  // namespace quire
