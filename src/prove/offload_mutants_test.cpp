// Mutants with copies between device and host: each is the program that a wrong pass would make.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "program/test_edit.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Offload;
using program::Program;

TEST(OffloadMutants, AreRefused) {
  struct Mutant {
    std::string name;
    Layout layout;
    std::function<Program(const Program&)> broken;
    std::string says;
  };
  const auto find = [](const Program& p, const std::string& kind, const std::string& buffer, bool last) {
    std::pair<std::size_t, std::size_t> found{p.bodies.size(), 0};
    for (std::size_t b = 0; b < p.bodies.size(); ++b)
      for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k)
        for (const auto& use : p.bodies[b].steps[k].operands)
          if (program::kind_of(p.bodies[b].steps[k].op) == kind &&
              p.buffers[static_cast<std::size_t>(use.buffer)].name == buffer &&
              (last || found.first == p.bodies.size()))
            found = {b, k};
    MOLEN_CHECK(found.first < p.bodies.size(), "no {} on {}", kind, buffer);
    return found;
  };
  const auto dropped = [=](std::string kind, std::string buffer) {
    return [=](const Program& p) {
      const auto [b, k] = find(p, kind, buffer, true);
      return program::without(p, b, k);
    };
  };
  const auto accessed = [](std::vector<std::string> where, program::Access access) {
    return [=](const Program& p) { return program::accessed(p, where, program::Arg::kTo, access); };
  };
  const auto doubled = [=](std::string kind, std::string buffer) {
    return [=](const Program& p) {
      const auto [b, k] = find(p, kind, buffer, true);
      Program q = p;
      q.bodies[b].steps.push_back(q.bodies[b].steps[k]);
      for (auto& body : q.bodies)
        for (auto& step : body.steps) step.after.clear();
      return program::pass::order_streams(q);
    };
  };
  const auto edited = [](std::vector<std::string> where, std::string from, std::string to) {
    return [=](const Program& p) {
      const std::string text = program::print(p), broken = program::rewrite(text, where, from, to);
      MOLEN_CHECK(text != broken, "nothing is edited");
      return program::pass::costs(program::parse(broken, "mutant"));
    };
  };
  const Layout states = on_host(kOptimizer, {2, 1}), grads = on_host(kGradients, {2, 2, false, 2}),
               whole = on_host(kGradients, {2, 0, false, 2}), one = on_host(kGradients, {1, 0, false, 3}),
               full = on_host(kAll, {2, 3, false, 2}), hybrid = on_host(kGradients, {2, 2, false, 1, 2}),
               acts = on_host(kActivations, {1, 0, false, 3});
  const std::vector<Mutant> mutants{
      {"a gradient that stays on the device", states, dropped("copy_to_host", "grad_host.layer.1"),
       "incomplete gradient"},
      {"a gradient copied before its reduction", states,
       [&](const Program& p) {
         const auto [b, k] = find(p, "copy_to_host", "grad_host.layer.1", true);
         Program q = program::without(p, b, k);
         auto& first = q.bodies.front().steps;
         first.insert(first.begin(), p.bodies[b].steps[k]);
         for (auto& body : q.bodies)
           for (auto& step : body.steps) step.after.clear();
         return program::pass::order_streams(q);
       },
       "copies a gradient that is not reduced"},
      {"updated parameters that stay on the host", states, dropped("copy_to_device", "param.layer.1"),
       "not updated yet"},
      {"parameters that come twice", states, doubled("copy_to_device", "param.layer.0"), "a second time"},
      {"parameters that come of a skipped update", states,
       edited({"copy_to_device", "master.layer.0"}, " unless=non_finite", ""), "unless=non_finite is missing"},
      {"an update that does not wait for the copy", states,
       [&](const Program& p) {
         Program q = p;
         const auto [b, k] = find(p, "optimizer_step", "master.embed", true);
         q.bodies[b].steps[k].after.clear();
         return q;
       },
       "does not wait for"},
      {"an update on the device", states, edited({"optimizer_step", "master.layer.1"}, "stream=host", "stream=compute"),
       "belongs on the stream host"},
      {"a micro-batch that is not copied", grads, dropped("copy_to_host", "grad_host.layer.1"),
       "a gradient that is not reduced"},
      {"a micro-batch copied twice", grads, doubled("copy_to_host", "grad_host.layer.0"), "has been copied before"},
      {"a second micro-batch that overwrites the first", grads,
       accessed({"copy_to_host", "grad_host.layer.1"}, program::Access::kWrite), "overwrites what is there"},
      {"a first micro-batch that adds to the last step's", grads,
       accessed({"copy_to_host reads=from:grad_shard.layer.1"}, program::Access::kUpdate),
       "adds to what the last step left"},
      {"a gradient of one rank's micro-batch", whole, dropped("all_reduce", "grad.layer.1"),
       "not summed over all ranks"},
      {"a copy that does not wait for the backward", one,
       [&](const Program& p) {
         Program q = p;
         const auto [b, k] = find(p, "copy_to_host", "grad_host.layer.1", true);
         q.bodies[b].steps[k].after.clear();
         return q;
       },
       "does not wait for"},
      {"a backward that writes what is still copied", one,
       [&](const Program& p) {
         Program q = p;
         for (auto& body : q.bodies)
           for (auto& step : body.steps)
             if (step.stream == program::Stream::kCompute) step.after.clear();
         return q;
       },
       "does not wait for"},
      {"another layer's gradient", one,
       edited({"copy_to_host", "from:grad.layer.1"}, "grad_host.layer.1", "grad_host.layer.0"),
       "where it needs grad_host of unit layer.1"},
      {"a replica's gradient", hybrid, dropped("all_reduce", "grad_shard.layer.1"), "not summed over all ranks"},
      {"parameters that are not there", full, dropped("copy_to_device", "param_shard.layer.1"), "which holds nothing"},
      {"a gather of the shard of another layer", full,
       edited({"copy_to_device", "writes=to:param_shard.layer.1{"}, "reads=from:param_host.layer.1",
              "reads=from:param_host.layer.0"),
       "where it needs"},
      {"a gather that does not wait for the copy", full,
       [&](const Program& p) {
         Program q = p;
         const auto [b, k] = find(p, "all_gather", "param_shard.layer.1", true);
         q.bodies[b].steps[k].after.clear();
         return q;
       },
       "does not wait for"},
      {"activations that stay", acts, dropped("copy_to_host", "qkv.0"), "which holds nothing"},
      {"activations that do not come back", acts, dropped("copy_to_device", "up.0/back"), "which holds nothing"},
      {"another layer's activations", acts,
       edited({"copy_to_device payload=qkv layer=0"}, "reads=from:qkv.0/host", "reads=from:qkv.1/host"),
       "where it needs qkv of layer 0"},
      {"an input for a middle", acts, edited({"copy_to_host payload=mid layer=0"}, "payload=mid", "payload=x"),
       "where it needs x of layer 0"},
      {"activations that come twice", acts, doubled("copy_to_device", "act.0/back"),
       "writes act.0/back, which no op reads"},
      {"activations that are used before they are there", acts,
       [&](const Program& p) {
         Program q = p;
         const auto [b, k] = find(p, "backward down", "act.0/back", true);
         q.bodies[b].steps[k].after.clear();
         return q;
       },
       "does not wait for"},
      {"activations that are written while the last leave", acts,
       [&](const Program& p) {
         Program q = p;
         for (auto& body : q.bodies)
           for (auto& step : body.steps)
             if (step.stream == program::Stream::kToHost) step.after.clear();
         return q;
       },
       "does not wait for"},
      {"what nobody has made added to the sum", on_host(kGradients, {2, 1}),
       [&](const Program& p) {
         Program q = p;
         const auto [b, k] = find(p, "copy_to_host", "grad_host.layer.1", true);
         const auto [z, f] = find(p, "zero_fill", "grad.layer.1", true);
         auto& update = q.bodies.back().steps;
         update.insert(update.begin(), {p.bodies[z].steps[f], p.bodies[b].steps[k]});
         for (auto& body : q.bodies)
           for (auto& step : body.steps) step.after.clear();
         return program::pass::order_streams(q);
       },
       "that no op of this instance has made"},
      {"moments on the device", states, edited({"buffer m.layer.1"}, " host", ""), "is in the memory of the device"},
  };
  for (const Mutant& m : mutants) {
    SCOPED_TRACE(m.name);
    auto a = llama(false);
    if (m.layout.offload.activations) a.layers = 3;
    const Program sound = program::build(a, setting_of(m.layout, DType::kF64));
    ASSERT_TRUE(program::verify(sound).empty());
    const auto findings = program::verify(program::without_setting(m.broken(sound)));
    std::string all;
    for (const auto& f : findings) all += f.text + "\n";
    EXPECT_NE(all.find(m.says), std::string::npos) << all;
  }
  fmt::print("{} mutants, all refused\n", mutants.size());
}

}  // namespace
}  // namespace molen::prove
