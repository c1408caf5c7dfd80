// The kernel table of one instruction set.
#include "include/kernels.h"

#define QUIRE_STRING_(x) #x
#define QUIRE_STRING(x) QUIRE_STRING_(x)

namespace quire::QUIRE_ISA {

extern const Kernels table;
const Kernels table = {
    QUIRE_STRING(QUIRE_ISA),
#define QUIRE_KERNEL(result, name, arguments) QUIRE_BASE_ISA::name,
#define QUIRE_OWN_KERNEL(result, name, arguments) name,
#define QUIRE_BFLOAT16_KERNEL(result, name, arguments) QUIRE_BFLOAT16_ISA::name,
#include "include/kernels.def"
#undef QUIRE_KERNEL
};

}  // namespace quire::QUIRE_ISA
