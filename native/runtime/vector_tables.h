// Tables of vectors, each made once for all weights that use it.
#pragma once

#include "include/vectors.h"

namespace quire {

// The table of a layout's codes, [index][inputs]; the same for the same codes, and never freed, so
// that all matrices share what is in the caches. Null where codes are not as VectorTable has them:
// more than 4 different ones of 8 inputs, or 16 of 4, or 2048 vectors without runs. Not for several
// threads at once.
const VectorTable* vector_table_of(const VectorLayout& layout, const uint8_t* codes);

}  // namespace quire
