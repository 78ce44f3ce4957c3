#include <bit>
#include <limits>

#include "bindings/policies/requests.h"
#include "policies/order/keyed_order.h"

namespace kvlab {

namespace {

namespace order_places {
constexpr std::uint8_t kRequest = 0, kNow = 1, kCount = 2;
}  // namespace order_places

// Sort like `real`.
std::int64_t sortable(double real) {
  const auto bits = std::bit_cast<std::int64_t>(real + 0.0);  // -0 and 0 are equal
  return bits >= 0 ? bits : bits ^ std::numeric_limits<std::int64_t>::max();
}

std::vector<Fact> facts_of(const std::vector<std::string>& needs) {
  std::vector<Fact> facts;
  for (std::size_t i = 0; i < kFactColumns.size(); ++i)
    if (std::find(needs.begin(), needs.end(), kFactColumns[i]) != needs.end()) facts.push_back(static_cast<Fact>(i));
  return facts;
}

// key(request) is called once on arrival; key(request, now) in each plan for every waiting request, and for running ones that are compared.
class PythonOrder final : public KeyedOrder {
 public:
  PythonOrder(const PolicyPtr& policy, const PythonValues& values)
      : python_(policy, values),
        key_(*python_.method("key")),
        on_arrival_(python_.method("on_arrival")),
        on_admit_(python_.method("on_admit")),
        on_tokens_(python_.method("on_tokens")),
        on_leave_(python_.method("on_leave")),
        on_plan_(python_.method("on_plan")),
        is_fixed_(!key_.takes(order_places::kNow)) {
    policy->call([&] {
      needs_ = facts_of(policy->option<std::vector<std::string>>("needs"));
      predicts_ = policy->option<bool>("predicts");
    });
  }

  [[nodiscard]] std::vector<Fact> needs() const override { return needs_; }
  [[nodiscard]] bool uses_predictor() const override { return predicts_; }
  [[nodiscard]] bool watches_steps() const override { return on_tokens_ != nullptr; }
  [[nodiscard]] Horizon stable_for() const override {
    return is_fixed_ && on_tokens_ == nullptr && on_plan_ == nullptr ? Horizon::whatever_is_cached() : Horizon::none();
  }

  void insert(RequestId r, Entry entry) override {
    if (asked_.size() <= index(r)) asked_.resize(index(r) + 1);
    Asked& its = asked_[index(r)];
    if (entry == Entry::kArrival) {
      its = {};
      if (predicts_) its.predicted_tokens = predictor().output_tokens(info(r));
      if (on_arrival_ != nullptr) tell(*on_arrival_, r);
      if (is_fixed_) its.rank = ask(r);
    }
    its.plan = kNotAsked;
    KeyedOrder::insert(r, entry);
  }
  void on_plan() override {
    ++plan_;
    if (on_plan_ != nullptr) python_.policy().call([&] { (*on_plan_)(nb::handle(), nb::cast(now())); });
    if (is_fixed_) return;
    waiting_.clear();
    for (std::uint32_t i = 0; i < size(); ++i) waiting_.push_back(at(i));
    for (const RequestId r : waiting_) renew(r);
  }
  void on_admit(RequestId r) override {
    if (on_admit_ != nullptr) tell(*on_admit_, r);
  }
  void on_tokens(RequestId r, std::int32_t count) override {
    if (on_tokens_ != nullptr) tell(*on_tokens_, r, count);
    if (is_fixed_) return;
    asked_[index(r)].plan = kNotAsked;
    KeyedOrder::on_tokens(r, count);
  }
  void on_leave(RequestId r) override {
    if (on_leave_ != nullptr) tell(*on_leave_, r);
  }

 private:
  static constexpr std::int64_t kNotAsked = -1;
  struct Asked {
    std::int64_t rank = 0, plan = kNotAsked;  // the rank as of that plan
    std::int32_t predicted_tokens = 0;
  };

  [[nodiscard]] double now() const { return to_s(view().now() - kStart); }

  [[nodiscard]] std::int64_t rank(RequestId r) const override {
    Asked& its = asked_[index(r)];
    if (is_fixed_ || its.plan == plan_) return its.rank;
    its.rank = ask(r);
    its.plan = plan_;
    return its.rank;
  }

  [[nodiscard]] std::int64_t ask(RequestId r) const {
    return python_.policy().call([&] {
      const Lending lending(*lender_.lease());
      const nb::object now_s = is_fixed_ ? nb::object() : nb::cast(now());
      const nb::object key = key_(lent(r, is_fixed_), now_s);
      return sortable(python_.policy().number("key()", key));
    });
  }

  void tell(const PythonMethod& event, RequestId r, std::int32_t count = 0) const {
    python_.policy().call([&] {
      const Lending lending(*lender_.lease());
      event(lent(r, false), nb::cast(now()), nb::cast(count));
    });
  }

  [[nodiscard]] nb::handle lent(RequestId r, bool is_arriving) const {
    return lender_.lend(PythonRequest(lender_.lease(), info(r), r).with(asked_[index(r)].predicted_tokens, is_arriving));
  }

  PythonInstance python_;
  const PythonMethod& key_;
  const PythonMethod *on_arrival_, *on_admit_, *on_tokens_, *on_leave_, *on_plan_;  // null: not defined
  bool is_fixed_;
  bool predicts_ = false;
  std::vector<Fact> needs_;
  mutable Lender lender_;
  mutable std::vector<Asked> asked_;  // by slot
  std::vector<RequestId> waiting_;
  std::int64_t plan_ = 0;
};

}  // namespace

void add_order(const PolicyPtr& policy) { add_to_registry<Order, PythonOrder>(policy); }

}  // namespace kvlab
