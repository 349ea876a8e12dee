// Prices out of a SkyPilot catalogue (the user's own copy of a vms.csv, for instance
// ~/.sky/catalogs/v7/aws/vms.csv).
//
// The catalogue has no link widths, NVMe or PCIe data, so that only machines that we describe ourselves are of use, and
// a row that contradicts our description is not believed. Known traps, each handled and each said in `notes`:
//
//  1. Columns come in any order, and not all are there: they are found by the header's names.
//  2. GpuInfo is a Python dict in single quotes, or a bare name.
//  3. TotalGpuMemoryInMiB in it is that of one GPU.
//  4. Prices of Google's hosts leave the GPUs out: those stand in rows of their own and are added, unless the host's
//  row
//     names its GPUs or costs at least what they do alone: then they are in it.
//  5. An empty price, or 700.0, says that the catalogue has none.
//  6. Azure's ND96is(r)_H100_v5 is listed with 12 GPUs and has 8.
//  7. H200, B200 and GH200 are listed with 80 GB.
//  8. A10 and A10G are two GPUs.
//  9. Azure's spot price of H100 machines is the price on demand; no spot price is above it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "configs/price_table.h"

namespace tencache {

struct CatalogueNote {
  std::uint64_t line = 0;  // of the file; 0: of no one line
  std::string type;
  bool rejected = false;  // the row gives no price; else something of it was corrected
  std::string text;
};

struct CatalogueImport {
  PriceTable table;
  std::vector<CatalogueNote> notes;
  std::uint64_t rows = 0;          // read
  std::uint64_t other_region = 0;  // of them, of regions not asked for
  std::uint64_t cut_short = 0;     // of them, with too few cells: skipped
  std::uint64_t not_ours = 0;      // of them, of types that none of `machines` is
};

struct CatalogueOptions {
  std::string file;       // for messages and as the source
  std::string cloud;      // aws, azure, gcp, lambda
  std::string region;     // only its rows; empty: all
  std::string retrieved;  // date
};

// Of several zones the lowest price counts. Throws Error where the text is no such catalogue or the region is not in
// it.
CatalogueImport import_skypilot(std::string_view csv, const CatalogueOptions& options,
                                const std::vector<MachineSpec>& machines);

}  // namespace tencache
