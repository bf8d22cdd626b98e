// Tests that every op touches the buffers that its operands name, and nothing else. While an op runs, the buffers that
// it reads are write-protected, and the buffers that it does not name are inaccessible. A fault is recorded with its op
// and buffer and the page is opened, so that one run finds all faults. A buffer that an op overwrites holds NaN before
// the op, and a buffer that an op consumes holds NaN after it. If such a value is read, the step is not finite.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "math/allocation.h"
#include "program/build/build.h"
#include "program/parts/part.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using program::Place;
using program::Program;

constexpr std::int64_t kPage = program::MemoryPlan::kPage;

// Returns the same program with all its ops in list order on one stream, so that one op runs at a time.
Program in_list_order(Program p) {
  for (std::size_t b = 0; b < p.bodies.size(); ++b) {
    auto& steps = p.bodies[b].steps;
    for (std::size_t k = 1; k < steps.size(); ++k) steps[k].after.push_back({-1, static_cast<int>(k) - 1});
    if (steps.empty()) continue;
    for (std::size_t before = 0; before < p.bodies.size(); ++before)
      if (const auto last = static_cast<int>(p.bodies[before].steps.size()) - 1; last >= 0)
        steps[0].after.push_back({static_cast<int>(before), last});
  }
  return p;
}

constexpr const char* kReadAllTheSame = "an op reads what it or another op says is not read";

class Fence;
constexpr int kMostRanks = 8;
std::array<std::atomic<Fence*>, kMostRanks> fences{};

// Protects the pages of one rank's arenas.
class Fence : public exec::Observer {
 public:
  void watch(const exec::Executor& executor, int rank) {
    executor_ = &executor;
    slots_.emplace(executor.program());
    for (const Place place : {Place::kDevice, Place::kHost}) arenas_[place == Place::kHost] = executor.arena(place);
    fences.at(static_cast<std::size_t>(rank_ = rank)) = this;
  }
  ~Fence() override {
    if (rank_ >= 0) fences.at(static_cast<std::size_t>(rank_)) = nullptr;
    open_all();
  }

  void begin(program::Stream, std::size_t op, std::int64_t) noexcept override {
    if (!executor_) return;
    op_ = op;
    faults_ = 0;
    for (const auto& arena : arenas_)
      if (!arena.empty()) ::mprotect(arena.data(), arena.size(), PROT_NONE);
    const program::Expanded& e = executor_->ops()[op];
    for (const auto& use : e.step->operands) allow(use.buffer, e.micro_batch, PROT_READ);
    for (const auto& use : e.step->operands)
      if (use.changes()) allow(use.buffer, e.micro_batch, PROT_READ | PROT_WRITE);
    for (const auto& use : e.step->operands)
      if (use.access == program::Access::kWrite && in_whole(*e.step, use)) fill_with_nan(use.buffer, e.micro_batch);
    const auto& plan = executor_->memory();
    const auto scratch = plan.scratch_offset[static_cast<std::size_t>(e.body)][static_cast<std::size_t>(e.op)];
    if (scratch >= 0) protect(Place::kDevice, scratch, e.step->scratch.value, PROT_READ | PROT_WRITE);
    ++watched;
  }
  void end(program::Stream, std::size_t op, std::int64_t) noexcept override {
    open_all();
    if (executor_) {
      const program::Expanded& e = executor_->ops()[op];
      for (const auto& use : e.step->operands)
        if (use.access == program::Access::kConsume && chosen(*e.step) && in_whole(*e.step, use))
          fill_with_nan(use.buffer, e.micro_batch);
    }
    for (int i = 0; i < std::min<int>(faults_, kMostFaults); ++i) note(addresses_[static_cast<std::size_t>(i)]);
  }

  // Called by the signal handler; returns whether the address lies in these arenas.
  bool fault(std::byte* address, bool write) noexcept {
    for (const auto& arena : arenas_) {
      if (arena.empty() || address < arena.data() || address >= arena.data() + arena.size()) continue;
      if (const int i = faults_++; i < kMostFaults) addresses_[static_cast<std::size_t>(i)] = {address, write};
      auto* page = reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(address) / kPage * kPage);
      ::mprotect(page, kPage, PROT_READ | PROT_WRITE);
      return true;
    }
    return false;
  }

  std::set<std::string> found;
  std::int64_t watched = 0;
  mutable std::int64_t filled = 0;  // number of operands filled with NaN
  std::string kind;                 // kind of the ops whose operands are filled; "": all kinds

 private:
  struct Fault {
    std::byte* address;
    bool write;
  };
  static constexpr int kMostFaults = 64;

  void open_all() {
    for (const auto& arena : arenas_)
      if (!arena.empty()) ::mprotect(arena.data(), arena.size(), PROT_READ | PROT_WRITE);
  }
  void protect(Place place, std::int64_t offset, std::int64_t bytes, int rights) const {
    if (bytes > 0) ::mprotect(arenas_[place == Place::kHost].data() + offset, static_cast<std::size_t>(bytes), rights);
  }
  std::int64_t offset_of(int buffer, std::int64_t micro_batch) const {
    return executor_->memory().offset(executor_->program(), *slots_, buffer, micro_batch);
  }
  void allow(int buffer, std::int64_t micro_batch, int rights) const {
    const auto& b = executor_->program().buffers[static_cast<std::size_t>(buffer)];
    protect(b.place, offset_of(buffer, micro_batch), b.bytes().value, rights);
  }
  bool chosen(const program::Step& step) const { return kind.empty() || program::kind_of(step.op) == kind; }
  // Returns whether no other operand of the step is in the same buffer.
  static bool alone(const program::Step& step, const program::Use& use) {
    return std::count_if(step.operands.begin(), step.operands.end(),
                         [&](const program::Use& other) { return other.buffer == use.buffer; }) == 1;
  }
  // Returns whether the step works on a piece of a value: a chunk of the head, or a piece of the rows.
  static bool of_a_piece(const program::Step& step) {
    return std::visit(
        [](const auto& op) {
          if constexpr (requires { op.portion; }) return op.portion >= 0;
          return false;
        },
        step.op);
  }
  // Returns whether the step overwrites or consumes the whole buffer. A part of the model writes only a part of its
  // unit's gradient.
  bool in_whole(const program::Step& step, const program::Use& use) const {
    const bool part = use.arg == program::Arg::kGrad || use.range != program::Range::kAll;
    return !of_a_piece(step) && !part && alone(step, use);
  }
  void fill_with_nan(int buffer, std::int64_t micro_batch) const noexcept {
    const auto& b = executor_->program().buffers[static_cast<std::size_t>(buffer)];
    std::memset(arenas_[b.place == Place::kHost].data() + offset_of(buffer, micro_batch), 0xff,
                static_cast<std::size_t>(b.bytes().value));
    ++filled;
  }
  void note(const Fault& fault) {
    const auto& p = executor_->program();
    const program::Expanded& e = executor_->ops()[op_];
    std::string what = "no buffer";
    for (int b = 0; b < static_cast<int>(p.buffers.size()); ++b) {
      const auto& buffer = p.buffers[static_cast<std::size_t>(b)];
      const std::byte* first = arenas_[buffer.place == Place::kHost].data() + offset_of(b, e.micro_batch);
      if (first <= fault.address && fault.address < first + executor_->memory().aligned(buffer.bytes().value))
        what = buffer.name.substr(0, buffer.name.find('.'));
    }
    found.insert(fmt::format("{} {} {}", program::kind_of(e.step->op), fault.write ? "writes" : "reads", what));
  }

  const exec::Executor* executor_ = nullptr;
  int rank_ = -1;
  std::optional<program::Slots> slots_;
  std::array<std::span<std::byte>, 2> arenas_;
  std::size_t op_ = 0;
  std::atomic<int> faults_ = 0;
  std::array<Fault, kMostFaults> addresses_{};
};

struct sigaction before_us;

void on_fault(int signal, siginfo_t* info, void* context) {
  bool write = false;
#if defined(__x86_64__)
  write = (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#endif
  for (const auto& fence : fences)
    if (Fence* f = fence.load(); f && f->fault(static_cast<std::byte*>(info->si_addr), write)) return;
  ::sigaction(signal, &before_us, nullptr);  // another kind of fault; the access repeats and calls the earlier handler
}

class HandleFaults {
 public:
  HandleFaults() {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &before_us);
  }
  ~HandleFaults() { ::sigaction(SIGSEGV, &before_us, nullptr); }
};

// Returns the buffers that the ops of two steps touch without naming them, over all ranks. With `kind`, only the
// operands of ops of that kind hold NaN; with "", the operands of all ops do.
std::set<std::string> undeclared(const std::vector<Program>& stages, std::int64_t& watched,
                                 const std::string& kind = "") {
  const HandleFaults handler;
  std::mutex mutex;
  std::set<std::string> all;
  suite::on_ranks(stages[0].setting.ranks(), [&](comm::Communicator& world) {
    const auto& p = stages[static_cast<std::size_t>(program::at_rank(stages[0].setting, world.rank()).pipeline.stage)];
    const c10::InferenceMode inference;
    at::set_num_threads(p.setting.threads);
    Fence fence;
    fence.kind = kind;
    exec::Options options;
    options.packing = program::Packing::kPages;
    options.observer = &fence;
    exec::Executor executor(in_list_order(p), world.rank(), &world, options);
    std::vector<std::string> states{"param", "master"};
    for (const auto& state : p.optimizer->states) states.emplace_back(name_of(state.value));
    for (const std::string& state : states)
      for (int u = 0; executor.has_state(state) && u < static_cast<int>(p.units.size()); ++u)
        executor.state(state, u).zero_();
    launch::initialize_parameters(executor, 5, p.setting.threads);
    exec::StepInput input;
    world.barrier();
    fence.watch(executor, world.rank());
    bool finite = true;
    for (input.step = 1; input.step <= 2 && finite; ++input.step) {
      input.load = loads_of_step(executor, p.setting, synthetic_samples(p.setting, p.arch.vocabulary), input.step);
      finite = !executor.run(input).non_finite;
    }
    world.barrier();
    const std::lock_guard lock(mutex);
    if (!finite)
      all.insert(kind.empty() ? std::string(kReadAllTheSame)
                              : kind + " reads what it overwrites, or another op reads what it consumes");
    all.insert(fence.found.begin(), fence.found.end());
    watched += fence.watched;
    if (kind.empty() && fence.filled < 20) throw Error("rank {}: only {} buffers held NaN", world.rank(), fence.filled);
  });
  return all;
}

struct Case {
  const char* name;
  suite::Layout layout;
  DType compute = DType::kF32;
  arch::Kernels kernels = arch::Kernels::kFused;
  void (*change)(program::Setting&) = [](program::Setting&) {};
  std::vector<std::string> models = {"Llama", "GPT", "Qwen3", "Mixtral", "dots.llm1", "a capacity"};
};

suite::Layout over_axes(int tensor, int context, int shards = 1, int zero = 0) {
  suite::Layout l{shards, zero, true, 1};
  l.tensor = tensor, l.context = context, l.rows = tensor > 1, l.sequence = 24;
  return l;
}
suite::Layout over_stages(int stages, bool halves) {
  suite::Layout l{1, 0, false, 1};
  l.stages = stages;
  if (halves) l.pipeline.schedule = program::ScheduleKind::kZbH1, l.pipeline.halves = true;
  return l;
}
suite::Layout with_ring(suite::Layout l) {
  l.form = program::ContextForm::kRing;
  return l;
}
suite::Layout in_pieces(suite::Layout l) {
  l.chunks = 2;
  return l;
}
suite::Layout over_experts(suite::Layout l) {
  l.experts = 2;
  return l;
}
suite::Layout on_host(suite::Layout l) {
  l.offload = {true, true, true, true};
  return l;
}

// Which kinds of ops, optimizers, stages of updates and kernels have been watched.
class Watched {
 public:
  void add(const Program& p) {
    for (const auto& body : p.bodies)
      for (const auto& step : body.steps) {
        kinds_.insert(step.op.index());
        if (const auto* update = std::get_if<program::OptimizerStep>(&step.op))
          updates_.insert({update->kind, update->stage});
        if (step.attributes.kernel) kernels_.insert(std::string(name_of(*step.attributes.kernel)));
      }
  }
  void expect_all() const {
    std::set<std::size_t> kinds = kinds_;
    kinds.insert(program::Op(program::SetClock{}).index());  // it has no operand to watch
    EXPECT_EQ(kinds.size(), std::variant_size_v<program::Op>);
    for (const auto& optimizer : program::optimizers()) {
      EXPECT_TRUE(updates_.contains({std::string(optimizer.name), program::UpdateStage::kWhole})) << optimizer.name;
      for (const auto stage : {program::UpdateStage::kDirection, program::UpdateStage::kApply})
        EXPECT_EQ(updates_.contains({std::string(optimizer.name), stage}), optimizer.has_whole()) << optimizer.name;
    }
    for (const char* kernel : {"fused", "aten", "reference", "unfused"})
      EXPECT_TRUE(kernels_.contains(kernel)) << kernel;
  }

 private:
  std::set<std::size_t> kinds_;
  std::set<std::pair<std::string, program::UpdateStage>> updates_;
  std::set<std::string> kernels_;
};

template <int kIndex>
void chosen_optimizer(program::Setting& s) {
  s.optimizer = program::optimizers().at(kIndex).name;
}

TEST(Access, OpsTouchWhatTheyName) {
  const std::vector<std::string> dense{"Llama", "GPT"}, any{"Llama", "dots.llm1"}, sparse_only{"Mixtral", "dots.llm1"};
  const arch::Kernels fused = arch::Kernels::kFused;
  const std::vector<Case> cases{
      {"gradients travel in bf16",
       {2, 2, false, 2},
       DType::kF32,
       fused,
       [](program::Setting& s) { s.reduce = DType::kBF16; },
       dense},
      {"fp16",
       {2, 1, false, 2},
       DType::kF16,
       arch::Kernels::kAten,
       [](program::Setting& s) { s.reduce = DType::kF16; },
       dense},
      {"reference in fp64", {1, 0, true, 2}, DType::kF64, arch::Kernels::kReference, [](program::Setting&) {}, any},
      {"unfused attention",
       {1, 0, true, 2},
       DType::kF32,
       fused,
       [](program::Setting& s) { s.other_kernels = program::without_flash(s.kernels, {.compute = s.compute}).value(); },
       dense},
      {"two copies", {2, 3, false, 1, 2, true}, DType::kF32, fused, [](program::Setting&) {}, {"Llama"}},
      {"EP 2 in tiles", over_experts({2, 2, false, 2}), DType::kF32, fused,
       [](program::Setting& s) { s.expert_tiles = 3; }, sparse_only},
      {"Lion", {2, 1, false, 2}, DType::kF32, fused, chosen_optimizer<1>, any},
      {"Muon", {2, 1, false, 2}, DType::kF32, fused, chosen_optimizer<2>, any},
      {"Muon, TP 2", over_axes(2, 1), DType::kF32, fused, chosen_optimizer<2>, {"Llama"}},
      {"Adafactor", {2, 1, false, 2}, DType::kF32, fused, chosen_optimizer<3>, any},
      {"Adafactor, TP 2", over_axes(2, 1), DType::kF32, fused, chosen_optimizer<3>, {"Llama"}},
      {"one rank", {1, 0, false, 2}},
      {"one rank, recompute", {1, 0, true, 2}},
      {"ATen in fp32", {1, 0, false, 2}, DType::kF32, arch::Kernels::kAten},
      {"bf16", {1, 0, true, 2}, DType::kBF16, arch::Kernels::kAten},
      {"ZeRO-1", {2, 1, false, 2}},
      {"ZeRO-2, bf16", {2, 2, false, 2}, DType::kBF16, arch::Kernels::kAten},
      {"ZeRO-3", {2, 3, true, 2}},
      {"TP 2", over_axes(2, 1)},
      {"TP 2 in pieces, FULL_SHARD", in_pieces(over_axes(2, 1, 2, 3))},
      {"CP 2, gathered", over_axes(1, 2)},
      {"CP 2, in a ring", with_ring(over_axes(1, 2))},
      {"CP 2, in a ring, bf16", with_ring(over_axes(1, 2)), DType::kBF16, arch::Kernels::kAten},
      {"EP 2", over_experts({1, 1, true, 2})},
      {"EP 2, FULL_SHARD 2, bf16", over_experts({2, 3, false, 2}), DType::kBF16, arch::Kernels::kAten},
      {"all on the host", on_host({2, 3, false, 2})},
      {"documents",
       [] {
         suite::Layout l{1, 0, false, 2};
         l.documents = true;
         return l;
       }()},
      {"PP 2", over_stages(2, false)},
      {"PP 2 in halves", over_stages(2, true)},
  };
  Watched covered;
  for (const Case& c : cases)
    for (const std::string& model : c.models) {
      const bool gpt = model == "GPT";
      auto setting = suite::setting_of(c.layout, c.compute);
      setting.kernels = c.kernels;
      c.change(setting);
      auto arch = gpt ? suite::gpt() : model == "Qwen3" ? suite::qwen() : suite::llama(true);
      const bool sparse = model == "Mixtral" || model == "dots.llm1" || model == "a capacity";
      if (c.layout.experts > 1 && !sparse) continue;
      if (model == "a capacity" && c.layout.experts * c.layout.context == 1 && c.layout.ranks() > 1) continue;
      if (sparse) {  // sparse layers run in bf16 only on ATen's kernels
        arch = suite::mixtral();
        if (c.layout.experts > 1) arch.experts->count = 6;
        if (model == "a capacity") arch.experts->capacity = 0.75;
        if (model == "dots.llm1") {  // gives the model a dense layer, shared experts and biases of routers
          arch.experts->dense_layers = 1, arch.experts->shared = 2, arch.experts->scores = arch::RouterScores::kSigmoid;
          arch.experts->z_loss = 0.0, arch.experts->bias_rate = 0.001;
        }
        if (program::chunks_refused(arch, setting) || (c.kernels == arch::Kernels::kAten && c.compute != DType::kBF16))
          continue;
      }
      if (c.layout.tensor > 1) {  // sizes that two ranks can share
        arch.hidden = 32, arch.heads = 4, arch.head_dim = 8, arch.ffn = 48, arch.vocabulary = 72;
        arch.kv_heads = gpt ? 4 : 2;
      }
      std::vector<Program> stages;
      for (int stage = 0; stage < setting.stages(); ++stage) {
        setting.pipeline.stage = stage;
        stages.push_back(program::build(arch, setting));
        covered.add(stages.back());
      }
      std::int64_t watched = 0;
      std::set<std::string> found = undeclared(stages, watched);
      if (found.count(kReadAllTheSame) > 0) {
        std::set<std::string> kinds;
        for (const Program& p : stages)
          for (const auto& body : p.bodies)
            for (const auto& step : body.steps) kinds.insert(program::kind_of(step.op));
        for (const std::string& kind : kinds) found.merge(undeclared(stages, watched, kind));
      }
      EXPECT_EQ(fmt::format("{}", fmt::join(found, "; ")), "") << c.name << ", " << model;
      EXPECT_GT(watched, 50) << c.name;
    }
  covered.expect_all();
}

}  // namespace
}  // namespace molen::prove
