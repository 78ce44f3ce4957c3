
#include <algorithm>
#include <map>

#include "app/schema/schema.h"

namespace kvlab {

namespace {

using SettingWords = std::vector<std::pair<std::string, std::string>>;

// References and `anyOf` are resolved. Without lists: --set takes one value.
class Forms {
 public:
  Forms(const SchemaJson& root, const std::vector<const SchemaJson*>& schemas) : root_(root) {
    for (const SchemaJson* schema : schemas) add(*schema);
  }

  [[nodiscard]] const std::vector<const SchemaJson*>& all() const { return all_; }

  [[nodiscard]] bool has_keys() const {
    return std::any_of(all_.begin(), all_.end(), [](const SchemaJson* form) { return form->contains("properties"); });
  }

  // Not only mappings, lists or null.
  [[nodiscard]] bool has_values() const {
    return std::any_of(all_.begin(), all_.end(), [](const SchemaJson* form) {
      const auto type = form->find("type");
      return type == form->end() || (*type != "object" && *type != "array" && *type != "null");
    });
  }

  // User-named keys share one.
  [[nodiscard]] std::vector<const SchemaJson*> below(const std::string& key) const {
    std::vector<const SchemaJson*> found;
    for (const SchemaJson* form : all_) {
      if (form->contains("properties") && form->at("properties").contains(key))
        found.push_back(&form->at("properties").at(key));
      else if (form->contains("additionalProperties") && form->at("additionalProperties").is_object())
        found.push_back(&form->at("additionalProperties"));
    }
    return found;
  }

 private:
  void add(const SchemaJson& schema) {
    constexpr const char* kDefs = "#/$defs/";
    if (std::find(seen_.begin(), seen_.end(), &schema) != seen_.end()) return;
    seen_.push_back(&schema);
    if (schema.contains("$ref")) {
      const std::string name = schema.at("$ref").get<std::string>().substr(std::string(kDefs).size());
      if (name != "variable") add(root_.at("$defs").at(name));
    } else if (schema.contains("anyOf")) {
      for (const SchemaJson& form : schema.at("anyOf")) add(form);
    } else if (schema.value("type", SchemaJson()) != "array") {
      all_.push_back(&schema);
    }
  }

  const SchemaJson& root_;
  std::vector<const SchemaJson*> seen_, all_;
};

std::string description_in(const SchemaJson& schema) { return schema.value("description", ""); }

std::string value_text(const SchemaJson& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// KEY= for values, KEY. for subkeys.
SettingWords key_words(const SchemaJson& root, const Forms& forms, const std::string& before) {
  std::map<std::string, std::string> words;
  for (const SchemaJson* form : forms.all()) {
    if (!form->contains("properties")) continue;
    for (const auto& [key, schema] : form->at("properties").items()) {
      const Forms below(root, {&schema});
      if (below.has_values()) words.try_emplace(before + key + "=", description_in(schema));
      if (below.has_keys()) words.try_emplace(before + key + ".", description_in(schema));
    }
  }
  return {words.begin(), words.end()};
}

// Closed sets, with descriptions of parameters of the same name.
SettingWords value_words(const Forms& forms, const std::string& before) {
  std::map<std::string, std::string> words;
  for (const SchemaJson* form : forms.all()) {
    if (form->contains("const")) words.try_emplace(before + value_text(form->at("const")), "");
    if (form->value("type", SchemaJson()) == "boolean") words.insert({{before + "true", ""}, {before + "false", ""}});
    if (form->contains("enum"))
      for (const SchemaJson& value : form->at("enum")) words.try_emplace(before + value_text(value), "");
  }
  for (const SchemaJson* form : forms.all()) {
    if (!form->contains("properties")) continue;
    for (const auto& [name, schema] : form->at("properties").items())
      if (const auto found = words.find(before + name); found != words.end() && found->second.empty())
        found->second = description_in(schema);
  }
  return {words.begin(), words.end()};
}

}  // namespace

std::vector<std::pair<std::string, std::string>> setting_words(const std::string& of, const std::string& typed) {
  const SchemaJson root = experiment_schema_json();
  std::vector<const SchemaJson*> at = {&root};
  if (!of.empty()) at = Forms(root, at).below(of);
  const std::size_t equals = typed.find('=');
  const std::string keys = typed.substr(0, equals);
  std::size_t begin = 0;
  for (std::size_t end = keys.find('.'); end != std::string::npos; begin = end + 1, end = keys.find('.', begin))
    at = Forms(root, at).below(keys.substr(begin, end - begin));
  if (equals == std::string::npos) return key_words(root, Forms(root, at), typed.substr(0, begin));
  return value_words(Forms(root, Forms(root, at).below(keys.substr(begin))), typed.substr(0, equals + 1));
}

}  // namespace kvlab
