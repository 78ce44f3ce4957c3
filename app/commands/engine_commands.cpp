#include "app/commands/engine_commands.h"

#include <ostream>

#include "app/commands/offers.h"
#include "base/hugging_face.h"
#include "base/text.h"
#include "engine/model/record.h"

namespace kvlab {

namespace {

template <class OfModel>
OfModel with_weights(OfModel command) {
  command.model = weights_folder(command.model);
  return command;
}

void add_trace_record(CLI::App& trace, EngineArguments& a, Command& chosen) {
  CLI::App* record = trace.add_subcommand("record", "run a model on a prompt and record its attention (safetensors)");
  record->add_option("--model", a.record.model, "folder in Hugging Face layout: config.json and safetensors")
      ->required()
      ->check(offers(Offer::kFolders));
  CLI::Option_group* input = record->add_option_group("prompt");
  input->add_option("--ids", a.record.ids_file, "JSON list of token ids, or {ids, continuation, task, needles, question_begin}");
  input->add_option("--text", a.record.text_file,
                    "text, for the model's tokenizer; of a byte-level model the bytes are the tokens, after <s>");
  input->require_option(1);
  record->add_option("--out", a.record.output, "file to write")->required();
  record->add_option("--prompt-tokens", a.record.prompt_tokens, "number of tokens of the input to take; default: all")
      ->check(CLI::Range(1, 1 << 28));
  record->add_option("--decode-tokens", a.record.decode_tokens, "tokens to decode greedily after them")->check(CLI::Range(0, 1 << 28));
  record->add_option("--chunk-tokens", a.record.chunk_tokens, "tokens of a prefill chunk; default: in one piece")
      ->check(CLI::Range(1, 1 << 28));
  record->add_flag("--pre-rope", a.record.pre_rope, "also queries and keys before RoPE");
  record->add_flag("--hidden", a.record.hidden, "also the inputs of the attention layers");
  record->add_flag("--w-o", a.record.w_o, "also the output projections");
  record->add_flag("--w-q", a.record.w_q, "also the projections to queries");
  record->add_option("--pass", a.record.passes, "also an extra pass: " + join(extra_pass_names(), ", ") + "; may be repeated")
      ->allow_extra_args(false)
      ->check(offers(Offer::kWords, join(extra_pass_names(), " ")));
  record->add_option("--kv-policy", a.record.kv_policy, "recipe that acts on the cache meanwhile: what is recorded is what it left")
      ->check(offers(Offer::kNames, "recipes"));
  record->add_option("--budget-tokens", a.record.budget_tokens, "of the recipe; default: as its file says")->check(CLI::Range(1, 1 << 28));
  record->add_option("--backend", a.record.backend, "cpu or cuda; default: cpu")->check(CLI::IsMember({"cpu", "cuda"}));
  record->add_option("--dtype", a.record.dtype, "of the floats in the file; default: f16")->check(CLI::IsMember({"f16", "f32"}));
  record->callback(
      [&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream&) { return record_trace(with_weights(a.record), out); }; });
}

void add_logits(CLI::App& app, EngineArguments& a, Command& chosen) {
  CLI::App* logits = app.add_subcommand("logits", "run a model and write its logits");
  logits->add_option("--model", a.logits.model, "folder in Hugging Face layout: config.json and safetensors")
      ->required()
      ->check(offers(Offer::kFolders));
  logits->add_option("--ids", a.logits.ids_file, "safetensors with token ids '0.ids', '1.ids', ...")->required();
  logits->add_option("--out", a.logits.output, "safetensors to write: '0.logits', '1.logits', ..., one row for each token")->required();
  logits->add_option("--chunk-tokens", a.logits.chunk_tokens, "tokens of a prefill chunk; default: in one piece")
      ->check(CLI::Range(1, 1 << 28));
  logits->add_option("--backend", a.logits.backend, "cpu or cuda; default: cpu")->check(CLI::IsMember({"cpu", "cuda"}));
  logits->callback(
      [&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream&) { return write_logits(with_weights(a.logits), out); }; });
}

void add_calibrate(CLI::App& app, EngineArguments& a, Command& chosen) {
  CLI::App* one = app.add_subcommand("calibrate", "measure this machine's kernels and write a profile that simulations can use");
  CLI::Option_group* device = one->add_option_group("device");
  device->add_flag("--cpu", a.calibrate.cpu, "the CPU, with the CPU's kernels");
  device->add_option("--gpu", a.calibrate.gpu, "the GPU of this number; needs a build with CUDA");
  device->require_option(1);
  one->add_option("--minutes", a.calibrate.minutes, "how long to measure; default: 10");
  one->add_option("--model", a.calibrate.model, "a name in profiles/models or a config.json; default: llama-3.1-8b, with --cpu the probe")
      ->check(offers(Offer::kNames, "models"))
      ->check(offers(Offer::kFiles));
  one->add_option("--hardware", a.calibrate.hardware, "datasheet to check against: a name in profiles/hardware; default: by the GPU's name")
      ->check(offers(Offer::kNames, "hardware"));
  one->add_option("--out", a.calibrate.out,
                  "folder to write; default: profiles/NAME. A folder of the same device, model and seed is continued")
      ->check(offers(Offer::kFolders));
  one->add_option("--seed", a.calibrate.seed, "of the points that are held out to state the error; default: 1")->check(seed_range());
  one->add_option(
         "--kv-policy", a.calibrate.kv_policies,
         "recipes whose operations are timed too, as the engine calls them; all: a few recipes that call every operation. Operations "
         "without a table are priced by the roofline")
      ->check(offers(Offer::kNames, "recipes"));
  one->callback([&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream& err) { return calibrate_device(a.calibrate, out, err); }; });
}

void add_tokenize(CLI::App& app, EngineArguments& a, Command& chosen) {
  CLI::App* one = app.add_subcommand("tokenize", "print a text's token ids as a model's tokenizer.json gives them, or the text of ids");
  one->add_option("--model", a.tokenize.model, "folder with tokenizer.json")->required()->check(offers(Offer::kFolders));
  CLI::Option_group* input = one->add_option_group("input");
  input->add_option("--text", a.tokenize.text_file, "text to tokenize; -: standard input");
  input->add_option("--ids", a.tokenize.ids_file, "JSON list of ids whose text to print; -: standard input");
  input->require_option(1);
  one->add_flag("--tokens", a.tokenize.shows_tokens, "--text: print one id and its token a line")->excludes("--ids");
  one->add_flag("--no-special", a.tokenize.without_special, "--text: without what the tokenizer adds (<s>); --ids: without special tokens");
  one->callback([&a, &chosen] { chosen = [&a](std::ostream& out, std::ostream&) { return tokenize(with_weights(a.tokenize), out); }; });
}

}  // namespace

void add_engine_commands(CLI::App& app, EngineArguments& a, Command& chosen) {
  add_trace_record(*app.get_subcommand("trace"), a, chosen);
  add_calibrate(app, a, chosen);
  add_logits(app, a, chosen);
  add_label_command(app, a.label,
                    [&](auto* act) { chosen = [&a, act](std::ostream& out, std::ostream&) { return act(with_weights(a.label), out); }; });
  add_tokenize(app, a, chosen);
}

}  // namespace kvlab
