#include <map>

#include "app/schema/value_schema.h"

namespace kvlab {

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

}  // namespace

std::string mapping_text(const std::string& path) {
  const auto found = kMappingTexts.find(path);
  return found == kMappingTexts.end() ? "" : found->second;
}

}  // namespace kvlab
