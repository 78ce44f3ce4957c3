#include "base/config/axes.h"

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include "base/config/config_file.h"
#include "base/config/params.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

const std::string kTooMany = ": the lists span more than 100,000 runs";

std::vector<Choices> all_choices(const ConfigFile& file, const std::set<std::string>& data_lists = {}) {
  const Grid grid = expand_axes(file, data_lists);
  std::vector<Choices> all;
  for (std::size_t i = 0; i < grid.points.size(); ++i) all.push_back(grid.choices(i));
  return all;
}

std::string resolved_text(const ConfigFile& file, const Choices& choices) { return YAML::Dump(resolved_tree(file, choices)) + "\n"; }

std::map<std::string, std::string> labels_of(const Grid& grid, std::size_t point) {
  std::map<std::string, std::string> labels;
  for (const std::uint32_t e : grid.points[point]) labels.emplace(grid.elements[e].path, grid.elements[e].label);
  return labels;
}

// The last list is the fastest, in the order of the file.
TEST(Axes, EveryCombinationInFileOrder) {
  const auto file = parse_config("b: [x, y]\nkeep: 1\na: [1, 2, 3]\n", "run.yaml");
  const std::vector<Choices> all = all_choices(*file);
  ASSERT_EQ(all.size(), 6U);
  EXPECT_EQ(all[0], (Choices{{"b", 0}, {"a", 0}}));
  EXPECT_EQ(all[1], (Choices{{"b", 0}, {"a", 1}}));
  EXPECT_EQ(all[5], (Choices{{"b", 1}, {"a", 2}}));
  Params p(file, std::make_shared<Choices>(all[4]), "test");
  EXPECT_EQ(p.text("b", ""), "y");
  EXPECT_EQ(p.required<int>("a", 0, 9, ""), 2);
  EXPECT_EQ(resolved_text(*file, all[4]), "b: y\nkeep: 1\na: 2\n");
  EXPECT_EQ(error_of([&] { p.required<int>("a", 5, 9, ""); }), "run.yaml:3:8: 'a' = 2 is outside [5, 9]") << "the element's place";
}

// A list inside a chosen element spans runs of that element only.
TEST(Axes, AListInsideAnElement) {
  const auto file = parse_config("scheduler: [orca, {sarathi: {budget_tokens: [256, 512]}}]\n", "run.yaml");
  const std::vector<Choices> all = all_choices(*file);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0], (Choices{{"scheduler", 0}}));
  EXPECT_EQ(all[2], (Choices{{"scheduler", 1}, {"scheduler.sarathi.budget_tokens", 1}}));
  Params p(file, std::make_shared<Choices>(all[2]), "test");
  auto [name, below] = p.named("scheduler", "", "");
  EXPECT_EQ(name, "sarathi");
  EXPECT_EQ(below.required<int>("budget_tokens", 0, 999, ""), 512);
  EXPECT_EQ(resolved_text(*file, all[0]), "scheduler: orca\n");
  EXPECT_EQ(Params::from_text(resolved_text(*file, all[2])).named("scheduler", "", "").second.required<int>("budget_tokens", 0, 999, ""),
            512);
  const std::map<std::string, std::string> labels{{"scheduler", "sarathi"}, {"scheduler.sarathi.budget_tokens", "512"}};
  EXPECT_EQ(labels_of(expand_axes(*file), 2), labels);
}

TEST(Axes, AListInsideAList) {
  const auto file = parse_config("a: [[1, 2], 3]\n", "run.yaml");
  const std::vector<Choices> all = all_choices(*file);
  ASSERT_EQ(all.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    Params p(file, std::make_shared<Choices>(all[i]), "test");
    EXPECT_EQ(p.required<int>("a", 0, 9, ""), static_cast<int>(i) + 1);
    EXPECT_EQ(resolved_text(*file, all[i]), "a: " + std::to_string(i + 1) + "\n");
  }
}

TEST(Axes, DataListsEmptyListsAndTooManyRuns) {
  const auto file = parse_config("search: {rates: [1, 2]}\nseed: [1, 2]\n", "run.yaml");
  const std::vector<Choices> all = all_choices(*file, {"search.rates"});
  EXPECT_EQ(all.size(), 2U);
  Params p(file, std::make_shared<Choices>(all[1]), "test");
  EXPECT_EQ(p.child("search", "search").numbers("rates", 0, 9, ""), (std::vector<double>{1, 2}));
  EXPECT_EQ(error_of([] { expand_axes(*parse_config("x: 1\na: []\n", "run.yaml")); }),
            "run.yaml:2:4: 'a' is an empty list: no run would be made");
  const std::string ten = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n";
  const std::string most = "a: " + ten + "b: " + ten + "c: " + ten + "d: " + ten + "e: " + ten;
  EXPECT_EQ(expand_axes(*parse_config(most, "run.yaml")).points.size(), 100'000U);
  EXPECT_EQ(error_of([&] { expand_axes(*parse_config(most + "f: [1, 2]\n", "run.yaml")); }), "run.yaml:1:1" + kTooMany);
}

TEST(Axes, LabelsNameElements) {
  const auto file = parse_config(
      "p: [{recipe: snapkv, budget_tokens: 128}, {recipe: full}, {x: 1, y: 2}, {recipe: [h2o], budget_tokens: 64}, {recipe: [h2o]}]\n"
      "s: [{vllm_v1: {a: 1}}, orca, {vllm_v1: {a: 2}}]\n"
      "n: [[7, {a: 1, b: 2}], 7]\n",
      "run.yaml");
  const Grid grid = expand_axes(*file);
  ASSERT_EQ(grid.points.size(), 45U);
  std::set<std::string> p, s, n;
  for (std::size_t i = 0; i < grid.points.size(); ++i) {
    auto labels = labels_of(grid, i);
    p.insert(labels["p"]), s.insert(labels["s"]), n.insert(labels["n"]);
  }
  EXPECT_EQ(p, (std::set<std::string>{"snapkv 128", "full", "2", "budget_tokens 64", "recipe"}));
  EXPECT_EQ(s, (std::set<std::string>{"vllm_v1#1", "orca", "vllm_v1#3"}));
  EXPECT_EQ(n, (std::set<std::string>{"7#1", "1", "7#2"})) << "an element of a list in a list names itself";
}

// Figures name policies by these (plots/policies.py).
TEST(Axes, LabelsOfPoliciesNameTheirChangedParts) {
  const auto file = parse_config(
      "p: [{recipe: snapkv, budget_tokens: 512, allocator: pyramid}, {recipe: [h2o], budget_frac: 0.5, format: {kivi: {bits: 2}}},\n"
      "    {recipe: snapkv, compression_ratio: 0.75}, {recipe: tova, budget_frac: 1}, {recipe: [h2o], budget_tokens: [64], allocator: "
      "ada}]\n",
      "run.yaml");
  const Grid grid = expand_axes(*file);
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < grid.points.size(); ++i) labels.push_back(labels_of(grid, i)["p"]);
  EXPECT_EQ(labels, (std::vector<std::string>{"snapkv 512 allocator pyramid", "budget_frac 0.5 format kivi",
                                              "snapkv compression_ratio 0.75", "tova budget_frac 1", "allocator ada"}));
}

// A list counts the runs in all of its elements, and single elements count although they make no run.
TEST(Axes, WhatIsTooManyInsideAListIsRefused) {
  std::string hundred = "[0";
  for (int i = 1; i < 100; ++i) hundred += ", " + std::to_string(i);
  hundred += "]";
  const std::string two = "{b: " + hundred + ", c: " + hundred + "}";
  EXPECT_EQ(expand_axes(*parse_config("a: [" + two + "]\n", "run.yaml")).points.size(), 10'000U);
  std::string eleven = "a: [" + two;
  for (int i = 1; i < 11; ++i) eleven += ", " + two;
  EXPECT_EQ(error_of([&] { expand_axes(*parse_config(eleven + "]\n", "run.yaml")); }), "run.yaml:1:4" + kTooMany);
  std::string singles = "a: " + hundred + "\nb: " + hundred + "\n";
  for (int i = 0; i < 200; ++i) singles += "s" + std::to_string(i) + ": [1]\n";
  EXPECT_EQ(error_of([&] { expand_axes(*parse_config(singles, "run.yaml")); }),
            "run.yaml:1:1: the lists span 10000 runs with 2010000 choices in all; 2,000,000 are the most");
}

}  // namespace
}  // namespace kvlab
