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

// The code of the character that `text` begins with, and its bytes: none where that is no UTF-8.
std::pair<char32_t, std::size_t> first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (continues_a_character(text[0]) || lead >= 0xf8 || length > text.size()) return {lead, 0};
  char32_t code = length == 1 ? lead : lead & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (!continues_a_character(text[i])) return {lead, 0};
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3fu);
  }
  constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool valid = code >= least[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return {valid ? code : lead, valid ? length : 0};
}

bool obeyed_by_terminals(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x061c || code == 0x200e || code == 0x200f ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

// Lines of our own stay lines, and tabs are in scripts of our own.
std::string printable_lines(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\n\t"), text.size());
    lines += printable(text.substr(0, end));
    if (end < text.size()) lines += text[end];
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// To stdout, or what stands for it.
void put(std::string_view text) {
  if (Embedding* embedding = current_embedding()) {
    embedding->output += text;
    return;
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) throw Error(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const auto [code, bytes] = first_character(text);
    if (bytes == 0 || code < 0x80) {
      result += bytes == 0 || obeyed_by_terminals(code) ? fmt::format("\\x{:02x}", static_cast<std::uint32_t>(code))
                                                        : std::string(1, text[0]);
    } else if (obeyed_by_terminals(code)) {
      result += fmt::format("\\u{{{:x}}}", static_cast<std::uint32_t>(code));
    } else {
      result += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<std::size_t>(1, bytes));
  }
  return result;
}

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues_a_character(c); }));
}

void print(std::string_view text) { put(printable_lines(text)); }

void print_json(const Json& document) { put(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }

void remark(std::string_view text) {
  const std::string line = printable(text) + "\n";
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
  const std::string line = "\r\033[K" + printable(text);
  std::fwrite(line.data(), 1, line.size(), stderr);
  shown_ = true;
}

Table::Table(std::vector<std::string> header) { add(std::move(header)); }

void Table::add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = printable(cell);
  rows_.push_back({std::move(row), 0});
}

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
