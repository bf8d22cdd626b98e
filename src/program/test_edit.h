// Edits of programs for tests, which change a program as a user might in its text form.
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

// The same model, but with a dense layer followed by two layers with experts and shared experts.
inline arch::Architecture tiny_sparse() {
  arch::Architecture a = tiny();
  a.experts = arch::Experts{.count = 5, .per_token = 2, .ffn = 14, .balance_loss = 0.1, .z_loss = 0.01};
  a.experts->dense_layers = 1, a.experts->shared = 2;
  return a;
}

// Returns a setting of data-parallel ranks whose micro-batches have 300 tokens, which are two chunks of the head.
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

// Returns the program without one op, with the indices in edges corrected, as an editor would.
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

// Replaces `from` by `to` in every line of `text` that holds all strings of `where`. Throws Error when no line does.
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

// Returns the program with an empty setting.
inline Program without_setting(Program p) {
  p.setting = {};
  return p;
}

// Returns why the parser or the verifier refuses a text, or an empty string when the text is sound. Costs are computed
// anew from the text, because otherwise the old costs alone would reveal an edit.
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

// Returns the program with another access to an operand, in each step whose text holds all strings of `where`. Throws
// Error when no step has such an operand with a different access.
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

// Returns an edit that prints a program, replaces `from` by `to` in the lines that hold `where`, and reads the program
// back.
inline auto rewritten(std::vector<std::string> where, std::string from, std::string to) {
  return [=](const Program& p) { return parse(rewrite(print(p), where, from, to), "edited"); };
}

}  // namespace molen::program
