// Codes that are looked up in a table of their row: as bytes for integer products, or as floats.
#pragma once

#include "cpu/quantized_block.h"
#include "simd/turned_words.h"

namespace quire::QUIRE_ISA {

constexpr int table_bytes = 16;  // of an output, 3 bits too
constexpr int table_zero = 128;  // what the byte of 0 is

// A panel's tables as bytes, and what they are times: a row's largest value is 127 steps from 0.
struct RowTables {
  const char* panel = nullptr;                                             // whose they are
  alignas(64) uint8_t bytes[QuantizedWeights::panel_width * table_bytes];  // by place of output
  alignas(64) float scales[QuantizedWeights::panel_width];

  void read(const QuantizedWeights& weights, const char* from) {
    if (panel == from) return;
    panel = from;
    const char* tables = from + weights.tables_begin();
    weights.bits == 3 ? read_all<3>(weights.scale_dtype, tables)
                      : read_all<4>(weights.scale_dtype, tables);
  }

  // A line of scales for each of some records.
  void write_scales(int64_t records, float* to) const {
    for (int64_t i = 0; i < records; ++i) std::memcpy(to + i * panel_width, scales, sizeof(scales));
  }

 private:
  static constexpr int64_t panel_width = QuantizedWeights::panel_width;

  template <int bits>
  void read_all(DType dtype, const char* tables) {
    dtype == DType::float32 ? write_all<bits>(reinterpret_cast<const float*>(tables))
                            : write_all<bits>(reinterpret_cast<const F16*>(tables));
  }

  template <int bits, class T>
  void write_all(const T* tables) {
    for (int64_t n = 0; n < panel_width; ++n)
      scales[n] = write<bits>(tables + (n << bits), bytes + place_of_output(n) * table_bytes);
  }

  // Write a table of 2 ** bits values; returns what its bytes are times.
  template <int bits, class T>
  static float write(const T* table, uint8_t* to) {
    constexpr int count = 1 << bits, lanes = F32::lanes;
    constexpr int registers = count > lanes ? count / lanes : 1;
    F32 values[registers], highest = zero();
#pragma GCC unroll 4
    for (int i = 0; i < registers; ++i) {
      values[i] = count < lanes ? load_partial(table, count) : load(table + i * lanes);
      highest = max(highest, abs(values[i]));
    }
    const float most = max(highest);
    const bool silent = most < 1e-30f;  // 127 / most would be infinite
    const F32 inverse = set1(silent ? 0.0f : 127.0f / most);
    int8_t steps[table_bytes] = {};
#pragma GCC unroll 4
    for (int i = 0; i < registers; ++i) store(steps + i * lanes, values[i] * inverse);
    for (int i = 0; i < table_bytes; i += 8) {
      uint64_t eight;
      std::memcpy(&eight, steps + i, 8);
      eight ^= 0x8080808080808080;  // the sign's bit: 128 more
      std::memcpy(to + i, &eight, 8);
    }
    return silent ? 0.0f : most / 127.0f;
  }
};

// What the codes of a record stand for, a byte each in the order of include/quantized.h.
// register_of(i) are its codes i * register_bytes and so on.
template <class RegisterOf>
inline void look_up_record(const uint8_t* tables, const RegisterOf& register_of, uint8_t* out) {
  constexpr int per_place = 4 * table_bytes / register_bytes;  // registers of four outputs
  for (int half = 0; half < 2; ++half)
    for (int block = 0; block < 2; ++block)
#pragma GCC unroll 4
      for (int i = 0; i < per_place; ++i) {
        Bytes words[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
          const int place = (block * 4 + r) * per_place + i;
          words[r] = look_up(load_bytes(tables + place * register_bytes),
                             register_of(half * 8 * per_place + place));
        }
        turn_words(words);
        uint8_t* to = out + half * 4 * word_bytes + block * 64 + i * register_bytes;
#pragma GCC unroll 4
        for (int w = 0; w < 4; ++w) std::memcpy(to + w * word_bytes, words + w, register_bytes);
      }
}

template <int bits>
inline void look_up_span(const RowTables& tables, const uint8_t* record, int64_t records,
                         uint8_t* out) {
  for (int64_t i = 0; i < records; ++i, record += record_codes / 8 * bits, out += record_codes) {
#if defined(QUIRE_VECTORS)
    look_up_record(
        tables.bytes,
        [&](int number) {
          constexpr int per_word = word_bytes / register_bytes;
          return PackedCodes<bits>{}.load(record, number / per_word, number % per_word);
        },
        out);
#else
    uint8_t codes[record_codes];
    unpack_record(bits, record, codes);
    look_up_record(
        tables.bytes, [&](int number) { return load_bytes(codes + number * register_bytes); }, out);
#endif
  }
}

// The same of some records of a panel whose tables were read.
inline void look_up_rows(const QuantizedWeights& weights, const RowTables& tables,
                         const RecordSpan& span, uint8_t* out) {
  const int64_t first = span.first * weights.record_bytes();
  const auto* record = reinterpret_cast<const uint8_t*>(span.panel) + first;
  if (weights.bits == 3) return look_up_span<3>(tables, record, span.records, out);
  look_up_span<4>(tables, record, span.records, out);
}

// Value of an output's code.
inline float table_value(const QuantizedWeights& weights, const char* panel, int64_t output,
                         int code) {
  const char* tables = panel + weights.tables_begin();
  const int64_t place = (output << weights.bits) + code;
  if (weights.scale_dtype == DType::float32) return reinterpret_cast<const float*>(tables)[place];
  const F16 half = reinterpret_cast<const F16*>(tables)[place];
  alignas(64) F16 line[F32::lanes] = {half};
  alignas(64) float values[F32::lanes];
  store(values, load(line));
  return values[0];
}

// Values of a span without outliers, as dequantize() has them: [record][32 inputs][32 outputs].
inline void dequantize_tables(const QuantizedWeights& weights, const RecordSpan& span,
                              uint8_t* codes, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width, half = 16;
  for (int64_t n = 0; n < panel; ++n) {
    float values[table_bytes];
    for (int code = 0; code < 1 << weights.bits; ++code)
      values[code] = table_value(weights, span.panel, n, code);
    for (int64_t i = 0; i < span.records; ++i) {
      const uint8_t* own = codes + i * record_codes + place_of_output(n) * half;
      if (n == 0)
        unpack_record(weights.bits,
                      reinterpret_cast<const uint8_t*>(span.panel) +
                          (span.first + i) * weights.record_bytes(),
                      codes + i * record_codes);
      float* to = out + i * record_codes + n;
      for (int64_t k = 0; k < QuantizedWeights::record_inputs; ++k)
        to[k * panel] = values[own[k / half * panel * half + k % half]];
    }
  }
}

// Add what outliers add to the products of outputs begin .. end - 1 with rows of x.
inline void add_outliers(const QuantizedWeights& weights, const float* x, int64_t num_rows,
                         int64_t begin, int64_t end, float* out, int64_t out_stride) {
  constexpr int chains = 4;  // of sums, which do not wait for each other
  const Outliers& outliers = weights.outliers;
  for (int64_t row = 0; row < num_rows; ++row, x += weights.in_features, out += out_stride)
    for (int64_t n = begin; n < end; ++n) {
      float sums[chains] = {};
      const int32_t last = outliers.starts[n + 1];
      int32_t i = outliers.starts[n];
      for (; i + chains <= last; i += chains)
        for (int j = 0; j < chains; ++j)
          sums[j] += outliers.values[i + j] * x[outliers.columns[i + j]];
      for (int j = 0; i < last; ++i, ++j) sums[j] += outliers.values[i] * x[outliers.columns[i]];
      out[n] += (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
}

}  // namespace quire::QUIRE_ISA
