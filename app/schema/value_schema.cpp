#include "app/schema/value_schema.h"

#include <algorithm>
#include <utility>

#include "app/commands/describe.h"
#include "base/text.h"

namespace kvlab {

using Json = SchemaJson;

namespace {

// "[0, 1]" or "[1, ...]".
void add_range(const std::string& range, Json& schema) {
  const std::size_t comma = range.find(", ");
  if (!range.starts_with('[') || comma == std::string::npos) return;
  double low = 0, high = 0;
  if (parse_real(range.substr(1, comma - 1), low)) schema["minimum"] = low;
  if (parse_real(range.substr(comma + 2, range.size() - comma - 3), high)) schema["maximum"] = high;
}

Json number_schema(const char* type, const std::string& range) {
  Json schema = {{"type", type}};
  add_range(range, schema);
  return schema;
}

// YAML may read a text as a number or flag.
Json text_schema() { return {{"type", Json::array({"string", "number", "boolean"})}}; }

Json choice_schema(const std::string& names) {
  Json all = Json::array();
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(", ", begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    double number = 0;
    all.push_back(parse_real(name, number) ? Json(number) : Json(name));
    begin = end + 2;
  }
  return {{"enum", all}};
}

}  // namespace

Json value_schema(const AskedKeys::Asked& doc) {
  if (doc.type == "integer") return number_schema("integer", doc.range);
  if (doc.type == "real") return number_schema("number", doc.range);
  if (doc.type == "flag") return {{"type", "boolean"}};
  if (doc.type == "text") return text_schema();
  if (doc.type == "text or mapping") return {{"type", "string"}};
  if (doc.type == "list of reals") return {{"type", "array"}, {"items", number_schema("number", doc.range)}};
  if (doc.type == "list of words") return {{"type", "array"}, {"items", text_schema()}};
  if (doc.type == "choice") return choice_schema(doc.range);
  return nullptr;
}

Json any_of(std::vector<Json> forms) {
  std::erase_if(forms, [](const Json& form) { return form.is_null(); });
  if (forms.size() == 1) return forms.front();
  return {{"anyOf", Json(std::move(forms))}};
}

Json ref_to(const std::string& def) { return {{"$ref", "#/$defs/" + def}}; }

Json swept(const Json& value) { return any_of({value, {{"type", "array"}, {"items", value}, {"minItems", 1}}, ref_to("variable")}); }

Json name_or_path(const std::vector<std::string>& names) {
  return any_of({{{"enum", names}}, {{"type", "string"}, {"pattern", R"([/$]|^\.\.?$|\.(yaml|yml|json)$)"}}});
}

Json named_schema(const Json& properties) {
  Json names = Json::array();
  for (const auto& item : properties.items()) names.push_back(item.key());
  return any_of(
      {{{"enum", names}},
       {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}, {"minProperties", 1}, {"maxProperties", 1}}});
}

std::string description_of(const AskedKeys::Asked& doc, const std::string& key) {
  if (doc.meaning.empty()) return "";
  const std::string unit = unit_of(key);
  return doc.meaning + (unit.empty() ? "" : " [" + unit + "]") + (doc.fallback.empty() ? "" : "; default: " + doc.fallback);
}

}  // namespace kvlab
