// Rows of a call, rounded as the weights' ActivationScheme says, and what their products become.
//
// Products are made of the rows' codes; a row's factor comes after:
//
//   y = sum of codes * weights * factor        float32, or
//   y = (integer sum - zero * code sum of the output) * scale of weights * factor
//   y = y + x * weight for each outlier of the row, in the order of inputs
//
// So a row's bits depend on that row alone.
#pragma once

#include "cpu/quantized_block.h"
#include "cpu/small_float_inputs.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire::QUIRE_ISA {

class RoundedRows {
 public:
  RoundedRows(const QuantizedWeights& weights, const float* x, int64_t num_rows)
      : weights_(weights), map_(weights), x_(x), num_rows_(num_rows), width_(weights.in_features) {
    const bool lists = scheme().codes == ActivationCodes::outliers;
    const auto values = static_cast<size_t>(num_rows * width_);
    const size_t bytes = sizeof(float) + (lists ? sizeof(int32_t) : 0);
    rows_ = static_cast<Row*>(
        scratch(Slot::rounded, static_cast<size_t>(num_rows) * sizeof(Row) + values * bytes));
    codes_ = reinterpret_cast<float*>(rows_ + num_rows);
    places_ = reinterpret_cast<int32_t*>(codes_ + values);
    const int64_t rows = ceil_div(values_worth_a_thread, width_);
    parallel_for(ceil_div(num_rows, rows), [&](int64_t chunk) {
      for (int64_t i = chunk * rows; i < smaller((chunk + 1) * rows, num_rows); ++i)
        scheme().codes == ActivationCodes::e4m3 ? round_floats(i) : round_bytes(i);
    });
  }

  // (num_rows, in_features), as products take them.
  const float* codes() const { return codes_; }

  // Turn the sums of some panels [panel][row][32 outputs], of codes, into those of values.
  void finish(const char* panels, int64_t num_panels, float* sums) const {
    for (int64_t i = 0; i < num_panels; ++i, panels += weights_.panel_bytes())
      for (int64_t row = 0; row < num_rows_; ++row, sums += panel_width) {
        if (weights_.sums_whole_rows())
          finish_integers(panels, row, sums);
        else
          multiply(sums, rows_[row].factor);
        for (int64_t j = 0; j < rows_[row].outliers; ++j)
          add_outlier(panels, row, places_[row * width_ + j], sums);
      }
  }

 private:
  static constexpr int64_t panel_width = QuantizedWeights::panel_width;
  static constexpr int64_t values_worth_a_thread = 16 << 10;

  struct Row {
    float factor;  // NaN where an input is infinite or NaN
    int32_t zero, outliers;
    int32_t unused;
  };

  // What is known of some inputs: the extremes of those that are rounded, and NaN or 0.
  struct Extremes {
    float low, high, bad;
    float most() const { return larger(-low, high); }
  };

  const ActivationScheme& scheme() const { return weights_.activations; }

  static void multiply(float* sums, float factor) {
    for (int64_t i = 0; i < panel_width; i += F32::lanes)
      store(sums + i, load(sums + i) * set1(factor));
  }

  // Inputs that are no outliers and no infinity or NaN; others are 0.
  F32 rounded_part(const float* x, int64_t n) const {
    const F32 part = load_tail(x, n);
    const float end =
        scheme().codes == ActivationCodes::outliers ? scheme().threshold : __builtin_inff();
    return select(less(abs(part), set1(end)), part, zero());
  }

  Extremes extremes(const float* x, int64_t n) const {
    F32 low = zero(), high = zero(), bad = zero();
    for (int64_t i = 0; i < n; i += F32::lanes) {
      const F32 part = rounded_part(x + i, n - i);
      bad = bad + load_tail(x + i, n - i) * zero();
      low = min(part, low);
      high = max(part, high);
    }
    return {-max(zero() - low), max(high), sum(bad)};
  }

  void round_bytes(int64_t row) const {
    const float* x = x_ + row * width_;
    float* out = codes_ + row * width_;
    Row& made = rows_[row];
    made = {scheme().scale, scheme().zero, 0, 0};
    const Extremes found = extremes(x, width_);
    if (scheme().scale == 0.0f) find_factor(found, made);
    // Zeros stay in codes where integer sums lose them at the end.
    const bool keeps = weights_.sums_whole_rows();
    const F32 zeros = set1(static_cast<float>(made.zero));
    const F32 kept = keeps ? quire::QUIRE_ISA::zero() : zeros;
    const F32 factor = set1(made.factor);
    for (int64_t i = 0; i < width_; i += F32::lanes) {
      const F32 part = rounded_part(x + i, width_ - i);
      const F32 scaled = made.factor > 0.0f ? part / factor + zeros : zeros;
      const F32 code = round(min(max(scaled, set1(-128.0f)), set1(127.0f)));
      store_tail(out + i, code - kept, width_ - i);
    }
    if (scheme().codes == ActivationCodes::outliers) find_outliers(row, made);
    made.factor += found.bad;
  }

  void find_factor(const Extremes& found, Row& row) const {
    const float most = found.most();
    if (most < smallest_input) {
      row.factor = 0.0f;
      row.zero = 0;
    } else if (scheme().has_zeros) {
      row.factor = (found.high - found.low) / 255.0f;
      const float place = -128.0f - found.low / row.factor;
      row.zero = static_cast<int32_t>(__builtin_rintf(smaller(larger(place, -128.0f), 127.0f)));
    } else {
      row.factor = most / (scheme().codes == ActivationCodes::outliers ? 127.0f : 127.5f);
    }
  }

  void find_outliers(int64_t row, Row& made) const {
    const float* x = x_ + row * width_;
    for (int64_t i = 0; i < width_; ++i) {
      const float size = __builtin_fabsf(x[i]);
      if (size >= scheme().threshold && size < __builtin_inff())
        places_[row * width_ + made.outliers++] = static_cast<int32_t>(i);
    }
  }

  // E4M3 numbers; of groups times their factors, which are not the row's.
  void round_floats(int64_t row) const {
    const int64_t size = scheme().group_size ? scheme().group_size : width_;
    float bad = 0.0f, factor = 0.0f;
    for (int64_t begin = 0; begin < width_; begin += size) {
      const int64_t n = smaller(size, width_ - begin);
      const float* x = x_ + row * width_ + begin;
      const Extremes found = extremes(x, n);
      bad += found.bad;
      factor = scheme().scale;
      if (factor == 0.0f && found.most() >= smallest_input)
        factor = scheme().has_power_factors ? power_factor(found.most(), 8)
                                            : found.most() / e4m3_highest;
      round_group(x, n, factor, codes_ + row * width_ + begin);
    }
    rows_[row] = {(scheme().group_size ? 1.0f : factor) + bad, 0, 0, 0};
  }

  void round_group(const float* x, int64_t n, float factor, float* out) const {
    E4M3 line[F32::lanes];
    const F32 times = set1(scheme().group_size ? factor : 1.0f);
    for (int64_t i = 0; i < n; i += F32::lanes) {
      const F32 part = rounded_part(x + i, n - i);
      store(line, factor > 0.0f ? part / set1(factor) : zero());
      store_tail(out + i, load(line) * set1(e4m3_unit) * times, n - i);
    }
  }

  F32 weight_scale(const char* panel, int64_t output) const {
    const char* line = panel + weights_.header_bytes();
    return weights_.scale_dtype == DType::float32
               ? load(reinterpret_cast<const float*>(line) + output)
               : load(reinterpret_cast<const F16*>(line) + output);
  }

  void finish_integers(const char* panel, int64_t row, float* sums) const {
    int32_t dots[panel_width];
    std::memcpy(dots, sums, sizeof(dots));
    if (rows_[row].zero != 0) {
      const auto* code_sums = reinterpret_cast<const int32_t*>(panel);
      for (int64_t i = 0; i < panel_width; ++i) dots[i] -= rows_[row].zero * code_sums[i];
    }
    for (int64_t i = 0; i < panel_width; i += F32::lanes) {
      I32 part;
      std::memcpy(&part, dots + i, sizeof(part));
      store(sums + i, to_float(part) * weight_scale(panel, i) * set1(rows_[row].factor));
    }
  }

  void add_outlier(const char* panel, int64_t row, int64_t place, float* sums) const {
    constexpr int64_t inputs = QuantizedWeights::record_inputs;
    const auto* codes = reinterpret_cast<const uint8_t*>(panel + map_.codes_of(place / inputs)) +
                        place % inputs / 4 * word_bytes;
    const F32 zeros = set1(static_cast<float>(weights_.zero));
    for (int64_t i = 0; i < panel_width; i += F32::lanes) {
      const I32 bytes = byte_of(load_bytes(codes + 4 * i), static_cast<int>(place % 4));
      const F32 weight = (to_float(bytes) - zeros) * weight_scale(panel, i);
      store(sums + i, fma(x_[row * width_ + place], weight, load(sums + i)));
    }
  }

  const QuantizedWeights& weights_;
  const PanelMap map_;
  const float* x_;
  int64_t num_rows_, width_;
  Row* rows_;
  float* codes_;
  int32_t* places_;  // (num_rows, in_features), a row's outliers first
};

}  // namespace quire::QUIRE_ISA
