// The Python module tencache._core: what each file adds to it, and what they share.
//
// Nothing here computes a figure: questions are asked as commands ask them (answers/questions.h), and Python gets the
// JSON of their answers.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/trace.h"
#include "studies/question_options.h"

namespace tencache {

namespace py = pybind11;

// A trace that Python may change; `revision` counts the changes.
struct PythonTrace {
  Trace trace;
  std::uint64_t revision = 0;
  GivenTrace given{};  // the last that questions were given of it
  std::uint64_t given_revision = 0;
};

void bind_trace(py::module_& module);
void bind_timeline(py::module_& module);
void bind_live(py::module_& module);
void bind_policy(py::module_& module);
void bind_rows(py::module_& module);

// A copy as an array of one dimension. Its stride is stated: pybind11 before 2.12 would read it from where NumPy 2 no
// longer has it.
template <typename T>
py::array_t<T> to_array(const std::vector<T>& values) {
  py::array_t<T> array({static_cast<py::ssize_t>(values.size())}, {static_cast<py::ssize_t>(sizeof(T))});
  if (!values.empty()) std::memcpy(array.mutable_data(), values.data(), values.size() * sizeof(T));
  return array;
}

// "texts" of an enum from 0 to count - 1, so that codes in arrays can be read: names[code].
template <typename Enum>
py::tuple names_of(std::size_t count) {
  py::tuple names(count);
  for (std::size_t i = 0; i < count; ++i) names[i] = py::str(std::string(to_string(static_cast<Enum>(i))));
  return names;
}

// Throws Error that lists the valid names.
template <typename Enum>
Enum named(const std::string& text, const char* what) {
  if (const std::optional<Enum> value = parse_enum<Enum>(text)) return *value;
  throw Error(std::string(what) + ": unknown '" + text + "'; valid are " + enum_names<Enum>());
}

// Names are bytes of any kind; what is not UTF-8 becomes U+FFFD.
inline py::str to_text(std::string_view text) {
  PyObject* object = PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "replace");
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(object);
}

}  // namespace tencache
