#include "app/commands/cite.h"

#include <algorithm>
#include <functional>
#include <regex>
#include <set>

#include "app/commands/describe.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

using ::testing::IsEmpty;

struct CiteTest : AppTest {
  static bool has(const std::string& text, const char* pattern) { return std::regex_search(text, std::regex(pattern)); }
};

void for_each_card(const std::function<void(const std::string& kind, const Item&)>& check) {
  for (const char* kind : {"schedulers", "orders", "predictors", "dispatchers", "systems", "block_caches", "kv", "trace_formats"})
    for (const Item& item : list_items(kind)) check(kind, item);
}

// "Van Durme" of "Van Durme, Benjamin and ...", without accents and braces of TeX.
std::vector<std::string> surnames_of(const Reference& entry) {
  const std::string all = std::regex_replace(entry.field("author"), std::regex(R"([{}]|\\['~^]?)"), "");
  std::vector<std::string> names;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end + 5) {
    end = std::min(all.find(" and ", begin), all.size());
    const std::string author = all.substr(begin, end - begin);
    names.push_back(author.substr(0, author.find(',')));
  }
  return names;
}

bool ends_with_word(const std::string& text, const std::string& word) {
  return text == word || text.ends_with(" " + word) || text.ends_with("{" + word);
}

TEST_F(CiteTest, EveryPolicyAndRecipeHasAnEntry) {
  const References references;
  std::vector<std::string> names;
  for_each_card([&](const std::string& kind, const Item& item) {
    names.push_back(item.name);
    const std::vector<const Reference*> cited = references.cited_in(item.source);
    EXPECT_THAT(references.unknown_numbers(item.source), IsEmpty()) << kind << " " << item.name << ": " << item.source;
    EXPECT_TRUE(!cited.empty() || !references.why_no_paper(kind, item.name).empty()) << kind << " " << item.name;
  });
  EXPECT_GT(names.size(), 300U);
  EXPECT_THAT(citations(names), Not(HasSubstr("unverified")));
}

// The list has existing cards only, each with a reason, and none that cites a paper. A part and a recipe may share a name.
TEST_F(CiteTest, CardsWithoutPaperExistAndCiteNone) {
  const References references;
  EXPECT_FALSE(references.no_papers().empty());
  for (const auto& [card, reason] : references.no_papers()) {
    EXPECT_GT(reason.size(), 3U) << card.second;
    EXPECT_THAT(reason, Not(HasSubstr("@"))) << card.second;  // BibTeX would begin an entry
    bool is_there = false;
    for (const Item& item : list_items(card.first)) {
      if (item.name != card.second) continue;
      is_there = true;
      EXPECT_THAT(references.cited_in(item.source), IsEmpty()) << item.name << ": " << item.source;
    }
    EXPECT_TRUE(is_there) << card.first << " " << card.second;
  }
}

// They are distinct. A number of arXiv begins with its year and month; nothing is published before it.
TEST_F(CiteTest, EntriesHaveAuthorTitleYearAndALink) {
  std::set<std::string> numbers, titles;
  const std::set<std::string> without_author = {"kvgrad2026"};  // under review, without names
  // "Surname, Given" or a {Group}; a list ends with "others" at most.
  const std::regex authors(R"((\{[^{}]+\}|[^,]+, [^,]+)( and [^,]+, [^,]+)*( and others)?)");
  const References references;
  EXPECT_GT(references.all().size(), 100U);
  for (const Reference& entry : references.all()) {
    const std::string author = entry.field("author");
    EXPECT_EQ(author.empty(), without_author.contains(entry.key)) << entry.key;
    EXPECT_TRUE(author.empty() || std::regex_match(author, authors)) << entry.key << ": " << author;
    EXPECT_TRUE(has(entry.field("title"), "^\\{[^{].*\\}$")) << entry.key << ": braces keep capitals";
    EXPECT_TRUE(has(entry.field("year"), "^(19|20)[0-9]{2}$")) << entry.key;
    EXPECT_FALSE((entry.field("eprint") + entry.field("doi") + entry.field("url")).empty()) << entry.key;
    EXPECT_EQ(entry.field("eprint").empty(), entry.field("archivePrefix").empty()) << entry.key;
    EXPECT_EQ(entry.type == "inproceedings", !entry.field("booktitle").empty()) << entry.key;
    EXPECT_EQ(entry.type == "article", !entry.field("journal").empty()) << entry.key;
    EXPECT_FALSE(has(entry.text(), "unverified|TODO|[^ -~\n]")) << entry.key;
    EXPECT_TRUE(titles.insert(entry.field("title")).second) << entry.key;
    const std::string number = entry.field("eprint");
    EXPECT_TRUE(number.empty() || numbers.insert(number).second) << entry.key;
    EXPECT_TRUE(number.empty() || has(number, "^[0-9]{2}(0[1-9]|1[0-2])\\.[0-9]{4,5}$")) << entry.key;
    EXPECT_TRUE(number.empty() || 2000 + std::stoi(number.substr(0, 2)) <= std::stoi(entry.field("year"))) << entry.key;
    for (const auto& [name, value] : entry.fields)
      EXPECT_EQ(std::count(value.begin(), value.end(), '{'), std::count(value.begin(), value.end(), '}')) << entry.key << " " << name;
  }
}

// "Name et al. 2024, arXiv:..." in a card is the first author and the year of the entry with this number, or the year of the number.
TEST_F(CiteTest, CardsNameTheAuthorsOfTheirNumbers) {
  static const std::regex citation(
      R"(([A-Z][A-Za-z'-]+)( et al\.| and (?:[A-Z][a-z]+ )?([A-Z][A-Za-z'-]+))? (20[0-9]{2}),(?: [A-Z]+,)? arXiv:([0-9.]+[0-9]))");
  const References references;
  std::size_t checked = 0;
  for_each_card([&](const std::string& kind, const Item& item) {
    for (auto at = std::sregex_iterator(item.source.begin(), item.source.end(), citation); at != std::sregex_iterator(); ++at) {
      const std::vector<const Reference*> cited = references.cited_in("arXiv:" + (*at)[5].str());
      ASSERT_EQ(cited.size(), 1U) << item.source;
      const std::vector<std::string> authors = surnames_of(*cited[0]);
      const std::string where = kind + " " + item.name + ": " + (*at)[0].str() + " of " + cited[0]->field("author");
      EXPECT_TRUE(ends_with_word(authors.at(0), (*at)[1])) << where;
      if ((*at)[3].matched) {
        EXPECT_TRUE(authors.size() == 2 && ends_with_word(authors[1], (*at)[3])) << where;
      } else if ((*at)[2].matched) {
        EXPECT_TRUE(authors.size() > 2 || authors.back() == "others") << where;
      }
      EXPECT_TRUE((*at)[4] == cited[0]->field("year") || (*at)[4] == "20" + (*at)[5].str().substr(0, 2)) << where;
      ++checked;
    }
  });
  EXPECT_GT(checked, 200U);
}

TEST_F(CiteTest, FormOfTheFileIsChecked) {
  const std::vector<Reference> read =
      parse_references("% remark\n\n@misc{a1,\n  title = {{A {B}}},\n  cited_as = {A},\n  year = {2020}\n}\n", "r");
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].field("title"), "{A {B}}");
  EXPECT_EQ(read[0].text(), "@misc{a1,\n  title = {{A {B}}},\n  year = {2020}\n}");
  EXPECT_EQ(error_of([] { parse_references("@misc{a,\n  year = 2020\n}\n", "r.bib"); }),
            "r.bib:2: a field is '  name = {value},' on one line");
  EXPECT_EQ(error_of([] { parse_references("@misc{a,\n}\n@misc{a,\n}\n", "r.bib"); }), "r.bib:3: the key 'a' is there twice");
  EXPECT_EQ(error_of([] { parse_references("@misc{a,\n  year = {1},\n  year = {2}\n}\n", "r.bib"); }),
            "r.bib:3: the field 'year' is there twice");
  EXPECT_EQ(error_of([] { parse_references("@misc{a,\n  year = {1}\n", "r.bib"); }), "r.bib:2: the entry 'a' has no closing '}'");
  EXPECT_EQ(error_of([] { parse_references("misc{a,\n", "r.bib"); }), "r.bib:1: an entry begins with '@type{key,'");
}

TEST_F(CiteTest, KnownPapersAreCitedAndOthersAreRemarked) {
  const std::string sarathi = citations({"sarathi"});
  EXPECT_THAT(sarathi,
              has_all({"Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", "eprint = {2308.16369}", "@misc{kvlab,"}));
  EXPECT_THAT(sarathi, Not(HasSubstr("unverified")));
  EXPECT_THAT(citations({"belady"}), HasSubstr("A study of replacement algorithms"));
  EXPECT_THAT(citations({"round_robin"}), HasSubstr("% round_robin (dispatchers): no paper; folklore"));
  EXPECT_THAT(citations({"round_robin"}), Not(HasSubstr("@misc{kvlab_")));
  EXPECT_THAT(citations({"orca"}), Not(HasSubstr("cited_as")));
  EXPECT_THAT(error_of([] { citations({"sarati"}); }), HasSubstr("did you mean 'sarathi'?"));
}

TEST_F(CiteTest, AResultCitesWhatItUsed) {
  write("exp.yaml", std::string(kSmall) + "scheduler: [orca, {sarathi: {budget_tokens: 256}}]\nkv_policy: full\n");
  call_ok({"run", "exp.yaml", "--quiet"});
  const Called called = call_ok({"cite", "results/small"});
  EXPECT_THAT(called.out,
              has_all({"Orca: A Distributed Serving System", "Sarathi-Serve", "https://huggingface.co/meta-llama/Llama-3.1-8B"}));
  EXPECT_THAT(called.out, Not(HasSubstr("S3-FIFO")));
  EXPECT_EQ(call({"cite", "."}).err, "kvlab: .: is no results folder: it has no resolved.yaml\n");
}

}  // namespace
}  // namespace kvlab
