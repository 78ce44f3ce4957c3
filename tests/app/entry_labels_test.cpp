// List entries of one policy: ids in results tell them apart by place, tables by the parameters in which they differ.
#include "app/results/entry_labels.h"

#include <gmock/gmock.h>

#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class EntryLabelsTest : public AppTest {
 protected:
  // A results folder whose runs a, b, ... have these settings, and the view of them with their labels on the axis `scheduler`.
  static View folder_with(const fs::path& folder, const std::vector<std::pair<std::string, std::string>>& runs) {
    View view{{"scheduler"}, {}};
    for (const auto& [label, resolved] : runs) {
      const std::string id(1, static_cast<char>('a' + view.rows.size()));
      fs::create_directories(folder / "runs" / id);
      write(folder / "runs" / id / "resolved.yaml", resolved);
      view.rows.push_back({id, folder / "runs" / id, {label}});
    }
    return view;
  }
};

// By hand: budget_tokens differs (the first run has its default), max_num_seqs is alike, and tiers.tail has neither a value nor a default
// in the first run.
TEST_F(EntryLabelsTest, ParametersThatDifferWithDefaults) {
  const EntryLabels labels(folder_with(
      "r", {{"sarathi#1", "scheduler: {sarathi: {max_num_seqs: 64}}\n\n# defaults in force:\n#   scheduler.sarathi.budget_tokens: 512\n"},
            {"sarathi#2", "scheduler: {sarathi: {max_num_seqs: 64, budget_tokens: 2048, tiers: {tail: 3}}}\n"},
            {"orca", "scheduler: orca\n"}}));
  EXPECT_EQ(labels.shown("scheduler", "sarathi#1"), "sarathi {budget_tokens: 512}");
  EXPECT_EQ(labels.shown("scheduler", "sarathi#2"), "sarathi {budget_tokens: 2048, tail: 3}");
  EXPECT_EQ(labels.shown("scheduler", "orca"), "orca");
  EXPECT_EQ(labels.shown("order", "sarathi#1"), "sarathi#1") << "of another axis";
  EXPECT_EQ(labels.json().dump(), R"({"scheduler":{"sarathi#1":{"budget_tokens":"512"},"sarathi#2":{"budget_tokens":"2048","tail":"3"}}})");
  write("r/manifest.json", R"({"entries": )" + labels.json().dump() + "}");
  EXPECT_EQ(EntryLabels::of_folder("r").json(), labels.json());
}

TEST_F(EntryLabelsTest, LabelsWithoutOwnParametersStay) {
  const EntryLabels same(folder_with("r", {{"orca#1", "scheduler: orca\n"}, {"orca#2", "scheduler: {orca: {}}\n"}}));
  EXPECT_TRUE(same.empty());
  // Keys that end alike are written whole.
  const EntryLabels alike(
      folder_with("s", {{"x#1", "scheduler: {x: {a: {n: 1}, b: {n: 2}}}\n"}, {"x#2", "scheduler: {x: {a: {n: 3}, b: {n: 4}}}\n"}}));
  EXPECT_EQ(alike.shown("scheduler", "x#2"), "x {x.a.n: 3, x.b.n: 4}");
}

// Two folders of one table use one label for other entries: the table keeps the label.
TEST_F(EntryLabelsTest, LabelsOfSeveralFolders) {
  View view = folder_with("r", {{"x#1", "scheduler: {x: {n: 1}}\n"}, {"x#2", "scheduler: {x: {n: 2}}\n"}});
  const View other = folder_with("s", {{"x#1", "scheduler: {x: {n: 1}}\n"}, {"x#2", "scheduler: {x: {n: 9}}\n"}});
  view.rows.insert(view.rows.end(), other.rows.begin(), other.rows.end());
  const EntryLabels labels(view);
  EXPECT_EQ(labels.shown("scheduler", "x#1"), "x {n: 1}");
  EXPECT_EQ(labels.shown("scheduler", "x#2"), "x#2");
}

// The front: run, results, pivot, and the ids that stay.
TEST_F(EntryLabelsTest, TablesShowThemAndResultsKeepIds) {
  write("two.yaml",
        std::string(kSmall) + "scheduler:\n  - {sarathi: {budget_tokens: [256, 1024]}}\n  - sarathi\n  - {sarathi: {max_num_seqs: 4}}\n");
  const Called ran = call({"run", "two.yaml", "--out", "results/two"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const std::size_t begin = ran.out.find("run   ");
  const std::string table = ran.out.substr(begin, ran.out.find("\nalso in") - begin);
  EXPECT_THAT(table, ::testing::ContainsRegex("sarathi \\{max_num_seqs: 128\\} +256 "));
  EXPECT_THAT(table, ::testing::ContainsRegex("sarathi \\{max_num_seqs: 128\\} +1024 "));
  EXPECT_THAT(table, HasSubstr("sarathi {budget_tokens: 512, max_num_seqs: 128} "));
  EXPECT_THAT(table, HasSubstr("sarathi {budget_tokens: 512, max_num_seqs: 4} "));
  EXPECT_THAT(table, Not(HasSubstr("#")));
  EXPECT_EQ(read_csv("results/two/summary.csv").rows.at(3).at(1), "sarathi#3");
  const std::string listed = call({"results", "two"}).out;
  EXPECT_THAT(listed, HasSubstr("sarathi {budget_tokens: 512, max_num_seqs: 4} "));
  const std::vector<std::string> pivot = {"pivot",    "results/two", "--rows",  "scheduler",
                                          "--metric", "requests",    "--where", "scheduler=sarathi#3"};
  EXPECT_THAT(call(pivot).out, HasSubstr("sarathi {budget_tokens: 512, max_num_seqs: 4}"));
  std::vector<std::string> as_csv = pivot;
  as_csv.emplace_back("--csv");
  EXPECT_EQ(call(as_csv).out, "scheduler,requests\nsarathi#3,60\n");
  ASSERT_EQ(call({"run", "two.yaml", "--out", "results/again", "--quiet"}).status, 0);
  ASSERT_EQ(call({"results", "join", "both", "two", "again"}).status, 0);
  EXPECT_THAT(call({"results", "both"}).out, HasSubstr("sarathi {budget_tokens: 512, max_num_seqs: 4} "));
}

// One recipe with other parameters of its parts: `recipe` alone does not tell the rows apart.
TEST_F(EntryLabelsTest, RecipesOfAReplay) {
  write("replay.yaml", "host: replay\nsamples: {niah: {file: " KVLAB_SOURCE_DIR
                       "/traces/samples/probe_niah.safetensors}}\nkv_policy:\n"
                       "  - {recipe: snapkv, budget_tokens: 128, scorer: {window_attention: {window_tokens: 16}}}\n"
                       "  - {recipe: snapkv, budget_tokens: 128, scorer: {window_attention: {window_tokens: 64}}}\n");
  const Called ran = call({"run", "replay.yaml"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("snapkv  snapkv 128 scorer window_attention {window_tokens: 16} "));
  EXPECT_THAT(ran.out, HasSubstr("snapkv  snapkv 128 scorer window_attention {window_tokens: 64} "));
}

}  // namespace
}  // namespace kvlab
