// Codes of several inputs together: how an index into a table of vectors, and signs, are stored.
#pragma once

#include <cstdint>

namespace quire {

// The numbers are those of kernels/matrices/vector_codes.py.
enum class VectorForm : int32_t {
  none = 0,
  iq1_s = 1,
  iq1_m = 2,
  iq2_xxs = 3,
  iq2_xs = 4,
  iq2_s = 5,
  iq3_xxs = 6,
  iq3_s = 7,
  e8p = 8,
};

// What the top bit of a signs byte is; where it is no sign, the eighth sign makes their number
// even, or odd of vectors from number `odd_from` on. A shift: whether 1 is subtracted from all 8
// inputs or added.
enum class TopBit { sign, scale, index, shift };

// A record has lines of a byte for each of 32 outputs:
//
//   low     the low 8 bits of each vector's index
//   signs   of 8 inputs each, bit i of input i; or none
//   high    bits of each vector: line l has those of vectors l, l + lines, ..., the lowest first;
//           bits of the index above 8 and, of iq1, one bit more: of iq1_m whether 1 is subtracted
//           from all 8 inputs or added; of iq1_s the four are the group's scale, and the same for
//           all 32 inputs
//
// and a unit of 256 inputs has lines of scales before them, of scale_bits each:
//
//   4 bits  line l has those of groups 2 l and 2 l + 1, the low half first
//   3 bits  four lines of the low 2 bits, of groups 4 l, 4 l + 1, ..., and two of the third
//   0 bits  none: a scale's bits are the top bits of signs, or the high ones of iq1_s
//
// A scale is 2 s + 1. E8P has scales as codes of single inputs have
// (quire/kernels/matrices/lattice_codes.py).
struct VectorLayout {
  int32_t inputs;      // of a vector: 4 or 8
  int32_t index_bits;  // from 8 on
  bool has_signs;
  TopBit top;
  int32_t high_bits;
  int64_t group_size;
  int32_t scale_bits;
  int32_t odd_from = 1 << 11;

  // Whether the table's codes have 1 added, and 2 are subtracted where a vector's bit says so.
  constexpr bool has_shifts() const { return !has_signs || top == TopBit::shift; }
  // Whether kernels that permute bytes have planes of a bit of each input (VectorTable).
  constexpr bool has_bit_planes() const { return top == TopBit::shift; }
  // What a code is subtracted from to be that of the opposite: of a code in the table.
  constexpr int32_t twice_zero(int32_t zero) const { return 2 * (zero + has_shifts()); }
  constexpr int64_t vectors() const { return 32 / inputs; }  // of a record and output
  constexpr int64_t indices() const { return int64_t{1} << index_bits; }
  constexpr int32_t field_bits() const { return 16 / inputs; }
  constexpr int64_t signs_begin() const { return vectors(); }
  constexpr int64_t high_begin() const { return signs_begin() + (has_signs ? 4 : 0); }
  constexpr int64_t high_lines() const { return vectors() * high_bits / 8; }
  constexpr int64_t record_lines() const { return high_begin() + high_lines(); }
  constexpr int64_t scale_lines() const { return 256 / group_size * scale_bits / 8; }
};

constexpr VectorLayout vector_layouts[] = {
    {},
    {8, 11, false, TopBit::sign, 4, 32, 0},      // iq1_s
    {8, 11, false, TopBit::sign, 4, 16, 3},      // iq1_m
    {8, 8, true, TopBit::scale, 0, 32, 0},       // iq2_xxs
    {8, 9, true, TopBit::index, 0, 16, 4},       // iq2_xs
    {8, 10, true, TopBit::sign, 2, 16, 4},       // iq2_s
    {4, 8, true, TopBit::scale, 0, 32, 0},       // iq3_xxs
    {4, 9, true, TopBit::sign, 1, 32, 4},        // iq3_s
    {8, 8, true, TopBit::shift, 0, 32, 0, 107},  // e8p
};

constexpr int32_t num_vector_forms = sizeof(vector_layouts) / sizeof(vector_layouts[0]);

constexpr const VectorLayout& vector_layout(VectorForm form) {
  return vector_layouts[static_cast<int32_t>(form)];
}

// The codes of a form's vectors, and the same for kernels that permute bytes: a vector is 16 bits,
// fields that number the few different codes.
struct VectorTable {
  const uint8_t* codes;   // [index][inputs]
  const uint8_t* values;  // [64] the codes that fields number, over and over
  // [2][index] fields of half a vector each, the first input's lowest; or bit planes: of all 8
  // inputs which have a 0 in the lower bit of their field, then in the higher one.
  const uint8_t* planes;
  // Of 2048 vectors, whose second plane changes once at most in each 16 bytes: [3][128] the first
  // of 16, the last, and from which of 16 on it is the last.
  const uint8_t* runs;
};

}  // namespace quire
