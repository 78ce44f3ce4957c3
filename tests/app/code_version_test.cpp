// The version of the code that a run depends on.
#include "app/results/code_version.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace kvlab {
namespace {

TEST(CodeVersionTest, ARunDependsOnTheCoreAndItsPolicies) {
  const std::vector<SourceFile> table = {
      {"base/text.cpp", "a1"}, {"policies/scheduler/orca.cpp", "b1", true}, {"policies/scheduler/sarathi.cpp", "c1", true}};
  const std::set<std::string> orca{"/some/where/policies/scheduler/orca.cpp"}, sarathi{"../policies/scheduler/sarathi.cpp"};
  const auto with = [&](std::size_t edited) {
    std::vector<SourceFile> other = table;
    other[edited].hash = "edited";
    return other;
  };
  const CodeVersion before = code_version(orca, table, "gcc");
  EXPECT_EQ(changed_code(before, code_version(orca, with(2), "gcc")), "");
  EXPECT_EQ(changed_code(before, code_version(orca, with(1), "gcc")), "policies/scheduler/orca.cpp");
  EXPECT_EQ(changed_code(before, code_version(orca, with(0), "gcc")), "core");
  EXPECT_EQ(changed_code(before, code_version(orca, table, "clang")), "core");
  EXPECT_EQ(changed_code(code_version(sarathi, table, "gcc"), code_version(sarathi, with(1), "gcc")), "");
}

// A policy in Python, say. Only runs that make it depend on it.
TEST(CodeVersionTest, SourcesGivenToTheRunningProgramCount) {
  const std::set<std::string> uses{"running:code_version_test"};
  set_running_source("running:code_version_test", "return 1");
  const CodeVersion before = code_version(uses);
  EXPECT_EQ(changed_code(code_version({}), before), "running:code_version_test");
  const std::string line = running_sources();
  set_running_source("running:code_version_test", "return 2");
  EXPECT_EQ(changed_code(before, code_version(uses)), "running:code_version_test");
  EXPECT_NE(running_sources(), line);
  set_running_source("running:code_version_test", "return 1");
  EXPECT_EQ(changed_code(before, code_version(uses)), "");
  EXPECT_EQ(running_sources(), line);
}

TEST(CodeVersionTest, EverySourceThatRegistersPoliciesAloneIsOne) {
  std::map<std::string_view, bool> table;
  for (const SourceFile& source : source_table()) table[source.path] = source.is_policy;
  EXPECT_GT(table.size(), 500U);
  for (const char* policy : {"policies/scheduler/orca.cpp", "policies/kv/scorer/key_norm.cpp", "policies/block_cache/lru.cpp"})
    EXPECT_TRUE(table.at(policy)) << policy;
  for (const char* core : {"base/text.cpp", "policies/kv/recipe/recipe.cpp", "policies/kv/scorer/scorer_wrapper.h", "app/main.cpp"})
    EXPECT_FALSE(table.at(core)) << core;
}

}  // namespace
}  // namespace kvlab
