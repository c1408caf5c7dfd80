// How inputs of quantized weights are rounded where a checkpoint says so.
#pragma once

#include <cstdint>

namespace quire {

// What a row's rounded inputs are; quire/kernels/matrices/activation_scheme.py has the definitions.
enum class ActivationCodes : int32_t {
  own = 0,       // the engine's: bytes in groups of some inputs, made with the product
  int8 = 1,      // bytes
  outliers = 2,  // bytes, and floats from a threshold on
  e4m3 = 3,
  e2m1 = 4,   // with weights of E2M1: as bytes, twice the number
  int16 = 5,  // the engine's bytes, and once more bytes of what these leave over
};

// Inputs are rounded row by row: factor * (code - zero).
struct ActivationScheme {
  ActivationCodes codes;
  int64_t group_size;  // inputs that share a factor: 16, or a multiple of 32; 0 for a row
  // The factor of all rows, or 0 for each row's own. Of E2M1: what groups' factors are over.
  float scale;
  int32_t zero;  // with it
  bool has_zeros;
  float threshold;
  bool has_power_factors;  // of groups

  // Whether rows are rounded before a product, which then takes codes.
  bool rounds_rows() const { return is_bytes() || codes == ActivationCodes::e4m3; }
  // Products that the row of an input takes part in.
  int64_t parts() const { return codes == ActivationCodes::int16 ? 2 : 1; }
  bool is_bytes() const {
    return codes == ActivationCodes::int8 || codes == ActivationCodes::outliers;
  }
};

}  // namespace quire
