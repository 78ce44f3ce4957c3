// Properties of every recipe, over drawn shapes, prompts, chunks and budgets.

#include <optional>
#include <set>

#include "tests/kv/host_fixture.h"
#include "tests/short_run.h"

namespace kvlab::test {
namespace {

constexpr std::int32_t kEdgeTokens = 16;

// One step of a recipe, watched from outside.
struct WatchedStep {
  bool fits_budget = true;  // so far the budget left what always stays
  SeqStep seq;
  std::vector<std::optional<std::int32_t>> target;   // [layer] that the trigger asks for
  std::vector<std::vector<std::int32_t>> positions;  // [layer * kv_heads + head] after the step, ascending
  std::vector<float> outputs;                        // of decode, layer by layer
  TierBytes resident;
  std::int64_t rows_bytes = 0;  // bytes of the rows according to the format
  Traffic traffic;
};

bool same(const WatchedStep& a, const WatchedStep& b) {
  const auto bits = [](const std::vector<float>& x) {
    const auto* p = reinterpret_cast<const std::uint32_t*>(x.data());
    return std::vector<std::uint32_t>(p, p + x.size());
  };
  return a.positions == b.positions && bits(a.outputs) == bits(b.outputs) && a.resident == b.resident;
}

// Results of a recipe in each step of a sample.
std::vector<WatchedStep> watch(const AttentionTrace& trace, const Recipe& recipe) {
  PolicyWalk walk(trace, recipe);
  const auto format = recipe.make_format();
  const std::int64_t width = std::int64_t{walk.model.q_heads} * walk.model.head_dim;
  std::vector<WatchedStep> steps;
  bool fits = true;
  std::int32_t begin = 0;
  for (const std::int32_t end : step_ends(trace)) {
    WatchedStep& w = steps.emplace_back();
    w.seq = {0, begin, end - begin, trace.prompt_tokens, trace.question_begin};
    w.fits_budget = fits = fits && walk.policy.keeps_what_stays(w.seq);
    walk.step(w.seq, [&](const PolicyStep& step, std::int32_t l) {
      const KvStore& store = nth(walk.stores, l);
      if (w.seq.decoding()) {
        const float* const out = walk.attend(step, l);
        w.outputs.insert(w.outputs.end(), out, out + width);
      }
      std::vector<std::int32_t> held;
      for (std::int32_t r = 0; r < store.num_rows(); ++r) held.push_back(store.len(r));
      w.target.push_back(walk.policy.target(w.seq, l, held));
    });
    for (std::int32_t l = 0; l < walk.model.num_layers; ++l) {
      const KvRows kv = nth(walk.stores, l).rows();
      w.resident += walk.policy.resident(l, std::span(&w.seq, 1), kv);
      for (std::int32_t r = 0; r < kv.num_rows; ++r) {
        std::vector<std::int32_t>& positions = w.positions.emplace_back();
        for (std::int32_t i = 0; i < kv.len[r]; ++i) positions.push_back(kv.position[kv.slot(r, i)]);
        std::sort(positions.begin(), positions.end());
        w.rows_bytes += format->row_bytes(walk.model, l, kv.len[r]);
      }
    }
    w.traffic = walk.policy.take_traffic();
    begin = end;
  }
  return steps;
}

// Why the recipe refuses the sample, before anything runs.
std::string refusal(const Recipe& recipe, const AttentionTrace& trace) {
  return error_of([&] { const KvPolicy policy(recipe, shape_of(trace, 2)); });
}

Recipe with(const std::string& name, const std::string& budget) {
  return recipe_of("{recipe: " + name + (budget.empty() ? "" : ", " + budget) + "}");
}
Recipe with_tokens(const std::string& name, std::int32_t tokens) { return with(name, "budget_tokens: " + std::to_string(tokens)); }

// The smallest budget that is not refused.
std::int32_t least_budget(const std::string& name, const AttentionTrace& trace) {
  std::int32_t low = 0, high = 4 * trace.num_tokens + 1024;
  while (high - low > 1) {
    const std::int32_t middle = (low + high) / 2;
    (refusal(with_tokens(name, middle), trace) == "no error" ? high : low) = middle;
  }
  return high;
}

// How many tokens per row a recipe may hold after a step, on average over layers and heads; written down anew for each trigger.
std::optional<double> most_held(const Recipe& r, const SeqStep& seq, std::int32_t budget) {
  const bool done = seq.end() >= seq.prompt_tokens;
  const std::int32_t decoded = std::max(0, seq.end() - seq.prompt_tokens);
  const double prompt = std::min(budget, seq.prompt_tokens);
  if (r.trigger == "per_chunk") return prompt + decoded;
  if (!done) return r.make_trigger()->inside_prefill() ? std::optional<double>(budget) : std::nullopt;
  if (r.trigger == "prefill_end") return prompt + decoded;
  if (r.trigger == "every_step" || r.trigger == "when_full") return budget;
  if (r.trigger == "every_n") return decoded == 0 ? budget : budget + 127;
  if (r.trigger == "page_full") return std::max(budget, 16) + (decoded == 0 ? 0 : 15);
  if (r.trigger == "scope")
    return decoded == 0 ? prompt : prompt + (r.name == "scope_slide" ? 512 : 256 + decoded / 15 + (r.name == "scope_adaptive" ? 0 : 15));
  if (r.trigger == "lagged") {
    const auto partitions = [](std::int32_t n) { return std::max(0, (n - 16) / 128 - 1); };
    const std::int32_t least = seq.prompt_tokens - partitions(seq.prompt_tokens) * 128;
    if (r.budget.tokens > 0 && decoded == 0) return std::max(budget, least);
    double kept = std::floor(r.budget.frac * 128);
    if (r.budget.tokens > 0)
      kept = budget >= seq.prompt_tokens ? 128 : std::max(0, budget - least) / std::max(1, partitions(seq.prompt_tokens));
    return seq.end() - partitions(seq.end()) * (128 - kept);
  }
  ADD_FAILURE() << "trigger '" << r.trigger << "' has no bound here";
  return std::nullopt;
}

// Recipes that keep to their budget in the sense of most_held. The others: whole heads or layers, tables and thresholds are what the
// budget leaves alone, low precision keeps all tokens, and peers round as they do.
bool keeps_budget(const Recipe& r) {
  static const std::set<std::string> kOthers{"head_split", "lazy_layers", "table", "score_threshold"};
  static const std::string kOneMore = "kvpress_kvcompose";  // a layer that is left with nothing keeps one token more, as its peer's does
  return r.trigger != "never" && !r.peer_ties && r.name != kOneMore && !kOthers.contains(r.allocator) && r.make_disposal()->shrinks();
}

void expect_positions(const WatchedStep& w) {
  for (const std::vector<std::int32_t>& row : w.positions) {
    EXPECT_LE(row.size(), static_cast<std::size_t>(w.seq.end()));
    EXPECT_TRUE(std::adjacent_find(row.begin(), row.end(), std::greater_equal<>()) == row.end()) << "each position is held once";
    if (!row.empty()) {
      EXPECT_GE(row.front(), 0);
      EXPECT_LT(row.back(), w.seq.end());
    }
  }
}

void expect_budget(const Recipe& r, const WatchedStep& w) {
  if (!keeps_budget(r) || !w.fits_budget) return;
  const std::optional<double> most = most_held(r, w.seq, r.budget.of(w.seq.prompt_tokens));
  if (!most) return;
  double held = 0;
  for (const std::vector<std::int32_t>& row : w.positions) {
    const auto size = static_cast<double>(row.size());
    if (r.allocator == "uniform") {
      EXPECT_LE(size, *most);
    }
    held += size;
  }
  // Rows that share one total round the total of a share, not each row's.
  const double share = r.budget.tokens > 0 || r.allocator == "uniform" ? 0 : r.budget.frac * w.seq.prompt_tokens;
  EXPECT_LE(held / static_cast<double>(w.positions.size()), *most + (share - std::floor(share)) + 1e-9);
}

// The first and the latest tokens that the parts protect are in every row after a cut, the first ones before the latest.
void expect_protected(const Recipe& r, const WatchedStep& w) {
  if (r.scorer.empty() || r.peer_ties) return;
  const auto scorer = r.make_scorer();
  const auto trigger = r.make_trigger();
  const Protected a = scorer->protects(), b = trigger->protects(w.seq);
  const auto heads = w.positions.size() / w.target.size();
  for (std::size_t i = 0; i < w.positions.size(); ++i) {
    const std::optional<std::int32_t> target = w.target[i / heads];
    if (!target) continue;
    const std::vector<std::int32_t>& row = w.positions[i];
    const auto kept = static_cast<std::int32_t>(row.size());
    const std::int32_t sinks = std::max(a.sinks, b.sinks), room = std::max(0, kept - sinks);
    const std::int32_t recent = std::min(room, std::max(a.recent_of(kept), b.recent_of(kept)));
    std::int32_t missing = 0;
    for (std::int32_t p = 0; p < w.seq.end(); ++p)
      missing += (p < sinks || p >= w.seq.end() - recent) && !std::binary_search(row.begin(), row.end(), p) ? 1 : 0;
    EXPECT_EQ(missing, 0) << "of the " << sinks << " first and " << recent << " latest tokens of row " << i;
  }
}

// Every byte that the rows need is in some tier.
void expect_bytes(const Recipe& r, const WatchedStep& w, const ModelShape& model) {
  EXPECT_GE(w.resident.gpu, 0);
  EXPECT_GE(w.resident.host, 0);
  EXPECT_GE(w.resident.disk, 0);
  const std::int64_t all = w.resident.gpu + w.resident.host + w.resident.disk;
  // Others: two layers in one, low precision beside the format, sizes that are measured while it runs, and a coded disk.
  static const std::set<std::string> kSmaller{"layer_pairs", "low_precision", "cachegen", "dfloat11", "zipcache", "leo_am"};
  if (!kSmaller.contains(r.disposal) && !kSmaller.contains(r.format) && !kSmaller.contains(r.selector)) {
    EXPECT_GE(all, w.rows_bytes);
  }
  if (r.keeps_everything() && r.disposal == "drop") {
    EXPECT_EQ(w.resident.gpu, 2LL * w.seq.end() * model.num_layers * model.kv_heads * model.head_dim * model.kv_bytes);
    EXPECT_EQ(all, w.resident.gpu);
  }
  EXPECT_GE(w.traffic.fetched_bytes, 0);
  EXPECT_GE(w.traffic.stored_bytes, 0);
  EXPECT_LE(w.traffic.hit_units, w.traffic.asked_units);
}

void expect_sound(const AttentionTrace& trace, const Recipe& recipe) {
  const std::vector<WatchedStep> steps = watch(trace, recipe), again = watch(trace, recipe);
  ASSERT_EQ(steps.size(), again.size());
  for (std::size_t t = 0; t < steps.size(); ++t) {
    SCOPED_TRACE("step " + std::to_string(t) + ", tokens up to " + std::to_string(steps[t].seq.end()));
    expect_positions(steps[t]);
    expect_budget(recipe, steps[t]);
    expect_protected(recipe, steps[t]);
    expect_bytes(recipe, steps[t], shape_of(trace, 2));
    EXPECT_TRUE(std::all_of(steps[t].outputs.begin(), steps[t].outputs.end(), [](float x) { return std::isfinite(x); }));
    EXPECT_TRUE(same(steps[t], again[t])) << "a second run differs";
    if (::testing::Test::HasFailure()) return;
  }
}

// A budget that is never reached changes nothing, to the last bit.
bool loses_nothing_at_full_budget(const Recipe& r) {
  // For these, a threshold or a share of the attention decides how much is read.
  return r.has_budget && r.format == "native" && r.selector != "infinigen" && r.selector != "twilight";
}

std::int32_t pick(std::uint64_t draw, std::uint64_t what, std::int32_t n) {
  return static_cast<std::int32_t>(Draw{21, Purpose::kTest, draw, what}.below(static_cast<std::uint64_t>(n)));
}

SampleShape drawn_shape(std::uint64_t draw) {
  constexpr std::int32_t kGroups[] = {1, 3, 4, 8}, kDims[] = {16, 32, 48, 64};
  SampleShape s;
  s.layers = 1 + static_cast<std::int32_t>(draw % 4);
  s.kv_heads = 1 + pick(draw, 0, 3);
  s.q_heads = s.kv_heads * kGroups[pick(draw, 1, 4)];
  s.head_dim = kDims[pick(draw, 2, 4)];
  const std::int32_t edges[] = {1, kEdgeTokens - 1, kEdgeTokens, kEdgeTokens + 1};
  s.prompt = draw % 3 == 0 ? edges[draw / 3 % 4] : 18 + pick(draw, 3, 383);
  s.decode = 2 + pick(draw, 4, 20);
  s.chunk = pick(draw, 5, 2) == 0 ? 0 : 1 + pick(draw, 6, std::min(150, s.prompt));
  s.seed = 100 + draw;
  return s;
}

std::string words(const SampleShape& s) {
  return fmt::format("{} layers, {}/{} heads of {}, prompt {} in chunks of {}, then {}", s.layers, s.q_heads, s.kv_heads, s.head_dim,
                     s.prompt, s.chunk, s.decode);
}

class EveryRecipe : public testing::TestWithParam<std::string> {
 protected:
  // The budgets to try, as YAML; "" is the recipe's own.
  static std::vector<std::string> budgets(const std::string& name, const AttentionTrace& trace, std::uint64_t draw) {
    const Recipe own = load_recipe(name);
    if (!why_no_budget(own).empty()) return {""};
    const std::int32_t n = trace.num_tokens, least = least_budget(name, trace);
    std::vector<std::string> all;
    for (const std::int32_t tokens : {least, least + pick(draw, 7, std::max(1, n - least)), n, n + 40})
      all.push_back("budget_tokens: " + std::to_string(std::max(least, tokens)));
    all.push_back("budget_frac: " + std::to_string(0.05 + 0.9 * Draw{22, Purpose::kTest, draw, 0}.uniform()));
    return all;
  }
};

TEST_P(EveryRecipe, KeepsItsPromises) {
  for (std::uint64_t draw = 0; draw < (full_run() ? 12 : short_run() ? 2 : 5); ++draw) {
    const SampleShape shape = drawn_shape(draw);
    const Sampled& d = sampled(shape);
    for (const std::string& budget : budgets(GetParam(), d.trace, draw)) {
      SCOPED_TRACE("{recipe: " + GetParam() + ", " + budget + "}, " + words(shape));
      const Recipe recipe = with(GetParam(), budget);
      if (const std::string why = refusal(recipe, d.trace); why != "no error") {
        EXPECT_TRUE(why.starts_with("recipe '" + GetParam() + "' cannot run: ")) << why;
        continue;
      }
      expect_sound(d.trace, recipe);
      const ReplayResult result = expect_cost_is_replay(d.trace, d.reference, recipe);
      const bool all_fits = recipe.budget.tokens >= d.trace.num_tokens;
      if (all_fits && loses_nothing_at_full_budget(recipe)) {
        EXPECT_EQ(std::tuple(result.mean.output_rel_err, result.kept_tokens), std::tuple(0, d.trace.prompt_tokens));
      }
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, EveryRecipe, testing::ValuesIn(recipes_in({"replay"})), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvlab::test
