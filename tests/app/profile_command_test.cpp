// `kvlab profile`, through the front.
#include <iterator>

#include "tests/app/app_fixture.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

using ProfileCli = AppTest;

const std::vector<std::string> kTinyMachine{"--model", "model.yaml", "--hardware", "card.yaml"};

// calibrate writes our own format; a bundle is told from it by its files.
TEST_F(ProfileCli, AFolderSaysItsFormat) {
  write("model.yaml", kTinyModel);
  write("card.yaml", kTinyCard);
  const TinyBundle bundle;
  call_ok({"profile", "convert", bundle.path(), "own"});
  for (const std::string& folder : {bundle.path(), std::string("own")})
    EXPECT_EQ(call_ok({"profile", "lint", folder}, kTinyMachine).out, folder + ": 0 errors, 0 warnings\n");
  EXPECT_EQ(call({"profile", "convert", "own", "again"}).status, 0);
  EXPECT_EQ(read("again/tp1/attention.csv"), read("own/tp1/attention.csv"));
}

TEST_F(ProfileCli, VidursTablesAreKnownByTheirName) {
  write("vidur/mlp.csv", "no table\n");
  EXPECT_THAT(call({"profile", "convert", "vidur", "own"}).err, HasSubstr("vidur/mlp.csv"));
}

// They are of no model, so they have no form in which one model's profile is written.
TEST_F(ProfileCli, TablesOfAPackageAreConvertedByTheFrontDoor) {
  write("shapes/gemm_bfloat16.csv", "n,k,m,time_ns\n");
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--format", "aisimulate"}})
    EXPECT_THAT(error_of_call({"profile", "convert", "shapes", "own"}, more), HasSubstr("needs Python: call it as ./kvlab"));
}

TEST_F(ProfileCli, AFolderOfNoFormatIsRefused) {
  fs::create_directories("none/tp1");
  const std::string message = ": holds no profile: tp<N>/ops.yaml would make it one of kvlab, tp<N>/dense.csv a bundle, mlp.csv Vidur's\n";
  for (const std::string folder : {"none", "missing"}) EXPECT_EQ(error_of_call({"profile", "lint", folder}), "kvlab: " + folder + message);
}

// Runs the command in the line exactly as it is written there.
TEST_F(ProfileCli, TheCommandThatARunNamesPrintsItsRemarks) {
  const TinyBundle bundle;
  std::string dense = read(bundle.path() + "/tp1/dense.csv");
  const std::string entry = "down_proj,128,13.800000";
  bundle.write("tp1/dense.csv", dense.replace(dense.find(entry), entry.size(), "down_proj,128,0.0121"));
  write("tiny.yaml", tiny_experiment(bundle, "bundle", ", impossible: keep") +
                         "trace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: 30, output_tokens: "
                         "3}}\nscheduler: vllm_v1\nmemory: {num_blocks: 60}\nmax_model_len: 200\n");
  const Called run = call_ok({"run", "tiny.yaml"});
  const std::string before = "(2 remarks: kvlab ";
  const std::size_t at = run.out.find(before);
  ASSERT_NE(at, std::string::npos) << run.out;
  std::istringstream words(run.out.substr(at + before.size(), run.out.find(')', at) - at - before.size()));
  const Called lint = call({std::istream_iterator<std::string>(words), {}});
  EXPECT_EQ(lint.status, 1) << lint.err;
  EXPECT_THAT(lint.out, has_all({"error (tp 1): down_proj at tokens 128", ": 1 errors, 1 warnings\n"}));
}

// Tables that calibrate has no kernel for are no finding; what the reader had to decide is told.
TEST_F(ProfileCli, LintTakesWhatIsThere) {
  const TinyBundle bundle;
  write("model.yaml", kTinyModel);
  write("card.yaml", kTinyCard);
  bundle.write("tp1/per_sequence.csv", "layer,sequences,time_us\nlm_head,1,6\nlm_head,8,13\n");
  EXPECT_EQ(call({"profile", "lint", bundle.path()}, kTinyMachine).out, bundle.path() + ": 0 errors, 0 warnings\n");
  EXPECT_THAT(call({"profile", "lint", bundle.path(), "--tp", "2"}, kTinyMachine).err, HasSubstr("no folder tp2"));
}

}  // namespace
}  // namespace kvlab
