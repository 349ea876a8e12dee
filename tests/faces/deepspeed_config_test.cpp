// DeepSpeed's configuration, read as people write it and written again; FSDP's and Accelerate's settings.
#include "configs/deepspeed_config.h"

#include <yaml-cpp/yaml.h>

#include "configs/fsdp_config.h"
#include "configs/lenient_json.h"
#include "core/error.h"
#include "policies/knobs.h"
#include "tests/cli_fixture.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

using Json = nlohmann::ordered_json;

DeepSpeedConfig parse(const std::string& text, std::uint64_t shards = 1) {
  return parse_deepspeed_config(text, "ds.json", shards);
}

Settings resolved(const std::string& policy, const Settings& settings) { return make_policy(policy, settings).options; }

TEST(LenientJson, TakesWhatPeopleWrite) {
  const Json json = parse_lenient_json(
      "\xef\xbb\xbf{ // a comment\n"
      "  \"a\": [1, 2,], # another\n"
      "  \"b\": {\"c\": True, \"d\": None,}, /* and\n a third */\n"
      "  \"e\": \"// no comment, True, # \\\" ,}\",\n"
      "}\n",
      "ds.json");
  EXPECT_EQ(json, Json::parse(R"({"a":[1,2],"b":{"c":true,"d":null},"e":"// no comment, True, # \" ,}"})"));
}

TEST(LenientJson, TakesADictionaryOfAScript) {
  EXPECT_EQ(parse_lenient_json("# a script\nds_config = {\n 'a': True,\n 'it\\'s \"so\"': None,\n}\n", "ds.py"),
            Json::parse(R"({"a": true, "it's \"so\"": null})"));
  const auto expect = [](const std::string& text, const std::string& place, const std::string& expression) {
    EXPECT_THAT([&] { parse_lenient_json(text, "ds.py"); },
                ThrowsMessage<Error>(AllOf(HasSubstr(place), HasSubstr("'" + expression + "' is Python"))))
        << text;
  };
  expect("config = {\n'a': 1,\n'b': hidden * hidden,\n'c': 2}", "ds.py:3", "hidden * hidden");
  expect("{\n'b': 0.5 * max(a, b)}", "ds.py:2", "0.5 * max(a, b)");
}

TEST(LenientJson, PlacesErrors) {
  EXPECT_THAT([] { parse_lenient_json("{\n/* two\nlines */ \"a\": 1\n\"b\": 2}", "ds.json"); },
              ThrowsMessage<Error>(HasSubstr("ds.json:4")));
  EXPECT_THROW(parse_lenient_json("", "ds.json"), Error);
  EXPECT_THROW(parse_lenient_json("{\"a\": \"open", "ds.json"), Error);
  EXPECT_THAT([] { parse_lenient_json("{\n\"a\":\n1e999}", "ds.json"); },
              ThrowsMessage<Error>(AllOf(HasSubstr("ds.json:3"), HasSubstr("too large"))));
}

TEST(LenientJson, LimitsTheDepth) {
  const auto nested = [](std::size_t depth) { return "\n" + std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_lenient_json(nested(200), "ds.json"));
  EXPECT_NO_THROW(parse_lenient_json("\"" + nested(300).substr(1) + "\"", "ds.json"));
  for (const std::size_t depth : {std::size_t{201}, std::size_t{1'000'000}}) {
    EXPECT_THAT([&] { parse_lenient_json(nested(depth), "ds.json"); },
                ThrowsMessage<Error>(AllOf(HasSubstr("ds.json:2"), HasSubstr("200 deep"))));
  }
}

// The shape of the file of a public report (a key misspelt, keys that DeepSpeed has nowhere, floats for counts).
constexpr const char* wild = R"({
  "train_micro_batch_size_per_gpu": 1,
  "gradient_accumulation_steps": 1,
  "zero_optimization": {
    "stage": 3,
    "stage3_max_live_parameters": 1e8,
    "allgather_bucket_size": 5e8,
    "stage3_max_reuse_distance": "1e8",
    "stage3_param_persitence_threshold": 1e6,
    "stage3_prefetch_bucket_size": "auto",
    "overlap_comm": true,
    "sub_group_size": 1e8, // small
    "offload_optimizer": {
      "device": "nvme", "nvme_path": "/mnt/nvme2",
      "buffer_count": 8, "buffer_size": 1e9, "pipeline_read": "true", "pipeline_write": false, "pin_memory": true
    },
    "offload_param": {
      "device": "nvme", "nvme_path": "/mnt/nvme3",
      "buffer_count": 5, "max_in_cpu": 1e9, "max_in_nvme": 1e9, "buffer_size": 1e9, "pin_memory": true,
    },
  },
  "fp16": {"enabled": true, "loss_scale": 1024},
  "aio": {"block_size": 1048576, "queue_depth": 8, "thread_count": 2, "single_submit": false}
})";

TEST(DeepSpeedConfig, ReadsAFileFromTheWild) {
  const DeepSpeedConfig config = parse(wild);
  EXPECT_EQ(config.policy, "zero-infinity");
  EXPECT_EQ(config.precision, "fp16");
  EXPECT_EQ(config.micro_batch, 1u);
  EXPECT_THAT(config.settings,
              UnorderedElementsAre(
                  Pair("max_live", "100000000"), Pair("max_reuse_distance", "100000000"),
                  Pair("persistence_threshold", "1000000"), Pair("sub_group", "100000000"),
                  Pair("offload_optimizer", "nvme"), Pair("optimizer_buffer_count", "8"), Pair("pipeline_read", "true"),
                  Pair("pipeline_write", "false"), Pair("offload_param", "nvme"), Pair("buffer_count", "5"),
                  Pair("max_in_cpu", "1000000000"), Pair("buffer_size", "1000000000"), Pair("pin_memory", "true")));
  EXPECT_THAT(
      config.warnings,
      ElementsAre(
          "'stage3_param_persitence_threshold' in zero_optimization is no key of DeepSpeed: taken as "
          "'stage3_param_persistence_threshold'",
          "'max_in_nvme' in offload_param is no key of DeepSpeed: left out",
          "'buffer_size' in offload_optimizer is no key of DeepSpeed: left out",
          "'thread_count' in aio is deprecated: write 'intra_op_parallelism'",
          "'stage3_prefetch_bucket_size' is \"auto\", which the Trainer fills in: taken as the default",
          "what is simulated does not depend on gradient_accumulation_steps, aio, allgather_bucket_size, overlap_comm, "
          "offload_optimizer.pin_memory"));
  EXPECT_NO_THROW(make_policy("zero-infinity", config.settings));
}

TEST(DeepSpeedConfig, ReadsDeprecatedAndMisplacedKeys) {
  const DeepSpeedConfig old = parse(
      R"({"zero_optimization": {"stage": 3, "cpu_offload": true, "cpu_offload_params": true,
          "cpu_offload_use_pin_memory": true, "stage3_gather_fp16_weights_on_model_save": true,
          "prefetch_bucket_size": 7, "aio": {"queue_depth": 8}},
          "stage3_max_live_parameters": 5, "Sub-Group-Size": 3})");
  EXPECT_EQ(old.settings.at("offload_optimizer"), "cpu");
  EXPECT_EQ(old.settings.at("offload_param"), "cpu");
  EXPECT_EQ(old.settings.at("prefetch_bucket"), "7");
  EXPECT_EQ(old.settings.at("max_live"), "5");
  EXPECT_THAT(old.warnings, Contains("'cpu_offload' is deprecated: write 'offload_optimizer': {\"device\": \"cpu\"}"));
  EXPECT_THAT(old.warnings, Contains("'stage3_max_live_parameters' belongs in zero_optimization: taken as if it stood "
                                     "there"));
  EXPECT_THAT(old.warnings, Contains("'aio' belongs in the file itself: taken as if it stood there"));
  EXPECT_EQ(old.document["aio"]["queue_depth"], 8);
}

TEST(DeepSpeedConfig, ToleratesNullAndAutoAndCapitals) {
  const DeepSpeedConfig deprecated =
      parse(R"({"zero_optimization": {"stage": 2, "cpu_offload": true, "offload_optimizer": null}})");
  EXPECT_EQ(deprecated.policy, "zero-offload");
  const DeepSpeedConfig config = parse(
      R"({"zero_optimization": {"stage": 3, "offload_param": "auto", "offload_optimizer": {"device": "CPU"}},
      "aio": "auto"})");
  EXPECT_EQ(config.settings.at("offload_optimizer"), "cpu");
  EXPECT_EQ(config.settings.at("offload_param"), "none");
  EXPECT_FALSE(config.document.contains("aio"));
  EXPECT_THAT(config.warnings, Contains(HasSubstr("offload_optimizer.device is \"CPU\": taken as 'cpu'")));
  EXPECT_THAT(config.warnings, Contains(HasSubstr("'aio' is \"auto\"")));
}

TEST(DeepSpeedConfig, ReadsStagesTwoAndAccelerate) {
  const DeepSpeedConfig two = parse(R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})");
  EXPECT_EQ(two.policy, "zero-offload");
  EXPECT_THAT(two.settings, IsEmpty());
  const DeepSpeedConfig yaml = parse_deepspeed_config(
      "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n"
      "  offload_optimizer_device: nvme\n  offload_optimizer_nvme_path: /nvme\n  offload_param_device: none\n",
      "accelerate.yaml", 1);
  EXPECT_EQ(yaml.policy, "zero-infinity");
  EXPECT_EQ(yaml.precision, "bf16");
  EXPECT_THAT(yaml.settings, UnorderedElementsAre(Pair("offload_optimizer", "nvme"), Pair("offload_param", "none")));
}

TEST(DeepSpeedConfig, SaysWhatIsWrong) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_THAT([&] { parse(text); }, ThrowsMessage<Error>(AllOf(HasSubstr("ds.json"), HasSubstr(message)))) << text;
  };
  expect("[1]", "is no map of keys");
  expect("{}", "offloads nothing");
  expect(R"({"zero_optimization": {"stage": 1}})", "offloads nothing");
  const std::string offload = R"("offload_optimizer": {"device": "cpu"}}})";
  expect(R"({"zero_optimization": {)" + offload, "stage of zero_optimization is missing; write 1, 2 or 3");
  expect(R"({"zero_optimization": {"stage": 0, )" + offload, "stage of zero_optimization is 0; write 1, 2 or 3");
  expect(R"({"zero_optimization": {"stage": 7, )" + offload, "stage of zero_optimization is 7; write 1, 2 or 3");
  expect(R"({"zero_optimization": {"stage": 3, "sub_group_size": "many"}})", "'sub_group_size' is \"many\"; write a");
  expect(R"({"zero_optimization": {"stage": 3, "sub_group_size": -1}})", "write a whole number");
  expect(R"({"zero_optimization": {"stage": 3, "sub_group_size": 1.5}})", "write a whole number");
  expect(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "ssd"}}})", "valid are none, cpu, nvme");
  expect(R"({"zero_optimization": {"stage": 3, "offload_param": 3}})", "'offload_param' is no map");
  expect(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": "maybe"}}})",
         "write true or false");
  EXPECT_THAT([] { parse_deepspeed_config("a: 1", "a.yaml", 1); },
              ThrowsMessage<Error>(HasSubstr("no section deepspeed_config")));
  EXPECT_THAT([] { parse_deepspeed_config("a: 1\nfsdp_config:\n  fsdp_version: 2\n", "a.yaml", 1); },
              ThrowsMessage<Error>(AllOf(HasSubstr("a.yaml:"), HasSubstr("configures FSDP, not DeepSpeed"),
                                         HasSubstr("--with fsdp=a.yaml"), HasSubstr("layer-streaming"))));
}

TEST(DeepSpeedConfig, TakesNumbersAsNumbers) {
  const DeepSpeedConfig yaml = parse_deepspeed_config(
      "num_machines: 2\ndeepspeed_config:\n  zero_stage: 3\n  gradient_clipping: 1.5\n  offload_optimizer_device: cpu\n"
      "  zero3_save_16bit_model: true\n  zero3_init_flag: true\n",
      "a.yaml", 1);
  EXPECT_EQ(yaml.document["gradient_clipping"], 1.5);
  EXPECT_TRUE(yaml.document["gradient_clipping"].is_number());
  EXPECT_EQ(yaml.document["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"], true);
  EXPECT_THAT(yaml.warnings, Contains(HasSubstr("'num_machines' is 2")));
  EXPECT_THAT(yaml.warnings, Contains(HasSubstr("zero3_init_flag")));
  // 0.9 × hidden × hidden, as scripts compute it.
  const DeepSpeedConfig product = parse(
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
          "stage3_prefetch_bucket_size": 58982.4}})");
  EXPECT_EQ(product.settings.at("prefetch_bucket"), "58982");
  EXPECT_THAT(product.warnings, Contains(HasSubstr("58982.4")));
}

TEST(DeepSpeedConfig, SaysThatRanksKeepASecondCopy) {
  const char* const text = R"({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8,
      "offload_optimizer": {"device": "cpu"}}})";
  EXPECT_EQ(parse(text).second_copy_ranks, 8u);
  EXPECT_THAT(parse(text).warnings, ::testing::Not(Contains(HasSubstr("zero_hpz_partition_size"))));
}

TEST(DeepSpeedConfig, WhatIsWrittenReadsAsTheSameSettings) {
  const PolicyInfo* policy = nullptr;
  const std::vector<PolicyInfo> policies = list_policies();
  for (const PolicyInfo& info : policies) {
    if (info.name == "zero-infinity") policy = &info;
  }
  ASSERT_NE(policy, nullptr);
  // Every knob at every value, with NVMe for both and for neither; four ranks that share each parameter.
  for (const char* device : {"nvme", "cpu"}) {
    for (const Knob& knob : knobs_of(*policy)) {
      for (const std::string& value : knob.values) {
        Settings settings{{"offload_param", device}, {"offload_optimizer", device}};
        settings[knob.name] = value;
        for (const auto& [name, needed] : knob.only_with) settings[name] = needed;
        complete("zero-infinity", 0, settings);
        settings.erase("sub_groups");
        const Settings all = resolved("zero-infinity", settings);
        const WrittenConfig written = write_deepspeed_config("zero-infinity", all, {.shards = 4, .pageable = true});
        const DeepSpeedConfig again = parse(written.text, 4);
        EXPECT_EQ(again.policy, "zero-infinity");
        EXPECT_THAT(again.warnings, ::testing::Each(HasSubstr("what is simulated does not depend on ")));
        Settings read = resolved("zero-infinity", again.settings);
        EXPECT_EQ(read, all) << knob.name << "=" << value << "\n" << written.text;
      }
    }
  }
}

TEST(DeepSpeedConfig, CountsWholeParametersWhereDeepSpeedDoes) {
  const Settings settings = resolved("zero-infinity", {{"prefetch_bucket", "1000"},
                                                       {"sub_group", "500"},
                                                       {"offload_param", "nvme"},
                                                       {"buffer_size", "200"},
                                                       {"offload_optimizer", "nvme"}});
  const Json json = Json::parse(
      write_deepspeed_config("zero-infinity", settings, {.precision = "bf16", .micro_batch = 2, .shards = 8}).text);
  const Json& zero = json["zero_optimization"];
  EXPECT_EQ(zero["stage3_prefetch_bucket_size"], 8000);
  EXPECT_EQ(zero["sub_group_size"], 500);
  EXPECT_EQ(zero["offload_param"]["buffer_size"], 200);
  EXPECT_EQ(zero["offload_param"]["pin_memory"], true);
  EXPECT_EQ(json["bf16"]["enabled"], true);
  EXPECT_EQ(json["train_micro_batch_size_per_gpu"], 2);
  EXPECT_EQ(json["aio"]["queue_depth"], 8);
}

TEST(DeepSpeedConfig, KeepsTheOtherKeysOfTheFileItStartsFrom) {
  const DeepSpeedConfig start = parse(wild);
  Settings settings = start.settings;
  settings["sub_group"] = "200000000";
  const WrittenConfig written =
      write_deepspeed_config("zero-infinity", resolved("zero-infinity", settings), {}, start.document);
  const Json json = Json::parse(written.text);
  EXPECT_EQ(json["fp16"]["loss_scale"], 1024);
  EXPECT_EQ(json["aio"]["intra_op_parallelism"], 2);
  const Json& zero = json["zero_optimization"];
  EXPECT_EQ(zero["offload_param"]["nvme_path"], "/mnt/nvme3");
  EXPECT_EQ(zero["allgather_bucket_size"], 5e8);
  EXPECT_EQ(zero["sub_group_size"], 200000000);
  EXPECT_EQ(zero["stage3_prefetch_bucket_size"], 50000000);
  EXPECT_FALSE(zero.contains("stage3_param_persitence_threshold"));
}

TEST(DeepSpeedConfig, KeepsTheBatchAndThePinningOfTheFileItStartsFrom) {
  const DeepSpeedConfig start = parse(
      R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 16, "train_batch_size": 32,
      "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": false},
      "offload_optimizer": {"device": "cpu"}}})");
  const Settings settings = resolved("zero-infinity", start.settings);
  const WrittenConfig written = write_deepspeed_config("zero-infinity", settings, {.micro_batch = 8}, start.document);
  const Json json = Json::parse(written.text);
  EXPECT_EQ(json["train_micro_batch_size_per_gpu"], 2);
  EXPECT_EQ(json["gradient_accumulation_steps"], 16);
  EXPECT_EQ(json["train_batch_size"], 32);
  EXPECT_EQ(json["zero_optimization"]["offload_param"]["pin_memory"], false);
  EXPECT_EQ(json["zero_optimization"]["offload_optimizer"]["pin_memory"], true);
  EXPECT_THAT(written.remarks, ElementsAre("train_micro_batch_size_per_gpu stays 2; the trace has 8",
                                           "gradient_accumulation_steps stays 16; the trace has 1",
                                           HasSubstr("offload_param.pin_memory is false, as it was"),
                                           HasSubstr("pin_memory of offload_optimizer is written as true")));

  // The whole batch alone says it, too.
  const WrittenConfig whole = write_deepspeed_config("zero-infinity", settings, {.micro_batch = 8, .data_parallel = 2},
                                                     Json{{"train_batch_size", 32}});
  EXPECT_FALSE(Json::parse(whole.text).contains("train_micro_batch_size_per_gpu"));
  EXPECT_THAT(whole.remarks, ElementsAre("train_batch_size stays 32; the trace has 16",
                                         HasSubstr("pin_memory of offload_param and offload_optimizer is written")));
}

TEST(DeepSpeedConfig, OnlyThePrecisionOfTheTraceStays) {
  const Json start = Json::parse(R"({"bf16": {"enabled": true}, "fp16": {"enabled": false, "loss_scale": 1024}})");
  const auto precisions = [&](const char* precision) {
    const Settings settings = resolved("zero-infinity", {});
    const Json written =
        Json::parse(write_deepspeed_config("zero-infinity", settings, {.precision = precision}, start).text);
    return Json{written.value("bf16", Json()), written.value("fp16", Json())}.dump();
  };
  const Json automatic = Json::parse(R"({"fp16": {"enabled": "auto", "loss_scale": 0}})");
  const WrittenConfig kept =
      write_deepspeed_config("zero-infinity", resolved("zero-infinity", {}), {.precision = "bf16"}, automatic);
  EXPECT_EQ(Json::parse(kept.text)["fp16"], automatic["fp16"]);
  EXPECT_FALSE(Json::parse(kept.text).contains("bf16"));
  EXPECT_THAT(kept.remarks, Contains("fp16.enabled stays \"auto\"; the trace is of bf16"));
  EXPECT_EQ(precisions("fp32"), "[null,null]");
  EXPECT_EQ(precisions("fp16"), R"([null,{"enabled":true,"loss_scale":1024}])");
  EXPECT_EQ(precisions(""), R"([{"enabled":true},{"enabled":false,"loss_scale":1024}])");
}

TEST(DeepSpeedConfig, AsksForNoPinningWhereThereIsNoRoom) {
  for (const char* policy : {"zero-infinity", "zero-offload"}) {
    const Json start =
        Json::parse(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": true}}})");
    const WrittenConfig written =
        write_deepspeed_config(policy, resolved(policy, {}), {.why_not_pinned = "it takes 9 GiB of 8 GiB"}, start);
    const Json zero = Json::parse(written.text)["zero_optimization"];
    EXPECT_EQ(zero["offload_optimizer"]["pin_memory"], false);
    EXPECT_FALSE(zero.contains("offload_param") && zero["offload_param"]["pin_memory"] == true);
    EXPECT_THAT(written.remarks, ::testing::Contains("pin_memory is false: it takes 9 GiB of 8 GiB"));
  }
}

TEST(DeepSpeedConfig, SaysWhatItCannotExpress) {
  const Settings settings = resolved("zero-infinity", {{"overflow", "evict"}});
  EXPECT_THAT(write_deepspeed_config("zero-infinity", settings, {}).remarks,
              ElementsAre(HasSubstr("add train_micro_batch_size_per_gpu"),
                          HasSubstr("pin_memory of offload_param and offload_optimizer is written as true"),
                          HasSubstr("overflow=evict has no key")));
  EXPECT_THAT([] { write_deepspeed_config("lru", {}, {}); },
              ThrowsMessage<Error>(HasSubstr("none that DeepSpeed has")));
  const WrittenConfig offload = write_deepspeed_config("zero-offload", resolved("zero-offload", {}), {});
  EXPECT_EQ(parse(offload.text).policy, "zero-offload");
}

TEST(FsdpConfig, PrefetchesLayers) {
  Trace trace;
  trace.header.precision = "bf16";
  for (const char* name : {"layers.0.q.weight", "layers.0.k.weight", "layers.1.q.weight", "head.weight"}) {
    trace.add_tensor(name, 2000, Role::parameter, true);
  }
  const LayerShape layers = layer_shape(trace);
  EXPECT_EQ(layers.layer, 2000u);
  EXPECT_EQ(layers.all, 4000u);

  const Settings settings = resolved("zero-infinity", {{"prefetch_bucket", "5000"}, {"max_reuse_distance", "3000"}});
  const WrittenConfig written = write_fsdp_config("zero-infinity", settings, {.precision = "bf16"}, layers);
  const Json json = Json::parse(written.text);
  EXPECT_EQ(json["fully_shard"]["forward_prefetch_modules"], 3);
  EXPECT_EQ(json["fully_shard"]["reshard_after_forward"], true);
  EXPECT_EQ(json["fully_shard"]["offload_policy"]["class"], "CPUOffloadPolicy");
  EXPECT_EQ(json["FullyShardedDataParallel"]["sharding_strategy"], "FULL_SHARD");
  EXPECT_EQ(json["FullyShardedDataParallel"]["forward_prefetch"], true);
  EXPECT_EQ(json["FullyShardedDataParallel"]["mixed_precision"]["param_dtype"], "bfloat16");
  EXPECT_THAT(written.remarks, Contains("FSDP1 prefetches one layer at most; fully_shard as many as it is told"));

  const Json streaming =
      Json::parse(write_fsdp_config("layer-streaming", resolved("layer-streaming", {}), {}, layers).text);
  EXPECT_EQ(streaming["fully_shard"]["forward_prefetch_modules"], 1);
  const Json one_by_one = Json::parse(write_fsdp_config("l2l", resolved("l2l", {}), {}, layers).text);
  EXPECT_EQ(one_by_one["FullyShardedDataParallel"]["backward_prefetch"], nullptr);
  EXPECT_THAT([&] { write_fsdp_config("g10", {}, {}, layers); }, ThrowsMessage<Error>(HasSubstr("no counterpart")));
}

TEST(AccelerateConfig, ReadsAgain) {
  const Settings settings = resolved("zero-infinity", {{"offload_param", "nvme"}, {"offload_optimizer", "nvme"}});
  const WrittenConfig written = write_accelerate_config("zero-infinity", settings, {.precision = "bf16"}, {}, "");
  const DeepSpeedConfig again = parse_deepspeed_config(written.text, "a.yaml", 1);
  EXPECT_EQ(again.settings.at("offload_param"), "nvme");
  EXPECT_EQ(again.settings.at("offload_optimizer"), "nvme");
  EXPECT_EQ(again.precision, "bf16");
  const YAML::Node whole =
      YAML::Load(write_accelerate_config("zero-infinity", settings, {.precision = "bf16"}, {}, "ds.json").text);
  EXPECT_FALSE(whole["mixed_precision"]);  // Accelerate refuses it beside a file
  const YAML::Node refers = whole["deepspeed_config"];
  EXPECT_EQ(refers["deepspeed_config_file"].as<std::string>(), "ds.json");
  EXPECT_FALSE(refers["zero_stage"]);
  const YAML::Node fsdp = YAML::Load(
      write_accelerate_config("layer-streaming", resolved("layer-streaming", {}), {.ranks = 2}, {}, "").text);
  EXPECT_EQ(fsdp["distributed_type"].as<std::string>(), "FSDP");
  EXPECT_EQ(fsdp["num_processes"].as<int>(), 2);
  EXPECT_EQ(fsdp["fsdp_config"]["fsdp_backward_prefetch"].as<std::string>(), "BACKWARD_PRE");
}

// ---- Through the command.

class TuneDeepSpeed : public CommandLine {
 protected:
  void SetUp() override {
    CommandLine::SetUp();
    std::ofstream(path("m.yaml")) << "name: tiny\n"
                                     "tiers:\n"
                                     "  - {name: gpu, kind: gpu, capacity: 64MiB, granularity: 4KiB}\n"
                                     "  - {name: cpu, kind: cpu, capacity: 1GiB, granularity: 4KiB}\n"
                                     "links:\n"
                                     "  - {name: h2d, from: cpu, to: gpu, bandwidth: 2GB/s}\n"
                                     "  - {name: d2h, from: gpu, to: cpu, bandwidth: 2GB/s}\n"
                                     "initial_tier: cpu\n"
                                     "cpu: {adam_parameters_per_second: 1e9}\n";
  }
};

TEST_F(TuneDeepSpeed, StartsAtAFileAndWritesTheTunedOne) {
  std::ofstream(path("ds.json"))
      << R"({"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 0, "reduce_bucket_size": 1e6,
    "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0,
    "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}, "steps_per_print": 7,})";
  const Answer answer = run({"tune", "small.trace.jsonl", "-m", "m.yaml", "--from-deepspeed", "ds.json", "--deepspeed",
                             "tuned.json", "--accelerate", "a.yaml", "--budget", "100", "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.err, HasSubstr("ds.json: what is simulated does not depend on steps_per_print"));
  const nlohmann::json tuned = answer.json();
  EXPECT_GT(tuned["start"]["relative_time"], tuned["best"]["relative_time"]);
  EXPECT_EQ(tuned["start"]["settings"]["prefetch_bucket"], "0");
  const DeepSpeedConfig written = read_deepspeed_config(path("tuned.json"), 1);
  EXPECT_EQ(written.document["steps_per_print"], 7);
  Settings best;
  for (const auto& [name, value] : tuned["best"]["settings"].items()) best[name] = value;
  Settings all = resolved("zero-infinity", best), read = resolved("zero-infinity", written.settings);
  all["pin_memory"] = "true";  // the machine does not say what else costs
  // Numbers may be written as 5e7.
  EXPECT_EQ(read, all);
  EXPECT_THAT(content(path("a.yaml")), HasSubstr("deepspeed_config_file: tuned.json"));
  // The tuned file, simulated as a start, has the time that was promised.
  const Answer again =
      run({"tune", "small.trace.jsonl", "-m", "m.yaml", "--from-deepspeed", "tuned.json", "--budget", "2", "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.json()["start"]["iteration_seconds"], tuned["best"]["iteration_seconds"]);
}

// GPT-2 has 124.4 million parameters: stage 3 takes 2 + 2 + 4 + 12 bytes of each, 2.34 GiB; page-locked the first three
// are 256, 256 and 512 MiB, with the rest 2.39 GiB.
TEST_F(TuneDeepSpeed, AsksForNoPinningWhereThereIsNoRoom) {
  const auto pinned = [&](const std::vector<std::string>& more, const std::string& reason) {
    std::vector<std::string> words = {"tune", "--model", "gpt2", "--batch", "1", "--seq", "64", "-m", "g5.xlarge"};
    words.insert(words.end(), {"-p", "zero-infinity", "--deepspeed", "d.json", "--budget", "1"});
    words.insert(words.end(), more.begin(), more.end());
    const Answer answer = run(words);
    EXPECT_EQ(answer.code, 0) << answer.err;
    EXPECT_THAT(answer.err, HasSubstr(reason));
    EXPECT_EQ(answer.err.find("pin_memory is false") == std::string::npos, reason.empty()) << answer.err;
    const nlohmann::json zero = nlohmann::json::parse(content(path("d.json")))["zero_optimization"];
    EXPECT_EQ(zero["offload_param"]["pin_memory"], zero["offload_optimizer"]["pin_memory"]);
    return zero["offload_param"]["pin_memory"].get<bool>();
  };
  EXPECT_TRUE(pinned({}, ""));
  EXPECT_TRUE(pinned({"--pinned-limit", "1GiB"}, ""));
  EXPECT_FALSE(pinned({"--cpu-memory", "2.38GiB"}, "pin_memory is false: page-locked pieces are rounded up"));
  EXPECT_FALSE(pinned({"--pinned-limit", "1000MiB"}, "take 1.00 GiB of 1000.00 MiB allowed"));
  expect_bad_usage({"tune", "small.trace.jsonl", "-m", "m.yaml", "-p", "zero-infinity", "--pinned-limit", "half"},
                   HasSubstr("--pinned-limit half: give a size"));
}

// A batch of 8 over two ranks, which split the parameters under stage 3 only.
TEST_F(TuneDeepSpeed, TheMicroBatchIsOfOneRankWhateverTheStage) {
  for (const auto& [stage, policy] : {std::pair{"2", "zero-offload"}, {"3", "zero-infinity"}}) {
    const Answer answer =
        run({"tune", "--model", "gpt2", "--batch", "8", "--seq", "64", "--data-parallel", "2", "--zero", stage, "-m",
             "g5.12xlarge", "-p", policy, "--deepspeed", "d.json", "--budget", "1"});
    ASSERT_EQ(answer.code, 0) << answer.err;
    EXPECT_EQ(nlohmann::json::parse(content(path("d.json")))["train_micro_batch_size_per_gpu"], 4) << stage;
  }
}

TEST_F(TuneDeepSpeed, AStartDoesNotWidenWhatTheUserRestricts) {
  std::ofstream(path("ds.json")) << R"({"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 0,
    "reduce_bucket_size": 1e6, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}})";
  const Answer answer = run({"tune", "small.trace.jsonl", "-m", "m.yaml", "--from-deepspeed", "ds.json", "--over",
                             "prefetch_bucket=1000,50000000", "--budget", "20", "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const nlohmann::json tuned = answer.json();
  EXPECT_EQ(tuned["start"]["settings"]["prefetch_bucket"], "0");
  EXPECT_GT(tuned["start"]["iteration_seconds"][0], 0);
  EXPECT_NE(tuned["best"]["settings"].value("prefetch_bucket", ""), "0");
  for (const auto& knob : tuned["knobs"]) {
    if (knob["name"] != "prefetch_bucket") continue;
    EXPECT_EQ(knob["values"], nlohmann::json({"1000", "50000000"}));
  }
}

// GPT-2's embedding has 38.6 million elements: the file's buffers do not hold it, whatever the search would choose.
TEST_F(TuneDeepSpeed, TheStartHasTheFilesBuffersThatNoKnobTurns) {
  const auto start = [&](const char* buffer) {
    std::ofstream(path("ds.json")) << R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "nvme", "max_in_cpu": 0, "buffer_size": )"
                                   << buffer << "}}}";
    const Answer answer = run({"tune", "--model", "gpt2", "--batch", "1", "--seq", "64", "-m", "g5.xlarge",
                               "--from-deepspeed", "ds.json", "--budget", "1", "--json"});
    EXPECT_EQ(answer.code, 0) << answer.err;
    return answer.json()["start"];
  };
  const nlohmann::json small = start("1e7");
  EXPECT_EQ(small["settings"]["buffer_size"], "10000000");
  EXPECT_EQ(small["fits"], false);
  EXPECT_THAT(small["reason"].get<std::string>(), HasSubstr("buffer_size=10000000; raise buffer_size"));
  EXPECT_EQ(start("1e8")["fits"], true);
}

// 124.4 million parameters: a second copy over two ranks takes 2 × 124.4e6 ÷ 2 bytes of each; DeepSpeed's CPU memory,
// 2.34 GiB as above, is more than there is, though what is simulated moves to storage.
TEST_F(TuneDeepSpeed, SaysWhatDeepSpeedItselfTakes) {
  std::ofstream(path("ds.json")) << R"({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2,
      "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}})";
  const Answer answer =
      run({"tune", "--model", "gpt2", "--batch", "1", "--seq", "64", "-m", "g5.xlarge", "--gpu-memory", "8GiB",
           "--cpu-memory", "2GiB", "--from-deepspeed", "ds.json", "--budget", "1", "--json"});
  EXPECT_THAT(answer.err, HasSubstr("zero_hpz_partition_size 2 keeps a second 16-bit copy, 118.68 MiB of each GPU's"));
  EXPECT_THAT(answer.err, HasSubstr("DeepSpeed itself would run out of CPU memory"));
  const nlohmann::json tuned = answer.json();
  EXPECT_EQ(tuned["manifest"]["run"]["gpu_memory"], std::to_string((8ull << 30) - 124'439'808));
}

TEST_F(TuneDeepSpeed, AcceleratesFileInAFolderFindsDeepSpeeds) {
  std::filesystem::create_directory(path("x"));
  const Answer answer =
      run({"tune", "small.trace.jsonl", "-m", "m.yaml", "-p", "zero-infinity", "--deepspeed", "x/d.json",
           "--accelerate", "x/a.yaml", "--budget", "2", "--set", "reduce_bucket=1000000"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(read_deepspeed_config(path("x/a.yaml"), 1).document, read_deepspeed_config(path("x/d.json"), 1).document);
}

TEST_F(TuneDeepSpeed, SaysWhatIsWrong) {
  std::ofstream(path("ds.json")) << R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})";
  expect_bad_usage({"tune", "small.trace.jsonl", "-m", "g5.xlarge", "--from-deepspeed", "ds.json", "-p", "lru"},
                   HasSubstr("is of policy zero-offload, not of lru"));
  expect_bad_usage({"tune", "small.trace.jsonl", "-m", "g5.xlarge", "-p", "lru", "--deepspeed", "out.json"},
                   HasSubstr("policy 'lru' is none that DeepSpeed has"));
  expect_bad_usage({"tune", "small.trace.jsonl", "-m", "g5.xlarge"}, HasSubstr("--policy is missing"));
  EXPECT_EQ(files_in_work().count("out.json"), 0u);
}

}  // namespace
}  // namespace tencache
