#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config/param_reader.h"
#include "base/error.h"

namespace kvlab {

// For `kvlab list` and `kvlab describe`.
struct Card {
  std::string name;     // as written in YAML
  std::string summary;  // one line
  std::string source;   // paper, or system and version
};

// By name, ascending.
template <class Entry>
class NamedTable {
 public:
  using Item = std::pair<std::string, Entry>;
  [[nodiscard]] auto begin() const { return items_.begin(); }
  [[nodiscard]] auto end() const { return items_.end(); }
  // Null: absent.
  [[nodiscard]] const Entry* find(std::string_view name) const {
    const std::size_t at = place(name);
    return at < items_.size() && items_[at].first == name ? &items_[at].second : nullptr;
  }
  [[nodiscard]] bool contains(std::string_view name) const { return find(name) != nullptr; }
  // InternalError if absent.
  [[nodiscard]] const Entry& at(std::string_view name) const {
    const Entry* const found = find(name);
    if (found == nullptr) throw InternalError("nothing is registered as '" + std::string(name) + "'");
    return *found;
  }
  // Adds or replaces.
  void set(const std::string& name, Entry entry) {
    const std::size_t at = place(name);
    if (contains(name))
      items_[at].second = std::move(entry);
    else
      items_.insert(items_.begin() + static_cast<std::ptrdiff_t>(at), Item{name, std::move(entry)});
  }

 private:
  [[nodiscard]] std::size_t place(std::string_view name) const {
    std::size_t at = 0;
    while (at < items_.size() && items_[at].first < name) ++at;
    return at;
  }
  std::vector<Item> items_;
};

// Error at `p`, with similar names.
[[noreturn]] void fail_unknown(const Params& p, const std::string& kind, const std::string& name, const std::vector<std::string>& known);
// UsageLog::note_source().
void note_registered_source(const std::string& source);

// Implementations by name, from KVLAB_REGISTER.
template <class Interface>
class Registry {
 public:
  // Copies share the callable.
  class Make {
   public:
    template <class Call>
    Make(Call call) : call_(std::make_shared<CallOf<Call>>(std::move(call))) {}  // NOLINT: any callable is one
    std::unique_ptr<Interface> operator()(Params& p) const { return call_->run(p); }

   private:
    struct AnyCall {
      virtual ~AnyCall() = default;
      virtual std::unique_ptr<Interface> run(Params& p) const = 0;
    };
    template <class Call>
    struct CallOf final : AnyCall {
      explicit CallOf(Call made) : call(std::move(made)) {}
      std::unique_ptr<Interface> run(Params& p) const override { return call(p); }
      Call call;
    };
    std::shared_ptr<const AnyCall> call_;
  };
  struct Entry {
    Card card;
    Make make;
    std::string source;       // registering file, or its name in code_version()
    bool is_compiled = true;  // false: added at run time
  };

  template <class Policy>
  static bool add(Card card, const char* source = __builtin_FILE()) {
    const std::string name = card.name;
    if (table().contains(name)) throw InternalError("two implementations are registered as '" + name + "'");
    table().set(name, Entry{std::move(card), &make_one<Policy>, source});
    return true;
  }

  // Adds or replaces an implementation at run time, such as a Python policy. No other thread may read the registry. InputError for the name
  // of a compiled one.
  static void add_running(Card card, Make make, std::string source) {
    const Entry* const found = table().find(card.name);
    if (found != nullptr && found->is_compiled) throw InputError("'" + card.name + "' is the name of a built-in policy");
    const std::string name = card.name;
    table().set(name, Entry{std::move(card), std::move(make), std::move(source), false});
  }

  // Refuses unread parameters and unknown names, with suggestions.
  static std::unique_ptr<Interface> make(const std::string& name, Params& p, const std::string& kind) {
    const Entry* const found = table().find(name);
    if (found == nullptr) fail_unknown(p, kind, name, names());
    note_registered_source(found->source);
    std::unique_ptr<Interface> made = found->make(p);
    p.reject_unread();
    return made;
  }

  static std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const auto& [name, entry] : table()) all.push_back(name);
    return all;
  }

  static const NamedTable<Entry>& table_view() { return table(); }

 private:
  template <class Policy>
  static std::unique_ptr<Interface> make_one(Params& p) {
    return std::make_unique<Policy>(p);
  }
  static NamedTable<Entry>& table() {  // function-local: independent of registration order
    static NamedTable<Entry> entries;
    return entries;
  }
};

}  // namespace kvlab

// Registers the class Policy, in the same namespace, with its Card:
//   KVLAB_REGISTER(Scheduler, Sarathi, "sarathi", "stall-free chunked prefill", "Agrawal et al. 2024");
// The variable has the class's name: unity builds (CMAKE_UNITY_BUILD) do not clash.
#define KVLAB_REGISTER(Interface, Policy, ...) \
  [[maybe_unused]] const bool Policy##_is_registered = ::kvlab::Registry<Interface>::add<Policy>(::kvlab::Card{__VA_ARGS__})
