#include "app/schema/name_kinds.h"

#include <utility>

#include "app/schema/mapping_texts.h"
#include "base/config/registry.h"
#include "policies/block_cache/block_cache.h"
#include "policies/dispatcher/dispatcher.h"
#include "policies/kv/recipe/recipe.h"
#include "policies/order/order.h"
#include "policies/predictor/predictor.h"
#include "policies/scheduler/scheduler.h"
#include "traces/arrivals.h"
#include "traces/distributions.h"

namespace kvlab {

namespace {

template <class Interface>
NameKind registered_kind(bool takes_none = false) {
  const auto entry = [](const std::string& name) -> const auto& { return Registry<Interface>::table_view().at(name); };
  return {Registry<Interface>::names(), [entry](const std::string& name) { return entry(name).card.summary; },
          [entry](const std::string& name, Params& p) { entry(name).make(p); }, takes_none};
}

NameKind arrival_kind(std::vector<std::string> names) {
  return {std::move(names), [](const std::string& name) { return mapping_text("arrival." + name); },
          [](const std::string& name, Params& p) { make_arrivals(name, p, 0); }};
}

NameKind length_kind(TraceColumn column) {
  return {count_names(), [](const std::string& name) { return mapping_text("length." + name); },
          [column](const std::string& name, Params& p) { make_counts(name, p, column); }, false, kLargestCount};
}

NameKind wait_kind() {
  return {span_names(), [](const std::string& name) { return mapping_text("wait." + name); },
          [](const std::string& name, Params& p) { make_spans(name, p); }};
}

std::map<std::string, NameKind> all_kinds() {
  std::vector<std::string> generated = arrival_names();
  std::erase(generated, "trace");  // generated requests have no recorded arrivals
  return {{"scheduler", registered_kind<Scheduler>()},
          {"order", registered_kind<Order>()},
          {"predictor", registered_kind<Predictor>()},
          {"dispatcher", registered_kind<Dispatcher>()},
          {"block_cache", registered_kind<BlockCache>()},
          {"scorer", registered_kind<Scorer>(true)},
          {"allocator", registered_kind<Allocator>()},
          {"trigger", registered_kind<Trigger>()},
          {"disposal", registered_kind<Disposal>()},
          {"format", registered_kind<Format>()},
          {"selector", registered_kind<Selector>()},
          {"prefill_selector", registered_kind<PrefillSelector>()},
          {"prompt_pruner", registered_kind<PromptPruner>(true)},
          {"prompt_rewriter", registered_kind<PromptRewriter>(true)},
          {"arrivals", arrival_kind(generated)},
          {"arrivals_of_file", arrival_kind(arrival_names())},
          {"length", length_kind(TraceColumn::kPromptTokens)},
          {"output_length", length_kind(TraceColumn::kOutputTokens)},
          {"wait", wait_kind()}};
}

}  // namespace

const std::map<std::string, NameKind>& name_kinds() {
  static const std::map<std::string, NameKind> kinds = all_kinds();
  return kinds;
}

namespace {

// By mapping or by kind of policy, then key.
const std::map<std::string, std::map<std::string, std::string>> kNameKinds = {
    {"",
     {{"scheduler", "scheduler"},
      {"order", "order"},
      {"predictor", "predictor"},
      {"dispatcher", "dispatcher"},
      {"router", "dispatcher"},
      {"block_cache", "block_cache"},
      {"block_caches", "block_cache"}}},
    {"store", {{"eviction", "block_cache"}}},
    {"trace", {{"arrival", "arrivals_of_file"}}},
    {"trace.generate", {{"arrival", "arrivals"}, {"prompt_tokens", "length"}, {"output_tokens", "output_length"}}},
    {"trace.generate.sessions", {{"turns", "length"}, {"new_tokens", "length"}, {"think_time", "wait"}}},
    {"trace.generate.shared_prefix", {{"tokens", "length"}}},
    {"trace.generate.images", {{"per_request", "length"}}},
    {"kv_policy",
     {{"scorer", "scorer"},
      {"allocator", "allocator"},
      {"trigger", "trigger"},
      {"disposal", "disposal"},
      {"format", "format"},
      {"selector", "selector"},
      {"prefill_selector", "prefill_selector"},
      {"prompt_pruner", "prompt_pruner"},
      {"prompt_rewriter", "prompt_rewriter"}}},
    // Name another policy, by kind of the owner.
    {"arrivals", {{"think_time", "wait"}}},
    {"arrivals_of_file", {{"think_time", "wait"}}},
    {"scheduler", {{"batching", "scheduler"}}},
    {"scorer", {{"of", "scorer"}, {"prompt", "scorer"}}},
    {"allocator", {{"layers", "allocator"}}},
    {"selector", {{"of", "selector"}}},
    {"prefill_selector", {{"of", "prefill_selector"}}}};

}  // namespace

std::string name_kind_of(const std::string& owner, const std::string& key) {
  const auto keys = kNameKinds.find(owner);
  if (keys == kNameKinds.end()) return "";
  const auto found = keys->second.find(key);
  return found == keys->second.end() ? "" : found->second;
}

}  // namespace kvlab
