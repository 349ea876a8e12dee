// A recording of another tool, made a trace: what `tencache import` and Python's import_trace ask alike.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "studies/question_options.h"
#include "traces/import/pytorch/to_trace.h"

namespace tencache {

struct RecordingImport {
  explicit RecordingImport(std::string its_format) : format(std::move(its_format)) {}

  std::string format;
  QuestionOptions options = {};
  // Once the options are set; the trace is not written. Throws Error, too, where --output cannot be written.
  std::function<ImportedTrace()> read = {};
  std::string output = {};  // of --output; empty where the asking program keeps the trace
  bool json = false;        // what the command prints
};

// "csv", "pytorch", "kineto", "chakra", "trace"; throws Error that lists them for another.
std::unique_ptr<RecordingImport> recording_import(const std::string& format);

}  // namespace tencache
