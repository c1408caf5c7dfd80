// The table of kernels of one instruction set, made from kernels.def.
#pragma once

#include <cstddef>
#include <cstdint>

#include "include/attention.h"
#include "include/column_rounding.h"
#include "include/gguf.h"
#include "include/gguf_vectors.h"
#include "include/linear.h"
#include "include/low_rank.h"
#include "include/quantized.h"
#include "include/sampling.h"
#include "include/types.h"
#include "include/vector_search.h"

namespace quire {

struct Kernels {
  const char* isa;
#define QUIRE_KERNEL(result, name, arguments) result(*name) arguments;
#include "include/kernels.def"
#undef QUIRE_KERNEL
};

// The table in use: the best of this machine until select_isa() chooses another.
const Kernels& kernels();

// The table of `isa`; null when it is not compiled in or this machine lacks it.
const Kernels* find_kernels(const char* isa);

// Use `isa` from now on; false when there is no table of it.
bool select_isa(const char* isa);

// Name of the i-th instruction set that is compiled in and that this machine has, worst first;
// null past the end.
const char* available_isa(int i);

// The same of those that are emulated to test their logic: slow, and used when asked for by name
// only.
const char* emulated_isa(int i);

}  // namespace quire

// Whose kernels the table of QUIRE_ISA takes: its own, unless the build says otherwise.
#ifdef QUIRE_ISA
#ifndef QUIRE_BASE_ISA
#define QUIRE_BASE_ISA QUIRE_ISA
#else
#define QUIRE_EXTENDS
#endif
#ifndef QUIRE_BFLOAT16_ISA
#define QUIRE_BFLOAT16_ISA QUIRE_ISA
#endif
// Whose kernels take rows that matrix tiles are not for.
#ifndef QUIRE_VECTOR_ISA
#define QUIRE_VECTOR_ISA QUIRE_ISA
#endif
#define QUIRE_OWN_KERNEL(result, name, arguments) \
  QUIRE_KERNEL(result, name, arguments)           \
  namespace QUIRE_VECTOR_ISA {                    \
  result name arguments;                          \
  }                                               \
  namespace QUIRE_ISA {                           \
  result name arguments;                          \
  }
#define QUIRE_KERNEL(result, name, arguments) \
  namespace QUIRE_BASE_ISA {                  \
  result name arguments;                      \
  }
#define QUIRE_BFLOAT16_KERNEL(result, name, arguments) \
  QUIRE_KERNEL(result, name, arguments)                \
  namespace QUIRE_BFLOAT16_ISA {                       \
  result name arguments;                               \
  }
namespace quire {
#include "include/kernels.def"
}
#undef QUIRE_KERNEL
#endif
