#include "app/runs/plan/serving_system.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/read_file.h"

namespace kvlab {

namespace {

constexpr const char* kRoles[] = {"encode", "prefill", "decode", "both"};

const std::set<std::string>& keys_of(const std::string& role) { return role == "encode" ? system_encode_pool_keys() : system_pool_keys(); }

std::set<std::string> with(std::set<std::string> keys, const std::set<std::string>& more) {
  keys.insert(more.begin(), more.end());
  return keys;
}

// Refuses unknown keys; values are checked on use.
ServingSystem::Layer read_layer(Params parts) {
  parts.allow(system_keys());
  Params pools = parts.optional_child("pools", "pools");
  ServingSystem::Layer layer{std::move(parts), {}};
  for (const char* role : kRoles) {
    Params pool = pools.optional_child(role, "pool '" + std::string(role) + "'");
    pool.allow(keys_of(role));
    pool.reject_unread();
    if (pools.has(role)) layer.pools.emplace_back(role, pool);
  }
  pools.reject_unread();
  layer.parts.reject_unread();
  return layer;
}

Params open_system(const std::string& file, const std::string& name) {
  return {load_config(file), std::make_shared<Choices>(), "system '" + name + "'"};
}

SystemCard read_card(Params& file, const std::string& name) {
  SystemCard card;
  card.name = name;
  card.summary = file.text("summary", "what it does");
  card.paper = file.text("paper", "where it is published");
  card.confidence = file.text("confidence", "", "where the description comes from");
  card.notes = file.text("notes", "", "what is not as in the paper");
  return card;
}

std::string find_system(const std::string& name) { return find_spec_file(name, systems_folder(), "system"); }

}  // namespace

const std::set<std::string>& system_pool_keys() {
  static const std::set<std::string> keys{"scheduler", "order", "predictor", "block_cache", "prefix_caching"};
  return keys;
}

const std::set<std::string>& system_encode_pool_keys() {
  static const std::set<std::string> keys{"batch_images"};
  return keys;
}

const std::set<std::string>& system_keys() {
  static const std::set<std::string> keys = with(system_pool_keys(), {"dispatcher", "transfer", "store"});
  return keys;
}

const Params* ServingSystem::Layer::of_role(const std::string& role) const {
  const auto found = std::find_if(pools.begin(), pools.end(), [&](const auto& pool) { return pool.first == role; });
  return found == pools.end() ? nullptr : &found->second;
}

std::vector<std::string> ServingSystem::roles() const {
  std::vector<std::string> all;
  for (const char* role : kRoles)
    if (std::any_of(layers.begin(), layers.end(), [&](const Layer& layer) { return layer.of_role(role) != nullptr; }))
      all.emplace_back(role);
  return all;
}

ServingSystem read_system(Params& p) {
  ServingSystem system;
  if (!p.has("system")) {
    p.text("system", "", "a published serving system: sets what the experiment does not");
    return system;
  }
  auto [name, own] = p.named("system", "", "a published serving system: sets what the experiment does not");
  std::string path;
  try {
    const std::string named = p.resolve_file(name);
    path = find_system(is_file(named) ? named : name);
  } catch (const InputError& e) {
    p.fail_at("system", e.what());
  }
  name = std::filesystem::path(path).stem().string();
  Params file = open_system(path, name);
  read_card(file, name);
  system.name = name;
  system.layers.push_back(read_layer(own));
  system.layers.push_back(read_layer(file));
  return system;
}

SystemCard load_system_card(const std::string& name) {
  Params file = open_system(find_system(name), name);
  SystemCard card = read_card(file, name);
  const ServingSystem::Layer layer = read_layer(file);
  const auto add = [&card](const Params& parts, const std::string& prefix, const std::set<std::string>& keys) {
    for (const std::string& key : parts.keys())
      if (keys.contains(key)) card.parts.emplace_back(prefix + key, parts.inline_text(key, ""));
  };
  add(layer.parts, "", system_keys());
  for (const auto& [role, pool] : layer.pools) {
    if (pool.keys().empty()) card.parts.emplace_back(role, "as the experiment says");
    add(pool, role + " ", keys_of(role));
  }
  return card;
}

std::vector<std::string> system_names() { return yaml_names(systems_folder()); }

}  // namespace kvlab
