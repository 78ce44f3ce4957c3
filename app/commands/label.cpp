#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <ostream>

#include "app/commands/command.h"
#include "app/results/safe_files.h"
#include "base/error.h"
#include "base/hugging_face.h"
#include "base/read_file.h"
#include "engine/label/label_heads.h"
#include "engine/label/prefill_patterns.h"
#include "engine/label/probe_prompts.h"

namespace kvlab {

namespace {

// `kvlab label heads`, `q_filters` and `prefill`: writes a recipe's `weights:`.
struct LabelCommand {
  std::string model, output, text_file;
  LabelOptions options;
  std::int32_t calibration_tokens = 3072;                  // q_filters
  std::int32_t prefill_probes = 3, prefill_tokens = 2048;  // prefill: needle prompts, tokens of each
  double flops_frac = 0.25;                                // prefill
};

// Before the model runs.
void check_output(const LabelCommand& c, const std::string& ending = ".safetensors") {
  std::error_code error;
  if (std::filesystem::path(c.output).extension() != ending)
    throw InputError(fmt::format("--out {}: the file is written as {}, so its name must end in {}", c.output, ending.substr(1), ending));
  if (!std::filesystem::is_directory(std::filesystem::absolute(c.output).parent_path(), error))
    throw InputError(c.output + ": its folder does not exist");
  if (std::filesystem::equivalent(std::filesystem::absolute(c.output).parent_path(), c.model, error))
    throw InputError(c.output + ": --out would put the file among the model's own: choose another folder");
}

std::vector<std::vector<std::int32_t>> calibration_texts(const LabelCommand& c, const Tokenizer& tokenizer, const ModelConfig& model) {
  constexpr std::int32_t kPiece = 1024;
  const std::int32_t piece = std::min(kPiece, model.max_tokens);
  std::vector<std::vector<std::int32_t>> texts;
  if (c.text_file.empty()) {
    for (std::int32_t left = c.calibration_tokens; left > 0; left -= piece)
      texts.push_back(made_up_text(tokenizer, model, c.options.seed, texts.size(), std::min(left, piece)));
    return texts;
  }
  const std::string text = read_file(c.text_file);
  check_utf8(text, c.text_file);
  const std::vector<std::int32_t> ids = tokenizer.encode_prompt(text, model.bos_id);
  const auto count = std::min(std::ssize(ids), std::ptrdiff_t{c.calibration_tokens});
  for (std::ptrdiff_t at = 0; at < count; at += piece) texts.emplace_back(ids.begin() + at, ids.begin() + std::min(count, at + piece));
  return texts;
}

void write_labels_of_heads(const LabelCommand& c, std::ostream& out) {
  check_output(c);
  const Transformer model = Transformer::load(c.model);
  const HeadLabelScores scores = label_heads(model, Tokenizer::load(c.model), c.options);
  write_head_labels(c.output, model.config(), c.options, scores);
  constexpr float kRetrieves = 0.1F;
  const auto retrieve = std::count_if(scores.retrieval.begin(), scores.retrieval.end(), [](float x) { return x >= kRetrieves; });
  out << fmt::format("wrote {}: {} layers of {} query heads; {} retrieval heads (score of {:.1f} or more); {:.1f} % of heads are sinks\n",
                     c.output, model.config().layers, model.config().q_heads, retrieve, kRetrieves, 100 * scores.sink_frac);
  out << fmt::format("the model emitted {:.1f} % of the needles' tokens{}\n", 100 * scores.answered_frac,
                     scores.answered_frac < 0.5 ? ": scores of retrieval mean little for a model that does not find the needles" : "");
}

void write_filters_of_queries(const LabelCommand& c, std::ostream& out) {
  check_output(c);
  const Transformer model = Transformer::load(c.model);
  const std::vector<std::vector<std::int32_t>> texts = calibration_texts(c, Tokenizer::load(c.model), model.config());
  std::int64_t tokens = 0;
  for (const std::vector<std::int32_t>& text : texts) tokens += std::ssize(text);
  write_query_filters(c.output, model.config(), tokens, query_filters(model, texts));
  out << fmt::format("wrote {}: directions of {} layers of {} KV heads, from {} tokens\n", c.output, model.config().layers,
                     model.config().kv_heads, tokens);
}

void write_patterns_of_prompts(const LabelCommand& c, std::ostream& out) {
  check_output(c, ".json");
  const Transformer model = Transformer::load(c.model);
  LabelOptions options = c.options;
  options.probes = c.prefill_probes, options.prompt_tokens = c.prefill_tokens;
  const PrefillLabels labels = label_prefill(model, Tokenizer::load(c.model), options, c.flops_frac);
  replace_file(c.output, prefill_labels_text(labels));
  const auto number = [&](HeadPattern::Kind kind) {
    return std::count_if(labels.heads.begin(), labels.heads.end(), [&](const auto& head) { return head.pattern.kind == kind; });
  };
  double error = 0, flops = 0;
  for (const HeadPatternSearch::Found& head : labels.heads) error += head.error, flops += head.flops_frac;
  const auto heads = static_cast<double>(labels.heads.size());
  out << fmt::format("wrote {}: {} layers of {} query heads; {} by columns and diagonals, {} by first and newest tokens, {} by blocks\n",
                     c.output, model.config().layers, labels.q_heads, number(HeadPattern::Kind::kVerticalSlash),
                     number(HeadPattern::Kind::kAShape), number(HeadPattern::Kind::kBlocks));
  out << fmt::format("mean over heads: {:.1f} % of the FLOPs of dense attention; squared error of the outputs {:.2g} of their squares\n",
                     100 * flops / heads, error / heads);
}

}  // namespace

void add_label_command(CLI::App& app, Command& chosen) {
  constexpr int kMost = 1 << 26;
  CLI::App* const label = app.add_subcommand("label", "run a model on generated prompts and write what recipes take as 'weights'");
  auto& c = arguments_of<LabelCommand>(*label);
  label->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, void (*act)(const LabelCommand&, std::ostream&)) {
    CLI::App* const one = label->add_subcommand(name, help);
    one->add_option("--model", c.model, "folder in Hugging Face layout, with tokenizer.json")->required()->check(offers(Offer::kFolders));
    one->add_option("--out", c.output, "file to write: safetensors, of prefill JSON")->required();
    one->add_option("--seed", c.options.seed, "of the prompts; default: 1")->check(whole_number());
    choose(one, chosen, c, [act](LabelCommand given, std::ostream& out) {
      given.model = weights_folder(given.model);
      act(given, out);
    });
    return one;
  };
  CLI::App* const heads =
      add("heads", "scores of every head: retrieval, semantic retrieval, sinks, echo, induction, gates", write_labels_of_heads);
  CLI::App* const prefill =
      add("prefill", "pattern of every query head's prompt attention, for recipe 'minference'", write_patterns_of_prompts);
  const auto add_prompts = [&](CLI::App* one, std::int32_t& probes, std::int32_t& tokens) {
    one->add_option("--probes", probes, fmt::format("needle prompts; default: {}", probes))->check(CLI::Range(1, 1 << 16));
    one->add_option("--prompt-tokens", tokens, fmt::format("of a needle prompt, about; default: {}", tokens))->check(CLI::Range(64, kMost));
  };
  add_prompts(heads, c.options.probes, c.options.prompt_tokens);
  add_prompts(prefill, c.prefill_probes, c.prefill_tokens);
  prefill->add_option("--flops-frac", c.flops_frac, "most FLOPs of a head, as a share of dense attention's; default: 0.25")
      ->check(CLI::Range(1e-4, 1.0));
  heads->add_option("--chunk-tokens", c.options.chunk_tokens, "prefill in chunks of so many tokens; default: in one piece")
      ->check(CLI::Range(1, kMost));
  CLI::App* const filters = add("q_filters", "main direction of each KV head's queries, for recipe 'q_filters'", write_filters_of_queries);
  filters->add_option("--text", c.text_file, "text to calibrate on; default: made-up sentences");
  filters->add_option("--calibration-tokens", c.calibration_tokens, "most tokens of it; default: 3072")->check(CLI::Range(1, kMost));
}

}  // namespace kvlab
