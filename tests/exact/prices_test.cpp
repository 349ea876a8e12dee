// Price tables, and which price holds for a machine.
#include <filesystem>

#include "configs/machine_yaml.h"
#include "configs/price_table.h"
#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tencache {
namespace {

using ::testing::HasSubstr;

constexpr const char* head =
    "cloud: aws\nregion: us-east-1\nsource: a list\nretrieved: 2026-07\nconfidence: published\n";

template <typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(PriceTable, FiguresTakeWhatTheTableSaysOfAll) {
  const PriceTable table = parse_price_table(
      std::string(head) +
          "attached_storage: 0.08\n"
          "prices:\n  g5.xlarge: {on_demand: 1.006, spot: {value: 0.4, retrieved: 2026-08, confidence: measured}}\n",
      "p.yaml");
  const MachinePrice& price = table.machines.at("g5.xlarge");
  EXPECT_EQ(price.on_demand->value, 1.006);
  EXPECT_EQ(price.on_demand->source, "a list");
  EXPECT_EQ(price.on_demand->retrieved, "2026-07");
  EXPECT_EQ(price.on_demand->confidence, "published");
  EXPECT_EQ(price.spot->retrieved, "2026-08");
  EXPECT_EQ(price.spot->source, "a list");
  EXPECT_EQ(price.spot->confidence, "measured");
  EXPECT_EQ(table.storage->value, 0.08);
  EXPECT_FALSE(table.interruptions);
}

TEST(PriceTable, SaysWhatIsWrongAndWhere) {
  const auto message = [](const std::string& text) {
    return message_of([&] { parse_price_table(head + text, "p.yaml"); });
  };
  EXPECT_THAT(message("prices:\n  a: {on_demand: 0}\n"),
              HasSubstr("p.yaml:7: a.on_demand: '0' is not a number above 0"));
  EXPECT_THAT(message("prices:\n  a: {hourly: 1}\n"), HasSubstr("valid keys are on_demand, spot"));
  EXPECT_THAT(message("prices:\n  a: {on_demand: 1}\n  a: {on_demand: 2}\n"), HasSubstr("'a' stands twice"));
  EXPECT_THAT(message("currency: EUR\nprices: {}\n"), HasSubstr("valid are USD"));
  EXPECT_THAT(message("prices:\n  a: {on_demand: 1e9}\n"), HasSubstr("no machine costs that"));
  EXPECT_THAT(message_of([] { parse_price_table("cloud: aws\nprices: {}\n", "p.yaml"); }),
              HasSubstr("'source' is missing"));
}

// Every shipped cloud machine has a price with a date, and every shipped price a machine.
TEST(PriceTable, ShippedTablesAndMachinesBelongTogether) {
  std::vector<std::string> machines;
  for (const MachineSpec& machine : list_machines()) {
    machines.push_back(machine.name);
    EXPECT_EQ(machine.price.on_demand, 0) << machine.name << ": prices of shipped machines stand in configs/prices";
  }
  std::size_t count = 0;
  for (const PriceTable& table : list_price_tables()) {
    for (const auto& [type, price] : table.machines) {
      EXPECT_THAT(machines, ::testing::Contains(type));
      ASSERT_TRUE(price.on_demand);
      EXPECT_NE(price.on_demand->source, "");
      EXPECT_NE(price.on_demand->retrieved, "");
      ++count;
    }
  }
  EXPECT_EQ(count, 37u);
}

MachineSpec apply(const PriceChoice& choice, MachineSpec machine, PriceUsed* used = nullptr) {
  Prices prices(choice);
  const PriceUsed price = prices.apply(machine);
  if (used != nullptr) *used = price;
  return machine;
}

std::string write_table(const std::string& text) {
  std::string path = ::testing::TempDir() + "tencache_prices_test_" + std::to_string(getpid()) + ".yaml";
  std::FILE* file = std::fopen(path.c_str(), "w");
  std::fputs((head + text).c_str(), file);
  std::fclose(file);
  return path;
}

TEST(Prices, TheUsersFigureGoesFirstThenTheUsersTableThenTheMachineThenTheShippedTable) {
  const std::string path = write_table("prices:\n  g5.xlarge: {on_demand: 2}\n  mine: {on_demand: 3}\n");
  const MachineSpec g5 = read_machine("g5.xlarge");
  PriceUsed used;
  EXPECT_EQ(apply({}, g5, &used).price.on_demand, 1.006);
  EXPECT_EQ(used.sha256.size(), 64u);
  EXPECT_EQ(used.on_demand.retrieved, "2026-07");
  ASSERT_TRUE(used.storage);
  EXPECT_EQ(used.storage->confidence, "estimated");
  EXPECT_THAT(used.storage->source, HasSubstr("EBS"));
  EXPECT_TRUE(used.interruptions);
  EXPECT_EQ(apply({.file = path, .prices = {}}, g5, &used).price.on_demand, 2);
  EXPECT_EQ(used.on_demand.source, "a list");
  const MachineSpec said = apply({.file = path, .prices = {"g5.xlarge=4", "g5.xlarge:spot=1.5"}}, g5, &used);
  EXPECT_EQ(said.price.on_demand, 4);
  EXPECT_EQ(said.price.spot, 1.5);
  EXPECT_EQ(used.sha256, "");
  EXPECT_THAT(used.on_demand.source, HasSubstr("--price"));
  EXPECT_EQ(used.on_demand.confidence, "given");

  MachineSpec own = g5;
  own.price.on_demand = 9;
  EXPECT_EQ(apply({}, own, &used).price.on_demand, 9);
  EXPECT_EQ(used.sha256, "");
  own.name = "mine";
  EXPECT_EQ(apply({.file = path, .prices = {}}, own).price.on_demand, 3);
  std::filesystem::remove(path);
}

// What a table does not say, another may: one with spot prices only hides no price on demand, and the other way round.
TEST(Prices, EachFigureIsLookedForByItself) {
  const std::string path = write_table("prices:\n  g5.xlarge: {spot: 0.5}\n");
  const MachineSpec g5 = read_machine("g5.xlarge");
  PriceUsed used;
  MachineSpec machine = apply({.file = path, .prices = {}}, g5, &used);
  EXPECT_EQ(machine.price.on_demand, 1.006);
  EXPECT_EQ(machine.price.spot, 0.5);
  EXPECT_EQ(used.on_demand.source, "AWS us-east-1 on demand, from karpenter-provider-aws");
  EXPECT_EQ(used.spot.source, "a list");
  EXPECT_EQ(used.spot.retrieved, "2026-07");
  EXPECT_EQ(used.spot.confidence, "published");
  machine = apply({.file = {}, .prices = {"p5en.48xlarge=50"}}, read_machine("p5en.48xlarge"), &used);
  EXPECT_EQ(machine.price.on_demand, 50);
  EXPECT_EQ(machine.price.spot, 27.1988);
  EXPECT_EQ(used.spot.retrieved, "2026-08-06");
  std::filesystem::remove(path);
}

// A table of the same cloud has the last word on storage and interruptions, whether it has the machine or not; that of
// another cloud has none, and what no table says is not known.
TEST(Prices, StorageAndInterruptionsAreThoseOfTheCloud) {
  const std::string path = write_table("attached_storage: 0.5\nprices: {}\n");
  PriceUsed used;
  apply({.file = path, .prices = {}}, read_machine("g5.xlarge"), &used);
  EXPECT_EQ(used.storage->value, 0.5);
  EXPECT_EQ(used.storage->source, "a list");
  EXPECT_EQ(used.interruptions->value, 0.01);
  apply({.file = path, .prices = {}}, read_machine("NC24ads_A100_v4"), &used);
  EXPECT_EQ(used.storage->value, 0.12);
  apply({.file = {}, .prices = {"gpu_8x_a100:spot=5"}}, read_machine("gpu_8x_a100"), &used);
  EXPECT_FALSE(used.interruptions);
  apply({.file = {}, .prices = {"small-host=1"}}, read_machine("small-host"), &used);
  EXPECT_FALSE(used.storage);
  std::filesystem::remove(path);
}

TEST(Prices, CurrenciesAreNotMixed) {
  MachineSpec mine =
      parse_machine("name: mine\nbase: g5.xlarge\nprice: {on_demand: 2, spot: 1, currency: EUR}\n", "mine.yaml");
  MachineSpec as_it_is = apply({}, mine);
  EXPECT_EQ(as_it_is.price.currency, "EUR");
  EXPECT_EQ(as_it_is.price.on_demand, 2);
  EXPECT_THAT(message_of([&] { apply({.file = {}, .prices = {"mine=3"}}, mine); }),
              HasSubstr("the price of machine 'mine' on spot is in EUR, and its other one (--price mine=3) in USD"));
  EXPECT_THAT(message_of([&] { apply({.file = {}, .prices = {"mine:spot=3"}}, mine); }),
              HasSubstr("on demand is in EUR"));
  const MachineSpec both = apply({.file = {}, .prices = {"mine=3", "mine:spot=1"}}, mine);
  EXPECT_EQ(both.price.currency, "USD");
  EXPECT_EQ(both.price.on_demand, 3);
  // No spot price of the shipped tables beside one in EUR.
  mine = parse_machine("name: mine\nbase: p5en.48xlarge\nprice: {on_demand: 2, currency: EUR}\n", "mine.yaml");
  EXPECT_EQ(apply({}, mine).price.spot, 0);
}

// A machine of the user's own has the price of what its file builds on, if no table has its name.
TEST(Prices, AMachineBuiltOnAnotherCostsAsMuch) {
  const MachineSpec mine = parse_machine("name: mine\nbase: g5.xlarge\n", "mine.yaml");
  EXPECT_EQ(apply({}, mine).price.on_demand, 1.006);
  EXPECT_EQ(apply({}, read_machine("demo-small-gpu")).price.on_demand, 0);
}

TEST(Prices, RefusesWhatIsNoPrice) {
  for (const char* text : {"3.06", "=3", "a=", "a=0", "a=-1", "a=3 $", "a=nan", ":spot=1", "a=1e9"}) {
    EXPECT_THAT(message_of([&] { Prices({.file = {}, .prices = {text}}); }), HasSubstr("write it as TYPE=3.06"))
        << text;
  }
  Prices prices({.file = {}, .prices = {"p3.2xlarge=1"}});
  MachineSpec machine = read_machine("g5.xlarge");
  prices.apply(machine);
  EXPECT_THAT(message_of([&] { prices.check_all_used(); }), HasSubstr("no machine here is called 'p3.2xlarge'"));
}

}  // namespace
}  // namespace tencache
