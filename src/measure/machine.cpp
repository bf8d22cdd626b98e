#include "measure/machine.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <sys/utsname.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include "base/processor.h"
#include "base/units.h"
#include "comm/mpi/mpi.h"
#include "math/gemm.h"
#include "math/gemm_narrow.h"

namespace molen::measure {

Json describe_machine() {
  struct utsname system {};
  ::uname(&system);
  const std::int64_t memory = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return {{"host", system.nodename},
          {"system", std::string(system.sysname) + " " + system.release},
          {"cpu", cpu_model()},
          {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_bytes", memory},
          {"cpu_capability", at::get_cpu_capability()},
          {"libtorch", TORCH_VERSION},
          {"gemm_library", math::name_of(math::gemm_library())},
          {"own_bf16_products", math::own_products()},
          {"cuda", at::hasCUDA()},
          {"mpi", comm::mpi_available()},
          {"compiler", __VERSION__},
          {"molen", MOLEN_VERSION},
          {"git", MOLEN_GIT}};
}

}  // namespace molen::measure
