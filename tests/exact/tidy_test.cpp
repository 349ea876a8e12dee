// Time and randomness are inputs: the folders that must give the same bytes for the same input may not name a clock
// or a global source of randomness. A seeded std::mt19937_64 passed in by the caller is fine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tencache {
namespace {

constexpr std::array deterministic_folders = {"core", "policies", "sim", "studies"};

// A name that ends in "(" is a function and is banned only where it is called; the others are banned anywhere.
// Each counts as a whole word: "wait_time(" and "operand(" do not match.
constexpr auto banned_names = std::to_array<std::string_view>({"system_clock",
                                                               "steady_clock",
                                                               "high_resolution_clock",
                                                               "utc_clock",
                                                               "file_clock",
                                                               "random_device",
                                                               "default_random_engine",
                                                               "time(",
                                                               "clock(",
                                                               "gettimeofday",
                                                               "clock_gettime",
                                                               "timespec_get",
                                                               "__rdtsc",
                                                               "_rdtsc",
                                                               "rdtscp",
                                                               "__builtin_ia32_rdtsc",
                                                               "rand(",
                                                               "srand",
                                                               "rand_r",
                                                               "random(",
                                                               "srandom",
                                                               "drand48",
                                                               "lrand48",
                                                               "mrand48",
                                                               "getrandom",
                                                               "getentropy",
                                                               "arc4random",
                                                               "sleep_for",
                                                               "sleep_until",
                                                               "this_thread"});
// They read "1.5" as 1 where a host program, such as Python, has set a locale with decimal commas: parse_number().
constexpr auto names_of_the_locale = std::to_array<std::string_view>({"stod", "stof", "strtod", "strtof", "atof"});

bool is_word(char character) {
  return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
         (character >= '0' && character <= '9') || character == '_';
}

// Blanks comments and the inside of literals, keeping the lines, so that prose may speak of clocks.
std::string without_comments_and_literals(std::string_view text) {
  std::string code(text);
  enum class State { code, line_comment, block_comment, string, character } state = State::code;
  for (std::size_t i = 0; i < code.size(); ++i) {
    const char current = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (state == State::code) {
      const bool digit_separator = current == '\'' && i > 0 && is_word(text[i - 1]) && is_word(next);
      if (current == '/' && next == '/')
        state = State::line_comment;
      else if (current == '/' && next == '*')
        state = State::block_comment;
      else if (current == '"')
        state = State::string;
      else if (current == '\'' && !digit_separator)
        state = State::character;
      if (state == State::line_comment || state == State::block_comment) code[i] = ' ', code[++i] = ' ';
      continue;
    }
    const bool literal = state == State::string || state == State::character;
    if (current == '\n') {
      if (state != State::block_comment) state = State::code;
      continue;
    }
    code[i] = ' ';
    if (literal && current == '\\' && next != '\n') {
      if (i + 1 < code.size()) code[++i] = ' ';
    } else if ((state == State::string && current == '"') || (state == State::character && current == '\'')) {
      state = State::code;
    } else if (state == State::block_comment && current == '*' && next == '/') {
      code[++i] = ' ';
      state = State::code;
    }
  }
  return code;
}

// "line: name" of every banned name in a source text.
std::vector<std::string> banned_in(std::string_view source, std::span<const std::string_view> names = banned_names) {
  const std::string code = without_comments_and_literals(source);
  std::vector<std::string> findings;
  for (const std::string_view banned : names) {
    const bool function = banned.back() == '(';
    const std::string_view word = function ? banned.substr(0, banned.size() - 1) : banned;
    for (std::size_t at = code.find(word); at != std::string::npos; at = code.find(word, at + 1)) {
      std::size_t after = at + word.size();
      if ((at > 0 && is_word(code[at - 1])) || (after < code.size() && is_word(code[after]))) continue;
      if (function) {
        while (after < code.size() && code[after] == ' ') ++after;
        if (after == code.size() || code[after] != '(') continue;
      }
      const auto line = 1 + std::count(code.begin(), code.begin() + static_cast<std::ptrdiff_t>(at), '\n');
      findings.push_back(std::to_string(line) + ": " + std::string(word));
    }
  }
  return findings;
}

TEST(TidyTest, FindsEveryBannedNameInCode) {
  for (const std::string_view banned : banned_names) {
    const bool function = banned.back() == '(';
    const std::string word(function ? banned.substr(0, banned.size() - 1) : banned);
    EXPECT_THAT(banned_in("int a;\nauto b = std::" + word + "(0);\n"), testing::ElementsAre("2: " + word));
    EXPECT_THAT(banned_in("auto b = ::" + word + " (0);"), testing::ElementsAre("1: " + word));
  }
}

TEST(TidyTest, LeavesProseLiteralsAndLongerNamesAlone) {
  EXPECT_THAT(banned_in("// steady_clock is banned\n/* time(\n rand( */ int time = 0;"), testing::IsEmpty());
  EXPECT_THAT(banned_in("auto text = \"rand( \\\" srand\"; char quote = '\"';"), testing::IsEmpty());
  EXPECT_THAT(banned_in("wait_time(0); operand(1); iteration_time (2); strand(3);"), testing::IsEmpty());
}

TEST(TidyTest, SeesCodeAfterCommentsLiteralsAndDigitSeparators) {
  EXPECT_THAT(banned_in("/* a */ rand();"), testing::ElementsAre("1: rand"));
  EXPECT_THAT(banned_in("char quote = '\"'; rand();"), testing::ElementsAre("1: rand"));
  EXPECT_THAT(banned_in("long n = 1'000; rand(); long m = 1'000;"), testing::ElementsAre("1: rand"));
  EXPECT_THAT(banned_in("\"a\\\\\"; rand();\n// b\nsrand(1);"), testing::ElementsAre("1: rand", "3: srand"));
}

void expect_none_of(std::span<const std::string_view> names, const char* folder, const char* complaint) {
  std::size_t files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::filesystem::path(TENCACHE_SOURCE_DIR) / folder)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cpp") continue;
    ++files;
    std::ifstream stream(entry.path(), std::ios::binary);
    ASSERT_TRUE(stream) << entry.path();
    const std::string source((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    EXPECT_THAT(banned_in(source, names), testing::IsEmpty()) << entry.path().string() << complaint;
  }
  EXPECT_GT(files, 0U) << "no source in " << folder << ": was the folder moved?";
}

TEST(TidyTest, DeterministicFoldersReadNoClockAndNoGlobalRandomness) {
  for (const char* folder : deterministic_folders) {
    expect_none_of(banned_names, folder, " names a clock or global randomness; take time and seeds as arguments");
  }
}

TEST(TidyTest, NumbersAreReadWhateverTheLocale) {
  for (const char* folder : {"cli", "configs", "core", "executor", "gui", "policies", "python", "sim", "traces"}) {
    expect_none_of(names_of_the_locale, folder, " reads a number as the locale says; use parse_number()");
  }
}

}  // namespace
}  // namespace tencache
