// Edits of a program for tests: changes that a user might make to its text form.
#pragma once

#include <algorithm>
#include <cstddef>
#include <regex>
#include <string>
#include <vector>

#include "base/error.h"
#include "program/build/build.h"
#include "program/build/recompute.h"
#include "program/ir/program.h"
#include "program/provenance/provenance.h"
#include "program/text/text.h"
#include "program/verify/verify.h"

namespace molen::program {

// A small Llama whose sizes are pairwise different.
inline arch::Architecture tiny(bool tied = false) {
  arch::Architecture a = arch::preset("llama-tiny");
  a.name = "custom";
  a.layers = 3;
  a.hidden = 24;
  a.ffn = 40;
  a.heads = 6;
  a.kv_heads = 2;
  a.head_dim = 4;
  a.vocabulary = 53;
  a.tied = tied;
  return a;
}

// The same with a dense layer, and then two with experts, shared ones beside them.
inline arch::Architecture tiny_sparse() {
  arch::Architecture a = tiny();
  a.experts = arch::Experts{.count = 5, .per_token = 2, .ffn = 14, .balance_loss = 0.1, .z_loss = 0.01};
  a.experts->dense_layers = 1, a.experts->shared = 2;
  return a;
}

// Data-parallel ranks with micro-batches of 300 tokens, which are two chunks of the head.
inline Setting setting_of(int ranks, int zero, bool recompute, std::int64_t global) {
  Setting s;
  s.mesh[mesh::Axis::kDpShard] = ranks;
  s.zero = zero;
  if (recompute) s.recompute = Recompute::full();
  s.global_batch = global;
  s.micro_batch = 2;
  s.sequence = 150;
  return s;
}

// Removes one op and mends the numbering, as an editor would.
inline Program without(const Program& p, std::size_t body, std::size_t op) {
  Program q = p;
  q.bodies[body].steps.erase(q.bodies[body].steps.begin() + static_cast<std::ptrdiff_t>(op));
  for (std::size_t b = 0; b < q.bodies.size(); ++b)
    for (Step& step : q.bodies[b].steps) {
      std::vector<OpRef> kept;
      for (OpRef ref : step.after) {
        const std::size_t target = ref.body < 0 ? b : static_cast<std::size_t>(ref.body);
        if (target == body && ref.op == static_cast<int>(op)) continue;
        if (target == body && ref.op > static_cast<int>(op)) --ref.op;
        kept.push_back(ref);
      }
      step.after = kept;
    }
  return q;
}

// Replaces `from` by `to` in every line of `text` that holds all of `where`. Throws Error when no line does.
inline std::string rewrite(const std::string& text, const std::vector<std::string>& where, const std::string& from,
                           const std::string& to) {
  std::string edited;
  int hits = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    std::string line = text.substr(begin, end - begin);
    bool here = true;
    for (const auto& word : where) here = here && line.find(word) != std::string::npos;
    const std::size_t at = here ? line.find(from) : std::string::npos;
    if (at != std::string::npos) {
      line.replace(at, from.size(), to);
      ++hits;
    }
    edited += line;
    begin = end;
  }
  MOLEN_CHECK(hits > 0, "no line to edit: {} in {}", from, where.empty() ? "" : where.front());
  return edited;
}

// Returns the text without the costs of its ops, which the parser then computes.
inline std::string without_costs(const std::string& text) {
  return std::regex_replace(
      text, std::regex(" scratch=\\S+ model_flops=\\S+ hardware_flops=\\S+ moved=\\S+( epilogues=\\S+)?"), "");
}

// Returns the program without what it was asked to be.
inline Program without_setting(Program p) {
  p.setting = {};
  return p;
}

// Returns why the parser or the verifier refuses a text, or an empty string when the text is sound. It computes the
// costs anew from the text, because stale costs alone would give an edit away.
inline std::string refusal(const std::string& text) {
  std::string all;
  try {
    for (const auto& finding : verify(without_setting(pass::costs(parse(text, "edited"))))) all += finding.text + "\n";
  } catch (const UsageError& error) {
    all = error.what();
  }
  return all;
}

// Returns the same program with meaningless buffer names.
inline Program renamed(Program p) {
  int number = 0;
  for (Buffer& b : p.buffers) b.name = "b" + std::to_string(number++);
  return p;
}

// Returns the program with another access to an operand of each step whose text holds all of `where`. Throws Error when
// no step has such an operand with a different access.
inline Program accessed(const Program& p, const std::vector<std::string>& where, Arg arg, Access access) {
  Program q = p;
  int hits = 0;
  for (Body& body : q.bodies)
    for (Step& step : body.steps) {
      const std::string text = print_step(p, step);
      const bool here = std::all_of(where.begin(), where.end(),
                                    [&](const std::string& word) { return text.find(word) != std::string::npos; });
      if (!here || !step.find(arg) || step.operand(arg).access == access) continue;
      step.operand(arg).access = access;
      ++hits;
    }
  MOLEN_CHECK(hits > 0, "no operand '{}' with another access in {}", name_of(arg), where.front());
  return q;
}

// Returns the edit that reads a program back from its text with `from` replaced by `to` in the lines that hold `where`.
inline auto rewritten(std::vector<std::string> where, std::string from, std::string to) {
  return [=](const Program& p) { return parse(rewrite(print(p), where, from, to), "edited"); };
}

}  // namespace molen::program
