// The tables of kernels that are compiled in: which of them this machine has, and which is in use.
#include <cstring>

#include "include/kernels.h"
#include "runtime/capabilities.h"

namespace quire {

#define QUIRE_EACH(isa)       \
  namespace isa {             \
  extern const Kernels table; \
  }
QUIRE_ISA_LIST
#undef QUIRE_EACH

namespace {

// Worst first, as CMake lists them.
const Kernels* const compiled[] = {
#define QUIRE_EACH(isa) &isa::table,
    QUIRE_ISA_LIST
#undef QUIRE_EACH
};

const Kernels* best() {
  const Kernels* found = compiled[0];
  for (const Kernels* table : compiled)
    if (machine_has(table->isa) && !is_emulated(table->isa)) found = table;
  return found;
}

const Kernels*& current() {
  static const Kernels* table = best();
  return table;
}

const char* ith_isa(bool emulated, int i) {
  for (const Kernels* table : compiled)
    if (is_emulated(table->isa) == emulated && machine_has(table->isa) && i-- == 0)
      return table->isa;
  return nullptr;
}

}  // namespace

const Kernels& kernels() { return *current(); }

const Kernels* find_kernels(const char* isa) {
  for (const Kernels* table : compiled)
    if (!std::strcmp(table->isa, isa) && machine_has(isa)) return table;
  return nullptr;
}

bool select_isa(const char* isa) {
  const Kernels* found = find_kernels(isa);
  if (found) current() = found;
  return found != nullptr;
}

const char* available_isa(int i) { return ith_isa(false, i); }
const char* emulated_isa(int i) { return ith_isa(true, i); }

}  // namespace quire
