// The plugin that Slurm loads (SPANK; docs/slurm-plugin.md): the option --energy, and the sender of each step's energy.
// Whatever goes wrong on a node is a line in slurmd's log, and the step goes on.
#include <stdint.h>  // NOLINT: Slurm's header uses its types without including it
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

extern "C" {
#include <slurm/slurm.h>
#include <slurm/spank.h>
// Constants have no linkage in C++ unless they are declared before.
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
}

#include "slurm/arguments.h"
#include "slurm/launch.h"
#include "slurm/option.h"

SPANK_PLUGIN(molen_energy, 1)

namespace molen::slurm {
namespace {

constexpr std::size_t kMostLogBytes = 512;

// What this process was asked for, and the end of the pipe that keeps the sender going.
EnergyOption asked;
bool is_asked = false;
int hold = -1;

void log_line(const std::string& text) {
  ::slurm_info("molen: %s", plain(text, kMostLogBytes).c_str());
}

// No exception may reach Slurm, which is C.
template <class F>
void without_exceptions(F&& call) {
  try {
    call();
  } catch (...) {
    ::slurm_info("molen: no memory: nothing of this step's energy is recorded");
  }
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

Parsed<Arguments> arguments_of(int count, char** words) {
  return parse_arguments(std::vector<std::string_view>(words, words + count), host_name());
}

// Called where a job is submitted (`remote` is 0), and on its nodes with the text that was accepted there. Whoever
// submits may forge that text, so it is checked again, and what is wrong with it then is no error of the job.
int on_option(int, const char* text, int remote) {
  int answer = 0;
  without_exceptions([&] {
    const auto parsed = parse_option(text == nullptr ? "" : text);
    if (!parsed.wrong.empty() && remote == 0) {
      ::slurm_error("--energy: %s", parsed.wrong.c_str());
      answer = -1;
    } else if (!parsed.wrong.empty()) {
      log_line("--energy is ignored: " + parsed.wrong);
    } else {
      asked = parsed.value;
      is_asked = true;
      if (::spank_context() != S_CTX_ALLOCATOR) return;
      // The command of salloc runs here.
      for (const auto& [name, value] : variables_of(asked))
        value.empty() ? ::unsetenv(name) : ::setenv(name, value.c_str(), 1);
    }
  });
  return answer;
}

void set_variables(spank_t spank) {
  for (const auto& [name, value] : variables_of(asked)) {
    if (value.empty())
      ::spank_unsetenv(spank, name);
    else if (::spank_setenv(spank, name, value.c_str(), 1) != ESPANK_SUCCESS)
      log_line(std::string(name) + " could not be set for the tasks of this step");
  }
}

void start_sender(spank_t spank, int count, char** words) {
  const auto arguments = arguments_of(count, words);
  if (!arguments.wrong.empty()) return log_line("plugstack.conf: " + arguments.wrong + ": no energy is recorded");
  std::uint32_t job = 0, step = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  if (::spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
      ::spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
      ::spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS)
    return log_line("Slurm does not tell job, step and user: no energy is recorded");
  StepLabels labels{std::to_string(job), step_name(step), uid};
  if (::spank_get_item(spank, S_JOB_GID, &gid) == ESPANK_SUCCESS)
    labels.gid = gid;
  else
    log_line("Slurm does not tell the group of the job: its energy is booked to no group");
  const Arguments& a = arguments.value;
  const Launched launched = start_detached(command_of_step(a, labels), a.spool, a.log);
  for (const std::string& note : launched.notes) log_line(note);
  hold = launched.hold;
}

}  // namespace
}  // namespace molen::slurm

extern "C" {

int slurm_spank_init(spank_t spank, int count, char** words) {
  using namespace molen::slurm;
  const spank_context_t context = ::spank_context();
  if (context == S_CTX_SLURMD) {
    // An administrator who starts slurmd sees at once what is wrong with plugstack.conf.
    without_exceptions([&] {
      if (const auto arguments = arguments_of(count, words); !arguments.wrong.empty())
        log_line("plugstack.conf: " + arguments.wrong + ": no energy will be recorded");
    });
  } else if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR || context == S_CTX_REMOTE) {
    static char name[] = "energy", form[] = "POLICY[,key=value]",
                usage[] =
                    "energy policy of molen: off, monitor, min_energy, min_time, min_time_energy or sweep; "
                    "with slowdown=SHARE (min_energy, sweep) or power_budget=POWER (monitor)";
    static spank_option option{name, form, usage, 1, 0, on_option};
    ::spank_option_register(spank, &option);
  }
  return ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char** words) {
  using namespace molen::slurm;
  if (::spank_context() != S_CTX_REMOTE) return ESPANK_SUCCESS;
  without_exceptions([&] {
    if (is_asked) set_variables(spank);
    start_sender(spank, count, words);
  });
  return ESPANK_SUCCESS;
}

// The end of a step. The sender sees its standard input end; nobody waits for it.
int slurm_spank_exit(spank_t, int, char**) {
  using namespace molen::slurm;
  if (hold >= 0) ::close(hold);
  hold = -1;
  return ESPANK_SUCCESS;
}
}
