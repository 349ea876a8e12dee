// Errors that the user or the environment causes. Each says what, where (file:line) and what to do next.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace tencache {

// Exit codes of the command line; part of its contract.
enum class ExitCode : int { done = 0, answer_is_no = 1, bad_usage = 2 };

// Thrown on bad input, bad usage and failures of the environment. `what()` is the whole message, one line.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode exit_code = ExitCode::bad_usage)
      : std::runtime_error(message), exit_code_(exit_code) {}
  // Places the message at a line of a file, "file:line: message". Lines count from 1; 0 leaves the line out.
  Error(const std::string& file, std::uint64_t line, const std::string& message)
      : Error(file + (line != 0 ? std::string(":").append(std::to_string(line)) : std::string()) + ": " + message) {}

  ExitCode exit_code() const { return exit_code_; }

 private:
  ExitCode exit_code_;
};

// A simulated clock would pass a hundred years (longest_clock_ns): a mistake in the figures rather than an answer.
class TooSlow : public Error {
  using Error::Error;
};

// The answer is "no": the trace does not fit. Names the op and the bytes missing.
class OutOfMemory : public Error {
 public:
  OutOfMemory(const std::string& message, std::string op, std::uint64_t bytes_missing)
      : Error(message, ExitCode::answer_is_no), op_(std::move(op)), bytes_missing_(bytes_missing) {}
  const std::string& op() const { return op_; }
  std::uint64_t bytes_missing() const { return bytes_missing_; }

 private:
  std::string op_;
  std::uint64_t bytes_missing_;
};

}  // namespace tencache
