#include "app/commands/cite.h"

#include <gmock/gmock.h>

#include <regex>

#include "app/commands/describe.h"
#include "base/error.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CiteTest : public AppTest {
 protected:
  static std::vector<std::string> keys_in(const std::string& text) {
    static const std::regex entry("(?:^|\n)@[a-z]+\\{([^,]+),");
    std::vector<std::string> keys;
    for (auto at = std::sregex_iterator(text.begin(), text.end(), entry); at != std::sregex_iterator(); ++at) keys.push_back((*at)[1]);
    return keys;
  }
};

TEST_F(CiteTest, EveryPolicyAndRecipeHasAnEntry) {
  std::vector<std::string> names;
  for (const char* kind : {"schedulers", "orders", "predictors", "dispatchers", "systems", "block_caches", "kv", "trace_formats"})
    for (const Item& item : list_items(kind)) names.push_back(item.name);
  std::set<std::string> cited;
  const std::string text = citations(names);
  static const std::regex uses("(?:^|\n)% ([^\n]+)\n@");
  for (auto at = std::sregex_iterator(text.begin(), text.end(), uses); at != std::sregex_iterator(); ++at) {
    std::string list = (*at)[1];
    for (std::size_t begin = 0, end = 0; end < list.size(); begin = end + 2) {
      end = std::min(list.find(", ", begin), list.size());
      cited.insert(list.substr(begin, end - begin));
    }
  }
  for (const std::string& name : names) EXPECT_TRUE(cited.contains(name)) << name;
}

TEST_F(CiteTest, KnownPapersAreCitedAndOthersAreMarked) {
  const std::string sarathi = citations({"sarathi"});
  EXPECT_THAT(sarathi, HasSubstr("Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve"));
  EXPECT_THAT(sarathi, HasSubstr("eprint = {2308.16369}"));
  EXPECT_THAT(sarathi, HasSubstr("@software{kvlab,"));
  EXPECT_THAT(sarathi, Not(HasSubstr("unverified")));
  EXPECT_THAT(citations({"belady"}), HasSubstr("A study of replacement algorithms"));
  EXPECT_THAT(citations({"round_robin"}), HasSubstr("note = {unverified; dispatchers in KVLab, whose card says: textbook}"));
  EXPECT_THAT(error_of([] { citations({"sarati"}); }), HasSubstr("did you mean 'sarathi'?"));
}

TEST_F(CiteTest, AResultCitesWhatItUsed) {
  write("exp.yaml", std::string(kSmall) + "scheduler: [orca, {sarathi: {budget_tokens: 256}}]\nkv_policy: full\n");
  ASSERT_EQ(call({"run", "exp.yaml", "--quiet"}).status, 0);
  const Called called = call({"cite", "results/small"});
  ASSERT_EQ(called.status, 0) << called.err;
  for (const char* text : {"Orca: A Distributed Serving System", "Sarathi-Serve", "https://huggingface.co/meta-llama/Llama-3.1-8B"})
    EXPECT_THAT(called.out, HasSubstr(text));
  EXPECT_THAT(called.out, Not(HasSubstr("S3-FIFO")));
  EXPECT_EQ(call({"cite", "."}).err, "kvlab: .: is no results folder: it has no resolved.yaml\n");
}

// Keys and arXiv numbers of the file are each there once.
TEST_F(CiteTest, ReferencesAreDistinct) {
  const std::string text = read(KVLAB_SOURCE_DIR "/policies/references.bib");
  const std::vector<std::string> keys = keys_in(text);
  EXPECT_GT(keys.size(), 100U);
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), keys.size());
  static const std::regex eprint("eprint = \\{([0-9.]+)\\}");
  std::set<std::string> seen;
  for (auto at = std::sregex_iterator(text.begin(), text.end(), eprint); at != std::sregex_iterator(); ++at)
    EXPECT_TRUE(seen.insert((*at)[1]).second) << (*at)[1];
}

}  // namespace
}  // namespace kvlab
