#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "calibrate/recipe_ops.h"
#include "tests/cuda/shape_model.h"
#include "tests/cuda/written_words.h"
#include "tests/recipes_in.h"

namespace kvlab {
namespace {

// A recipe with a budget that it has to cut the prompt to, where it takes one.
struct Cut {
  Recipe recipe;
  std::int32_t prompt = 72, layers = 2;

  [[nodiscard]] EngineSequence sequence(std::int32_t index = 0) const {
    const std::int32_t tokens = prompt - 9 * index;  // a batch is ragged
    EngineSequence s = sequence_of(index, tiny_ids(tokens + 8, 3 + index), tokens);
    s.question_begin = tokens - 9;
    return s;
  }
};

PolicyCache cache_for(const Cut& cut, TensorMemory memory, ElementType type) {
  return PolicyCache(std::make_unique<ShapeModel>(cut.layers, memory, type), cut.recipe, {});
}

bool is_accepted(const Cut& cut) {
  try {
    PolicyCache cache = cache_for(cut, TensorMemory(), ElementType::kF32);
    EngineSequence s = cut.sequence();
    cache.start(s);
    cache.policy().refuse_small_budget({0, 0, cut.prompt, cut.prompt, -1});
    cache.release(s);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

Cut cut_of(const std::string& name) {
  const Recipe recipe = load_recipe(name);
  if (!why_no_budget(recipe).empty()) return recipe.selector == "all" ? Cut{recipe} : Cut{recipe, 200, 4};
  // Selectors attend to everything in up to three layers, and to what is too short for them.
  const std::int32_t prompt = recipe.selector == "all" ? 72 : recipe.name == "rekv" ? 800 : 200, layers = recipe.selector == "all" ? 2 : 4;
  for (const std::int32_t budget : {16, 24, 40, 56, 72}) {
    const Cut small{load_recipe(name, budget), prompt, layers};
    if (is_accepted(small)) return small;
  }
  return {load_recipe(name, 136), 200};  // it always keeps the latest 128
}

// Positions of the tokens in each row of a sequence, by layer and head.
using Held = std::vector<std::vector<std::int32_t>>;

struct RecipeOutcome {
  std::vector<Held> held;                // [steps]
  std::vector<std::vector<float>> outs;  // attention's outputs
  TierBytes resident;
  Held offloaded;  // positions
};

class EngineRecipesCuda : public CudaTest, public testing::WithParamInterface<std::string> {
 protected:
  // A prompt in two chunks and a few decode steps.
  RecipeOutcome run(const Cut& cut, bool on_gpu) {
    const TensorMemory memory = on_gpu ? TensorMemory(cuda()) : TensorMemory();
    PolicyCache cache = cache_for(cut, memory, on_gpu ? ElementType::kBf16 : ElementType::kF32);
    EngineSequence s = cut.sequence();
    cache.start(s);
    RecipeOutcome outcome;
    std::uint64_t seed = 7;
    for (const std::int32_t tokens : {48, cut.prompt - 48, 1, 1, 1}) {
      const StepPiece piece{&s, tokens};
      cache.begin_step({&piece, 1});
      for (std::int32_t l = 0; l < cut.layers; ++l) outcome.outs.push_back(layer(cache, l, tokens, seed += 10, on_gpu));
      cache.end_step({});
      outcome.held.push_back(cache.positions(s));
    }
    outcome.resident = cache.resident(s);
    for (const EngineSequence::Offloaded& row : s.offloaded) outcome.offloaded.push_back(row.position);
    cache.release(s);
    EXPECT_EQ(cache.pages().used_pages(), 0) << cut.recipe.name;
    return outcome;
  }

  std::vector<float> layer(PolicyCache& cache, std::int32_t l, std::int32_t tokens, std::uint64_t seed, bool on_gpu) {
    return on_gpu ? run_layer<bf16>(cache, l, tokens, seed, cuda()) : run_layer(cache, l, tokens, seed);
  }
};

TEST_P(EngineRecipesCuda, KeepsTheSameTokensAsOnTheCpu) {
  const Cut recipe = cut_of(GetParam());
  const Needs needs = cache_for(recipe, TensorMemory(), ElementType::kF32).policy().needs();
  if (!needs.cpu_only.empty() || !needs.pass.empty()) {
    EXPECT_THAT(error_of([&] { run(recipe, true); }), testing::HasSubstr("only with backend cpu"));
    return;
  }
  const RecipeOutcome cpu = run(recipe, false), gpu = run(recipe, true);
  std::int64_t kept = 0, apart = 0;  // a near tie may go either way where sums are taken in another order
  for (std::size_t i = 0; i < cpu.held.size(); ++i)
    for (std::size_t r = 0; r < cpu.held[i].size(); ++r) {
      ASSERT_EQ(gpu.held[i][r].size(), cpu.held[i][r].size()) << "step " << i << " row " << r;
      for (std::size_t t = 0; t < cpu.held[i][r].size(); ++t) ++kept, apart += cpu.held[i][r][t] != gpu.held[i][r][t] ? 1 : 0;
    }
  EXPECT_EQ(apart, 0) << "of " << kept << " kept tokens";
  EXPECT_EQ(gpu.resident, cpu.resident);
  EXPECT_EQ(gpu.offloaded, cpu.offloaded);
  for (std::size_t i = 0; i < cpu.outs.size(); ++i) {
    // Outputs are rounded to bf16, and probabilities in prefill before they meet V.
    EXPECT_LE(relative_error(gpu.outs[i], cpu.outs[i]), 0.01) << "pass " << i;
  }
  if (recipe.recipe.selector == "all" || GetParam() == "moba") return;  // moba reads two chunks of 512 tokens at least
  const RecipeOutcome full = run({load_recipe("full"), recipe.prompt, recipe.layers}, false);
  EXPECT_GT(relative_error(cpu.outs.back(), full.outs.back()), 0.01) << "it selects everything";
}

INSTANTIATE_TEST_SUITE_P(Recipes, EngineRecipesCuda, testing::ValuesIn(recipes_in({"engine"})),
                         [](const auto& info) { return info.param; });

#if KVLAB_EMULATED

const std::string kFile = std::string(KVLAB_SOURCE_DIR) + "/tests/kernels/golden_ops.txt";

// Two ragged sequences of a recipe that has to cut their prompts: prompts in two chunks, then three decode steps.
template <class Layer>
void run(PolicyCache& cache, const Cut& cut, Layer&& layer) {
  EngineSequence a = cut.sequence(0), b = cut.sequence(1);
  cache.start(a), cache.start(b);
  std::uint64_t seed = 7;
  for (const auto& [first, second] : {std::pair{48, 40}, {cut.prompt - 48, cut.prompt - 49}, {1, 1}, {1, 1}, {1, 1}}) {
    const StepPiece pieces[] = {{&a, first}, {&b, second}};
    cache.begin_step(pieces);
    for (std::int32_t l = 0; l < cut.layers; ++l) layer(l, first + second, seed += 10);
    cache.end_step({});
  }
  cache.release(a), cache.release(b);
}

std::map<std::string, WrittenWords::Op> on_cpu(const Cut& cut) {
  WrittenOnCpu written;
  PolicyCache cache = cache_for(cut, TensorMemory(), ElementType::kF32);
  written.follow(cache.ops());
  run(cache, cut, [&](std::int32_t l, std::int32_t tokens, std::uint64_t seed) {
    const LayerInputs in(tokens, seed);
    std::vector<float> out(in.q.size());
    written.output = {reinterpret_cast<const std::uint32_t*>(out.data()), out.size()};
    cache.before_rope(l, in.hidden.data(), in.pre_q.data(), in.pre_k.data());
    cache.attend(l, in.q.data(), in.k.data(), in.v.data(), out.data());
    written.output = {};
  });
  return written.ops();
}

// The same steps in a small model, with whole prompts: for recipes that run further passes of it, or compute a part of a prompt.
std::map<std::string, WrittenWords::Op> in_model(const Cut& cut) {
  const std::unique_ptr<EngineModel> model = make_random_model("cpu", test::small_config(cut.layers));
  WrittenOnCpu written;
  const std::unique_ptr<PolicyCache> cache = model->make_cache(cut.recipe, {});
  written.follow(cache->ops());
  EngineSequence sequences[] = {cut.sequence(0), cut.sequence(1)};
  for (EngineSequence& s : sequences) cache->start(s);
  for (std::int32_t i = 0; i < 5; ++i) {
    std::vector<StepPiece> pieces;
    std::vector<std::int32_t> ids, positions;
    for (std::size_t s = 0; s < 2; ++s) {
      if (i < 2 && s != static_cast<std::size_t>(i)) continue;  // a prompt, the other prompt, then decode steps of both
      pieces.push_back({&sequences[s], i < 2 ? sequences[s].prompt_tokens : 1});
      for (std::int32_t t = 0; t < pieces.back().new_tokens; ++t) {
        positions.push_back(sequences[s].seen_tokens + t);
        ids.push_back(sequences[s].ids[static_cast<std::size_t>(positions.back())]);
      }
    }
    static_cast<void>(model->sample_step(*cache, pieces, {ids, positions}, {}));
  }
  for (EngineSequence& s : sequences) cache->release(s);
  return written.ops();
}

std::map<std::string, WrittenWords::Op> by_kernels(const Cut& cut, CudaContext& cuda) {
  WrittenByKernels written(cuda);
  PolicyCache cache = cache_for(cut, TensorMemory(cuda), ElementType::kBf16);
  cache.ops().time_with(&written);
  run(cache, cut, [&](std::int32_t l, std::int32_t tokens, std::uint64_t seed) { run_layer<bf16>(cache, l, tokens, seed, cuda); });
  return written.ops();
}

// "RECIPE OPERATION calls CALLS cpu ARCH:HASH emulated HASH": a line per operation that a recipe calls.
struct Line {
  std::string recipe, op;
  std::string calls, cpu, emulated = "-";
  [[nodiscard]] std::string text() const { return fmt::format("{} {} {} {} {}\n", recipe, op, calls, cpu, emulated); }
};

Line parsed(const std::string& text) {
  std::istringstream words(text);
  Line line;
  words >> line.recipe >> line.op >> line.calls >> line.cpu >> line.emulated;
  return line;
}

std::vector<Line> lines_of(const std::string& recipe, CudaContext& cuda) {
  const Cut cut = cut_of(recipe);
  const Needs needs = cache_for(cut, TensorMemory(), ElementType::kF32).policy().needs();
  const bool needs_model = !needs.pass.empty() || cut.recipe.prunes();
  const auto cpu = needs_model ? in_model(cut) : on_cpu(cut);
  const auto gpu = !needs.cpu_only.empty() || needs_model ? std::map<std::string, WrittenWords::Op>{} : by_kernels(cut, cuda);
  std::vector<Line> lines;
  for (const auto& [name, op] : cpu) {
    Line line{recipe, name, fmt::format("{}:{:08x}", op.calls, op.call.value), fmt::format("{:08x}", op.written.value)};
    if (const auto found = gpu.find(name); found != gpu.end())
      line.emulated = fmt::format("{}:{:08x}:{:08x}", found->second.calls, found->second.call.value, found->second.written.value);
    lines.push_back(line);
  }
  return lines;
}

// The file's lines of a recipe. Its first line names the architecture that the CPU's kernels were compiled for.
std::vector<std::string> recorded(const std::string& recipe, bool* is_same_arch) {
  std::ifstream file(kFile);
  std::vector<std::string> lines;
  std::string line;
  std::getline(file, line);
  *is_same_arch = line.ends_with(" " KVLAB_CPU_ARCH);
  while (std::getline(file, line))
    if (line.starts_with(recipe + " ")) lines.push_back(line + "\n");
  return lines;
}

// A line without what is not compared: the CPU's hash of written words on another architecture.
std::string compared(const std::string& line, bool is_same_arch) {
  Line parts = parsed(line);
  if (!is_same_arch) parts.cpu = "-";
  return parts.text();
}

// Recipes that together call every operation of the file.
std::vector<std::string> covering() {
  std::ifstream file(kFile);
  std::string text;
  std::getline(file, text);
  std::map<std::string, std::set<std::string>> ops;
  while (std::getline(file, text)) {
    const Line line = parsed(text);
    ops[line.recipe].insert(line.op);
  }
  return greedy_cover(ops);
}

// These fill lists in scratch memory in the order of their threads.
bool orders_scratch(const std::string& line) {
  const std::string op = parsed(line).op;
  return op == "merge_into" || op == "cluster_keys";
}

class GoldenOps : public CudaTest, public testing::WithParamInterface<std::string> {
 protected:
  void TearDown() override { emulated::set_order(emulated::Order::kForward); }
};

// Every operation by recipe: its calls, and the bits that it writes on the CPU and in the emulator, with threads in another order than the
// file's. Recipes that together call every operation; KVLAB_FULL=1: all, which takes four minutes. KVLAB_GOLDEN_OPS=FOLDER writes
// FOLDER/RECIPE.txt instead; tests/kernels/golden_ops.sh joins these to the file.
TEST_P(GoldenOps, WriteTheSameBits) {
  const char* const folder = std::getenv("KVLAB_GOLDEN_OPS");
  static const std::vector<std::string> cover = covering();
  if (!full_run() && folder == nullptr && std::find(cover.begin(), cover.end(), GetParam()) == cover.end())
    GTEST_SKIP() << "KVLAB_FULL=1 compares all recipes";
  bool is_same_arch = false;
  const std::vector<std::string> theirs = recorded(GetParam(), &is_same_arch);
  if (folder == nullptr && std::none_of(theirs.begin(), theirs.end(), orders_scratch)) emulated::set_order(emulated::Order::kShuffled);
  std::vector<std::string> ours;
  for (const Line& line : lines_of(GetParam(), cuda())) ours.push_back(line.text());
  if (folder != nullptr) {
    std::ofstream file(std::filesystem::path(folder) / (GetParam() + ".txt"));
    for (const std::string& line : ours) file << line;
    return;
  }
  ASSERT_EQ(ours.size(), theirs.size()) << "tests/kernels/golden_ops.sh writes the file again";
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_EQ(compared(ours[i], is_same_arch), compared(theirs[i], is_same_arch));
}

INSTANTIATE_TEST_SUITE_P(Recipes, GoldenOps, testing::ValuesIn(recipes_in({"engine"})), [](const auto& info) { return info.param; });

#endif

}  // namespace
}  // namespace kvlab
