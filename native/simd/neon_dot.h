// The integer dot products of dot.h on NEON, and what they take: two registers for each of AVX2's.
// Included by dot.h.
//
// A word of activations is an element of a register that holds four words, so nothing is broadcast
// where an instruction sums four products (sdot, usdot). Plain NEON and sdot multiply signed bytes:
// weights of 8 bits lose byte_zero first, smaller ones are below 128 anyway.
#pragma once

namespace quire::QUIRE_ISA {

struct I32 {
  int32x4_t low, high;
};
struct Bytes {
  uint8x16_t low, high;
};
constexpr int register_bytes = sizeof(Bytes);

// A sum and a product in float and integer for each row and register of outputs, the weights, and a
// register of each row's activations; without dot products, four of products in 16 bits.
#if defined(__ARM_FEATURE_DOTPROD)
constexpr int dot_rows = 6;
#else
constexpr int dot_rows = 4;
#endif
template <int rows>
constexpr int dot_vectors = rows == 1 ? 2 : 1;
constexpr bool shifts_bytes = true;

inline I32 set1(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
inline F32 to_float(I32 x) { return {vcvtq_f32_s32(x.low), vcvtq_f32_s32(x.high)}; }
inline Bytes load_bytes(const uint8_t* p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
inline Bytes set1_byte(int x) {
  const uint8x16_t bytes = vdupq_n_u8(static_cast<uint8_t>(x));
  return {bytes, bytes};
}
inline Bytes operator&(Bytes a, Bytes b) {
  return {vandq_u8(a.low, b.low), vandq_u8(a.high, b.high)};
}
inline Bytes operator|(Bytes a, Bytes b) {
  return {vorrq_u8(a.low, b.low), vorrq_u8(a.high, b.high)};
}
inline Bytes operator^(Bytes a, Bytes b) {
  return {veorq_u8(a.low, b.low), veorq_u8(a.high, b.high)};
}
// Bits of bytes: to the right for n > 0, else to the left.
inline Bytes shift_right(Bytes x, int n) {
  return n < 0 ? Bytes{x.low << -n, x.high << -n} : Bytes{x.low >> n, x.high >> n};
}
// Byte i of each word, unsigned.
inline I32 byte_of(Bytes x, int i) {
  const auto part = [=](uint8x16_t bytes) {
    const uint32x4_t words = vreinterpretq_u32_u8(bytes);
    return vreinterpretq_s32_u32((words >> (8 * i)) & 255);
  };
  return {part(x.low), part(x.high)};
}
// table[x] for x below 16.
inline Bytes look_up(const uint8_t* table, Bytes x) {
  const uint8x16_t values = vld1q_u8(table);
  return {vqtbl1q_u8(values, x.low), vqtbl1q_u8(values, x.high)};
}

// 32 activations are taken in place.
template <Range>
constexpr bool widens = false;
inline void widen(const int8_t*, int8_t*) {}

#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int byte_zero = 0;
#else
constexpr int byte_zero = 128;
#endif

// The codes of a register as the products take them.
template <class Codes>
inline Bytes load_factors(const Codes& codes, const uint8_t* w, int word, int vector) {
  const Bytes bytes = codes.load(w, word, vector);
  if constexpr (byte_zero != 0 && Codes::range >= Range::byte) return bytes ^ set1_byte(byte_zero);
  return bytes;
}

// Products are in assembly so that they stay in order: given intrinsics, GCC keeps more weights and
// products of a tile alive than there are registers.
#if defined(__ARM_FEATURE_DOTPROD)

template <int word>
inline int32x4_t add_dots(int32x4_t sum, uint8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  __asm__ volatile("usdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(w), "w"(x), "i"(word));
#else
  __asm__ volatile("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(w), "w"(x), "i"(word));
#endif
  return sum;
}

// `rounds` times `chains` registers' products, independent of each other.
template <int chains>
inline I32 repeat_dots(Bytes a, int64_t rounds) {
  I32 sums[chains];
  for (int i = 0; i < chains; ++i) sums[i] = set1(i);
  const int8x16_t x = vreinterpretq_s8_u8(a.low);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < chains; ++i)
      sums[i] = {add_dots<0>(sums[i].low, a.low, x), add_dots<0>(sums[i].high, a.high, x)};
  }
  for (int i = 1; i < chains; ++i)
    sums[0] = {vaddq_s32(sums[0].low, sums[i].low), vaddq_s32(sums[0].high, sums[i].high)};
  return sums[0];
}

// Word `word` of four: weights times element `word` of each row's activations.
template <int word, class Codes, int rows, int vectors>
inline void add_word(const Codes& codes, const uint8_t* w, int first, int part,
                     const int8x16_t (&x)[rows], I32 (&sums)[rows][vectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) {
    const Bytes weights = load_factors(codes, w, first + word, part + v);
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m) {
      sums[m][v].low = add_dots<word>(sums[m][v].low, weights.low, x[m]);
      sums[m][v].high = add_dots<word>(sums[m][v].high, weights.high, x[m]);
    }
  }
}

template <class Codes, int rows, int vectors, int words>
inline void dot_words(const Codes& codes, const uint8_t* w, int first, int part, const int8_t* a,
                      int64_t stride, I32 (&sums)[rows][vectors]) {
  static_assert(words % 4 == 0, "a register holds four words of activations");
#pragma GCC unroll 2
  for (int word = 0; word < words; word += 4) {
    int8x16_t x[rows];
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m) x[m] = vld1q_s8(a + m * stride + 4 * word);
    add_word<0>(codes, w, first + word, part, x, sums);
    add_word<1>(codes, w, first + word, part, x, sums);
    add_word<2>(codes, w, first + word, part, x, sums);
    add_word<3>(codes, w, first + word, part, x, sums);
  }
}

#else

// A word of activations as it lies in memory.
inline int32_t word_at(const int8_t* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return word;
}
// Products of a word, a half register of weights each, in 16 bits.
struct Products {
  int16x8_t of[4];
};
inline Products multiply(Bytes weights, int8x16_t x) {
  Products products;
  __asm__ volatile(
      "smull %0.8h, %4.8b, %6.8b\n\tsmull2 %1.8h, %4.16b, %6.16b\n\t"
      "smull %2.8h, %5.8b, %6.8b\n\tsmull2 %3.8h, %5.16b, %6.16b"
      : "=&w"(products.of[0]), "=&w"(products.of[1]), "=&w"(products.of[2]), "=&w"(products.of[3])
      : "w"(weights.low), "w"(weights.high), "w"(x));
  return products;
}
inline void add_products(Products& sums, Bytes weights, int8x16_t x) {
  __asm__ volatile(
      "smlal %0.8h, %4.8b, %6.8b\n\tsmlal2 %1.8h, %4.16b, %6.16b\n\t"
      "smlal %2.8h, %5.8b, %6.8b\n\tsmlal2 %3.8h, %5.16b, %6.16b"
      : "+w"(sums.of[0]), "+w"(sums.of[1]), "+w"(sums.of[2]), "+w"(sums.of[3])
      : "w"(weights.low), "w"(weights.high), "w"(x));
}
// Four products of an output, in 32 bits.
inline int32x4_t add_wide(int32x4_t sum, int16x8_t first, int16x8_t second) {
  int32x4_t low, high;
  __asm__ volatile(
      "saddlp %1.4s, %3.8h\n\tsaddlp %2.4s, %4.8h\n\t"
      "addp %1.4s, %1.4s, %2.4s\n\tadd %0.4s, %0.4s, %1.4s"
      : "+w"(sum), "=&w"(low), "=&w"(high)
      : "w"(first), "w"(second));
  return sum;
}
inline I32 add_wide(I32 sums, const Products& products) {
  return {add_wide(sums.low, products.of[0], products.of[1]),
          add_wide(sums.high, products.of[2], products.of[3])};
}

// `rounds` times `chains` registers' products; a third of them independent of each other.
template <int chains>
inline I32 repeat_dots(Bytes a, int64_t rounds) {
  Products sums[chains / 3];
  const int8x16_t x = vreinterpretq_s8_u8(a.low);
  for (Products& each : sums) each = multiply(a, x);
  for (int64_t round = 0; round < 3 * rounds; ++round) {
#pragma GCC unroll 8
    for (Products& each : sums) add_products(each, a, x);
  }
  I32 total = set1(0);
  for (const Products& each : sums) total = add_wide(total, each);
  return total;
}

// Words whose products, of magnitude 128 times 15, 63 or 128 at most, fit in 16 bits together;
// those of Range::byte are 127 times 128.
template <Range range>
constexpr int words_in_16_bits = range == Range::below_16   ? 8
                                 : range == Range::below_64 ? 4
                                 : range == Range::byte     ? 2
                                                            : 1;

template <class Codes, int rows, int vectors, int words>
inline void dot_words(const Codes& codes, const uint8_t* w, int first, int part, const int8_t* a,
                      int64_t stride, I32 (&sums)[rows][vectors]) {
  constexpr int run = smaller(words, words_in_16_bits<Codes::range>);
#pragma GCC unroll 4
  for (int begin = 0; begin < words; begin += run)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      Products products[rows];
#pragma GCC unroll 8
      for (int word = begin; word < begin + run; ++word) {
        const Bytes weights = load_factors(codes, w, first + word, part + v);
#pragma GCC unroll 16
        for (int m = 0; m < rows; ++m) {
          const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(word_at(a + m * stride + 4 * word)));
          if (word == begin)
            products[m] = multiply(weights, x);
          else
            add_products(products[m], weights, x);
        }
      }
#pragma GCC unroll 16
      for (int m = 0; m < rows; ++m) sums[m][v] = add_wide(sums[m][v], products[m]);
    }
}

#endif

}  // namespace quire::QUIRE_ISA
