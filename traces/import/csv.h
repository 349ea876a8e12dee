// Import of a recording from a pair of CSV files, `ops.csv` and `tensors.csv` (or .gz, .zst): TenCache's generic
// format, and that of the recordings published with G10 (MICRO'23). docs/trace-format.md describes every column.
//
// Columns are found by name, in any order; columns that the importer does not know are ignored.
//   ops.csv      required: id, phase, kernel or op, time_ms, inputs, outputs
//                optional: layer, module, device, gap_before_ms, flops, bytes, workspace_bytes
//   tensors.csv  required: id, role, and the column that CsvImportOptions::size_column names
//                optional: name, persistent, birth
// What the files say is taken as it is, with these rules:
//   - a tensor is persistent if the column `persistent` says so; without a value there: if birth is -2 ("always
//   there"), if
//     it is a parameter, optimizer state or master parameter, or if it is an input, constant or mask that an op reads
//     before any op writes it;
//   - workspace_bytes repeats the workspace tensors among the outputs. Only where an op has none does it become a
//   tensor;
//   - a tensor listed twice in an op's inputs (or outputs) counts once; tensors of size 0 are dropped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/trace.h"
#include "traces/file/file_io.h"

namespace tencache {

struct CsvImportOptions {
  std::string ops_file;      // or a directory that holds ops.csv[.gz|.zst] and tensors.csv[.gz|.zst]
  std::string tensors_file;  // empty: beside ops_file
  // bytes4k: rounded to pages, reproduces G10's own results. bytes_no_batch: without the batch dimension that G10's
  // BERT and ViT parameters carry by mistake. raw_bytes: as recorded. Any column of whole numbers will do.
  std::string size_column = "bytes4k";
  // Provenance, which the files do not hold. An empty model is called after the directory of the ops file.
  std::string model;
  std::string precision;
  std::string hardware;
  std::uint64_t batch = 0;
  std::uint64_t sequence_length = 0;
  Bytes maximum_bytes = default_maximum_file_bytes;  // of each file, decompressed
};

// A valid trace, or Error "file:line: what". `notes`, if given, gets a sentence for everything that was added, left out
// or assumed.
Trace import_csv(const CsvImportOptions& options, std::vector<std::string>* notes = nullptr);

}  // namespace tencache
