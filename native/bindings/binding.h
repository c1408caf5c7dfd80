// What the binding files share: buffers checked for memory safety, and when to release the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "include/kernels.h"

namespace quire {

namespace nb = nanobind;

// A C-contiguous Python buffer (a numpy array) for the length of a call.
//
// Checks what memory safety needs: contiguity, at least `count` elements of T, writability.
// Element types and shapes are the business of kernels/<op>.py. Needs the GIL at both ends.
class Buffer {
 public:
  Buffer(nb::handle object, size_t min_bytes, bool writable) {
    // PyBUF_SIMPLE demands C-contiguity and asks for nothing that takes time.
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE))
      throw nb::python_error();
    if (static_cast<size_t>(view_.len) < min_bytes) {
      const size_t bytes = static_cast<size_t>(view_.len);
      PyBuffer_Release(&view_);
      PyErr_Format(PyExc_ValueError, "[native] buffer must have at least %zu bytes; got %zu.",
                   min_bytes, bytes);
      throw nb::python_error();
    }
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return view_.buf; }
  size_t bytes() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

template <class T>
class Input {
 public:
  Input(nb::handle object, int64_t count)
      : buffer_(object, static_cast<size_t>(count) * sizeof(T), false) {}
  operator const T*() const { return static_cast<const T*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

template <class T>
class Output {
 public:
  Output(nb::handle object, int64_t count)
      : buffer_(object, static_cast<size_t>(count) * sizeof(T), true) {}
  operator T*() const { return static_cast<T*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

// Releases the GIL around work worth it: a thread that lets go may wait 5 ms to get it back, so
// calls of a few microseconds keep it. `work` counts elements touched, about 10 per nanosecond.
class GilRelease {
 public:
  explicit GilRelease(int64_t work) {
    if (work > 100000) release_.emplace();
  }

 private:
  std::optional<nb::gil_scoped_release> release_;
};

}  // namespace quire
