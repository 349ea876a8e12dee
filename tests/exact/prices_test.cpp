// Price tables, which price holds for a machine, and every trap of SkyPilot's catalogues, in files made here.
#include <filesystem>

#include "configs/machine_yaml.h"
#include "configs/price_table.h"
#include "configs/skypilot_catalogue.h"
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
  const PriceTable again = parse_price_table(write_price_table(table), "again.yaml");
  EXPECT_EQ(again.machines.at("g5.xlarge").spot->retrieved, "2026-08");
  EXPECT_EQ(again.machines.at("g5.xlarge").on_demand->source, "a list");
  EXPECT_EQ(again.storage->value, 0.08);
  EXPECT_EQ(write_price_table(again), write_price_table(table));
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

// -------------------------------------------------------------------------------------------------------- catalogues

class Catalogue : public ::testing::Test {
 protected:
  CatalogueImport import(const std::string& csv, const std::string& cloud, const std::string& region = "") const {
    return import_skypilot(csv, {.file = "vms.csv", .cloud = cloud, .region = region, .retrieved = "2026-08-01"},
                           machines_);
  }
  // Of the one note that there is on this machine.
  static std::string note_on(const CatalogueImport& import, const std::string& type, bool rejected) {
    std::string text;
    for (const CatalogueNote& note : import.notes) {
      if (note.type == type && note.rejected == rejected) text += note.text + "; ";
    }
    return text;
  }
  static double price(const CatalogueImport& import, const std::string& type) {
    const auto found = import.table.machines.find(type);
    return found == import.table.machines.end() || !found->second.on_demand ? 0 : found->second.on_demand->value;
  }
  static double spot(const CatalogueImport& import, const std::string& type) {
    const auto found = import.table.machines.find(type);
    return found == import.table.machines.end() || !found->second.spot ? 0 : found->second.spot->value;
  }

  const std::vector<MachineSpec> machines_ = list_machines();
};

const std::string usual =
    "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice\n";

// The lowest of the zones; other regions and unknown machines are counted.
TEST_F(Catalogue, TakesTheRegionsLowestPrices) {
  const CatalogueImport result = import(usual +
                                            "g5.xlarge,4,16,A10G,1.0,A10G,us-east-1,us-east-1a,1.006,0.45\n"
                                            "g5.xlarge,4,16,A10G,1.0,A10G,us-east-1,us-east-1b,1.006,0.40\n"
                                            "g5.xlarge,4,16,A10G,1.0,A10G,eu-west-1,eu-west-1a,1.123,0.10\n"
                                            "m5.large,2,8,,,,us-east-1,us-east-1a,0.096,0.03\n",
                                        "aws", "us-east-1");
  EXPECT_EQ(price(result, "g5.xlarge"), 1.006);
  EXPECT_EQ(spot(result, "g5.xlarge"), 0.40);
  EXPECT_EQ(result.rows, 4u);
  EXPECT_EQ(result.other_region, 1u);
  EXPECT_EQ(result.not_ours, 1u);
  EXPECT_TRUE(result.notes.empty());
  EXPECT_EQ(result.table.machines.at("g5.xlarge").on_demand->retrieved, "2026-08-01");
  EXPECT_THAT(message_of([&] { import(usual + "g5.xlarge,4,16,A10G,1,A10G,us-east-1,a,1,1\n", "aws", "mars"); }),
              HasSubstr("its regions are us-east-1"));
}

TEST_F(Catalogue, FindsColumnsByName) {
  const CatalogueImport result =
      import("\xef\xbb\xbfSpotPrice,Arch,Price,InstanceType\r\n0.4,x86_64,1.006,g5.xlarge\r\n", "aws");
  EXPECT_EQ(price(result, "g5.xlarge"), 1.006);
  EXPECT_EQ(spot(result, "g5.xlarge"), 0.4);
  EXPECT_EQ(price(import("InstanceType,Price\ng5.xlarge,1.006\n", "aws"), "g5.xlarge"), 1.006);
  EXPECT_THAT(message_of([&] { import("InstanceType,Cost\ng5.xlarge,1\n", "aws"); }),
              HasSubstr("no column is called 'Price'"));
  EXPECT_THAT(message_of([&] { import("", "aws"); }), HasSubstr("empty"));
}

// Single quotes, doubles within a quoted cell, None; the total is that of one GPU.
TEST_F(Catalogue, ReadsPythonDicts) {
  const std::string dict =
      "\"{'Gpus': [{'Name': 'A100', 'Manufacturer': 'NVIDIA', 'Count': 8.0, 'MemoryInfo': {'SizeInMiB': 40960}}], "
      "'TotalGpuMemoryInMiB': 40960, 'Note': None}\"";
  const CatalogueImport good = import(usual + "p4d.24xlarge,96,1152,,," + dict + ",us-east-1,a,21.96,9.0\n", "aws");
  EXPECT_EQ(price(good, "p4d.24xlarge"), 21.96);
  EXPECT_TRUE(good.notes.empty());
  // What only the dict says counts too.
  const std::string four = "\"{'Gpus': [{'Name': 'A100', 'Count': 4.0}]}\"";
  const CatalogueImport bad = import(usual + "p4d.24xlarge,96,1152,,," + four + ",us-east-1,a,21.96,9.0\n", "aws");
  EXPECT_EQ(price(bad, "p4d.24xlarge"), 0);
  EXPECT_THAT(note_on(bad, "p4d.24xlarge", true), HasSubstr("listed with 4 GPUs, ours has 8"));
}

TEST_F(Catalogue, DoesNotBelieveABareNameOfAnotherGpu) {
  const CatalogueImport result = import(usual + "g5.xlarge,4,16,,,T4,us-east-1,a,1.006,\n", "aws");
  EXPECT_EQ(price(result, "g5.xlarge"), 0);
  EXPECT_THAT(note_on(result, "g5.xlarge", true), HasSubstr("the GPU T4, ours has a10g"));
}

TEST_F(Catalogue, AddsGooglesGpusToItsHosts) {
  const CatalogueImport result = import(usual +
                                            "a2-highgpu-8g,96,680,,,,us-central1,a,5.91582,2.0\n"
                                            "a2-highgpu-1g,12,85,,,,us-central1,a,0.73948,0.2\n"
                                            ",,,A100,1.0,A100,us-central1,a,2.934,1.0\n"
                                            ",,,A100,16.0,A100,us-central1,b,48,\n"
                                            "a3-highgpu-1g,26,234,,,,us-central1,a,1.18251,\n",
                                        "gcp", "us-central1");
  EXPECT_NEAR(price(result, "a2-highgpu-8g"), 5.91582 + 8 * 2.934, 1e-9);
  EXPECT_NEAR(spot(result, "a2-highgpu-8g"), 2.0 + 8 * 1.0, 1e-9);
  EXPECT_NEAR(price(result, "a2-highgpu-1g"), 0.73948 + 2.934, 1e-9);
  EXPECT_THAT(note_on(result, "a2-highgpu-1g", false), HasSubstr("added to the host's"));
  EXPECT_EQ(price(result, "a3-highgpu-1g"), 0);
  EXPECT_THAT(note_on(result, "a3-highgpu-1g", true), HasSubstr("leaves its GPUs out"));
}

// By hand: an A100 costs 2.934, so that 0.73948 is a host's price and 3.67 that of both; a row that names its GPUs has
// them in its price, and is not believed below theirs.
TEST_F(Catalogue, AddsGooglesGpusOnlyOnce) {
  const std::string gpu = ",,,A100,1.0,A100,us-central1,a,2.934,1.0\n";
  const auto of = [&](const std::string& row) { return import(usual + row + gpu, "gcp", "us-central1"); };
  const CatalogueImport dear = of("a2-highgpu-1g,12,85,,,,us-central1,a,3.67,1.4\n");
  EXPECT_EQ(price(dear, "a2-highgpu-1g"), 3.67);
  EXPECT_EQ(spot(dear, "a2-highgpu-1g"), 1.4);
  EXPECT_THAT(note_on(dear, "a2-highgpu-1g", false), HasSubstr("nothing is added"));
  const CatalogueImport named = of("a2-highgpu-1g,12,85,A100,1,A100,us-central1,a,3.67,1.4\n");
  EXPECT_EQ(price(named, "a2-highgpu-1g"), 3.67);
  const CatalogueImport alone =
      import(usual + "a2-highgpu-1g,12,85,A100,1,A100,us-central1,a,3.67,1.4\n", "gcp", "us-central1");
  EXPECT_EQ(price(alone, "a2-highgpu-1g"), 3.67);
  const CatalogueImport odd = of("a2-highgpu-1g,12,85,A100,1,A100,us-central1,a,0.73948,0.2\n");
  EXPECT_EQ(price(odd, "a2-highgpu-1g"), 0);
  EXPECT_THAT(note_on(odd, "a2-highgpu-1g", true), HasSubstr("names its GPUs, but costs less"));
}

TEST_F(Catalogue, TellsA10FromA10G) {
  const CatalogueImport result = import(usual +
                                            "g5.xlarge,4,16,A10,1,A10,us-east-1,a,1.006,\n"
                                            "g5.12xlarge,48,192,A10G,4,A10G,us-east-1,a,5.672,\n",
                                        "aws");
  EXPECT_EQ(price(result, "g5.xlarge"), 0);
  EXPECT_THAT(note_on(result, "g5.xlarge", true), HasSubstr("the GPU A10, ours has a10g"));
  EXPECT_EQ(price(result, "g5.12xlarge"), 5.672);
  const CatalogueImport azure =
      import(usual + "Standard_NV36ads_A10_v5,36,440,A10,1,,eastus,,3.2,\n", "azure", "eastus");
  EXPECT_EQ(price(azure, "NV36ads_A10_v5"), 3.2);
}

TEST_F(Catalogue, RejectsPlaceholders) {
  const CatalogueImport result = import(usual +
                                            "p3.2xlarge,8,61,V100,1,V100,us-east-1,a,,0.9\n"
                                            "g4dn.xlarge,4,16,T4,1,T4,us-east-1,a,700.0,0.2\n"
                                            "g6.xlarge,4,16,L4,1,L4,us-east-1,a,0.8048,700.0\n"
                                            "g5.xlarge,4,16,A10G,1,A10G,us-east-1,a,nan,\n",
                                        "aws");
  for (const char* type : {"p3.2xlarge", "g4dn.xlarge", "g5.xlarge"}) {
    EXPECT_EQ(result.table.machines.count(type), 0u) << type;
    EXPECT_THAT(note_on(result, type, true), HasSubstr("is none")) << type;
  }
  EXPECT_THAT(note_on(result, "g4dn.xlarge", true), HasSubstr("700.0 stands for not known"));
  EXPECT_EQ(price(result, "g6.xlarge"), 0.8048);
  EXPECT_EQ(spot(result, "g6.xlarge"), 0);
  EXPECT_THAT(note_on(result, "g6.xlarge", false), HasSubstr("spot price '700.0' is none"));
}

// 12 GPUs, which are 8; and the spot price that is none. Azure's names have a prefix.
TEST_F(Catalogue, CorrectsAzuresH100s) {
  const CatalogueImport result =
      import(usual + "Standard_ND96isr_H100_v5,96,1900,H100,12.0,H100,eastus,1,98.32,98.32\n", "azure", "eastus");
  EXPECT_EQ(price(result, "ND96isr_H100_v5"), 98.32);
  EXPECT_EQ(spot(result, "ND96isr_H100_v5"), 0);
  EXPECT_THAT(note_on(result, "Standard_ND96isr_H100_v5", false),
              ::testing::AllOf(HasSubstr("12 GPUs, which are 8"), HasSubstr("spot price is that on demand")));
}

TEST_F(Catalogue, CorrectsTheMemoryOfNewGpus) {
  const std::string dict = "\"{'Gpus': [{'Name': 'H200', 'Count': 8.0, 'MemoryInfo': {'SizeInMiB': 81920}}]}\"";
  const CatalogueImport result =
      import(usual + "p5en.48xlarge,192,2048,H200,8.0," + dict + ",us-east-1,a,63.296,20\n", "aws");
  EXPECT_EQ(price(result, "p5en.48xlarge"), 63.296);
  EXPECT_THAT(note_on(result, "p5en.48xlarge", false), HasSubstr("80 GB of GPU memory, which are 140 GiB"));
  for (const auto& [row, type, said] :
       {std::tuple("gpu_1x_gh200,64,432,GH200,1.0,", "gpu_1x_gh200", "which are 94 GiB"),
        std::tuple("gpu_8x_b200_sxm6,208,2900,B200,8.0,", "gpu_8x_b200_sxm6", "which are 178 GiB")}) {
    const std::string name = std::string(row).find("GH200") != std::string::npos ? "GH200" : "B200";
    const CatalogueImport of = import(
        usual + row + "\"{'Gpus': [{'Name': '" + name + "', 'MemoryInfo': {'SizeInMiB': 81920}}]}\",us-east-1,a,2.5,\n",
        "lambda");
    EXPECT_EQ(price(of, type), 2.5);
    EXPECT_THAT(note_on(of, type, false), ::testing::AllOf(HasSubstr("listed with 80 GB"), HasSubstr(said)));
  }
  // An A100 of 80 GB listed as one of 40 is another machine, and no known slip.
  const std::string forty = "\"{'Gpus': [{'Name': 'A100-80GB', 'Count': 8.0, 'MemoryInfo': {'SizeInMiB': 40960}}]}\"";
  const CatalogueImport wrong =
      import(usual + "p4de.24xlarge,96,1152,A100-80GB,8.0," + forty + ",us-east-1,a,27.4,\n", "aws");
  EXPECT_EQ(price(wrong, "p4de.24xlarge"), 0);
  EXPECT_THAT(note_on(wrong, "p4de.24xlarge", true), HasSubstr("40960 MiB of memory a GPU"));
}

TEST_F(Catalogue, RejectsRowsThatContradictOurDescription) {
  const CatalogueImport result = import(usual +
                                            "g5.xlarge,4,64,A10G,1,A10G,us-east-1,a,1.006,\n"
                                            "g5.12xlarge,48,192,A10G,2,A10G,us-east-1,a,5.672,\n"
                                            "g6.xlarge,4,16,L4\n"
                                            "g4dn.xlarge,4,16,T4,1,T4,us-east-1,a,10001,\n"
                                            "whatever,4\n",
                                        "aws");
  EXPECT_TRUE(result.table.machines.empty());
  EXPECT_THAT(note_on(result, "g5.xlarge", true), HasSubstr("64 GiB of memory, ours has 13"));
  EXPECT_THAT(note_on(result, "g5.12xlarge", true), HasSubstr("2 GPUs, ours has 4"));
  EXPECT_THAT(note_on(result, "g6.xlarge", true), HasSubstr("cut short"));
  EXPECT_THAT(note_on(result, "g4dn.xlarge", true), HasSubstr("above 10,000 $/h"));
  EXPECT_EQ(result.cut_short, 2u);
}

// Each machine as its cloud would list it: none of ours contradicts itself.
TEST_F(Catalogue, BelievesWhatAgrees) {
  std::string csv = usual;
  std::size_t count = 0;
  for (const PriceTable& table : list_price_tables()) {
    for (const auto& [type, price] : table.machines) {
      const MachineSpec machine = read_machine(type);
      csv += type + ",8,," + machine.gpu + "," + std::to_string(machine.rank_count()) + ",,here,a,1.5,0.5\n";
      ++count;
    }
  }
  const CatalogueImport result = import(csv, "aws");
  EXPECT_EQ(result.table.machines.size(), count);
  EXPECT_TRUE(result.notes.empty());
}

}  // namespace
}  // namespace tencache
