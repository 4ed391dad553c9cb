// A mapped file that somebody else cuts short ends in SIGBUS at the next read. No library can
// prevent that; a program can at least say which file it was.
#pragma once

namespace deepinfer::cli {

/// From here on SIGBUS at a mapped file prints its name and the byte, and exits with kBadInput. A
/// SIGBUS of another kind ends the process as ever.
void report_bus_errors();

}  // namespace deepinfer::cli
