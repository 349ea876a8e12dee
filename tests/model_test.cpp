// Model descriptions: parameter names, shapes and totals as published.
#include "traces/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace tencache {
namespace {

ModelDescription opt_6_7b() {
  ModelDescription model;
  model.name = "opt-6.7b";
  model.family = ModelFamily::opt;
  model.layers = 32;
  model.hidden = 4096;
  model.heads = model.key_value_heads = 32;
  model.head_dimension = 128;
  model.intermediate = 16384;
  model.vocabulary = 50272;
  model.positions = 2050;
  model.max_sequence = 2048;
  return model;
}

const ParameterShape* find(const std::vector<ParameterShape>& parameters, const std::string& name) {
  const auto found =
      std::find_if(parameters.begin(), parameters.end(), [&](const ParameterShape& p) { return p.name == name; });
  return found == parameters.end() ? nullptr : &*found;
}

TEST(Model, ParametersHaveHuggingFacesNamesAndShapes) {
  const auto parameters = parameters_of(opt_6_7b(), Head::classification);
  const ParameterShape* query = find(parameters, "model.decoder.layers.31.self_attn.q_proj.weight");
  ASSERT_NE(query, nullptr);
  EXPECT_EQ(query->module, "model.decoder.layers.31.self_attn");
  EXPECT_EQ(query->layer, 31);
  EXPECT_EQ(query->shape, (std::vector<std::uint64_t>{4096, 4096}));
  const ParameterShape* positions = find(parameters, "model.decoder.embed_positions.weight");
  ASSERT_NE(positions, nullptr);
  EXPECT_EQ(positions->layer, -1);
  EXPECT_EQ(positions->shape, (std::vector<std::uint64_t>{2050, 4096}));
  EXPECT_EQ(parameters.back().name, "score.weight");
  EXPECT_EQ(parameters.back().shape, (std::vector<std::uint64_t>{2, 4096}));
  std::set<std::string> names;
  for (const ParameterShape& parameter : parameters) EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
}

TEST(Model, AnEncoderOfImagesHasNoLanguageModelHead) {
  ModelDescription model;
  model.family = ModelFamily::vit;
  EXPECT_EQ(usual_head(model), Head::classification);
  EXPECT_THROW(parameters_of(model, Head::language_model), Error);
}

TEST(Model, ImpossibleDescriptionsAreNamed) {
  EXPECT_EQ(problem_of(opt_6_7b()), "");
  ModelDescription model = opt_6_7b();
  model.layers = 0;
  EXPECT_EQ(problem_of(model), "layers is 0; it must be from 1 to 16384");
  model = opt_6_7b();
  model.key_value_heads = 5;
  EXPECT_EQ(problem_of(model), "heads, 32, is no multiple of key_value_heads, 5");
  model.key_value_heads = 8;
  EXPECT_NE(problem_of(model), "");
}

}  // namespace
}  // namespace tencache
