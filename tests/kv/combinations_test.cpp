// Parts with parts that no recipe has together: each runs for three steps or is refused, and none ends the process.
#include <sys/mman.h>
#include <sys/wait.h>
#include <tbb/task_arena.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "tests/has_all.h"
#include "tests/kv/host_fixture.h"
#include "tests/short_run.h"

namespace kvlab::test {
namespace {

constexpr SampleShape kSmallSample{2, 4, 2, 32, 50, 3, 30};

// Parts with a parameter that has no default, or whose default is refused.
const std::map<std::string, std::string> kGiven{{"whitelist", "span_tokens: 4"}, {"table", "unit: budget_frac, values: 0=1.5"}};

std::string with_parameters(const std::string& name, const std::string& more = "") {
  const std::string own = kGiven.contains(name) ? kGiven.at(name) : "";
  if (own.empty() && more.empty()) return name;
  return fmt::format("{{{}: {{{}{}{}}}}}", name, own, own.empty() || more.empty() ? "" : ", ", more);
}

template <class Part>
std::vector<std::string> all_parts() {
  std::vector<std::string> parts;
  for (const std::string& name : Registry<Part>::names()) parts.push_back(with_parameters(name));
  return parts;
}

// Scorers that build on another one, by the key that names it, with the options that change what they pass on.
std::vector<std::string> wrapped(const std::string& scorer) {
  std::vector<std::string> all;
  for (const char* name : {"blocks", "chunks", "composite", "entropy_chunks", "fair", "graph", "output_aware", "representatives", "slices",
                           "text_first", "value_aware", "whitelist"})
    all.push_back(with_parameters(name, "of: " + scorer));
  all.push_back(with_parameters("slices", "of: " + scorer + ", slice_tokens: 20, scored: alone"));
  all.push_back(with_parameters("blocks", "of: " + scorer + ", block_tokens: 7, peer_ties: true"));
  all.push_back(
      with_parameters("chunks", "of: " + scorer + ", chunk_tokens: 6, protect: above_max, budget_of_chunks: true, peer_ties: true"));
  all.push_back(with_parameters("output_aware", "of: " + scorer + ", first_stage: of_budget, protect: above_max"));
  all.push_back(with_parameters("text_first", "of: " + scorer + ", image_id: 3"));
  all.push_back(with_parameters("scope", "prompt: " + scorer));
  return all;
}

std::string recipe_text(const std::string& parts, bool as_share = false) {
  return fmt::format("{{recipe: snapkv, {}, {}}}", as_share ? "budget_frac: 0.5" : "budget_tokens: 24", parts);
}

// One combination in both hosts. Returns what is wrong with it: an error other than a refusal.
std::string try_combination(const std::string& text, bool& ran) {
  try {
    const Recipe recipe = recipe_of(text);
    AttentionTrace trace = sample(kSmallSample);
    const KvPolicy policy(recipe, shape_of(trace, 2));
    if (const std::string& pass = policy.needs().pass; !pass.empty()) add_pass(trace, pass);
    if (recipe.runs_in("cost")) replay_shapes(trace, recipe, nullptr);
    ran = true;
    if (recipe.runs_in("replay")) replay(trace, full_attention(trace), recipe);
  } catch (const InputError&) {  // a refusal
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

// Between a child process and this one.
struct Shared {
  std::size_t at = 0, ran = 0, num_wrong = 0;
  char wrong[16][800];  // NOLINT(*-c-arrays)
};

[[noreturn]] void run_child(const std::vector<std::string>& texts, Shared& shared) {
  tbb::task_arena here(1);  // no threads of other processes are waited for
  here.execute([&] {
    for (; shared.at < texts.size(); ++shared.at) {
      ::alarm(120);
      bool ran = false;
      const std::string wrong = try_combination(texts[shared.at], ran);
      shared.ran += ran ? 1 : 0;
      if (wrong.empty()) continue;
      if (shared.num_wrong < std::size(shared.wrong))
        std::strncpy(shared.wrong[shared.num_wrong], (texts[shared.at] + "\n  " + wrong).c_str(), sizeof(shared.wrong[0]) - 1);
      ++shared.num_wrong;
    }
  });
  ::_exit(0);
}

// Tries the combinations in child processes, a new one after each that ended by a signal. `least`: share of them that must run.
void expect_no_signal(const std::vector<std::string>& texts, double least) {
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& shared = *new (memory) Shared();
  while (shared.at < texts.size()) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) run_child(texts, shared);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ADD_FAILURE() << texts[shared.at]
                  << "\n  ended the process: " << (WIFSIGNALED(status) ? ::strsignal(WTERMSIG(status)) : "an error that no one caught");
    ++shared.at;
  }
  for (std::size_t i = 0; i < std::min(shared.num_wrong, std::size(shared.wrong)); ++i) ADD_FAILURE() << shared.wrong[i];
  EXPECT_LE(shared.num_wrong, std::size(shared.wrong)) << "only the first ones are shown";
  EXPECT_GE(static_cast<double>(shared.ran), least * static_cast<double>(texts.size())) << "of " << texts.size();
  ::munmap(memory, sizeof(Shared));
}

// Every n-th: a tenth of them, an eightieth in a short run, with KVLAB_FULL all.
std::vector<std::string> some(const std::vector<std::string>& texts) {
  if (full_run()) return texts;
  std::vector<std::string> chosen;
  for (std::size_t i = 0; i < texts.size(); i += short_run() ? 79 : 11) chosen.push_back(texts[i]);
  return chosen;
}

TEST(Combinations, EveryScorerInEveryWrapper) {
  std::vector<std::string> texts;
  for (const std::string& scorer : all_parts<Scorer>())
    for (const std::string& wrapper : wrapped(scorer))
      for (const char* trigger : {"prefill_end", "every_step"})
        texts.push_back(recipe_text(fmt::format("scorer: {}, trigger: {}", wrapper, trigger), wrapper.size() % 2 == 0));
  if (short_run()) texts = some(texts);
  expect_no_signal(texts, 0.3);
}

TEST(Combinations, WrappersInWrappers) {
  std::vector<std::string> texts;
  for (const char* scorer : {"key_norm", "window_attention", "accumulated_attention", "oracle", "question_attention", "hidden_gate"})
    for (const std::string& inner : wrapped(scorer))
      for (const std::string& outer : wrapped(inner)) texts.push_back(recipe_text("scorer: " + outer, outer.size() % 2 == 0));
  expect_no_signal(some(texts), 0.1);
}

template <class Part>
std::vector<std::string> every_scorer_with(const std::string& kind, const std::string& more = "") {
  std::vector<std::string> texts;
  for (const std::string& scorer : all_parts<Scorer>())
    for (const std::string& part : all_parts<Part>())
      texts.push_back(recipe_text(fmt::format("scorer: {}, {}: {}{}", scorer, kind, part, more), texts.size() % 2 == 0));
  return texts;
}

TEST(Combinations, EveryScorerWithEveryAllocator) { expect_no_signal(some(every_scorer_with<Allocator>("allocator")), 0.4); }
TEST(Combinations, EveryScorerWithEveryTrigger) { expect_no_signal(some(every_scorer_with<Trigger>("trigger")), 0.4); }
TEST(Combinations, EveryScorerWithEveryDisposal) { expect_no_signal(some(every_scorer_with<Disposal>("disposal")), 0.4); }
TEST(Combinations, EveryScorerWithEveryFormat) { expect_no_signal(some(every_scorer_with<Format>("format")), 0.4); }
TEST(Combinations, EveryScorerWithEverySelector) { expect_no_signal(some(every_scorer_with<Selector>("selector")), 0.2); }
TEST(Combinations, EveryScorerWithEveryDisposalInDecode) {
  expect_no_signal(some(every_scorer_with<Disposal>("disposal", ", trigger: every_step")), 0.2);
}

TEST(Combinations, EveryPartWithEveryOther) {
  std::vector<std::string> texts;
  for (const std::string& allocator : all_parts<Allocator>())
    for (const std::string& trigger : all_parts<Trigger>())
      for (const std::string& disposal : all_parts<Disposal>())
        texts.push_back(recipe_text(fmt::format("allocator: {}, trigger: {}, disposal: {}", allocator, trigger, disposal), true));
  for (const std::string& format : all_parts<Format>())
    for (const std::string& selector : all_parts<Selector>()) {
      texts.push_back(fmt::format("{{recipe: full, format: {}, selector: {}}}", format, selector));
      texts.push_back(recipe_text(fmt::format("format: {}, selector: {}", format, selector)));
      texts.push_back(fmt::format("{{recipe: full, format: {}, selector: {{twilight: {{of: {}}}}}}}", format, selector));
    }
  for (const std::string& layers : all_parts<Allocator>())
    for (const std::string& trigger : all_parts<Trigger>())
      texts.push_back(recipe_text(fmt::format("allocator: {{ada: {{layers: {}}}}}, trigger: {}", layers, trigger)));
  for (const std::string& selector : all_parts<PrefillSelector>()) {
    texts.push_back("{recipe: full, prefill_selector: " + selector + "}");
    texts.push_back("{recipe: full, prefill_selector: {delta: {of: " + selector + "}}}");
  }
  expect_no_signal(some(texts), 0.1);
}

// A wrapper that builds blocks or slices of a step hands over what the inner scorer reads, or refuses it by name.
TEST(Combinations, RefusalsNameThePlaceAndWhatToType) {
  const auto refusal = [](const std::string& scorer) {
    return error_of([&] { recipe_of("{recipe: snapkv, budget_tokens: 24, scorer: " + scorer + "}"); });
  };
  EXPECT_THAT(refusal("{slices: {of: oracle, slice_tokens: 50, scored: alone}}"),
              has_all({":1:", "'slices' cannot build on 'oracle', which reads the queries still to come: take one of ", ", key_norm, ",
                       "or 'scored: in_prompt'"}));
  EXPECT_THAT(refusal("{blocks: {of: {output_aware: {of: key_norm}}}}"),
              has_all({"which ranks tokens anew once counts are known", "{output_aware: {of: key_norm, first_stage: of_budget}}"}));
  EXPECT_EQ(refusal("{blocks: {of: {output_aware: {of: key_norm, first_stage: of_budget}}}}"), "no error");
  EXPECT_THAT(refusal("{chunks: {of: {output_aware: {of: key_norm, first_stage: of_budget}}}}"),
              HasSubstr("in which sums and means overflow"));
  EXPECT_NE(refusal("{chunks: {of: {value_aware: {of: {output_aware: {of: key_norm, first_stage: of_budget}}}}}}"), "no error");
  EXPECT_NE(refusal("{scope: {prompt: {fair: {of: key_norm}}}}"), "no error");
}

}  // namespace
}  // namespace kvlab::test
