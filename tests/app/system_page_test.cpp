// The files of docs/write-a-system.md, as they are printed there.
#include <nlohmann/json.hpp>

#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

struct SystemPage : AppTest {
  // Writes every block that begins with "```yaml PATH" to that path.
  static void write_files() {
    const std::string page = read(KVLAB_SOURCE_DIR "/docs/write-a-system.md"), opening = "```yaml ";
    for (std::size_t at = page.find(opening); at != std::string::npos; at = page.find(opening, at + 1)) {
      const std::size_t path = at + opening.size(), begin = page.find('\n', path) + 1;
      const fs::path file = page.substr(path, begin - 1 - path);
      write(file, page.substr(begin, page.find("```", begin) - begin));
    }
  }
};

TEST_F(SystemPage, ItsExperimentRuns) {
  write_files();
  call_ok({"run", "experiments/short_prompts.yaml", "--out", "out", "--quiet"});
  EXPECT_EQ(num_runs("out"), 2U);
  EXPECT_THAT(read("out/summary.csv"), HasSubstr("policies/systems/short_prompts.yaml"));
}

TEST_F(SystemPage, ItsClaimIsMeasured) {
  write_files();
  const Called called = call_ok({"reproduce", "claims/short_prompts_ttft.yaml", "--json", "--quiet"});
  const auto list = nlohmann::json::parse(called.out);
  EXPECT_EQ(std::tuple(list[0]["name"], list[0]["verdict"]), std::tuple("short_prompts_ttft", "reproduced"));
}

}  // namespace
}  // namespace kvlab
