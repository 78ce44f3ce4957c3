#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvlab {

// The last place read: lines of text or binary records, from 1.
class InputPlace {
 public:
  virtual ~InputPlace() = default;
  [[nodiscard]] virtual const std::string& name() const = 0;
  [[nodiscard]] virtual std::int64_t line_number() const = 0;

  // Throws InputError("name:line: message"), with the column if given.
  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail(std::string_view column, const std::string& message) const;

  // A parser's position in a document.
  void reached(const char* at) const { reached_ = at; }

 protected:
  InputPlace() = default;
  InputPlace(const InputPlace&) = default;
  InputPlace& operator=(const InputPlace&) = default;
  mutable const char* reached_ = nullptr;
};

// `text` quoted for a one-line message: printable and shortened.
std::string quoted(std::string_view text);

}  // namespace kvlab
