// A folder of its own for files that a test of the dashboard opens.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "core/error.h"
#include "gui/model/document.h"
#include "traces/file/file_io.h"

namespace tencache::gui {

class FilesInAFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tencache-gui-files-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    write_file(path(name), text);
    return path(name);
  }
  // The one error that opening the file gives, which names it.
  std::string refusal(const std::string& file) const {
    try {
      open_document(file);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(file));
      return error.what();
    }
    ADD_FAILURE() << file << " was opened";
    return "";
  }

  std::filesystem::path folder_;
};

}  // namespace tencache::gui
