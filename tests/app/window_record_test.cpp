// Recordings of a model whose layers attend within a window.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

struct WindowRecord : AppTest {
  // The probe as a Mistral model with a window.
  void make_model(int window) {
    model_ = "window_" + std::to_string(window);  // a program keeps models and samples by their folders
    const std::filesystem::path probe = KVLAB_SOURCE_DIR "/engine/probe";
    std::filesystem::create_directory(model_);
    for (const char* name : {"model.safetensors", "tokenizer.json"})
      std::filesystem::create_symlink(probe / name, std::filesystem::path(model_) / name);
    nlohmann::json config = nlohmann::json::parse(std::ifstream(probe / "config.json"));
    config["model_type"] = "mistral";
    config["architectures"] = {"MistralForCausalLM"};
    config["sliding_window"] = window;
    for (const char* key : {"attention_bias", "mlp_bias"}) config.erase(key);
    write(model_ + "/config.json", config.dump());
  }
  Called replay(const std::string& kv_policy) {
    write("r.yaml", std::string("name: r\nhost: replay\nsamples: {s: {record: {model: ") + model_ +
                        ", eval: " KVLAB_SOURCE_DIR
                        "/engine/probe/eval/dev.jsonl, task: niah, length_tokens: 1024, decode_tokens: 1}}}\nkv_policy: " +
                        kv_policy + "\n");
    return call({"run", "r.yaml", "--out", "out"});
  }

 private:
  std::string model_;
};

// The pass of KVzip repeats the prompt after itself, which this window has no room for; recipes that read none do not need it.
TEST_F(WindowRecord, PassesThatTheWindowHasNoRoomForAreLeftOut) {
  ::setenv("KVLAB_RECIPES", KVLAB_SOURCE_DIR "/policies/kv/recipes", 1);
  make_model(1200);
  const Called plain = replay("[{recipe: snapkv, budget_tokens: 80}, {recipe: tova, budget_tokens: 80}, {recipe: laq, budget_tokens: 80}]");
  EXPECT_EQ(plain.status, 0) << plain.err;
  const Called reads_pass = replay("{recipe: kvzip, budget_tokens: 80}");
  EXPECT_EQ(reads_pass.status, 2);
  EXPECT_THAT(reads_pass.err, HasSubstr("observes the extra pass 'reconstruct'"));
  EXPECT_THAT(reads_pass.err, HasSubstr("of a model with windows, a prompt that is shorter than the window"));
}

TEST_F(WindowRecord, AWideWindowHasRoomForPasses) {
  ::setenv("KVLAB_RECIPES", KVLAB_SOURCE_DIR "/policies/kv/recipes", 1);
  make_model(4000);
  const Called reads_pass = replay("{recipe: kvzip, budget_tokens: 80}");
  EXPECT_EQ(reads_pass.status, 0) << reads_pass.err;
}

TEST_F(WindowRecord, ALongPromptIsRefusedWithItsNumbers) {
  ::setenv("KVLAB_RECIPES", KVLAB_SOURCE_DIR "/policies/kv/recipes", 1);
  make_model(500);
  const Called called = replay("{recipe: snapkv, budget_tokens: 80}");
  EXPECT_EQ(called.status, 2);
  EXPECT_THAT(called.err, HasSubstr("attends within a window of 500 tokens"));
  EXPECT_THAT(called.err, testing::ContainsRegex("the prompt's [0-9]+ tokens and [0-9]+ decoded ones are more; take a prompt of at most "));
}

}  // namespace
}  // namespace kvlab
