#include <algorithm>
#include <map>
#include <utility>

#include "app/commands/describe.h"
#include "app/schema/schema.h"
#include "base/text.h"

namespace kvlab {

using Json = SchemaJson;

namespace {

const std::map<std::string, std::string> kMappingTexts = {
    {"trace", "requests to serve: of a file, or made up"},
    {"trace.generate", "requests that are made up from distributions; docs/traces.md"},
    {"trace.generate.sessions", "requests are turns of sessions"},
    {"trace.generate.shared_prefix", "prompts of a group begin alike"},
    {"trace.generate.clients", "clients that send the requests"},
    {"trace.generate.classes", "classes of requests by name, with their shares and targets"},
    {"trace.generate.classes.NAME", "requests of this class"},
    {"trace.generate.images", "images of the requests"},
    {"memory", "KV memory of a replica"},
    {"parallel", "GPUs of a replica, and how they share the model"},
    {"parallel.overlap.none", "nothing runs beside all-reduces"},
    {"parallel.overlap.token_weave", "a step is split in two, and one half computes while the other half is reduced"},
    {"profile.roofline", "times from the datasheet's compute rate and bandwidth"},
    {"profile.bundle", "tables in the layout of LLMServingSim"},
    {"profile.vidur", "tables in the layout of Vidur"},
    {"profile.kvlab", "tables that 'kvlab calibrate' measured"},
    {"profile.aisimulate", "measured tables of the Python package aisimulate"},
    {"engine.none", "a step has no time beside its operations"},
    {"engine.NAME", "times of an engine by its version, in profiles/engines"},
    {"output", "files that a run writes beside its tables"},
    {"stop", "when a run ends before its trace does"},
    {"slo", "limits of each request's latencies, or the name of such limits; requests within them count as good"},
    {"slo.classes", "limits of the requests of a class, in place of the general ones"},
    {"slo.classes.NAME", "limits of the requests of this class"},
    {"slo.clients", "limits of the requests of a client, in place of the general ones"},
    {"slo.clients.NAME", "limits of the requests of this client"},
    {"qoe", "speed at which users read, from which the quality of their experience follows"},
    {"search", "finds the largest load, or the smallest number of GPUs, that meets the limits"},
    {"pools", "pools of replicas by name, each for some stages of a request"},
    {"pools.NAME", "replicas of this pool; keys that it does not have are the experiment's"},
    {"transfer", "how KV goes from pool to pool"},
    {"store", "CPU memory in which pools keep the KV of prompts"},
    {"images", "the vision encoder, and the tokens of an image"},
    {"images.encoder", "a name in profiles/encoders, or the sizes of an encoder"},
    {"validate", "compares the run with the log of a real engine"},
    {"kv_policy", "the recipe of a KV policy; parts and budget in place of the recipe's"},
    {"samples", "recorded or made-up attention by name, on which policies are replayed"},
    {"samples.NAME", "one sample: a file, a recording or a made-up one"},
    {"samples.NAME.record", "a recording that a model makes of a prompt"},
    {"samples.NAME.synthetic", "attention that is made up from these features"},
    {"eval", "questions with true answers, as a file or with a choice of them"},
    {"replay", "samples of 'eval' that are replayed, too, which measures attention"},
    {"figures", "figures by name: changes of the usual ones, and others; 'all' changes every figure"},
    {"figures.NAME", "this figure; docs/figures.md"},
    {"figures.NAME.names", "names that the figure prints, by what they take the place of"},
    {"expect", "limits of metrics that every run must meet, else the exit status is 3; docs/experiments.md"},
    {"expect.NAME", "limits of this column of summary.csv"},
    {"paths_from", "folders in which the experiment's files are looked for, in a resolved experiment"},
    {"order.vtc.weights", "weights of clients by name"},
    {"length.fixed", "always the same number"},
    {"length.uniform", "every number of a range is as likely"},
    {"length.lognormal", "the logarithm is normal"},
    {"length.geometric", "one more with the same probability each time"},
    {"length.zipf", "the k-th number with probability in proportion to k^-s"},
    {"length.trace", "lengths of a file's requests, drawn with replacement"},
    {"wait.none", "no pause"},
    {"wait.constant", "always the same time"},
    {"wait.exponential", "exponential times"},
    {"wait.lognormal", "the logarithm is normal"},
    {"arrival.poisson", "exponential gaps"},
    {"arrival.gamma", "gaps of a gamma distribution: bursts with a coefficient of variation above 1"},
    {"arrival.weibull", "gaps of a Weibull distribution: bursts with a shape below 1"},
    {"arrival.constant", "equal gaps"},
    {"arrival.on_off", "Poisson at two rates in turn"},
    {"arrival.trace", "as recorded, at a multiple of the recorded rate"},
    {"arrival.stages", "rates, ramps and bursts one after the other; a list, or a mapping with their names"},
    {"arrival.ramp", "a rate that changes linearly, and then stays"},
    {"arrival.bursts", "so many requests at once, again and again"},
    {"arrival.closed_loop", "a constant number of sessions: one ends, another comes"}};

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

std::string mapping_text(const std::string& path) {
  const auto found = kMappingTexts.find(path);
  return found == kMappingTexts.end() ? "" : found->second;
}

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
