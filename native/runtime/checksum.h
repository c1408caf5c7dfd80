// A checksum of memory that notices any small change; it is no defence against intent.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

// XXH64 (Y. Collet, xxHash specification 0.1.1): 32 bytes a turn in four independent lanes, so that
// it runs at about the speed of memory without vector instructions.
uint64_t xxh64(const void* data, size_t size, uint64_t seed);

}  // namespace quire
