// Records of E8P codes made codes of a byte each; include/vectors.h has the layout.
#pragma once

#include "cpu/quantized_vectors.h"

namespace quire::QUIRE_ISA {

constexpr int lattice_octets = 4 * vector_line;  // eights of inputs that share a signs byte

// Signs of the octets of a record, and all ones where 1 is subtracted from their codes.
struct LatticeSigns {
  uint8_t negative[lattice_octets];
  uint8_t subtracted[lattice_octets];

  explicit LatticeSigns(const uint8_t* __restrict signs) {
    for (int i = 0; i < lattice_octets; ++i) {
      auto odd = static_cast<uint8_t>(signs[i] ^ signs[i] >> 4);
      odd = static_cast<uint8_t>(odd ^ odd >> 2);
      odd = static_cast<uint8_t>((odd ^ odd >> 1) & 1);
      negative[i] = static_cast<uint8_t>(signs[i] ^ odd);
      subtracted[i] = static_cast<uint8_t>(-odd);
    }
  }
};

// Codes of a record, a byte each.
inline void unpack_lattice(const QuantizedWeights& weights, const uint8_t* record,
                           uint8_t* __restrict codes) {
  constexpr VectorLayout layout = vector_layout(VectorForm::e8p);
  const LatticeSigns signs(record + layout.signs_begin() * vector_line);
  alignas(64) uint8_t found[8 * lattice_octets];
  for (int i = 0; i < lattice_octets; ++i)
    std::memcpy(found + 8 * i, weights.lattice_table + 8 * record[i], 8);
#if defined(QUIRE_VECTORS)
  constexpr int outputs = register_bytes / 8;  // of a register
  const Bytes twice = set1_byte(2 * weights.zero), one = set1_byte(1), minus_one = set1_byte(255);
  for (int octet = 0; octet < 4; ++octet)
    for (int n = 0; n < vector_line; n += 2 * outputs) {
      const int at = octet * vector_line + n;
      const auto made = [&](int first) {
        const Bytes x = load_bytes(found + 8 * first);
        const Bytes signed_x = choose(signs.negative + first, x, subtract(twice, x));
        return choose(signs.subtracted + first, subtract(signed_x, minus_one),
                      subtract(signed_x, one));
      };
      uint8_t* even = codes + 2 * octet * word_bytes + 4 * n;
      store_words(made(at), made(at + outputs), even, even + word_bytes);
    }
#else
  for (int at = 0; at < lattice_octets; ++at)
    for (int i = 0; i < 8; ++i) {
      const int code = found[8 * at + i];
      const int other = signs.negative[at] >> i & 1 ? 2 * weights.zero - code : code;
      uint8_t* word = codes + (at / vector_line * 2 + i / 4) * word_bytes;
      word[at % vector_line * 4 + i % 4] =
          static_cast<uint8_t>(signs.subtracted[at] ? other - 1 : other + 1);
    }
#endif
}

}  // namespace quire::QUIRE_ISA
