// Import of CSV pairs: the columns, the reading rules, errors with their lines, and the five published recordings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"
#include "traces/file/trace_file.h"
#include "traces/import/csv.h"
#include "traces/summary.h"

namespace tencache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CsvImport : public ::testing::Test {
 protected:
  CsvImport() { std::filesystem::create_directories(directory_); }
  ~CsvImport() override { std::filesystem::remove_all(directory_.parent_path()); }

  std::string write(const std::string& name, const std::string& text) {
    write_file((directory_ / name).string(), text);
    return (directory_ / name).string();
  }

  Trace import_pair(const std::string& ops, const std::string& tensors, const std::string& size_column = "bytes") {
    CsvImportOptions options;
    options.ops_file = write("ops.csv", ops);
    options.tensors_file = write("tensors.csv", tensors);
    options.size_column = size_column;
    notes_.clear();
    return import_csv(options, &notes_);
  }

  std::string error_of(const std::string& ops, const std::string& tensors, const std::string& size_column = "bytes") {
    try {
      import_pair(ops, tensors, size_column);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  const std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("tencache_csv_" + std::to_string(::getpid())) / "Net-8";
  std::vector<std::string> notes_;
};

const std::string some_tensors =
    "id,role,bytes\n"
    "0,weight,100\n"
    "1,input,10\n"
    "2,act,20\n"
    "3,grad_weight,100\n";
const std::string some_ops =
    "id,phase,kernel,time_ms,inputs,outputs\n"
    "0,fwd,MatMul,0.5,0 1,2\n"
    "1,bwd,MatMulBackward,1,2,3\n"
    "2,upd,Update,0.000001,0 3,0\n";

TEST_F(CsvImport, ReadsTheSmallestPair) {
  const Trace trace = import_pair(some_ops, some_tensors);
  EXPECT_EQ(trace.header.model, "Net-8");
  ASSERT_EQ(trace.tensors.size(), 4u);
  ASSERT_EQ(trace.ops.size(), 3u);
  EXPECT_EQ(trace.name(trace.tensors[0]), "weight_0");
  EXPECT_EQ(trace.tensors[0].role, Role::parameter);
  EXPECT_TRUE(trace.tensors[0].persistent);
  EXPECT_EQ(trace.tensors[1].role, Role::input);
  EXPECT_TRUE(trace.tensors[1].persistent) << "read before any op writes it";
  EXPECT_EQ(trace.tensors[2].role, Role::activation);
  EXPECT_FALSE(trace.tensors[2].persistent);
  EXPECT_EQ(trace.tensors[3].role, Role::gradient);
  EXPECT_EQ(trace.name(trace.ops[0]), "MatMul");
  EXPECT_EQ(trace.ops[0].phase, Phase::forward);
  EXPECT_EQ(trace.ops[1].phase, Phase::backward);
  EXPECT_EQ(trace.ops[2].phase, Phase::optimizer);
  EXPECT_EQ(trace.ops[0].duration_ns, 500'000);
  EXPECT_EQ(trace.ops[2].duration_ns, 1);
  EXPECT_THAT(trace.reads(trace.ops[2]), ElementsAre(0, 3));
  EXPECT_THAT(trace.writes(trace.ops[2]), ElementsAre(0));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("1 tensor read before any op writes")));
}

TEST_F(CsvImport, KeepsCachesAndExpertsOfInference) {
  const Trace trace = import_pair(
      "id,phase,kernel,time_ms,inputs,outputs\n"
      "0,prefill,Attention,0.5,,0\n"
      "1,decode,MatMul,1,0 1,2\n",
      "id,role,bytes\n"
      "0,kv_cache,100\n"
      "1,expert,100\n"
      "2,act,100\n");
  EXPECT_EQ(trace.ops[0].phase, Phase::prefill);
  EXPECT_EQ(trace.ops[1].phase, Phase::decode);
  EXPECT_EQ(trace.tensors[0].role, Role::kv_cache);
  EXPECT_TRUE(trace.tensors[0].persistent);
  EXPECT_EQ(trace.tensors[1].role, Role::expert);
  EXPECT_TRUE(trace.tensors[1].persistent);
  EXPECT_FALSE(trace.tensors[2].persistent);
}

TEST_F(CsvImport, ReadsOptionalColumnsInAnyOrderAndIgnoresUnknownOnes) {
  const Trace trace = import_pair(
      "outputs,inputs,colour,time_ms,op,phase,id,layer,device,gap_before_ms,flops,bytes\r\n"
      "1,0,red,2,\"a \"\"quoted\"\", name\",forward,7,3,cpu,0.25,11,12\r\n"
      "\r\n"
      "1,1,red,2,b,optimizer,9,head,,,,\r\n",
      "\xef\xbb\xbf"
      "size,role,id,name,persistent,birth\n"
      "8,act,0,kept,1,\n"
      "9,weight,1,,false,-2\n",
      "size");
  ASSERT_EQ(trace.ops.size(), 2u);
  EXPECT_EQ(trace.name(trace.ops[0]), "a \"quoted\", name");
  EXPECT_EQ(trace.module(trace.ops[0]), "layer3");
  EXPECT_EQ(trace.module(trace.ops[1]), "head");
  EXPECT_EQ(trace.ops[0].device, Device::cpu);
  EXPECT_EQ(trace.ops[1].device, Device::gpu);
  EXPECT_EQ(trace.ops[0].gap_before_ns, 250'000);
  EXPECT_EQ(trace.ops[0].flops, 11u);
  EXPECT_EQ(trace.ops[0].bytes, 12u);
  EXPECT_EQ(trace.name(trace.tensors[0]), "kept");
  EXPECT_TRUE(trace.tensors[0].persistent);
  EXPECT_FALSE(trace.tensors[1].persistent) << "the column `persistent` outweighs role and birth";
}

TEST_F(CsvImport, TakesTimesFromTheirDecimalText) {
  const std::vector<std::pair<std::string, Nanoseconds>> cases{{"0.197632", 197'632},
                                                               {"0.0000005", 1},
                                                               {"0.0000004999", 0},
                                                               {"1e-05", 10},
                                                               {"2.5E+2", 250'000'000},
                                                               {"590.612915", 590'612'915},
                                                               {"0", 0},
                                                               {"000.1", 100'000},
                                                               {"9007199.254740993", 9'007'199'254'741},
                                                               {".5", 500'000},
                                                               {"5.", 5'000'000},
                                                               {"1.2345675", 1'234'568},
                                                               {"0e400", 0},
                                                               {"1e-400", 0}};
  for (const auto& [text, expected] : cases) {
    const Trace trace =
        import_pair("id,phase,op,time_ms,inputs,outputs\n0,fwd,a," + text + ",,0\n", "id,role,bytes\n0,act,1\n");
    EXPECT_EQ(trace.ops[0].duration_ns, expected) << text;
  }
  for (const std::string text : {"-1", "", "1.2.3", "nan", "inf", "1e", "1 ms", "1e13", "1e99999999999", "."}) {
    EXPECT_THAT(error_of("id,phase,op,time_ms,inputs,outputs\n0,fwd,a," + text + ",,0\n", "id,role,bytes\n0,act,1\n"),
                HasSubstr("ops.csv:2: column 'time_ms' is '" + text + "'"));
  }
}

TEST_F(CsvImport, CountsRepeatedIdsOnceAndDropsEmptyTensors) {
  const Trace trace = import_pair("id,phase,op,time_ms,inputs,outputs\n0,fwd,a,1,,5 5 9\n1,fwd,b,1,9 5 9 7, 5  5 \n",
                                  "id,role,bytes\n5,act,1\n7,act,0\n9,act,3\n11,weight,4\n");
  ASSERT_EQ(trace.tensors.size(), 3u);
  EXPECT_THAT(trace.writes(trace.ops[0]), ElementsAre(0, 1));
  EXPECT_THAT(trace.reads(trace.ops[1]), ElementsAre(1, 0));
  EXPECT_THAT(trace.writes(trace.ops[1]), ElementsAre(0)) << "inputs and outputs are lists of their own";
  EXPECT_EQ(trace.name(trace.tensors[1]), "act_9") << "names keep the id of the file";
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("1 tensor of size 0"), HasSubstr("3 repeated ids"),
                                  HasSubstr("1 tensor that no op uses")));
}

TEST_F(CsvImport, CountsWorkspaceBytesOnlyWhereNoWorkspaceIsListed) {
  const Trace trace = import_pair(
      "id,phase,op,time_ms,workspace_bytes,inputs,outputs\n0,fwd,a,1,64,,0 1\n1,fwd,b,1,32,0,2\n2,fwd,c,1,0,2,0\n",
      "id,role,bytes\n0,act,1\n1,workspace,64\n2,act,3\n");
  ASSERT_EQ(trace.tensors.size(), 4u);
  EXPECT_THAT(trace.writes(trace.ops[0]), ElementsAre(0, 1));
  EXPECT_THAT(trace.writes(trace.ops[1]), ElementsAre(2, 3));
  EXPECT_EQ(trace.tensors[3].bytes, 32u);
  EXPECT_EQ(trace.tensors[3].role, Role::workspace);
  EXPECT_FALSE(trace.tensors[3].persistent);
}

TEST_F(CsvImport, KeepsGivenContentButNotWhatAnOpMakes) {
  const Trace trace = import_pair("id,phase,op,time_ms,inputs,outputs\n0,fwd,load,1,,0\n1,fwd,a,1,0 1 2,\n",
                                  "id,role,bytes\n0,input,1\n1,const,1\n2,dropout_mask,1\n3,bn_running,1\n");
  EXPECT_FALSE(trace.tensors[0].persistent) << "an op loads it in every iteration";
  EXPECT_TRUE(trace.tensors[1].persistent);
  EXPECT_TRUE(trace.tensors[2].persistent);
  EXPECT_TRUE(trace.tensors[3].persistent);
}

TEST_F(CsvImport, NamesFileAndLineOfBadInput) {
  const std::string ops_header = "id,phase,kernel,time_ms,inputs,outputs\n";
  const std::string good = "0,fwd,a,1,,2\n";
  EXPECT_THAT(error_of("id,phase,inputs\n", some_tensors),
              HasSubstr("ops.csv:1: lacks the columns kernel (or op), time_ms, outputs; it has id, phase, inputs"));
  EXPECT_THAT(error_of(some_ops, "id,bytes\n"), HasSubstr("tensors.csv:1: lacks the columns role"));
  EXPECT_THAT(
      error_of(some_ops, some_tensors, "bytes4k"),
      HasSubstr(
          "tensors.csv:1: has no column 'bytes4k' for the sizes; choose one with --size-column: id, role, bytes"));
  EXPECT_THAT(error_of("", some_tensors), HasSubstr("ops.csv: is empty"));
  EXPECT_THAT(error_of("id,id\n", some_tensors), HasSubstr("stands twice"));
  EXPECT_THAT(error_of(some_ops, "id,role,bytes\n"), HasSubstr("tensors.csv: has no tensors"));
  EXPECT_THAT(error_of(ops_header, some_tensors), HasSubstr("no ops"));
  EXPECT_THAT(error_of(ops_header + good + "1,fwd,a,1,2\n", some_tensors),
              HasSubstr("ops.csv:3: the row has 5 fields"));
  EXPECT_THAT(error_of(ops_header + "0,sideways,a,1,,2\n", some_tensors),
              HasSubstr("ops.csv:2: unknown phase 'sideways'; it is one of forward, loss"));
  EXPECT_THAT(error_of(ops_header + good + "0,fwd,a,1,,2\n", some_tensors), HasSubstr("ops.csv:3: op 0 after op 0"));
  EXPECT_THAT(error_of(ops_header + "0,fwd,a,1,,99\n", some_tensors),
              HasSubstr("ops.csv:2: column 'outputs' names tensor 99"));
  EXPECT_THAT(error_of(ops_header + "0,fwd,a,1,x,2\n", some_tensors),
              HasSubstr("ops.csv:2: column 'inputs' holds 'x'"));
  EXPECT_THAT(error_of(ops_header + "0,fwd,a,1,-1,2\n", some_tensors),
              HasSubstr("ops.csv:2: column 'inputs' holds '-1'"));
  EXPECT_THAT(error_of(ops_header + good + "1,fwd,a,1,3,2\n", some_tensors),
              HasSubstr("ops.csv:3: op 'a' reads tensor 'grad_weight_3' before any op"));
  EXPECT_THAT(error_of(ops_header + "0,fwd,\"a,1,,2\n", some_tensors),
              HasSubstr("ops.csv:2: a quoted field does not end"));
  EXPECT_THAT(error_of(ops_header + "0,fwd,\"a\nb\",1,,2\n1,?,a,1,,2\n", some_tensors),
              HasSubstr("ops.csv:4: unknown phase '?'"));
  EXPECT_THAT(error_of(some_ops, "id,role,bytes\n0,wait,1\n"),
              HasSubstr("tensors.csv:2: unknown role 'wait'; it is one of parameter"));
  EXPECT_THAT(error_of(some_ops, "id,role,bytes\n0,act,-1\n"), HasSubstr("tensors.csv:2: column 'bytes' is '-1'"));
  EXPECT_THAT(error_of(some_ops, "id,role,bytes\n0,act,1.5\n"), HasSubstr("tensors.csv:2: column 'bytes' is '1.5'"));
  EXPECT_THAT(error_of(some_ops, "id,role,bytes\n0,act,1152921504606846976\n"),
              HasSubstr("tensors.csv:2: column 'bytes'"));
  EXPECT_THAT(error_of(some_ops, "id,role,bytes\n0,act,1\n0,act,1\n"), HasSubstr("tensors.csv:3: a second tensor 0"));
}

TEST_F(CsvImport, FindsTheFilesOfADirectory) {
  EXPECT_THAT(error_of(some_ops, some_tensors), "no error");  // leaves the two files
  CsvImportOptions options;
  options.ops_file = directory_.string();
  options.size_column = "bytes";
  EXPECT_EQ(import_csv(options).ops.size(), 3u);
  std::filesystem::remove(directory_ / "tensors.csv");
  write("tensors.csv.zst", some_tensors);
  EXPECT_EQ(import_csv(options).tensors.size(), 4u);
  std::filesystem::remove(directory_ / "tensors.csv.zst");
  EXPECT_THROW(import_csv(options), Error);
  options.ops_file = (directory_ / "absent.csv").string();
  EXPECT_THROW(import_csv(options), Error);
}

// Whatever the text, the result is a valid trace or an Error.
TEST_F(CsvImport, SurvivesDamagedFiles) {
  for (std::size_t size = 0; size < some_ops.size(); ++size) error_of(some_ops.substr(0, size), some_tensors);
  for (std::size_t size = 0; size < some_tensors.size(); ++size) error_of(some_ops, some_tensors.substr(0, size));
  int errors = 0;
  for (std::size_t position = 0; position < some_ops.size(); ++position) {
    for (const char damage : {'"', ',', '\n', '9', '-', '\xff'}) {
      std::string text = some_ops;
      text[position] = damage;
      errors += error_of(text, some_tensors) != "no error";
    }
  }
  EXPECT_GT(errors, 300);
}

struct Recording {
  const char* name;
  std::size_t op_count, tensor_count;
  Nanoseconds total_ns;  // sum of the decimal texts
  Bytes parameter_bytes4k;
};

class Recordings : public ::testing::TestWithParam<Recording> {};

TEST_P(Recordings, ImportAndValidate) {
  const std::filesystem::path directory =
      std::filesystem::path(TENCACHE_SOURCE_DIR) / "../shared/traces/g10" / GetParam().name;
  if (!std::filesystem::exists(directory)) GTEST_SKIP() << directory << " is not there";
  CsvImportOptions options;
  options.ops_file = directory.string();
  options.hardware = "a100-40g";
  const Trace trace = import_csv(options);
  EXPECT_EQ(trace.header.model, GetParam().name);
  const TraceSummary summary = summarize(trace);
  EXPECT_EQ(summary.all_ops.count, GetParam().op_count);
  EXPECT_EQ(summary.all_tensors.count, GetParam().tensor_count);
  EXPECT_EQ(summary.all_ops.duration_ns, GetParam().total_ns);
  EXPECT_EQ(summary.tensors[static_cast<std::size_t>(Role::parameter)].bytes, GetParam().parameter_bytes4k);
  EXPECT_EQ(summary.unused.count, 0u);
  const std::string text = format_trace(trace);
  EXPECT_EQ(format_trace(parse_trace(text, "again")), text);
  options.size_column = "bytes_no_batch";
  EXPECT_LE(summarize(import_csv(options)).all_tensors.bytes, summary.all_tensors.bytes);
}

INSTANTIATE_TEST_SUITE_P(G10, Recordings,
                         ::testing::Values(Recording{"BERT_Base-256", 1369, 1463, 7285466083, 17823494144},
                                           Recording{"Inceptionv3-1536", 929, 2171, 59694368235, 96358400},
                                           Recording{"ResNet152-1280", 1299, 3330, 112589384547, 242307072},
                                           Recording{"SENet154-1024", 2319, 4341, 132870476119, 1394003968},
                                           Recording{"VIT-1280", 1489, 1563, 3715951615, 18252263424}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
                           return name;
                         });

}  // namespace
}  // namespace tencache
