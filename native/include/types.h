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

}  // namespace quire
