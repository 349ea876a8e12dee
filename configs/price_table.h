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
// Reading it again gives the same table.
std::string write_price_table(const PriceTable& table);
// The shipped ones, by name.
std::vector<PriceTable> list_price_tables();

// What the user said: --prices FILE, and --price TYPE=3.06 or TYPE:spot=1.1 any number of times.
struct PriceChoice {
  std::string file;
  std::vector<std::string> prices;
};

// Where a machine's price is from.
struct PriceUsed {
  std::string sha256;  // of the table; empty: none was used
  PriceFigure on_demand;
  double storage_usd_per_gb_month = 0;  // 0: not known
  double interruptions_per_hour = 0;    // of spot; 0: not known
};

// Finds prices: the user's own figure, else that of the user's table, else that of the machine's file, else that of a
// shipped table; of a machine that the tables do not have, that of the machine that its file builds on.
class Prices {
 public:
  // Throws Error for a price that is none, or a table that cannot be read.
  explicit Prices(const PriceChoice& choice);

  // Sets the machine's price and its facts.
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
