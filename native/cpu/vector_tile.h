// Vectors for a tile that unpacks them itself: each record right before its products, so that a
// processor looks the next one up meanwhile.
#pragma once

#include "cpu/quantized_tile.h"
#include "cpu/quantized_vectors.h"

namespace quire::QUIRE_ISA {

// Whether looking up costs little enough: not where it takes a load for each vector.
#if defined(__AVX512VBMI__)
constexpr bool has_vector_tiles = true;
#else
constexpr bool has_vector_tiles = false;
#endif

// A record's codes as CodeReader has unpacked them.
template <VectorForm form>
struct VectorCodes {
  static constexpr Range range = Range::byte;
  const uint8_t* unpacked;
  Bytes load(const uint8_t*, int word, int vector) const {
    return load_bytes(unpacked + word * word_bytes + vector * register_bytes);
  }
};

#if defined(__AVX512VBMI__)
// Of E8P they are half bytes.
template <>
struct VectorCodes<VectorForm::e8p> {
  static constexpr Range range = LatticeHalves::range;
  const uint8_t* unpacked;
  Bytes load(const uint8_t*, int word, int vector) const {
    return LatticeHalves{}.load(unpacked, word, vector);
  }
};
#endif

template <VectorForm form>
class CodeReader<VectorCodes<form>> {
 public:
  VectorCodes<form> codes;

  CodeReader(const QuantizedTile& tile, bool)
      : codes{unpacked_}, expander_(*tile.vectors, tile.zero), ahead_(tile.ahead) {}
  [[gnu::always_inline]] void begin_group(const QuantizedTile& tile, const uint8_t* record) {
    for (int64_t i = 0; i < tile.ahead_bytes; i += 64)
      __builtin_prefetch(ahead_ + i, 0, asked_cache);
    ahead_ += tile.ahead_bytes;
    if constexpr (form == VectorForm::e8p)
      expander_.expand_halves(record, unpacked_);
    else
      expander_.expand(record, unpacked_);
  }
  void end_group(const QuantizedTile&) {}

 private:
  const Expander<form> expander_;
  const char* ahead_;
  alignas(64) uint8_t unpacked_[record_codes];
};

}  // namespace quire::QUIRE_ISA
