#pragma once

#include <set>
#include <tuple>
#include <vector>

#include "policies/order/order.h"

namespace kvlab {

// Smallest number first; ties by arrival, then number in the trace.
class KeyedOrder : public Order {
 public:
  [[nodiscard]] std::uint32_t size() const final { return static_cast<std::uint32_t>(sorted_.size()); }
  [[nodiscard]] RequestId at(std::uint32_t position) const override;
  void insert(RequestId r, Entry entry) override;
  void erase(RequestId r) override;
  [[nodiscard]] bool precedes(RequestId a, RequestId b) const override { return key_of(a) < key_of(b); }
  void on_tokens(RequestId r, std::int32_t /*count*/) override { renew(r); }

 protected:
  [[nodiscard]] virtual std::int64_t rank(RequestId r) const = 0;
  void renew(RequestId r);

  struct Key {
    std::int64_t rank = 0;
    Time arrival{};
    std::uint64_t number = 0;
    RequestId request = kNoRequest;
    auto operator<=>(const Key&) const = default;
  };
  [[nodiscard]] Key key_of(RequestId r) const;
  // Insertions and removals, renew() included.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }
  [[nodiscard]] bool is_waiting(RequestId r) const { return index(r) < keys_.size() && keys_[index(r)].request == r; }

 private:
  std::set<Key> sorted_;
  std::uint64_t changes_ = 0;
  std::vector<Key> keys_;  // by slot; kNoRequest if not waiting
  // A walk takes O(1) per request.
  mutable std::set<Key>::const_iterator cursor_;
  mutable std::uint32_t cursor_position_ = 0;
  mutable bool has_cursor_ = false;
};

// The waiting requests as listed for this plan, else first come, first served.
class ListedOrder : public KeyedOrder {
 public:
  [[nodiscard]] RequestId at(std::uint32_t position) const override { return is_listed_ ? list_[position] : KeyedOrder::at(position); }
  void insert(RequestId r, Entry entry) final {
    const bool goes_first = entry == Entry::kPreemptedToFront;
    slot(places_, r) = goes_first ? front_-- : back_++;
    KeyedOrder::insert(r, entry);
    if (is_listed_) list_.insert(goes_first ? list_.begin() : list_.end(), r);
  }
  void erase(RequestId r) final {
    KeyedOrder::erase(r);
    if (is_listed_) std::erase(list_, r);
  }
  [[nodiscard]] bool precedes(RequestId a, RequestId b) const final { return Order::precedes(a, b); }  // NOLINT
  [[nodiscard]] RequestId victim(RequestId usual) const final { return usual; }

 protected:
  mutable bool is_listed_ = false;
  mutable std::vector<RequestId> list_;

 private:
  [[nodiscard]] std::int64_t rank(RequestId r) const final { return places_[index(r)]; }

  std::vector<std::int64_t> places_;  // by slot
  std::int64_t front_ = -1, back_ = 0;
};

}  // namespace kvlab
