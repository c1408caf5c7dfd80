// What packed matrices of every kind are to a stack of experts.
#pragma once

#include "runtime/experts.h"

namespace quire {

class Packed {
 public:
  virtual ~Packed() = default;
  // Valid as long as this; columns from 0.
  virtual ExpertMatrix matrix() const = 0;
};

}  // namespace quire
