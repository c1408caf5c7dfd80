// Python: reading what GGUF headers have hundreds of thousands of.
#include <cstring>

#include "bindings/binding.h"

namespace quire {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

// Read up to `count` strings, each a little-endian uint64 of bytes and as many of UTF-8, from
// data[at:end]. Returns them and where they end: fewer where the next one would go beyond `end`.
// Raises UnicodeDecodeError.
nb::tuple gguf_strings(nb::handle object, uint64_t at, uint64_t end, uint64_t count) {
  const Buffer data(object, end, false);
  const char* bytes = static_cast<const char*>(data.data());
  nb::list found;
  while (nb::len(found) < count && at <= end && end - at >= sizeof(uint64_t)) {
    uint64_t length;
    std::memcpy(&length, bytes + at, sizeof(length));
    const uint64_t begin = at + sizeof(length);
    if (length > end - begin) break;
    PyObject* text = PyUnicode_DecodeUTF8(bytes + begin, static_cast<Py_ssize_t>(length), nullptr);
    if (!text) throw nb::python_error();
    found.append(nb::steal(text));
    at = begin + length;
  }
  return nb::make_tuple(found, at);
}

}  // namespace

void bind_gguf(nb::module_& m) { m.def("gguf_strings", gguf_strings); }

}  // namespace quire
