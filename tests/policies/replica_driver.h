#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/config/params.h"
#include "policies/block_cache/block_cache.h"
#include "policies/scheduler/layer_ranges.h"
#include "policies/scheduler/scheduler.h"
#include "serving/replica_state.h"
#include "tests/serving/sink_window.h"

namespace kvlab {

// Parameters of a scheduler that runs one request.
inline constexpr const char* kOneAtATime = "{max_num_seqs: 1}";

// Drives one scheduler over a real ReplicaState by hand, one step at a time at depth 1: begin_plan, plan, commit,
// process_output. A millisecond passes per step; the clock can be set.
class ReplicaDriver {
 public:
  struct Memory {
    std::uint32_t num_blocks = 1000;
    std::int32_t block_tokens = 4;
    std::int64_t host_blocks = 0;
    std::int32_t max_model_len = 1000;
    bool prefix_caching = false;
    std::int32_t kept_tokens = 0;  // sinks and a window; 0: every token is kept
    std::string block_cache = "lru";
    std::int32_t swap_group_blocks = 1;
    bool keeps_host_copies = false;
    SwapSetup swap{};
    std::string order = "fcfs", order_params = "{}", predictor = "exact", predictor_params = "{}";
    std::int64_t layers = 8;  // of the model
  };

  ReplicaDriver(const std::string& scheduler, const std::string& params) : ReplicaDriver(scheduler, params, Memory{}) {}
  ReplicaDriver(const std::string& scheduler, const std::string& params, const Memory& memory)
      : scheduler_(make<Scheduler>(scheduler, params, memory.layers)) {
    ReplicaLimits limits;
    limits.block_tokens = memory.block_tokens;
    limits.max_model_len = memory.max_model_len;
    limits.host_blocks = memory.host_blocks;
    limits.swap_group_blocks = memory.swap_group_blocks;
    limits.keeps_host_copies = memory.keeps_host_copies;
    limits.swap = memory.swap;
    limits.is_contiguous = scheduler_->wants_contiguous_memory();
    limits.prefix_caching = memory.prefix_caching && !limits.is_contiguous;
    limits.plans_over_unknown = scheduler_->pipeline_depth() > 1;
    limits.scheduler_predicts = scheduler_->uses_predictor();
    auto pool = std::make_unique<BlockPool>(memory.num_blocks, 1, make<BlockCache>(memory.block_cache, "{}"));
    std::unique_ptr<Footprint> footprint = std::make_unique<KeepAll>();
    if (memory.kept_tokens > 0) footprint = std::make_unique<testing::SinkWindow>(memory.kept_tokens, memory.block_tokens, 1);
    state_ = std::make_unique<ReplicaState>(limits, std::move(pool), std::move(footprint), make<Order>(memory.order, memory.order_params),
                                            make<Predictor>(memory.predictor, memory.predictor_params));
  }

  // Requests are numbered from 0 in order of arrival. `content` names the prompt's blocks (and more), one hash per block. prefill_only: it
  // becomes an export after its first token.
  void arrive(std::int32_t prompt_tokens, std::int32_t output_tokens, std::vector<std::uint64_t> content = {}, bool prefill_only = false) {
    contents_.push_back(std::make_unique<std::vector<std::uint64_t>>(std::move(content)));
    TraceRequest request;
    request.number = arrived_;
    request.session = std::exchange(next_session_, -1);
    request.prompt_tokens = prompt_tokens;
    request.output_tokens = output_tokens;
    request.hash_tokens = state_->block_tokens();
    request.hashes = std::span(contents_.back()->data(), contents_.back()->size());
    facts_.push_back(std::make_unique<RequestFacts>(next_facts_));
    if (!(next_facts_ == RequestFacts{})) request.facts = facts_.back().get();
    next_facts_ = {};
    // A nanosecond apart, so that the order of arrival is seen in the times.
    state_->receive(request, now_ + Span(static_cast<std::int64_t>(arrived_)), prefill_only);
    ++arrived_;
    collect();
  }

  // The next request to arrive has these facts.
  ReplicaDriver& with(const RequestFacts& facts) {
    next_facts_ = facts;
    return *this;
  }

  // Plans a step and lets it run. "0:1 2:16" gives each request's number and tokens in the plan's order, "2:16/20" when padded,
  // "2:16[0-4]" through layers 0 to 3, "2:16[0-4!" if its tokens leave the model there, "2:16{6}" through 6 layers of a set; then " +1" for
  // rows of padding; "" for an empty plan.
  std::string step() {
    const std::string text = plan();
    if (!text.empty()) {
      step_.start = to_ps(now_ - kStart);
      step_.end = step_.start + to_ps(Span(1'000'000));
      end(step_, step_.start);
      collect();
    }
    state_->check();
    return text;
  }

  // The output of a step that is in flight.
  void end(const InFlightStep& step, Picoseconds at) {
    LogHistogram itl;
    state_->process_output(step, at, itl);
    state_->check();
  }

  // True if all goes by the script. A line is a step as step() tells it ("0:4 1:4", "?" for any), or several equal ones ("0:1 *4"); "+ 8,3
  // 8,1p2:5:6" for arrivals, with prompt tokens, output tokens, facts by the letters of note_fact() and content; "plan 0:4" for a plan that
  // stays in flight ("plan nothing") and "end" for the output of the oldest of these; "swap 0" or "recompute 0" where the first of those
  // that run is preempted; "copied in" or "copied out" where copies end. State may follow, as state_of() tells it: "0:1; free 3; waiting 2
  // 1".
  ::testing::AssertionResult steps_are(const std::vector<std::string>& script) {
    for (std::size_t i = 0; i < script.size(); ++i)
      if (const std::string text = follow(script[i]); text != script[i])
        return ::testing::AssertionFailure() << "line " << i << " is \"" << text << "\", expected \"" << script[i] << "\"";
    return ::testing::AssertionSuccess();
  }

  // Plans a step without running it: the step is in flight.
  std::string plan() {
    now_ += Span(1'000'000);
    state_->begin_plan(now_);
    step_.clear();
    scheduler_->plan(*state_, step_);
    collect();
    for (const SwapCopy& copy : state_->swap_copies()) (copy.to_host ? copies_out_ : copies_in_).push_back(copy);
    state_->swap_copies().clear();
    std::string text;
    for (const StepEntry& entry : step_.entries) {
      text += (text.empty() ? "" : " ") + std::to_string(state_->table()[entry.request].number) + ":" + std::to_string(entry.tokens);
      if (entry.padded_tokens != 0) text += "/" + std::to_string(entry.padded_tokens);
      text += layers_of(entry);
    }
    if (step_.idle_rows > 0) text += " +" + std::to_string(step_.idle_rows);
    if (!step_.is_empty()) state_->commit(step_);
    return text;
  }

  // Ends the copies from CPU memory that plans have asked for.
  void finish_copies() {
    for (const SwapCopy& copy : copies_in_) state_->finish_swap_in(copy.request, now_);
    copies_in_.clear();
  }

  [[nodiscard]] ReplicaState& state() { return *state_; }
  [[nodiscard]] Scheduler& scheduler() { return *scheduler_; }
  [[nodiscard]] const InFlightStep& last_step() const { return step_; }
  [[nodiscard]] bool is_stable() const { return scheduler_->stable_for(*state_).plans > 0; }
  [[nodiscard]] std::string waiting() const {
    std::string text;
    for (std::uint32_t i = 0; i < state_->num_waiting(); ++i) text += (i == 0 ? "" : " ") + std::to_string(number(state_->waiting(i)));
    return text;
  }
  [[nodiscard]] std::string running() const {
    std::string text;
    for (const RequestId r : state_->running()) text += (text.empty() ? "" : " ") + std::to_string(number(r));
    return text;
  }
  // Tokens that a request of this content would find.
  [[nodiscard]] std::int32_t cached_tokens(std::int32_t prompt_tokens, const std::vector<std::uint64_t>& content) const {
    TraceRequest request;
    request.prompt_tokens = prompt_tokens;
    request.output_tokens = 1;
    request.hash_tokens = state_->block_tokens();
    request.hashes = content;
    return state_->memory().cached_tokens(request);
  }
  [[nodiscard]] const std::vector<SwapCopy>& copies_out() const { return copies_out_; }
  [[nodiscard]] const std::vector<SwapCopy>& copies_in() const { return copies_in_; }
  // Records of requests that left, in order, and why the last rejected one was.
  [[nodiscard]] const std::vector<RequestRecord>& left() const { return left_; }
  [[nodiscard]] const std::string& rejection() const { return rejection_; }
  void set_now(Time now) { now_ = now; }

  template <class Interface>
  static std::unique_ptr<Interface> make(const std::string& name, const std::string& params, std::int64_t layers = 8) {
    Params p = Params::from_text(params);
    tell_setting({.model_layers = layers}, p);
    return Registry<Interface>::make(name, p, "policy");
  }

 private:
  [[nodiscard]] std::string layers_of(const StepEntry& entry) const {
    if (entry.passes_all_layers()) return "";
    if (entry.layer_set > 0) return "{" + std::to_string(step_.layer_sets[static_cast<std::size_t>(entry.layer_set) - 1].count()) + "}";
    const std::string end = entry.layer_end == 0 ? "" : std::to_string(entry.layer_end);
    return "[" + std::to_string(entry.layer_begin) + "-" + end + (entry.exits_early ? "!" : "]");
  }
  // Does as the line of a script says. The line if all is as it says, else a text that differs.
  std::string follow(const std::string& line) {
    const std::size_t stop = std::min(line.find("; "), line.size());
    std::string text = line.substr(0, stop);
    if (text.starts_with("+ ")) {
      arrive_all(text.substr(2));
    } else if (text.starts_with("plan ")) {
      const std::string planned = plan();
      if (!planned.empty()) in_flight_.push_back(step_);
      text = "plan " + (planned.empty() ? "nothing" : planned);
    } else if (text == "end") {
      end(in_flight_.front(), {});
      in_flight_.erase(in_flight_.begin());
    } else if (text.starts_with("swap ") || text.starts_with("recompute ")) {
      const Preemption mode = text.starts_with("swap ") ? Preemption::kSwap : Preemption::kRecompute;
      state_->preempt(state_->running()[std::stoul(text.substr(text.find(' ')))], mode, QueueEnd::kFront);
      state_->check();
    } else if (text == "copied in") {
      finish_copies();
    } else if (text == "copied out") {
      for (const SwapCopy& copy : copies_out_)  // those that no step waits for
        if (copy.is_ahead) state_->finish_swap_in(copy.request, now_);
      copies_out_.clear();
      state_->check();
    } else {
      const std::size_t star = text.find(" *");
      const std::string once = text.substr(0, star);
      for (int left = star == std::string::npos ? 1 : std::stoi(text.substr(star + 2)); left > 0; --left)
        if (std::string other = step(); once != "?" && other != once) return other;
    }
    for (std::size_t at = stop; at < line.size(); at = std::min(line.find("; ", at + 2), line.size()))
      text += "; " + state_of(line.substr(at + 2, line.find_first_of(" ;", at + 2) - at - 2));
    return text;
  }
  void arrive_all(const std::string& arrivals) {
    std::istringstream in(arrivals);
    std::int32_t prompt_tokens = 0, output_tokens = 0;
    char mark = 0;
    while (in >> prompt_tokens >> mark >> output_tokens) {
      for (std::int64_t value = 0; std::isalpha(in.peek()) != 0 && in >> mark >> value;) note_fact(mark, value);
      std::vector<std::uint64_t> content;
      while (in.peek() == ':') in >> mark >> content.emplace_back();
      arrive(prompt_tokens, output_tokens, std::move(content));
    }
  }
  void note_fact(char mark, std::int64_t value) {
    if (mark == 'p') next_facts_.priority = static_cast<std::int32_t>(value);
    if (mark == 'u') next_facts_.client = value;
    if (mark == 'k') next_facts_.request_class = ClassName(std::to_string(value));
    if (mark == 't') next_facts_.ttft_slo = Span(value * 1'000'000);
    if (mark == 's') next_session_ = value;
  }
  [[nodiscard]] std::string state_of(const std::string& key) const {
    const auto& counters = state_->counters();
    const auto with = [&](const auto& n) { return key + " " + std::to_string(n); };
    const auto listed = [&](const std::string& all) { return key + " " + (all.empty() ? "none" : all); };
    const auto last = [&](const std::vector<SwapCopy>& copies) {  // blocks and calls
      return listed(copies.empty() ? "" : std::to_string(copies.back().blocks) + "/" + std::to_string(copies.back().calls));
    };
    if (key == "waiting") return listed(waiting());
    if (key == "running") return listed(running());
    if (key == "free") return with(state_->free_blocks());
    if (key == "left") return with(left_.size());
    if (key == "copies_in") return with(copies_in_.size());
    if (key == "copies_out") return with(copies_out_.size());
    if (key == "out") return last(copies_out_);
    if (key == "in") return last(copies_in_);
    if (key == "host_used") return with(state_->memory().host_used());
    if (key == "host_free") return with(state_->memory().free_host_blocks());
    if (key == "fallbacks") return with(counters.recompute_fallbacks);
    if (key == "preemptions") return with(counters.preemptions);
    if (key == "swaps") return with(counters.swaps);
    if (key == "recomputed") return with(counters.recomputed_tokens);
    if (key == "prompt_tokens") return with(counters.prompt_tokens);
    if (key == "hits") return with(counters.hit_tokens);
    if (key == "lookups") return with(counters.lookup_tokens);
    if (key == "output_tokens") return with(counters.output_tokens);
    return is_stable() ? "stable" : "unstable";
  }
  [[nodiscard]] std::uint64_t number(RequestId r) const { return state_->table()[r].number; }
  void collect() {
    for (const RequestId r : state_->left()) scheduler_->on_finish(r);
    state_->left().clear();
    for (const RequestRecord& record : state_->outbox()) {
      left_.push_back(record);
      if (record.reason != nullptr) rejection_ = record.reason;
    }
    state_->outbox().clear();
  }

  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<ReplicaState> state_;
  std::vector<std::unique_ptr<std::vector<std::uint64_t>>> contents_;
  std::vector<std::unique_ptr<RequestFacts>> facts_;
  RequestFacts next_facts_;
  std::int64_t next_session_ = -1;
  std::uint64_t arrived_ = 0;
  Time now_{};
  InFlightStep step_;
  std::vector<InFlightStep> in_flight_;
  std::vector<SwapCopy> copies_out_, copies_in_;
  std::vector<RequestRecord> left_;
  std::string rejection_;
};

using Memory = ReplicaDriver::Memory;

// Named scripts of one scheduler, each from the start.
struct Scripts {
  std::string scheduler;
  void operator()(const char* name, const std::string& params, const Memory& memory, const std::vector<std::string>& script) const {
    EXPECT_TRUE(ReplicaDriver(scheduler, params, memory).steps_are(script)) << name;
  }
};

}  // namespace kvlab
