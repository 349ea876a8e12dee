// What a run may need of this computer's disks and memory, against what is there.
#include "executor/room.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "gmock/gmock.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

MachineSpec files_in(const std::vector<std::string>& directories) {
  MachineSpec machine;
  machine.name = "test";
  machine.tiers = {{"gpu", TierKind::gpu, MiB, 4096, {}}, {"nvme", TierKind::nvme, unlimited, 4096, directories}};
  return machine;
}

// Each folder has room for its own part, their file system not for both.
TEST(RoomTest, FoldersOfOneFileSystemShareItsRoom) {
  const fs::path folder = fs::temp_directory_path();
  const std::string one = (folder / "tencache-room-1").string(), other = (folder / "tencache-room-2").string();
  for (const std::string& directory : {one, other}) fs::create_directory(directory);
  const Bytes needed = fs::space(folder).available / 2 * 3;
  try {
    state_room(files_in({one, other}), needed, "--gpu-memory");
    ADD_FAILURE() << "there is no room for " << format_bytes(needed);
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("tier nvme: " + one + ", " + other + ": "));
    EXPECT_THAT(error.what(), HasSubstr("give other folders with --directory, or --gpu-memory"));
  }
  EXPECT_NO_THROW(state_room(files_in({one, other}), needed / 3, "--gpu-memory"));
  EXPECT_NO_THROW(state_room(files_in({one, other}), unlimited, "--gpu-memory")) << "what is needed is not known";
  for (const std::string& directory : {one, other}) fs::remove(directory);
}

TEST(RoomTest, ATierIsNoLargerThanItsDisksAllow) {
  const std::string folder = fs::temp_directory_path().string();
  MachineSpec machine = files_in({folder, folder});
  Tier& tier = machine.tiers.back();
  tier.capacity = Bytes{1} << 55;
  fit_to_disks(machine);
  const Bytes free_bytes = fs::space(folder).available;
  EXPECT_GT(tier.capacity, free_bytes / 2);
  EXPECT_LE(tier.capacity, free_bytes);
  EXPECT_EQ(tier.capacity % tier.granularity, 0u);
  tier.capacity = Bytes{1} << 55;
  fit_to_disks(machine, 4);
  EXPECT_LE(tier.capacity, free_bytes / 4) << "four ranks fit beside each other";
  tier.capacity = 16 * tier.granularity;
  fit_to_disks(machine);
  EXPECT_EQ(tier.capacity, 16 * tier.granularity) << "there is room for it";
}

}  // namespace
}  // namespace tencache
