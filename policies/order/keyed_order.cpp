#include "policies/order/keyed_order.h"

#include <iterator>

#include "base/error.h"

namespace kvlab {

KeyedOrder::Key KeyedOrder::key_of(RequestId r) const {
  const Request& request = info(r);
  return {rank(r), request.arrival, request.number, r};
}

RequestId KeyedOrder::at(std::uint32_t position) const {
  if (!has_cursor_ || position < cursor_position_) {
    cursor_ = sorted_.begin();
    cursor_position_ = 0;
    has_cursor_ = true;
  }
  for (; cursor_position_ < position; ++cursor_position_) ++cursor_;
  return cursor_->request;
}

void KeyedOrder::insert(RequestId r, Entry /*entry*/) {
  ++changes_;
  const Key key = slot(keys_, r) = key_of(r);
  sorted_.insert(key);
  if (has_cursor_ && key < *cursor_) ++cursor_position_;
}

void KeyedOrder::erase(RequestId r) {
  if (!is_waiting(r)) throw InternalError("request is not waiting");
  ++changes_;
  const auto place = sorted_.find(keys_[index(r)]);
  keys_[index(r)] = {};
  if (has_cursor_ && place == cursor_) {
    cursor_ = std::next(place);
    has_cursor_ = cursor_ != sorted_.end();
  } else if (has_cursor_ && *place < *cursor_) {
    --cursor_position_;
  }
  sorted_.erase(place);
}

void KeyedOrder::renew(RequestId r) {
  if (!is_waiting(r) || rank(r) == keys_[index(r)].rank) return;
  KeyedOrder::erase(r);  // bypasses the derived order
  KeyedOrder::insert(r, Entry::kArrival);
}

}  // namespace kvlab
