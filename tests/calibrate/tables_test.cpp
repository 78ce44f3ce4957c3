// Which operation is timed for which table.
#include "calibrate/tables.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "calibrate/cases/kernel_case.h"
#include "sim/kv_cost/unpack_ops.h"

namespace kvlab {

namespace {

using TableKind = CalibrationTable::Kind;
const std::string kSpecs = KVLAB_SOURCE_DIR "/profiles/models";

// On a GPU as its engine launches them, on the CPU as that does; what is counted is the same.
TEST(CalibrationTables, AreNamedForWhatIsTimed) {
  const auto tables = [](const char* model, DeviceKind kind) {
    std::map<std::string, std::string> all;
    for (const CalibrationTable& t : calibration_tables(load_model_spec(model, kSpecs), kind, {}))
      if (t.kind == TableKind::kOp) all[t.covers] = t.name + " " + t.family + "/" + t.format;
    return all;
  };
  const auto gpu = tables("llama-3.1-8b", DeviceKind::kGpu), normed = tables("qwen3-8b", DeviceKind::kGpu),
             cpu = tables("qwen3-8b", DeviceKind::kCpu);
  EXPECT_EQ(gpu.at("rotary_emb"), "rope_qk rope_qk/bf16");
  EXPECT_EQ(gpu.at("lm_head"), "linear_head linear_head/bf16");
  EXPECT_EQ(gpu.at("sampler"), "sampler sampling/f32");
  EXPECT_EQ(gpu.at("append_kv"), "append_kv append_step/bf16");
  EXPECT_EQ(gpu.at("qkv_proj"), "qkv_proj linear/bf16");
  EXPECT_EQ(normed.at("qkv_proj"), "qkv_proj linear_set/bf16");
  EXPECT_EQ(normed.at("qk_norm"), "qk_norm rmsnorm_qk/bf16");
  EXPECT_EQ(cpu.at("rotary_emb"), "rotary_emb rope/f32");
  EXPECT_EQ(cpu.at("lm_head"), "lm_head linear/f32");
  EXPECT_EQ(cpu.at("qk_norm"), "qk_norm rmsnorm/f32");
}

// Every operation by which sequences come back from rest has a table, and a case that times it.
TEST(CalibrationTables, CoverWhatUnpackingCalls) {
  ::setenv("KVLAB_RECIPES", KVLAB_SOURCE_DIR "/policies/kv/recipes", 1);
  std::map<std::string, std::string> tables;
  for (const CalibrationTable& t : calibration_tables(load_model_spec("qwen3-8b", kSpecs), DeviceKind::kCpu, {}))
    if (t.kind == TableKind::kPolicy) tables[t.name] = t.family;
  for (const char* recipe : {"kivi2", "fp8", "gear", "mustafar50", "think", "kcache"}) {
    UnpackOps unpacking(load_recipe(recipe), {4, 8, 2, 64, 128});
    unpacking.add(1024, 8 * 1024);
    std::vector<PolicyOp> ops;
    unpacking.take(ops);
    EXPECT_FALSE(ops.empty()) << recipe;
    for (const PolicyOp& op : ops) {
      const std::string name(op.name);
      ASSERT_TRUE(tables.contains(name)) << name << " of " << recipe;
      EXPECT_NE(find_family(DeviceKind::kCpu, tables[name], "f32"), nullptr) << name;
    }
  }
}

}  // namespace

}  // namespace kvlab
