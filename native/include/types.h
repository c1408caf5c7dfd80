// Element types of stored data; arithmetic is float everywhere.
#pragma once

#include <cstdint>

namespace quire {

struct BF16 {
  uint16_t bits;
};

struct F16 {
  uint16_t bits;
};

enum class DType : int32_t { float32 = 0, float16 = 1, bfloat16 = 2 };

// The order of quire/kernels/activation.py.
enum class Activation : int32_t { silu = 0, gelu = 1, gelu_tanh = 2 };

}  // namespace quire
