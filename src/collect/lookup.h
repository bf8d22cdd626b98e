// The addresses of a host, looked up while the caller does other things: a name service that does not answer may take
// minutes, and nothing can interrupt the call.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "collect/address.h"

namespace molen::collect {

class Lookup {
 public:
  using Find = std::function<Result<std::vector<Endpoint>>(const Address&)>;

  // Begins to look in a thread of its own. The thread may outlive this object and then ends with the process, so `find`
  // must own whatever it uses. Throws Error if there can be no thread.
  Lookup(Address address, Find find);
  // Returns a descriptor that is readable once there is a result.
  int descriptor() const;
  bool done() const;
  // Returns the result. To be called once, when it is done.
  Result<std::vector<Endpoint>> take();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace molen::collect
