// The instants of a request's tokens, read from the steps in trace.json, and the gaps between them in the format vllm_bench.
#include <nlohmann/json.hpp>

#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

using TokenTimesJson = nlohmann::json;

struct TokenTimesTest : SmallTest {
  // Puts `other` in place of the start of the first batch that begins with request 0: `"batch":"0:300@0 ...`.
  static void damage(const fs::path& file, const std::string& other) {
    static constexpr std::string_view kStart = "batch\":\"0:300@0 ";
    std::string text = read(file);
    const auto at = text.find(kStart);
    ASSERT_NE(at, std::string::npos);
    write(file, text.replace(at, kStart.size(), "batch\":\"" + other));
  }
};

// With trace.json the gaps of each request are there: from its first token to its last, and of all together as summary.csv has them.
TEST_F(TokenTimesTest, AreThoseOfTheSteps) {
  const std::vector<std::string> schedulers = {"vllm_v1", "{vllm_v0: {preemption: swap}}", "sarathi", "layered_prefill"};
  for (std::size_t i = 0; i < schedulers.size(); ++i) {
    const std::string name = "traced" + std::to_string(i);
    call_ok({"run", "small.yaml", "--out", name, "--quiet", "--set", "trace.perfetto=true", "--set", "memory.num_blocks=60", "--set",
             "max_model_len=800", "--set", "scheduler=" + schedulers[i]});
    EXPECT_THAT(call({"export", name, "--format", "vllm_bench"}).out, Not(HasSubstr("note:"))) << schedulers[i];
    const TokenTimesJson json = TokenTimesJson::parse(read(name + "/export/vllm_bench/vllm_bench.json"));
    ASSERT_EQ(json["itls"].size(), 60U) << schedulers[i];
    double sum_ms = 0;
    std::size_t count = 0;
    for (std::size_t r = 0; r < 60; ++r) {
      double gaps = 0;
      for (const TokenTimesJson& gap : json["itls"][r]) gaps += gap.get<double>();
      EXPECT_EQ(json["itls"][r].size() + 1, json["output_lens"][r].get<std::size_t>()) << schedulers[i];
      EXPECT_NEAR(json["ttfts"][r].get<double>() + gaps, json["e2els"][r].get<double>(), 1e-9) << schedulers[i];
      sum_ms += 1000 * gaps;
      count += json["itls"][r].size();
    }
    EXPECT_NEAR(sum_ms / static_cast<double>(count), json["mean_itl_ms"].get<double>(), 1e-5) << schedulers[i];
    EXPECT_GT(json["std_itl_ms"].get<double>(), 0);
  }
}

TEST_F(TokenTimesTest, OfOtherRequestsAreNotTaken) {
  call_ok({"run", "small.yaml", "--out", "cut", "--quiet", "--set", "trace.perfetto=true"});
  const fs::path file = run_folder("cut") / "trace.json";
  damage(file, "99:300@0 ");
  EXPECT_THAT(call({"export", "cut", "--format", "vllm_bench"}).out,
              HasSubstr("no 'itls', since the steps in trace.json do not give all tokens of request 0"));
  EXPECT_FALSE(TokenTimesJson::parse(read("cut/export/vllm_bench/vllm_bench.json")).contains("itls"));
  write(file, "{");
  EXPECT_THAT(call({"export", "cut", "--format", "vllm_bench"}).err, HasSubstr("trace.json: cannot be read: "));
}

// A step's batch is a list of request:tokens@before, each entry with a space after it.
TEST_F(TokenTimesTest, OfADamagedBatchAreRefused) {
  call_ok({"run", "small.yaml", "--out", "cut", "--quiet", "--set", "trace.perfetto=true"});
  const fs::path file = run_folder("cut") / "trace.json";
  const std::string whole = read(file);
  for (const std::string batch : {"0:x@0 ", "0:@0 ", "0:300@ ", "0:300@x ", "0:3 00@0 ", "0:300x@0 ", "0:-300@0 ", "0:300@-1 ", "0:300 ",
                                  "0@300 ", "0:99999999999999999999@0 ", "0:300@0"}) {
    write(file, whole);
    damage(file, batch);
    EXPECT_THAT(error_of_call({"export", "cut", "--format", "vllm_bench"}),
                HasSubstr("trace.json: a step has a batch that is no list of request:tokens@before: '" + batch))
        << batch;
  }
}

}  // namespace
}  // namespace kvlab
