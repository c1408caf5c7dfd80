#include "runtime/checksum.h"

#include <cstring>

namespace quire {
namespace {

constexpr uint64_t prime1 = 0x9E3779B185EBCA87;
constexpr uint64_t prime2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t prime3 = 0x165667B19E3779F9;
constexpr uint64_t prime4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t prime5 = 0x27D4EB2F165667C5;

uint64_t rotate(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

template <typename T>
T read(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

uint64_t round(uint64_t lane, uint64_t input) { return rotate(lane + input * prime2, 31) * prime1; }

uint64_t merge(uint64_t hash, uint64_t lane) { return (hash ^ round(0, lane)) * prime1 + prime4; }

}  // namespace

uint64_t xxh64(const void* data, size_t size, uint64_t seed) {
  const unsigned char* at = static_cast<const unsigned char*>(data);
  const unsigned char* const end = at + size;
  uint64_t hash = seed + prime5;
  if (size >= 32) {
    uint64_t lane[4] = {seed + prime1 + prime2, seed + prime2, seed, seed - prime1};
    for (; end - at >= 32; at += 32)
      for (int i = 0; i < 4; ++i) lane[i] = round(lane[i], read<uint64_t>(at + 8 * i));
    hash = rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);
    for (const uint64_t one : lane) hash = merge(hash, one);
  }
  hash += size;
  for (; end - at >= 8; at += 8)
    hash = rotate(hash ^ round(0, read<uint64_t>(at)), 27) * prime1 + prime4;
  for (; end - at >= 4; at += 4)
    hash = rotate(hash ^ read<uint32_t>(at) * prime1, 23) * prime2 + prime3;
  for (; at < end; ++at) hash = rotate(hash ^ *at * prime5, 11) * prime1;
  hash = (hash ^ hash >> 33) * prime2;
  hash = (hash ^ hash >> 29) * prime3;
  return hash ^ hash >> 32;
}

}  // namespace quire
