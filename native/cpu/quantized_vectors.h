// Records of vectors made codes of a byte each, and their scales; include/vectors.h has the layout.
#pragma once

#include "cpu/lattice_planes.h"
#include "cpu/vector_copies.h"
#include "cpu/vector_planes.h"

namespace quire::QUIRE_ISA {

#if defined(__AVX512VBMI__)
template <VectorForm form>
struct ExpanderOf {
  using Type = PlaneExpander<form>;
};
template <>
struct ExpanderOf<VectorForm::e8p> {
  using Type = LatticeExpander;
};
#else
template <VectorForm form>
struct ExpanderOf {
  using Type = VectorExpander<form>;
};
#endif
template <VectorForm form>
using Expander = typename ExpanderOf<form>::Type;

// call(form) with the form as a constant.
template <VectorForm form_>
struct FormConstant {
  static constexpr VectorForm form = form_;
};
template <class Call>
inline void with_form(VectorForm form, const Call& call) {
  switch (form) {
    case VectorForm::none:
      return;
    case VectorForm::iq1_s:
      return call(FormConstant<VectorForm::iq1_s>());
    case VectorForm::iq1_m:
      return call(FormConstant<VectorForm::iq1_m>());
    case VectorForm::iq2_xxs:
      return call(FormConstant<VectorForm::iq2_xxs>());
    case VectorForm::iq2_xs:
      return call(FormConstant<VectorForm::iq2_xs>());
    case VectorForm::iq2_s:
      return call(FormConstant<VectorForm::iq2_s>());
    case VectorForm::iq3_xxs:
      return call(FormConstant<VectorForm::iq3_xxs>());
    case VectorForm::iq3_s:
      return call(FormConstant<VectorForm::iq3_s>());
    case VectorForm::e8p:
      return call(FormConstant<VectorForm::e8p>());
  }
}

// Codes of some records, a byte each. record_at(i) is the i-th of them.
template <class RecordAt>
inline void unpack_vectors(const QuantizedWeights& weights, int64_t records,
                           const RecordAt& record_at, uint8_t* codes) {
  with_form(weights.vectors, [&](auto constant) {
    const Expander<decltype(constant)::form> expander(*weights.vector_table, weights.zero);
    for (int64_t i = 0; i < records; ++i) expander.expand(record_at(i), codes + i * record_codes);
  });
}

// A line's 32 bytes; shifts move bits of pairs of them.
typedef uint16_t LineBytes __attribute__((vector_size(vector_line)));

// `count` bits of each byte of a line, from bit `from` on, moved to bit `to`.
inline LineBytes bits_of_line(const uint8_t* line, int from, int count, int to) {
  LineBytes bytes;
  std::memcpy(&bytes, line, sizeof(bytes));
  const auto mask = static_cast<uint16_t>(((1 << count) - 1) * 0x0101);
  return (bytes >> from & mask) << to;
}

// The scales of a half of a record, or of it all: a number from 1 to 31 for each output. `lines`
// are the unit's, `number` is the record's place in it.
template <VectorForm form>
inline void read_odd_line(const uint8_t* lines, const uint8_t* record, int number, int half,
                          int8_t* out) {
  constexpr VectorLayout layout = vector_layout(form);
  const int group = layout.group_size < 32 ? 2 * number + half : number;
  const auto line = [](const uint8_t* from, int64_t i) { return from + i * vector_line; };
  LineBytes scales;
  if constexpr (layout.scale_bits == 4) {
    scales = bits_of_line(line(lines, group / 2), group % 2 * 4, 4, 1);
  } else if constexpr (layout.scale_bits == 3) {
    scales = bits_of_line(line(lines, group / 4), group % 4 * 2, 2, 1) |
             bits_of_line(line(lines, 4 + group / 8), group % 8, 1, 3);
  } else if constexpr (layout.has_signs) {
    const uint8_t* signs = line(record, layout.signs_begin());
    scales = bits_of_line(signs, 7, 1, 1) | bits_of_line(line(signs, 1), 7, 1, 2) |
             bits_of_line(line(signs, 2), 7, 1, 3) | bits_of_line(line(signs, 3), 7, 1, 4);
  } else {
    const uint8_t* high = line(record, layout.high_begin());
    scales = bits_of_line(high, 3, 1, 1) | bits_of_line(line(high, 1), 3, 1, 2) |
             bits_of_line(high, 7, 1, 3);
  }
  scales |= 0x0101;
  std::memcpy(out, &scales, sizeof(scales));
}

}  // namespace quire::QUIRE_ISA
