// molen doctor: reports what this machine can and cannot do, and why.
#pragma once

namespace molen::measure {

// Prints a table, or JSON. Returns the exit status.
int doctor(bool json, bool measure);

}  // namespace molen::measure
