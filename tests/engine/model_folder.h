#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/model/config.h"
#include "tests/engine/probe.h"
#include "tests/error_of.h"

namespace kvlab {

// One folder per test, and the probe's config to change keys of.
class ModelFolder : public testing::Test {
 protected:
  using Json = nlohmann::json;

  void SetUp() override {
    dir_ = testing::TempDir() + "kvlab_" + std::to_string(::getpid()) + "_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    config_ = Json::parse(std::ifstream(kProbeDir + "/config.json"));
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // The message of the error that `f` throws; a path within the folder is given without the folder's name.
  template <class F>
  std::string error_of(F&& f) {
    const std::string message = kvlab::error_of(std::forward<F>(f));
    if (message == "no error") return message;
    EXPECT_TRUE(message.starts_with(dir_)) << message;
    return message.substr(std::min(dir_.size() + 1, message.size()));
  }
  // Without the path, which must be config.json's.
  std::string config_error(const std::string& text) {
    std::ofstream(dir_ + "/config.json") << text;
    const std::string message = error_of([&] { read_model_config(dir_); });
    const std::string path = "config.json: ";
    EXPECT_TRUE(message == "no error" || message.starts_with(path)) << message;
    return message.starts_with(path) ? message.substr(path.size()) : message;
  }
  // The error of a config with these keys besides the others.
  std::string error_with(const Json& keys) {
    Json changed = config_;
    changed.update(keys);
    return config_error(changed.dump());
  }
  std::string error_without(const std::string& key) {
    Json changed = config_;
    changed.erase(key);
    return config_error(changed.dump());
  }
  ModelConfig config_with(const Json& keys = Json::object()) {
    EXPECT_EQ(error_with(keys), "no error");
    return read_model_config(dir_);
  }

  std::string dir_;
  Json config_;
};

}  // namespace kvlab
