#include "cli/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cli/embedding.h"
#include "core/error.h"

namespace tencache {
namespace {

bool continues_a_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Without the newlines and what does not fit in `columns`.
std::string cut(const std::string& text, std::size_t columns) {
  std::string line = text.substr(0, text.find('\n'));
  if (columns_of(line) <= columns && line.size() == text.size()) return line;
  while (!line.empty() && columns_of(line) >= columns) {
    while (continues_a_character(line.back())) line.pop_back();
    line.pop_back();
  }
  return line + "…";
}

}  // namespace

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues_a_character(c); }));
}

void print(std::string_view text) {
  if (Embedding* embedding = current_embedding()) {
    embedding->output += text;
    return;
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) throw Error(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
}

void print_json(const Json& document) { print(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }

void remark(std::string_view text) {
  const std::string line = std::string(text) + "\n";
  if (Embedding* embedding = current_embedding(); embedding != nullptr && !embedding->remarks_pass) {
    embedding->remarks += line;
    return;
  }
  std::fwrite(line.data(), 1, line.size(), stderr);
}

ProgressLine::ProgressLine()
    : terminal_((current_embedding() == nullptr || current_embedding()->remarks_pass) && isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void ProgressLine::show(std::string_view text) {
  if (!terminal_) return;
  const std::string line = "\r\033[K" + std::string(text);
  std::fwrite(line.data(), 1, line.size(), stderr);
  shown_ = true;
}

Table::Table(std::vector<std::string> header) { add(std::move(header)); }

void Table::add(std::vector<std::string> row) { rows_.push_back({std::move(row), 0}); }

void Table::add_wide(std::string first, std::string text, std::size_t width) {
  rows_.push_back({{std::move(first), std::move(text)}, width});
}

std::string Table::text() const {
  const std::size_t columns = rows_.front().cells.size();
  std::vector<std::size_t> widths(columns, 0);
  for (const auto& [row, wide] : rows_) {
    for (std::size_t i = 0; i < std::min(wide != 0 ? 1 : row.size(), columns); ++i) {
      widths[i] = std::max(widths[i], columns_of(row[i]));
    }
  }
  std::string text;
  for (const auto& [row, wide] : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(i < columns ? widths[i] - std::min(widths[i], columns_of(row[i])) : 0, ' ');
      const bool left = i == 0 || i + 1 >= columns;
      line += i == 0 ? "" : "  ";
      if (wide != 0 && i == 1) {
        line += cut(row[i], wide - std::min(wide - 1, columns_of(line)));
      } else {
        line += left ? row[i] + padding : padding + row[i];
      }
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string join(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); }

}  // namespace tencache
