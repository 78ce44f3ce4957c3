// Damaged attention traces, through `kvlab run` with `host: replay`: one line, status 2, nothing written.
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "base/safetensors.h"
#include "tests/app/app_fixture.h"
#include "traces/write_safetensors.h"

namespace kvlab {
namespace {

// A trace of 6 tokens with one layer, tensor by tensor.
struct TraceFile {
  std::map<std::string, std::pair<std::string, std::vector<std::int64_t>>> tensors{
      {"L0.q", {"F32", {6, 4, 8}}}, {"L0.k", {"F32", {6, 2, 8}}}, {"L0.v", {"F32", {6, 2, 8}}}};
  std::map<std::string, std::string> metadata{
      {"format", "kvlab-attention-trace-1"}, {"model", "m"}, {"prompt_tokens", "5"}, {"rope_base", "0"}};

  void write(const std::string& path) const {
    const std::vector<float> zeros(1000);
    std::vector<TensorToWrite> all;
    for (const auto& [name, tensor] : tensors) all.push_back({name, tensor.first, tensor.second, zeros.data()});
    write_safetensors(path, all, metadata);
  }
};

struct BadSample : AppTest {
  // The message of `kvlab run` about sample.safetensors.
  static std::string message() {
    write("replay.yaml", "host: replay\nsamples: {s: {file: sample.safetensors}}\nkv_policy: full\n");
    const Called called = call({"run", "replay.yaml", "--out", "out"});
    EXPECT_FALSE(fs::exists("out"));
    EXPECT_EQ(std::tuple(called.status, called.out), std::tuple(2, ""));
    const std::string before = "kvlab: run 0001 (seed=1) failed: ";
    EXPECT_TRUE(called.err.starts_with(before)) << called.err;
    EXPECT_EQ(std::count(called.err.begin(), called.err.end(), '\n'), 1) << called.err;
    return called.err.substr(std::min(before.size(), called.err.size()));
  }
  static std::string after(const std::function<void(TraceFile&)>& damage) {
    TraceFile file;
    damage(file);
    file.write("sample.safetensors");
    return message();
  }
  // The whole file's bytes, changed.
  static std::string after_bytes(const std::function<void(std::string&)>& damage) {
    TraceFile().write("sample.safetensors");
    std::string bytes = read("sample.safetensors");
    damage(bytes);
    write("sample.safetensors", bytes);
    return message();
  }
};

TEST_F(BadSample, TensorsAndMetadata) {
  EXPECT_EQ(after([](TraceFile& f) { f.tensors.erase("L0.v"); }), "sample.safetensors: has no tensor 'L0.v'; the nearest is 'L0.k'\n");
  EXPECT_EQ(after([](TraceFile& f) { f.tensors["L0.k"].second.front() = 5; }),
            "sample.safetensors: tensor 'L0.k' has shape [5, 2, 8], expected [6, 2, 8]\n");
  EXPECT_EQ(after([](TraceFile& f) { f.tensors["L0.q"].first = "I32"; }),
            "sample.safetensors: tensor 'L0.q' has dtype I32, expected F16, BF16, F32 or F64\n");
  EXPECT_EQ(after([](TraceFile& f) { f.metadata["prompt_tokens"] = "6"; }),
            "replay.yaml:2:14: the sample has no token after the prompt, so there is nothing to measure\n");
}

TEST_F(BadSample, DamagedBytes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(after_bytes([&](std::string& bytes) { std::memcpy(bytes.data() + bytes.size() - 4, &nan, 4); }),
            "sample.safetensors: tensor 'L0.v' has a NaN at [5, 1, 7]\n");
  EXPECT_EQ(after_bytes([](std::string& bytes) { bytes.resize(bytes.size() - 1); }),
            "sample.safetensors: cut short: tensor 'L0.v' ends at byte 1536 of the data, which is 1535 bytes long\n");
  const auto with_length = [](std::uint64_t length) {
    return after_bytes([length](std::string& bytes) { std::memcpy(bytes.data(), &length, 8); });
  };
  EXPECT_EQ(with_length(1ULL << 40),
            "sample.safetensors: a header of 1099511627776 bytes, at most 100000000 are allowed; is it a safetensors file?\n");
  EXPECT_EQ(with_length(99'999'999).substr(0, 69), "sample.safetensors: cut short: the header ends at byte 100000007, the");
}

TEST_F(BadSample, AFolderAndAnEmptyFile) {
  fs::create_directory("sample.safetensors");
  EXPECT_EQ(message(), "sample.safetensors: is not a regular file; a safetensors file is expected\n");
  fs::remove("sample.safetensors");
  write("sample.safetensors", "");
  EXPECT_EQ(message(), "sample.safetensors: cut short: 0 bytes, and the header's length alone takes 8\n");
}

TEST_F(BadSample, TheGoodOneRuns) {
  TraceFile().write("good.safetensors");
  write("replay.yaml", "host: replay\nsamples: {s: {file: good.safetensors}}\nkv_policy: [{recipe: snapkv, budget_tokens: 40}, full]\n");
  call_ok({"run", "replay.yaml", "--out", "out"});
}

}  // namespace
}  // namespace kvlab
