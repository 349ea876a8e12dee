// Price tables: what an hour of a rented machine costs, as YAML (docs/sweep.md), and which price holds for a machine.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/machine_spec.h"

namespace tencache {

// USD.
struct PriceFigure {
  double value = 0;
  std::string source, retrieved, confidence;  // published, measured, estimated
};

struct MachinePrice {
  std::optional<PriceFigure> on_demand = {}, spot = {};  // an hour of the whole machine
};

// Of one cloud's region.
struct PriceTable {
  std::string file, sha256;
  std::string cloud, region;
  std::optional<PriceFigure> storage = {};        // of a GB attached for a month
  std::optional<PriceFigure> interruptions = {};  // of a spot machine, an hour
  std::map<std::string, MachinePrice> machines;
};

// Throw Error with file and line.
PriceTable parse_price_table(std::string_view text, const std::string& file);
PriceTable read_price_table(const std::string& path);
// The shipped ones, by name.
std::vector<PriceTable> list_price_tables();

// What the user said: --prices FILE, and --price TYPE=3.06 or TYPE:spot=1.1 any number of times.
struct PriceChoice {
  std::string file;
  std::vector<std::string> prices;
};

// Where a machine's prices are from.
struct PriceUsed {
  std::string sha256;                             // of the table that has the price on demand; empty: no table has
  PriceFigure on_demand = {};                     // value 0: not known
  PriceFigure spot = {};                          // value 0: not known
  std::optional<PriceFigure> storage = {};        // a GB for a month; none: not known
  std::optional<PriceFigure> interruptions = {};  // of spot, an hour; none: not known
};

// Finds prices, on demand and spot each for itself: the user's own figure, else that of the user's table, else that of
// the machine's file, else that of a shipped table; of a machine that a table does not have, that of the machine that
// its file builds on. Storage and interruptions are those of the user's table, where it has the machine or is of the
// same cloud, else of the shipped table that has it. Where a machine's file is in another currency than USD, shipped
// prices are not laid beside its own.
class Prices {
 public:
  // Throws Error for a price that is none, or a table that cannot be read.
  explicit Prices(const PriceChoice& choice);

  // Sets the machine's price and its facts. Throws Error where the user's prices, which are USD, would stand beside one
  // of the machine's file in another currency.
  PriceUsed apply(MachineSpec& machine);
  // Throws Error if the user gave a price of a machine that apply() never saw.
  void check_all_used() const;

 private:
  struct Given {
    std::string type, text;
    bool spot = false, used = false;
    double value = 0;
  };
  std::vector<Given> given_;
  std::vector<PriceTable> own_, shipped_;
};

}  // namespace tencache
