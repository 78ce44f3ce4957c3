#include "traces/line_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 18;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

constexpr auto kHarmless = std::to_array<std::string_view>(
    {"id",         "request_id", "req_id",   "uuid",    "index",     "name",   "type", "request_type", "turn",   "model",
     "model_name", "user",       "user_id",  "client",  "client_id", "tenant", "app",  "app_id",       "region", "duration",
     "source",     "category",   "language", "comment", "dataset",   "label",  "tag",  "tags"});

}  // namespace

void InputPlace::fail(const std::string& message) const { throw InputError(fmt::format("{}:{}: {}", name(), line_number(), message)); }

void InputPlace::fail(std::string_view column, const std::string& message) const { fail(fmt::format("column '{}': {}", column, message)); }

std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 40;
  std::string shown = "'";
  for (const char c : text.substr(0, kShown)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + (text.size() > kShown ? "...'" : "'");
}

LineReader::LineReader(std::string name, std::unique_ptr<ByteSource> bytes)
    : name_(std::move(name)), bytes_(std::move(bytes)), buffer_(kReadBytes + kPadding) {
  while (end_ < kByteOrderMark.size() && refill()) {
  }
  if (std::string_view(buffer_.data(), end_).starts_with(kByteOrderMark)) begin_ = kByteOrderMark.size();
  if (begin_ == end_ && !refill()) throw InputError(name_ + ": empty file; a trace has at least one request");
}

bool LineReader::refill() {
  if (at_end_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() < end_ + kReadBytes + kPadding) buffer_.resize(2 * buffer_.size() + kReadBytes);
  const std::size_t got = bytes_->read(buffer_.data() + end_, kReadBytes);
  end_ += got;
  at_end_ = got == 0;
  if (at_end_) buffer_[end_] = '\0';
  return !at_end_;
}

bool LineReader::next_raw(std::string_view& line) {
  std::size_t searched = 0;
  for (;;) {
    const char* start = buffer_.data() + begin_;
    const std::size_t unread = end_ - begin_;
    const void* newline = searched < unread ? std::memchr(start + searched, '\n', unread - searched) : nullptr;
    const bool found = newline != nullptr;
    const std::size_t size = found ? static_cast<std::size_t>(static_cast<const char*>(newline) - start) : unread;
    if (size > kMaxLineBytes) {
      ++line_number_;
      fail(fmt::format("the line is longer than {} MiB; a trace holds one request per line", kMaxLineBytes >> 20));
    }
    if (!found && refill()) {
      searched = unread;
      continue;
    }
    if (!found && unread == 0) return false;
    line = {buffer_.data() + begin_, size};
    begin_ += size + (found ? 1 : 0);
    ++line_number_;
    return true;
  }
}

bool LineReader::next(std::string_view& line) {
  if (again_) {
    again_ = false;
    line = last_;
    return true;
  }
  do {
    if (!next_raw(line)) return false;
    if (line.ends_with('\r')) line.remove_suffix(1);
  } while (line.find_first_not_of(" \t") == std::string_view::npos);
  if (std::memchr(line.data(), '\0', line.size()) != nullptr)
    fail("the line holds a zero byte; a trace is a text file, plain, .gz or .zst; libCacheSim's binary one needs 'format: oracle_general'");
  last_ = line;
  return true;
}

std::string_view LineReader::ahead() {
  while (end_ - begin_ < kReadBytes && refill()) {
  }
  return {buffer_.data() + begin_, end_ - begin_};
}

void LineReader::keep_mark() {
  if (line_number_ == 0 && begin_ == kByteOrderMark.size() && std::string_view(buffer_.data(), begin_) == kByteOrderMark) begin_ = 0;
}

std::string_view LineReader::next_bytes() {
  if (begin_ == end_ && !refill()) return {};
  const std::string_view bytes{buffer_.data() + begin_, end_ - begin_};
  begin_ = end_;
  return bytes;
}

void IgnoredColumns::pass_over(const InputPlace& at, std::string_view column, std::span<const std::string_view> known) {
  if (std::ranges::find(found_, column) != found_.end()) return;
  if (std::ranges::find(kHarmless, column) == kHarmless.end() && std::ranges::find(asked_, column) == asked_.end()) {
    const std::vector<std::string> names(known.begin(), known.end());
    const std::string_view shown = column.substr(0, 64);
    at.fail("unknown column " + quoted(column) + suggestion(shown, names) +
            (nearest_name(shown, names).empty() ? "; 'ignore_columns' passes over those that it names" : ""));
  }
  found_.emplace_back(column);
}

std::string IgnoredColumns::text() const {
  if (found_.empty()) return "";
  return fmt::format("{} column{} ignored: {}", found_.size(), found_.size() == 1 ? "" : "s", join(found_, ", "));
}

}  // namespace kvlab
