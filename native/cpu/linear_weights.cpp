// Packing a linear layer's weights, and reading rows of them back.
#include "include/kernels.h"
#include "include/linear.h"
#include "runtime/thread_pool.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t panel_width = LinearWeights::panel_width;

// Inputs of a row that are converted, or read back, at a time.
constexpr int64_t piece = 512;

// What lies side by side for one output of a packed panel: an input, or a pair of BF16. Unit u of
// output n is at [u * panel_width + n].
template <class T>
struct Unit {
  T inputs[1];
};
template <>
struct Unit<BF16> {
  BF16 inputs[2];
};
template <class T>
constexpr int64_t unit_inputs = sizeof(Unit<T>) / sizeof(T);

template <class T>
Unit<T>* panel_units(const LinearWeights& weights, int64_t panel) {
  return reinterpret_cast<Unit<T>*>(weights.data + panel * weights.panel_bytes());
}

// n elements to n elements of another type, through float.
template <class From, class To>
void convert(const From* from, int64_t n, To* to) {
  for (int64_t i = 0; i < n; i += F32::lanes) store_tail(to + i, load_tail(from + i, n - i), n - i);
}
template <class T>
void convert(const T* from, int64_t n, T* to) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
}

// Call body(a value of the element type) for `dtype`.
template <class Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == DType::bfloat16) return body(BF16{});
  if (dtype == DType::float16) return body(F16{});
  body(0.0f);
}

// All rows of a panel, the first of which is at `source`: a square of words at a time.
template <class From, class To>
void pack_whole_panel(const LinearWeights& weights, const From* source, int64_t panel) {
  constexpr int64_t word_inputs = sizeof(uint32_t) / sizeof(To), words = piece / word_inputs;
  union alignas(64) {
    To inputs[panel_width][piece];
    uint32_t rows[panel_width][words];
  };
  alignas(64) uint32_t turned[F32::lanes][panel_width];
  auto* packed = reinterpret_cast<uint32_t*>(panel_units<To>(weights, panel));
  for (int64_t from = 0; from < weights.in_features; from += piece) {
    const int64_t n = smaller(piece, weights.in_features - from);
    if (n < piece) std::memset(inputs, 0, sizeof(inputs));  // what is padded
    for (int64_t row = 0; row < panel_width; ++row)
      convert(source + row * weights.in_features + from, n, inputs[row]);
    for (int64_t word = 0; word < ceil_div(n, word_inputs); word += F32::lanes) {
      uint32_t* to = packed + (from / word_inputs + word) * panel_width;
      uint32_t* square = unit_inputs<To> == word_inputs ? to : turned[0];
      for (int64_t row = 0; row < panel_width; row += F32::lanes)
        transpose(rows[row] + word, words, square + row, panel_width);
      if (square == to) continue;
      // Two inputs of one output in each word, but a line of outputs for each input in the panel.
      auto* lines = reinterpret_cast<uint16_t*>(to);
      for (int64_t i = 0; i < F32::lanes; ++i, lines += 2 * panel_width)
        for (int64_t row = 0; row < panel_width; ++row) {
          lines[row] = static_cast<uint16_t>(turned[i][row]);
          lines[panel_width + row] = static_cast<uint16_t>(turned[i][row] >> 16);
        }
    }
  }
}

template <class From, class To>
void pack_panel(const LinearWeights& weights, const From* source, int64_t first_row,
                int64_t num_rows, int64_t panel) {
  const int64_t begin = larger(panel * panel_width, first_row);
  const int64_t end = smaller((panel + 1) * panel_width, first_row + num_rows);
  if (end - begin == panel_width)
    return pack_whole_panel<From, To>(weights, source + (begin - first_row) * weights.in_features,
                                      panel);
  Unit<To>* packed = panel_units<To>(weights, panel);
  union {
    To inputs[piece];
    Unit<To> units[piece / unit_inputs<To>];
  };
  for (int64_t from = 0; from < weights.in_features; from += piece) {
    const int64_t n = smaller(piece, weights.in_features - from);
    std::memset(inputs, 0, sizeof(inputs));  // the second half of an odd last pair
    for (int64_t row = begin; row < end; ++row) {
      convert(source + (row - first_row) * weights.in_features + from, n, inputs);
      Unit<To>* place = packed + from / unit_inputs<To> * panel_width + row % panel_width;
      for (int64_t u = 0; u < ceil_div(n, unit_inputs<To>); ++u) place[u * panel_width] = units[u];
    }
  }
}

template <class T>
void read_row(const LinearWeights& weights, int64_t row, float* out) {
  const Unit<T>* packed = panel_units<T>(weights, row / panel_width) + row % panel_width;
  union {
    T inputs[piece];
    Unit<T> units[piece / unit_inputs<T>];
  };
  for (int64_t from = 0; from < weights.in_features; from += piece) {
    const int64_t n = smaller(piece, weights.in_features - from);
    const Unit<T>* place = packed + from / unit_inputs<T> * panel_width;
    for (int64_t u = 0; u < ceil_div(n, unit_inputs<T>); ++u) units[u] = place[u * panel_width];
    convert(inputs, n, out + from);
  }
}

}  // namespace

void pack_linear(const LinearWeights& weights, const void* source, DType source_dtype,
                 int64_t first_row, int64_t num_rows) {
  const int64_t first_panel = first_row / panel_width;
  const int64_t panels = ceil_div(first_row + num_rows, panel_width) - first_panel;
  with_type(weights.dtype, [&](auto to) {
    with_type(source_dtype, [&](auto from) {
      using To = decltype(to);
      using From = decltype(from);
      parallel_for(panels, [&](int64_t i) {
        pack_panel<From, To>(weights, static_cast<const From*>(source), first_row, num_rows,
                             first_panel + i);
      });
    });
  });
}

void lookup_rows(const LinearWeights& weights, const int32_t* ids, int64_t num_ids, float* out) {
  // A row is scattered over its panel: some 10 us each from memory.
  constexpr int64_t rows_per_chunk = 4;
  with_type(weights.dtype, [&](auto type) {
    parallel_for(ceil_div(num_ids, rows_per_chunk), [&](int64_t chunk) {
      const int64_t end = smaller((chunk + 1) * rows_per_chunk, num_ids);
      for (int64_t i = chunk * rows_per_chunk; i < end; ++i)
        read_row<decltype(type)>(weights, ids[i], out + i * weights.in_features);
    });
  });
}

}  // namespace quire::QUIRE_ISA
